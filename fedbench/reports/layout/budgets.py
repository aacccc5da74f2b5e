"""Budgets in words: what the runs of a table are, and which of its rows and columns differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedbench import protocol
from fedbench.metrics.definitions import all_metrics
from fedbench.reports.status.cells import Cells
from fedbench.reports.status.settings import sketch
from fedbench.reports.table.spec import Column, Row, Table
from fedbench.specs import PartitionSpec, Setting


def in_words(cells: Cells) -> str:
    """The budget of a table's runs, and whether it is less than the paper's."""
    scope = cells.scope + (", not the paper's" if the_papers(cells) else "")
    return f"{scope[0].upper()}{scope[1:]}: {scale(cells.table, cells.budget)}."


def of_own(cells: Cells) -> Iterator[str]:
    """What only the file of a table of one's own tells else: its metrics, and of its columns' clients how many there
    are, and how much of their training images they keep and hold back."""
    table = cells.table
    if table.shipped:
        return
    known, metrics = all_metrics(), dict.fromkeys(str(column.metric) for column in table.measured)
    yield from (f"{name}: {known[name].description}." for name in metrics if name in known)
    places: dict[str, list[str]] = {}
    for column in table.measured:
        places.setdefault(_clients(sketch(table, column, cells.budget).partition), []).append(column.key)
    if len(places) == 1:
        yield f"{next(iter(places))}."
    else:
        yield "; ".join(f"{', '.join(keys)}: {words}" for words, keys in places.items()) + "."


def _clients(part: PartitionSpec) -> str:
    said = [f"{part.clients} clients" + (f", of which {part.unseen} never train" if part.unseen else "")]
    if part.subsample is not None:
        said.append(f"each keeps {100 * part.subsample:g} % of its training images")
    if part.validation is not None:
        said.append(f"{100 * part.validation:g} % of each client's training images are held back for validation")
    return ", ".join(said)


def the_papers(cells: Cells) -> list[str]:
    """The paper's budget, if the table's runs are of another one."""
    table, rules = cells.table, protocol.load(cells.table.protocol)
    if cells.budget == "paper" or "paper" not in rules.budgets or not table.of_paper:
        return []
    seeds = rules.seeds("paper")
    same = table.seeds or len(seeds) == len(rules.seeds(cells.budget))
    return [f"Budget paper: {scale(table, 'paper')}{'' if same else f', {len(seeds)} seeds'}."]


def scale(table: Table, budget: str) -> str:
    """A budget in words: rounds, local work, models, optimisers that are not the protocol's, evaluated rounds. Of rows
    that share the table's, if any do."""
    rows = [None] if any(not row.own(budget) for row in table.rows) else table.rows
    settings = [sketch(table, column, budget, row) for row in rows for column in table.measured]
    windows = {s.window: None for s in settings}
    window = f", the last {either(map(str, windows))} counted" if max(windows) > 1 else ""
    rounds = either(str(s.rounds) for s in settings)
    cohorts: dict[int, dict[str, None]] = {}
    for s in settings:
        if s.cohort:
            cohorts.setdefault(s.partition.clients, {})[str(s.cohort)] = None
    cohort = "".join(f", {either(drawn)} of {clients} clients in each" for clients, drawn in cohorts.items())
    rounds += " round" if rounds == "1" else " rounds"
    rules = protocol.load(table.protocol)
    # Named all, where one is not the protocol's.
    own = any(rules.own_descent(s, budget) for s in settings)
    descent = f", {either(s.descent for s in settings)}" if own else ""
    return f"{rounds} of {_local(settings)}{cohort}, {either(s.model for s in settings)}{descent}{window}"


def _local(settings: Sequence[Setting]) -> str:
    """A client's work in a round."""
    epochs = either(str(s.epochs) for s in settings if s.epochs is not None)
    steps = (s.steps for s in settings if s.steps is not None)
    told = ("one batch a client" if n == 1 else f"{n} steps" for n in steps)
    return either([f"{epochs} epoch{'' if epochs == '1' else 's'}", *told] if epochs else told)


def own_budgets(cells: Cells, rows: Sequence[Row]) -> list[str]:
    """Settings that single columns and these rows have of their own at the budget, such as more rounds."""
    own = [(_place(cells, c), c.budget.get(cells.budget, {})) for c in cells.table.measured]
    return _alike([*own, *((row.label, row.own(cells.budget)) for row in rows)])


def hyper_parameters(cells: Cells, rows: Sequence[Row]) -> list[str]:
    """The hyper-parameters that the protocol gives the methods of these rows at the budget."""
    return _alike(place for row in rows for place in _of_row(cells, row))


def _alike(places: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """A line for all that have the same values."""
    labels: dict[str, dict[str, None]] = {}
    for label, values in places:
        words = ", ".join(f"{v} rounds" if k == "rounds" else f"{k} = {v}" for k, v in values.items())
        labels.setdefault(words, {})[label] = None
    return [f"{', '.join(names)}: {words}." for words, names in labels.items() if words]


def _of_row(cells: Cells, row: Row) -> Iterator[tuple[str, dict[str, Any]]]:
    """A row's name and its hyper-parameters; by data set where the protocol has others for some."""
    table, rules = cells.table, protocol.load(cells.table.protocol)
    own = cells.declaration(row)
    places: list[tuple[str, dict[str, Any]]] = []
    for dataset in dict.fromkeys(c.dataset for c in table.measured if not table.undefines(row.label, c.key)):
        preset = rules.method_params(own.name if own else row.method, cells.budget, dataset)
        # What a row sets itself stands above what the protocol would.
        places.append((dataset, {k: row.params.get(k, v) for k, v in preset.items()}))
    if all(values == places[0][1] for _, values in places):
        yield from ((row.label, values) for _, values in places[:1])
    else:
        yield from ((f"{row.label} on {dataset}", values) for dataset, values in places)


def _place(cells: Cells, column: Column) -> str:
    """A column's name among budgets: its group's, where all of that have the same."""
    budgets = [c.budget.get(cells.budget) for c in cells.table.measured if c.group == column.group]
    return column.group if column.group and all(b == budgets[0] for b in budgets) else column.key


def either(values: Iterable[str]) -> str:
    """Values in words: "a or b"."""
    return " or ".join(dict.fromkeys(values))
