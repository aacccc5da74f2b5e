"""Sentences about a table's runs, for its notes and for a paper's appendix: their budget and hyper-parameters, how the
numbers are averaged, the tuned values, tolerances, sources of images, cost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedbench import protocol
from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.metrics.definitions import all_metrics
from fedbench.models.registry import title
from fedbench.planner.cells import Cell, Cells
from fedbench.planner.others import Hits, records
from fedbench.planner.settings import sketch
from fedbench.planner.table import statistic
from fedbench.planner.table.load import short
from fedbench.planner.table.spec import SPREADS, Column, Row, Table
from fedbench.results import beside_local
from fedbench.results.reached import goal
from fedbench.results.run import Run, State
from fedbench.specs import PartitionSpec, Setting
from fedbench.words import counted, duration, listed


def the_budget(cells: Cells) -> str:
    """The budget of a table's runs, whether it differs from the paper's, and the seeds."""
    scope = cells.scope + (", not the paper's" if the_papers(cells) else "")
    seeds = _coverage(cells, cells.table.measured)
    return f"{scope[0].upper()}{scope[1:]}: {scale(cells.table, cells.budget)}; {seeds}."


def for_reader(
    cells: Cells,
    extra: Mapping[str, Hits],
    views: Collection[tuple[str, bool]],
    spread: bool,
    columns: Sequence[Column],
) -> list[str]:
    """What the reader of a paper needs below these columns of a table: what the numbers are, over how many seeds, and
    what was trained."""
    table = cells.table
    if table.counted:
        return []
    said = statistics(cells, extra, views, spread, columns)
    *others, last = (re.sub(r" \(ddof \d(, unweighted)?\)", "", text) for text in said)
    counts = _numbers_of_seeds(cells, columns) or {len(set(cells.seeds))}
    seeds = "one seed" if max(counts) == 1 else f"{' to '.join(map(str, sorted({min(counts), max(counts)})))} seeds"
    seeds += _draws(cells, columns) if max(counts) > 1 else ""
    return [*others, f"{last.removesuffix('.')}; {seeds}.", f"{_trained(table, columns, cells.budget)}."]


def of_own(cells: Cells) -> Iterator[str]:
    """Lines for a user's table, which only its file documents: its metrics; and per column the number of clients, and
    the shares of training images that they use and hold back for validation."""
    table = cells.table
    if table.shipped:
        return
    metrics = dict.fromkeys(str(column.metric) for column in table.measured)
    known = {**all_metrics(), **{name: one.definition for name in metrics if (one := goal(name))}}
    known |= {name: definition for name, (definition, _) in beside_local.NUMBERS.items()}
    yield from (f"{name}: {known[name].description}." for name in metrics if name in known)
    places = by_key((_clients(sketch(table, column, cells.budget).partition), column.key) for column in table.measured)
    if len(places) == 1:
        yield f"{next(iter(places))}."
    else:
        yield "; ".join(f"{', '.join(keys)}: {words}" for words, keys in places.items()) + "."


def _clients(part: PartitionSpec) -> str:
    parts = [f"{part.clients} clients" + (f", of which {part.unseen} never train" if part.unseen else "")]
    if part.subsample is not None:
        parts.append(f"each keeps {100 * part.subsample:g} % of its training images")
    if part.validation is not None:
        parts.append(f"{100 * part.validation:g} % of each client's training images are held back for validation")
    return ", ".join(parts)


def trained(cells: Cells) -> Iterator[str]:
    """What a run trains, and what the paper's own do if its budget is another one."""
    table, rules = cells.table, protocol.load(cells.table.protocol)
    yield f"A run trains for {_work(_settings(table, table.measured, cells.budget))}."
    if the_papers(cells):
        seeds = rules.seeds(protocol.PAPER, table.seeds)
        over = "" if len(seeds) == len(rules.seeds(cells.budget, table.seeds)) else f", over {len(seeds)} seeds"
        yield f"Those of the paper train for {_work(_settings(table, table.measured, protocol.PAPER))}{over}."


def seeds(cells: Cells) -> str:
    """The seeds that a number is over."""
    used, counts = sorted(set(cells.seeds)), sorted(_numbers_of_seeds(cells, cells.table.measured))
    every = listed(map(str, used))
    if len(used) == 1:
        return f"Each number is of one seed ({every})."
    if not counts or counts == [len(used)]:
        return f"Each number is over {len(used)} seeds ({every})."
    return f"A number is over {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} of the seeds {every}."


