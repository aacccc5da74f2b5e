"""Ids of all runs that tables ask for, and checksums of partitions: a redesign proves by them that it changed nothing.

    python -m tests.golden.ids compare     before and after a change that is to change nothing
    python -m tests.golden.ids write       after one that is to change ids or partitions: say why in the commit

No images but scikit-learn's digits are needed: for the ids every other data set is a spec of its recipe's name alone.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbench import data, partitions, protocol
from fedbench.engine.job import Job
from fedbench.errors import FedbenchError
from fedbench.partitions import schemes
from fedbench.planner import cells
from fedbench.planner import table as tables
from fedbench.results.frame import Frame
from fedbench.specs import DatasetSpec
from fedbench.store import Store
from tests.golden.compare import compare

FILE = Path(__file__).with_name("ids.json")

TEN: dict[str, Any] = {"scheme": "dirichlet", "alpha": 0.5, "clients": 10}
COLOURED: dict[str, Any] = {
    "scheme": "colored",
    "clients": 2,
    "blocks": [[0, 50, 600, 700], [200, 500, 800, 1000]],
    "flips": [[0.5, 0.2], [0.2, 0.8]],
    "label_noise": 0.25,
}

#: Paper, and what is chosen of its partition.
PARTITIONS: Sequence[tuple[str, dict[str, Any]]] = (
    ("feddrm", {"scheme": "dirichlet", "alpha": 0.3}),
    ("feddrm", {"scheme": "dirichlet", "alpha": 0.1, "clients": 5, "shift": "high"}),
    ("feddrm", {"scheme": "dirichlet", "alpha": 0.5, "clients": 4, "validation": 0.2, "subsample": 0.5}),
    ("feddrm", {"scheme": "dirichlet", "alpha": 0.5, "clients": 4, "shift": "pool", "subsample": 0.25}),
    ("feddrm", {"scheme": "shards", "shards": 5}),
    ("feddrm", {"scheme": "shards", "shards": 2, "clients": 7, "seed": 3}),
    ("feddrm", {"scheme": "iid", "clients": 9}),
    ("feddrm", {"scheme": "iid", "clients": 9, "validation": 0.25, "train_fraction": 0.6}),
    ("feddrm", {"scheme": "natural", "by": "writer", "clients": 6}),
    ("feddrm", {"scheme": "natural", "by": "writer", "clients": 15, "round_robin": True}),
    ("feddrm", {"scheme": "dirichlet", "alpha": 0.5, "clients": 26, "within": "writer", "cap": 60, "min_size": 2}),
    ("pfedfda", TEN),
    ("pfedfda", {**TEN, "shift": "corrupted"}),
    ("pfedfda", {**TEN, "shift": "corrupted_code"}),
    ("pfedfda", {"scheme": "limited", "alpha": 0.5, "size": 40, "clients": 12}),
    ("pfedfda", {**TEN, "clients": 8, "unseen": 2, "unseen_as": ["fog-3", "jpeg-1"]}),
    ("ftw_erm", {}),
    *(("ftw_erm", {"preset": name}) for name in protocol.load("ftw_erm").presets if not name.startswith("colored")),
    ("ftw_erm", COLOURED),
    *(
        ("flux", {"scheme": "equal", "shift": shift, "level": level, "clients": 10})
        for shift in ("px", "py", "pyx", "pxy")
        for level in (1, 3, 5, 8)
    ),
    *(
        ("flux", {"scheme": "equal", "shift": shift, "level": 4, "clients": 8, "fewer_classes": few})
        for shift in ("px+py", "pxy+py", "pyx+py")
        for few in (False, True)
    ),
    *(
        ("flux", {"scheme": "equal", "shift": shift, "level": 2, "clients": 6, "phases": stages})
        for shift in ("px", "py", "pyx", "pxy")
        for stages in (2, 3)
    ),
    ("flux", {"scheme": "equal", "shift": "none", "clients": 10}),
    ("flux", {"scheme": "equal", "shift": "pxy", "level": 3, "clients": 10, "strict": True}),
    ("flux", {"scheme": "equal", "shift": "px", "level": 8, "clients": 10, "duplicates": 4, "data_share": 0.05}),
    ("flux", {"scheme": "equal", "shift": "px", "level": 8, "clients": 10, "unseen": 2}),
    ("flux", {"scheme": "equal", "shift": "py", "level": 7, "clients": 10, "copies": 3}),
    *(
        ("flux", {"scheme": "equal", "shift": shift, "level": 5, "clients": 10, "draws": draws})
        for shift, draws in (("px", "anda"), ("py", "anda"), ("pxy", "anda"), ("pyx", "fedbench"))
    ),
    ("flux", {"scheme": "sampled", "by": "writer", "size": 20, "test_size": 5, "clients": 12, "shift": "none"}),
    ("flux", {"scheme": "sampled", "by": "writer", "size": 20, "test_size": 5, "clients": 12, "leak_test": True}),
    ("flux", {"scheme": "sampled", "by": "writer", "size": 9, "test_size": 2, "clients": 5, "disjoint_by": "patient"}),
    ("flux", {"scheme": "sampled", "by": "age", "threshold": 40.0, "size": 30, "test_size": 9, "clients": 8}),
)


def sha(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]


def runs(store: Store) -> Iterator[tuple[str, str]]:
    """Table and budget -> how many runs it asks for, and the checksum of their ids."""

    def any_images(name: str, *_: Any) -> tuple[DatasetSpec, int]:
        recipe = data.recipe(name)
        return DatasetSpec(recipe.name, "golden", "0" * 12), data.info(name).partition_classes

    cells.dataset = any_images
    for table in map(tables.load, tables.names()):
        if table.counted:
            continue
        for budget in protocol.load(table.protocol).budgets:
            try:
                found = cells.find(table, budget, Frame(store), [])
            except FedbenchError as error:
                yield f"{table.id}/{budget}", f"refused: {error.message}"
                continue
            ids: dict[str, str] = {}
            for cell in found.all:
                for spec in cell.specs:
                    try:
                        name = Job.of(spec.setting, cell.row.method, spec.params).spec.id
                        assert name == spec.id, "the report looks for another run than training makes"
                    except FedbenchError as error:
                        name = f"refused: {error.message}"
                    tried = f" lr {spec.setting.lr}" if cell.trials else ""
                    ids[f"{cell.row.label} {cell.column.key} {spec.setting.seed}{tried}"] = name
            yield f"{table.id}/{budget}", f"{len(ids)} {sha(ids)}"


def drawn(store: Store) -> Iterator[tuple[str, str]]:
    """What was chosen -> the partition's id, and the checksums of its rows, its texts and its groups."""
    digits = data.resolve("digits", store)
    loaded = data.load(digits, store)
    rows = np.arange(len(loaded.labels))
    columns = {"writer": (rows * 7 // 3) % 13, "age": rows % 80, "patient": rows // 2}
    loaded = replace(loaded, columns={**loaded.columns, **columns})
    for paper, chosen in PARTITIONS:
        place = " ".join((paper, *(f"{name}={value}" for name, value in chosen.items())))
        try:
            spec = protocol.load(paper).partition_spec(digits, 10, **chosen)
            made = partitions.make(spec, loaded)
        except FedbenchError as error:
            yield place, f"refused: {error.message}"
            continue
        parts = [
            None if part is None else part.tolist()
            for part in (made.client, made.sample, made.test, made.label, made.colour, made.validation, made.phase)
        ]
        views = [str(shift) for shift in made.transforms]
        groups = [made.groups, made.test_groups, [one.to_json() for one in made.distributions]]
        densities = [value.tolist() for value in (made.densities.strata, made.densities.train, made.densities.test)]
        said = [schemes.label(spec), schemes.details(spec), spec.to_dict()]
        yield place, " ".join((spec.id, *map(sha, (parts, views, groups, densities, said))))


def measure() -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        return {**dict(drawn(store)), **dict(runs(store))}


def main(command: str) -> int:
    if command == "write":
        FILE.write_text(json.dumps(measure(), indent=1) + "\n")
        return 0
    return compare(json.loads(FILE.read_text()), measure())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
