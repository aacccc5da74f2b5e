"""What the numbers of a table are taken over: rounds, clients, seeds, views of the test images."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fedbench.reports.layout.budgets import either
from fedbench.reports.status.cells import Cells
from fedbench.reports.status.others import Hits, records
from fedbench.reports.status.settings import sketch
from fedbench.reports.table.spec import OVER_SEEDS, Column, Table

#: Test augmentation in words.
VIEWS = {"crop": "test images are cropped at random as in training", "plain": "test images are untouched"}


def statistics(cells: Cells, extra: Mapping[str, Hits], views: Collection[tuple[str, bool]]) -> list[str]:
    """What the numbers are taken over; by columns where these differ."""
    columns: dict[str, list[Column]] = {}
    for column in cells.table.measured:
        columns.setdefault(str(column.statistic), []).append(column)
    told = {name: _statistic(name, of, cells, extra, views) for name, of in columns.items()}
    if len(told) == 1:
        return [f"{text}." for text in told.values()]
    return [f"{', '.join(_places(columns[name], cells.table))}: {text}." for name, text in told.items()]


def _places(columns: Sequence[Column], table: Table) -> list[str]:
    """What to call these columns: by their groups where all of a group's are among them."""
    rest = {c.group for c in table.measured if c not in columns}
    return list(dict.fromkeys(c.group if c.group and c.group not in rest else c.key for c in columns))


def _statistic(
    name: str,
    columns: Sequence[Column],
    cells: Cells,
    extra: Mapping[str, Hits],
    views: Collection[tuple[str, bool]],
) -> str:
    window = either(str(sketch(cells.table, c, cells.budget).window) for c in columns)
    said = {
        "last_rounds": "Value after the last round"
        if window == "1"
        else f"± is the standard deviation (ddof 0) over the last {window} rounds of a run",
        "clients": "± is the standard deviation (ddof 1) across clients after the last round",
        "weighted_clients": "Means over clients are weighted by their test images; ± is the standard deviation "
        "(ddof 1, unweighted) across clients after the last round",
        "rounds": "± is the standard deviation (ddof 1) over a run's rounds without the first",
        "whole_run": "One number a run",
        "pairs": "Over all pairs of a run's snapshots; ± is the standard deviation (ddof 0) over the pairs",
        "final": "Value after the last round",
        "folds": "Value after the last round",
        "worst_tenth": "Mean over the worst tenth of the clients after the last round",
        "unseen": "Mean over the clients that never train, after the last round",
        "best_round": "Value at the evaluated round of the best mean client accuracy (selected on test data)",
    }[name]
    used = sorted(set(cells.seeds))
    seeds = ", ".join(map(str, used))
    if name == "pairs":
        return f"{said}; seed{'s' * (len(used) > 1)} {seeds}"
    if name in OVER_SEEDS and len(used) > 1:
        said += f"; ± is the standard deviation (ddof {OVER_SEEDS[name]}) over seeds"
    text = f"{said}; {'seed' if len(used) == 1 else f'mean of {len(used)} seeds:'} {seeds}"
    if name not in ("whole_run", "rounds"):
        once = name == "last_rounds" and any(only for _, only in views)
        return text + "; untouched test images are asked for after the last round only, so without ±" * once
    devices = either(
        str(r.provenance.get("device", "unknown"))
        for r in records(cells, extra, [c.key for c in columns])
        if r.artifact
    )
    return text + (f"; measured on {devices}" if devices else "")


def expected(cells: Cells, view: str) -> set[tuple[str, bool]]:
    """The views that numbers will be of: only runs with crops have those, and plain images once."""
    found = {sketch(cells.table, c, cells.budget).augment == "crop" for c in cells.table.measured}
    return {("crop", False) if crops and view == "crop" else ("plain", crops) for crops in found}
