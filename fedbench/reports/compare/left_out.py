"""Leave-one-group-out: the accuracy on the group that a run left out, for each group, and the mean over the groups.

As benchmarks of shift between domains report it (Gulrajani and Lopez-Paz, In Search of Lost Domain Generalization,
ICLR 2021): a model is trained without a group and tested on it, each group in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedbench.groups import by_key
from fedbench.metrics.read import UNSEEN
from fedbench.planner.rounds import AFTER_LAST, Rounds
from fedbench.planner.table.spec import Column
from fedbench.reports.compare.comparison import Comparison, Group, compare
from fedbench.reports.compare.numbers import scale
from fedbench.reports.layout.grid import Entry, Grid, Heading, Line, filled, grid_of_runs, ranked
from fedbench.reports.numbers.measured import Value, over_seeds
from fedbench.results.run import Run, State
from fedbench.words import counted


def left_out(runs: Sequence[Run], rounds: Rounds = AFTER_LAST) -> list[Grid]:
    """A grid for each data set and partition of which runs left out one group each: a row with the mean over the groups
    and one for each group, a column for each method under its values."""
    alone = ((_elsewhere(run), run) for run in runs if run.spec.setting.partition.unseen == 1)
    sides = (
        compare(of, [UNSEEN], rounds=rounds) for of in by_key(alone).values() if len({_group(run) for run in of}) > 1
    )
    return [_grid(side) for side in sides if side.metrics]


def _group(run: Run) -> str:
    """The name of the group that the run left out."""
    part = run.spec.setting.partition
    names = run.client_names or tuple(map(str, part.options.get("order", ())))
    return names[part.trainees] if names else f"client {part.trainees}"


def _elsewhere(run: Run) -> str:
    """The run's data set and partition, whatever group it left out."""
    part = run.spec.setting.partition
    facts = {name: value for name, value in part.to_dict().items() if name not in ("order", "seed")}
    return repr(sorted(facts.items(), key=str))


def _grid(side: Comparison) -> Grid:
    (number,) = side.numbers
    groups = by_key((_group(group[0]), group) for group in side.groups)
    columns = list(dict.fromkeys(side.label_there(group) for group in side.groups))
    of: dict[str, dict[str, Group]] = {
        column: {name: group for name, every in groups.items() for group in every if side.label_there(group) == column}
        for column in columns
    }
    factor, unit, decimals = scale(number.unit, [value for value in side.values.values() if value is not None])
    form = Column(number.label, decimals=decimals, std_decimals=max(decimals, 1))

    def entry(value: Value | None, runs: Iterable[Run]) -> Entry:
        ids = tuple(run.id for run in runs)
        if value is None:
            return Entry(State.MISSING, runs=ids)
        shown = over_seeds([(seed, Value(one * factor)) for seed, one in value.per_seed.items()], ddof=1)
        return filled(State.DONE, shown, form, ids)

    lines = []
    for name in (None, *groups):
        here = [
            (_mean(side, of[c], list(groups)), [run for group in of[c].values() for run in group])
            if name is None
            else (side.value(of[c][name], number), of[c][name])
            if name in of[c]
            else (None, ())
            for c in columns
        ]
        entries = ranked([entry(value, list(runs)) for value, runs in here], number.best, decimals)
        lines.append(Line(name or "mean", "run", tuple(entries), keys=(name or "mean",)))
    heads = [Heading("", column, f"{UNSEEN}: {column}", unit) for column in columns]
    title = f"Accuracy on the group left out, each of {counted(len(groups), 'group')} in turn"
    return grid_of_runs("left out", title, ("left out",), heads, lines, _notes(side, len(groups)), side.problems)


def _mean(side: Comparison, of: Mapping[str, Group], groups: Sequence[str]) -> Value | None:
    """The mean over all groups, of each seed that left out each of them; None if there is no such seed."""
    by_seed = by_key(
        (run.spec.setting.seed, value)
        for group in of.values()
        for run in group
        if (value := side.values.get((run.id, UNSEEN))) is not None
    )
    whole = [(seed, Value(sum(values) / len(values))) for seed, values in by_seed.items() if len(values) == len(groups)]
    return over_seeds(whole, ddof=1) if whole else None


def _notes(side: Comparison, count: int) -> Iterable[str]:
    yield f"A run for each group, which trains without it. Mean: over the {count} groups, all with the same weight."
    if side.rounds != AFTER_LAST:
        yield f"{side.rounds.words(run.spec.setting for run in side.runs)}."
    seeds = sorted({len(group) for group in side.groups})
    if seeds[-1] > 1:
        n = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
        yield f"± is the standard deviation (ddof 1) over {n} seeds, that of the mean is over the seeds' means."