def the_papers(cells: Cells) -> list[str]:
    """A line with the paper's budget, if the table's runs have another one."""
    table, rules = cells.table, protocol.load(cells.table.protocol)
    if cells.budget == protocol.PAPER or protocol.PAPER not in rules.budgets or not table.of_paper:
        return []
    seeds = rules.seeds(protocol.PAPER, table.seeds)
    same = len(seeds) == len(rules.seeds(cells.budget, table.seeds))
    return [f"Budget {protocol.PAPER}: {scale(table, protocol.PAPER)}{'' if same else f', {len(seeds)} seeds'}."]


def scale(table: Table, budget: str) -> str:
    """A budget in words: rounds, local work, models, optimisers other than the protocol's, evaluated rounds. For rows
    without overrides, if there are any."""
    settings = _settings(table, table.measured, budget)
    windows = {s.window: None for s in settings}
    window = f", the last {either(map(str, windows))} counted" if max(windows) > 1 else ""
    rules = protocol.load(table.protocol)
    # If one differs from the protocol's, name all.
    differs = any(rules.own_descent(s, budget) for s in settings)
    descent = f", {either(s.descent for s in settings)}" if differs else ""
    return f"{_work(settings)}, {either(s.model for s in settings)}{descent}{window}"


def _trained(table: Table, columns: Sequence[Column], budget: str) -> str:
    """A budget in an author's words: rounds, local work, models of these columns."""
    settings = _settings(table, columns, budget)
    return f"{_work(settings)}; {either(title(s.model) for s in settings)}"


def _settings(table: Table, columns: Sequence[Column], budget: str) -> list[Setting]:
    """The settings of a table's columns, of rows without overrides if there are any."""
    rows = [None] if any(not row.overrides(budget) for row in table.rows) else table.rows
    return [sketch(table, column, budget, row) for row in rows for column in columns]


def _work(settings: Sequence[Setting]) -> str:
    """Rounds, a client's local work in each, and the cohorts, in words."""
    rounds = either(str(s.rounds) for s in settings)
    cohorts = by_key((s.partition.clients, str(s.cohort)) for s in settings if s.cohort)
    cohort = "".join(f", {either(drawn)} of {clients} clients in each" for clients, drawn in cohorts.items())
    rounds += " round" if rounds == "1" else " rounds"
    return f"{rounds} of {_local(settings)}{cohort}"


def _local(settings: Sequence[Setting]) -> str:
    """A client's local work per round, in words."""
    epochs = either(str(s.epochs) for s in settings if s.epochs is not None)
    steps = (s.steps for s in settings if s.steps is not None)
    texts = ("one batch a client" if n == 1 else f"{n} steps" for n in steps)
    return either([f"{epochs} epoch{'' if epochs == '1' else 's'}", *texts] if epochs else texts)


def own_budgets(cells: Cells, rows: Sequence[Row]) -> list[str]:
    """Lines with the setting overrides of columns and of these rows at the budget, such as more rounds."""
    of_columns = [(_place(cells, c), c.budget.get(cells.budget, {})) for c in cells.table.measured]
    return by_values([*of_columns, *((row.label, row.overrides(cells.budget)) for row in rows)])


def hyper_parameters(cells: Cells, rows: Sequence[Row]) -> list[str]:
    """Lines with the protocol's hyper-parameters for the methods of these rows at the budget."""
    return by_values(place for row in rows for place in _of_row(cells, row))


