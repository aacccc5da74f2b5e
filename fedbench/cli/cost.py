"""What runs cost here, before they are made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedbench.cli import context
from fedbench.errors import FedbenchError
from fedbench.words import counted, duration

if TYPE_CHECKING:
    from fedbench.engine.sweep import Wanted


def of(runs: Sequence[Wanted], device: str) -> dict[str, float]:
    """Run's id -> its seconds here; empty if that cannot be told of one of them."""
    from fedbench import methods
    from fedbench.engine.cost import seconds
    from fedbench.plugins.mistakes import reported

    costs: dict[str, float] = {}
    try:
        for one in runs:
            with reported():
                method = methods.load(one.method)[0].create(one.spec.params)
            costs[one.spec.id] = seconds(one.spec.setting, method, context.store(), context.roots(), device)
    except FedbenchError:
        return {}
    return costs


def show(runs: Sequence[Wanted], scope: str, nothing: str, device: str, as_json: bool) -> None:
    """List the runs that a table lacks: a line for each row on each data set; in JSON each run. `scope` says
    which runs these are, `nothing` why there may be none."""
    from rich.table import Table

    if as_json:
        show_json(runs, device)
        return
    costs = of(runs, device)
    groups: dict[tuple[str, str], list[Wanted]] = defaultdict(list)
    for one in runs:
        groups[one.row or one.method, one.spec.setting.partition.dataset.name].append(one)
    table = Table("row", "data set", box=None, header_style="bold", pad_edge=False)
    table.add_column("to make", justify="right")
    table.add_column("time here", justify="right")
    for (row, dataset), those in groups.items():
        seconds = duration(sum(costs[one.spec.id] for one in those)) if costs else "–"
        table.add_row(row, dataset, str(len(those)), seconds)
    if runs:
        context.out().print(table)
    about = f", about {duration(sum(costs.values()))} of training here when idle" if costs else ""
    total = f"{counted(len(runs), 'run')} to make, {scope}{about}"
    context.out().print(total if runs else f"nothing to run: {nothing}")


def show_json(runs: Sequence[Wanted], device: str) -> None:
    """Each run in JSON, its `seconds` null where they cannot be told."""
    costs = of(runs, device)
    context.print_json([_facts(one) | {"seconds": costs.get(one.spec.id)} for one in runs])


def _facts(one: Wanted) -> dict[str, str | int]:
    setting = one.spec.setting
    return {
        "run": one.spec.id, "row": one.row, "method": one.method, "dataset": setting.partition.dataset.name,
        "partition": setting.partition.id, "seed": setting.seed,
    }  # fmt: skip
