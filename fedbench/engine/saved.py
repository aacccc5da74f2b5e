"""A grid as a table's file, which `report --table` prints again from the same runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbench import methods
from fedbench.engine.grid import Grid, Point
from fedbench.partitions import schemes
from fedbench.plugins.classes import is_file
from fedbench.protocol import Protocol
from fedbench.specs import PartitionSpec

#: What a partition has beside the options that a table's column repeats.
_ASIDE = ("dataset", "version")


def text(grid: Grid, points: Sequence[Point], rules: Protocol, folder: Path) -> str:
    """The TOML text of a table with a row for each method and its values and a column for each partition; paths of
    users' files are relative to `folder`."""
    rows = {_key(point): point for point in points}
    columns = {tuple(point.partition.items()): point for point in points}
    varied = set(grid.varied)
    lines = [
        f"# Written by fedbench sweep, for report --table: mean and standard deviation over {_seeds(grid)}.",
        f"title = {_value(f'Sweep on {grid.dataset}')}",
        f"protocol = {_value(rules.name)}",
        'metric = "average_accuracy"', 'statistic = "final"', 'view = "plain"', 'unit = "percent"',
        "decimals = 2", "std_decimals = 2", 'best = "max"',
        *([f"seeds = {_value(list(grid.seeds))}"] if grid.seeds else []),
    ]  # fmt: skip
    for point in rows.values():
        values = {**point.setting, **point.params}
        label = ", ".join(
            [_title(point.method), *(f"{k.replace('_', ' ')} {v}" for k, v in values.items() if k in varied)]
        )
        lines += ["", "[[rows]]", f"label = {_value(label)}", f"method = {_value(_relative(point.method, folder))}"]
        lines += [
            f"{name} = {_value(own)}" for name, own in (("params", _plain(point)), ("train", point.setting)) if own
        ]
    for point in columns.values():
        at = {k: v for k, v in point.partition.items() if k in varied}
        label = ", ".join(f"{k} {v}" for k, v in at.items()) or schemes.label(_partition(point))
        lines += ["", "[[column]]", f"label = {_value(label)}", f"dataset = {_value(_partition(point).dataset.name)}"]
        lines.append(f"partition = {_value(_options(_partition(point), rules.redraws))}")
    return "\n".join(lines) + "\n"


def _key(point: Point) -> tuple[Any, ...]:
    """What makes two points one row."""
    return point.method, tuple(point.setting.items()), tuple(point.params.items())


def _seeds(grid: Grid) -> str:
    return f"the seeds {', '.join(map(str, grid.seeds))}" if grid.seeds else "one seed, so there is no deviation"


def _title(method: str) -> str:
    kind, _ = methods.load(method)
    return kind.title or kind.name


def _relative(method: str, folder: Path) -> str:
    """A method as the file in `folder` is to name it."""
    if not is_file(method):
        return method
    path, colon, name = method.rpartition(":") if ".py:" in method else (method, "", "")
    near = Path(os.path.relpath(path, folder)).as_posix()
    return f"{near if near.startswith('..') else f'./{near}'}{colon}{name}"


def _partition(point: Point) -> PartitionSpec:
    return point.runs[0].spec.setting.partition


def _plain(point: Point) -> dict[str, Any]:
    """The point's hyper-parameters as values."""
    return {name: point.runs[0].spec.params[name] for name in point.params}


def _options(spec: PartitionSpec, redraws: bool) -> dict[str, Any]:
    """All that the partition was told; not its seed where every run draws its own."""
    facts = {k: v for k, v in schemes.facts(spec).items() if k not in _ASIDE and v is not None}
    return {k: v for k, v in facts.items() if not (k == "seed" and redraws)}


def _value(value: Any) -> str:
    """A value in TOML."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