def by_values(places: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """One line per set of values, with the labels that have it; `places`: (label, values)."""
    words = (
        (", ".join(f"{v} rounds" if k == "rounds" else f"{k} = {v}" for k, v in values.items()), label)
        for label, values in places
    )
    labels = by_key(words, once=True)
    return [f"{', '.join(names)}: {words}." for words, names in labels.items() if words]


def _of_row(cells: Cells, row: Row) -> Iterator[tuple[str, dict[str, Any]]]:
    """(Row's label, hyper-parameters), one per data set if the protocol's differ between them."""
    table, rules = cells.table, protocol.load(cells.table.protocol)
    declaration = cells.declaration(row)
    places: list[tuple[str, dict[str, Any]]] = []
    for dataset in dict.fromkeys(c.dataset for c in table.measured if not table.undefines(row.label, c.key)):
        preset = rules.method_params(declaration.name if declaration else row.method, cells.budget, dataset)
        # A row's values override the protocol's.
        places.append((dataset, {k: row.params.get(k, v) for k, v in preset.items()}))
    if all(values == places[0][1] for _, values in places):
        yield from ((row.label, values) for _, values in places[:1])
    else:
        yield from ((f"{row.label} on {dataset}", values) for dataset, values in places)


def _place(cells: Cells, column: Column) -> str:
    """A column's group, if all its columns have the same overrides; else the column's key."""
    budgets = [c.budget.get(cells.budget) for c in cells.table.measured if c.group == column.group]
    return column.group if column.group and all(b == budgets[0] for b in budgets) else column.key


def either(values: Iterable[str]) -> str:
    """Values in words: "a or b"."""
    return " or ".join(dict.fromkeys(values))


#: Test augmentation in words.
VIEWS = {"crop": "test images are cropped at random as in training", "plain": "test images are untouched"}


def statistics(
    cells: Cells,
    extra: Mapping[str, Hits],
    views: Collection[tuple[str, bool]],
    spread: bool = True,
    of: Sequence[Column] = (),
) -> list[str]:
    """Lines about the averages in the numbers of these columns (empty: all), per group of columns if they differ;
    `spread`: whether one has a ±."""
    columns = by_key((str(column.statistic), column) for column in of or cells.table.measured)
    texts = {name: _statistic(name, some, cells, extra, views, spread) for name, some in columns.items()}
    if len(texts) == 1:
        return [f"{text}." for text in texts.values()]
    return [f"{', '.join(_places(columns[name], cells.table))}: {text}." for name, text in texts.items()]


def _places(columns: Sequence[Column], table: Table) -> list[str]:
    """Names of these columns: a group's name if all its columns are among them, else their keys."""
    rest = {c.group for c in table.measured if c not in columns}
    return list(dict.fromkeys(c.group if c.group and c.group not in rest else c.key for c in columns))


def _statistic(
    name: str,
    columns: Sequence[Column],
    cells: Cells,
    extra: Mapping[str, Hits],
    views: Collection[tuple[str, bool]],
    spread: bool,
) -> str:
    settings = [sketch(cells.table, column, cells.budget) for column in columns]
    window = either(str(setting.window) for setting in settings)
    once = name == "last_rounds" and window == "1"
    entry = statistic.find("last" if once else name)
    said = entry.rule.words(settings) if entry.rule else entry.words.format(window=window)
    if not once and entry.ddof is not None and spread and len(set(cells.seeds)) > 1:
        said += f"; ± is the standard deviation (ddof {entry.ddof}) over seeds"
    if name == "pairs":
        return said
    if entry.of_images:
        once = name == "last_rounds" and any(only for _, only in views)
        return said + "; untouched test images are asked for after the last round only, so without ±" * once
    devices = either(
        str(r.provenance.get("device", "unknown"))
        for r in records(cells, extra, [c.key for c in columns])
        if r.complete
    )
    return said + (f"; measured on {devices}" if devices else "")


def _numbers_of_seeds(cells: Cells, columns: Sequence[Column]) -> set[int]:
    """The numbers of seeds that the cells of these columns are over; empty if they have no number."""
    return {len(seeds) for seeds in _seeds(cells, columns)}


def _seeds(cells: Cells, columns: Sequence[Column]) -> list[set[int]]:
    """The seeds of each cell of these columns that has a number."""
    keys = {column.key for column in columns}
    there = (
        {record.spec.setting.seed for record in cell.records if record and record.complete}
        for cell in cells.all
        if cell.column.key in keys and not cell.tuning
    )
    return [seeds for seeds in there if seeds]


def _coverage(cells: Cells, columns: Sequence[Column]) -> str:
    """The seeds of these columns' cells: all that they need, or how many of them are there (of a cell: at least and at
    most)."""
    used, there = sorted(set(cells.seeds)), _seeds(cells, columns)
    counts = sorted({len(seeds) for seeds in there})
    every = ", ".join(map(str, used))
    if len(used) == 1:
        return f"seed {every}"
    if cells.table.statistic == "pairs":  # which pools them
        return f"seeds {every}"
    if not counts or counts == [len(used)]:
        return f"mean of {len(used)} seeds: {every}{_draws(cells, columns)}"
    trained = ", ".join(map(str, sorted(set().union(*there))))
    some = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{some} of {len(used)} seeds ({every if trained == every else f'{trained} of {every}'})"


def _draws(cells: Cells, columns: Sequence[Column]) -> str:
    """Whether each seed of a user's table draws the partitions of these columns anew; "" if some do."""
    drawn = {
        len({setting.partition.seed for setting in settings})
        for key, settings in cells.settings.items()
        if key in {column.key for column in columns} and not cells.table.shipped
    }
    if drawn == {1}:
        return ", on one draw of the partition"
    return ", each with its own draw of the partition" if drawn == {len(set(cells.seeds))} else ""


def expected(cells: Cells, view: str) -> set[tuple[str, bool]]:
    """(View, whether evaluated once) of future runs; those that train on crops evaluate plain images only once."""
    found = {sketch(cells.table, c, cells.budget).augment == "crop" for c in cells.table.measured}
    return {("crop", False) if crops and view == "crop" else ("plain", crops) for crops in found}


def tuned_in_brief(cells: Cells) -> Iterator[str]:
    """A line with the candidate values, how they are selected, and how often each was."""
    table = cells.table
    if not table.tune:
        return
    distinct = list(_distinct(cells))
    values = "; ".join(f"{name} from {', '.join(map(short, of))}" for name, of in table.tune.items())
    counts = Counter("to be chosen" if cell.tuned is None else _words(cell.tuned) for cell in distinct)
    failed = sum(record is not None and record.state is State.FAILED for cell in distinct for record in cell.trials)
    failures = f"; {failed} of the runs that they were chosen by failed" if failed else ""
    (seed, *_) = protocol.load(table.protocol).seeds(cells.budget, table.seeds)
    how_often = ", ".join(f"{words}: {n}" for words, n in counts.most_common())
    yield (
        f"Tuned: {values}, for each row and partition by the accuracy on images that clients hold back, seed {seed}"
        f"{f' ({how_often}{failures})' if distinct else ''}."
    )


def tuned_by_row(cells: Cells, rows: Sequence[Row]) -> Iterator[str]:
    """One line per row with its selected values by column."""
    for row in rows:
        distinct = (cell for cell in _distinct(cells) if cell.row is row)
        places = by_key((_words(cell.tuned), cell.column.key) for cell in distinct if cell.tuned is not None)
        if places:
            texts = (f"{words} in {', '.join(keys)}" for words, keys in places.items())
            yield f"{row.label}: {'; '.join(texts)}."


def _distinct(cells: Cells) -> Iterator[Cell]:
    """One cell per row and setting: columns may share runs, also shipped runs without images."""
    for line in cells.grid:
        by_runs = {cell.specs: cell for cell in reversed(line) if cell.trials}
        yield from reversed(by_runs.values())


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {short(value)}" for name, value in values.items())


def tolerances(table: Table) -> list[str]:
    """A line with the tolerances of numbers other than accuracies."""
    reported = {column for _, column in table.trusted}
    tolerant = [c for c in table.columns if c.key in reported and c.tolerance]
    by_size = by_key((column.tolerance, column.key) for column in tolerant)
    what = f" of the ratio to {table.ratio_to}" if table.ratio_to else ""
    by_column = len(by_size) > 1
    sizes = [f"±{size:g}{what}" + f" ({', '.join(keys)})" * by_column for size, keys in by_size.items()]
    meant = ", meant for the paper's own budget" if table.shipped else ""
    return [f"Tolerance: {'; '.join(sizes)}{meant}."] if sizes else []


def spreads(table: Table) -> list[str]:
    """Lines about the ± of printed means over other columns."""
    columns = {c.spread: [d.key for d in table.printed if d.spread == c.spread] for c in table.printed if c.spread}
    alone = len(columns) == 1
    return [
        f"± of {'means over other cells' if alone else ', '.join(keys)}: {SPREADS[spread]}."
        for spread, keys in columns.items()
    ]


def sources(cells: Cells) -> list[str]:
    """One line per source other than a recipe's first one, such as a copy or a part, with its data sets."""
    return [f"{', '.join(names)} images: {title}." for title, names in copies(cells).items()]


def copies(cells: Cells) -> Mapping[str, Iterable[str]]:
    """Title of a source other than a recipe's first one -> the data sets with its images."""
    from fedbench.data import recipe

    found: dict[str, dict[str, None]] = {}  # title of a source -> the data sets
    packed = (record.spec.setting.partition.dataset for record in records(cells, {}) if record.shipped)
    for spec in (*(spec for spec, _ in cells.made.datasets.values()), *packed):
        try:
            others = recipe(spec.name).sources[1:]
        except FedbenchError:  # a user's recipe that does not exist any more
            continue
        for source in (source for source in others if source.name == spec.source):
            found.setdefault(source.title, {})[spec.name] = None
    return found


def cost(runs: Sequence[Run]) -> list[str]:
    """A line with the seconds of training."""
    done = [r for r in runs if r.complete]
    seconds = sum(float(r.provenance.get("train_seconds", 0.0)) for r in done)
    return [f"Cost: {duration(seconds)} of training in {counted(len(done), 'run')}."] if done else []
