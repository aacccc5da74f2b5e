"""How long missing runs would train on this machine: estimated, and listed for `--dry-run`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from fedbench.cli import context, printing
from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.protocol import PAPER
from fedbench.words import counted, duration

if TYPE_CHECKING:
    from fedbench.engine.sweep import Following, MissingRuns, Wanted


def costs_of(runs: Iterable[Wanted], device: str) -> dict[str, float]:
    """Run id -> estimated seconds on this machine; empty if the estimate of any run is not known."""
    from fedbench import methods
    from fedbench.engine.cost import seconds
    from fedbench.plugins import reported

    costs: dict[str, float] = {}
    try:
        for one in runs:
            with reported():
                method = methods.load(one.method)[0].create(one.spec.params)
            costs[one.spec.id] = seconds(one.spec.setting, method, context.store(), context.roots(), device)
    except FedbenchError:
        return {}
    return costs


def about(costs: Iterable[float]) -> str:
    """The end of a line that counts runs: their total time, from the seconds of each."""
    total = sum(costs)
    return f", about {duration(total)} of training here when idle" if total else ""


def show(lacking: MissingRuns, scope: str, nothing: str, device: str, as_json: bool) -> None:
    """List a table's missing runs and those that follow: a line for each row and data set, or each run as JSON. `scope`
    names budget and precision; `nothing` is the reason to print if no run is missing."""
    if as_json:
        show_json(lacking.runs, device, lacking.following)
        return
    runs = [*lacking.runs, *(one.trial for one in lacking.following)]
    costs = costs_of({one.spec.id: one for one in runs}.values(), device)
    groups: dict[tuple[str, str], list[Wanted]] = defaultdict(list)
    for one in runs:
        groups[one.row or one.method, one.spec.setting.partition.dataset.name].append(one)
    if runs:
        show_costs(("row", "data set", "to make", "time here"), groups.items(), costs)
    later = f", {len(lacking.following):,} of them with the values chosen by the others" if lacking.following else ""
    total = f"{counted(len(runs), 'run')} to make{later}, {scope}{about(costs.get(one.spec.id, 0) for one in runs)}"
    context.out().print(total if runs else f"nothing to run: {nothing}")


def of_the_paper(runs: Sequence[Wanted], beside: Sequence[Wanted], device: str) -> str:
    """A line on the runs that a table lacks at its paper's budget; "" without any. It tells their time only where that
    takes no measurement and no partition but those of the runs `beside`, which are listed: one run for all seeds."""

    def measured_by(one: Wanted) -> tuple[str, str, int, str]:
        of = one.spec.setting
        return of.partition.id, of.model, of.batch_size, of.precision

    measured = {*map(measured_by, beside)}
    groups = by_key((one.spec.but_for_seeds, one) for one in runs)
    known: dict[str, tuple[Wanted, int]] = {}
    for same in groups.values():
        for one in same:
            if measured_by(one) in measured:
                known.setdefault(one.spec.but_for_seeds, (one, len(same)))
    costs = costs_of((one for one, _ in known.values()), device) if len(known) == len(groups) else {}
    time = about(costs.get(one.spec.id, 0) * count for one, count in known.values())
    return f"the paper's own training: {counted(len(runs), 'run')}{time} (--budget {PAPER})" if runs else ""


def show_costs(
    headings: Sequence[str], lines: Iterable[tuple[Sequence[str], Sequence[Wanted]]], costs: Mapping[str, float]
) -> None:
    """Print a line for each group of runs: its texts, the number of runs to train, and their training time here."""
    table = printing.table(*headings, right=("runs", "to make", "time here"))
    for texts, runs in lines:
        seconds = duration(sum(costs.get(one.spec.id, 0.0) for one in runs)) if runs and costs else "–"
        table.add_row(*texts, str(len(runs)), seconds)
    context.out().print(table)


def show_json(runs: Sequence[Wanted], device: str, following: Sequence[Following] = ()) -> None:
    """Print the runs as JSON; `seconds` is null if it is not known, `run` and `partition` of runs that follow are."""
    costs = costs_of({one.spec.id: one for one in chain(runs, (one.trial for one in following))}.values(), device)

    def fields(of: Wanted) -> dict[str, Any]:
        setting = of.spec.setting
        return {
            "run": of.spec.id,
            "row": of.row,
            "method": of.method,
            "dataset": setting.partition.dataset.name,
            "partition": setting.partition.id,
            "seed": setting.seed,
            "seconds": costs.get(of.spec.id),
        }

    later = [{**fields(one.trial), "run": None, "partition": None, "seed": one.seed} for one in following]
    printing.print_json([*map(fields, runs), *later])
