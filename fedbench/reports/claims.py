"""The claims that papers draw from their tables, judged on the numbers measured at each budget; and how far our numbers
lie from the reported ones."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedbench import protocol, reader, resources
from fedbench.data import called
from fedbench.errors import check_known, unknown
from fedbench.planner import table as tables
from fedbench.planner.cells import Cells, find
from fedbench.planner.table.claims import OPEN, Verdict
from fedbench.planner.table.spec import Table
from fedbench.reports.layout.build import grid_of, verdicts
from fedbench.reports.layout.grid import Grid
from fedbench.reports.numbers.agreement import POINTS, Tally
from fedbench.reports.render.text import escape, how
from fedbench.results.frame import Frame, State
from fedbench.results.packs import Packs, of_papers, with_fedbench
from fedbench.results.packs import summary as of_pack
from fedbench.store import Store
from fedbench.words import counted, duration

#: Numbers of rivals that are told beside a row that is to be among the best.
RIVALS = 2
#: A budget that tries things out; its numbers say nothing of a paper unless somebody asks for them.
SMOKE = "smoke"


@dataclass(frozen=True)
class Judged:
    """A claim with its verdicts."""

    verdict: Verdict  #: on our numbers
    reported: Verdict  #: on the paper's own
    numbers: Mapping[str, str]  #: at the place that decides: row (and column) -> number in print


@dataclass(frozen=True)
class Claims:
    """The claims of a table at a budget; "" where nothing is measured at any, and for counted tables."""

    table: Table
    budget: str
    scope: str  #: the budget in print
    judged: Sequence[Judged]
    grid: Grid | None = None  #: the table laid out, where it has numbers

    @property
    def paper(self) -> str:
        """The folder of its table."""
        return self.table.id.partition("/")[0]

    @property
    def shipped(self) -> bool:
        """Whether shipped results have gone into it."""
        return self.grid is not None and any(entry.shipped for line in self.grid.lines for entry in line.entries)

    @cached_property
    def by_identity(self) -> dict[str, Judged]:
        """Its claims by what makes them the same: a paper's table may be declared whole and in parts, and a claim of
        one text on the same columns is one claim."""
        columns = {column.key: column for column in self.table.columns}
        found = {}
        for stand in self.judged:
            own = stand.verdict.claim.columns or [column.key for column in self.table.printed]
            parts = [(columns[key], [columns[part] for part in columns[key].of]) for key in own]
            found[repr((stand.verdict.claim.text, self.table.protocol, parts))] = stand
        return found

    @property
    def tally(self) -> Tally:
        """How far the table's numbers lie from the reported ones."""
        return (self.grid and self.grid.tally) or Tally(len(self.table.trusted))


def claims(names: Sequence[str], frame: Frame, roots: Sequence[Path], budget: str | None = None) -> Iterator[Claims]:
    """The claims of these tables and papers (none: of all), at each budget (or the one) that has a number, but for
    SMOKE, which must be named. A table that claims nothing is there if it has one.

    Raises FedbenchError for an unknown table, paper or budget.
    """
    every = list(map(tables.load, tables.of_names(names) or tables.names()))
    budgets = {b for table in every if table.protocol for b in protocol.load(table.protocol).budgets}
    check_known("budget", budget, budgets)
    for table in every:
        own = [""] if table.counted else list(protocol.load(table.protocol).budgets)
        wanted = [b for b in own if b in ("", budget or b) and (budget or b != SMOKE)]
        measured = {b: cells for b in wanted if (cells := _with_numbers(table, b, frame, roots))}
        if not measured and (table.claim or table.reported):
            yield Claims(table, "", "", [Judged(ours, theirs, {}) for ours, theirs in verdicts(table, {})])
        for at, cells in measured.items():
            grid = grid_of(cells, compare=True)
            judged = [Judged(ours, theirs, _numbers(grid, table, ours)) for ours, theirs in grid.verdicts]
            yield Claims(table, at, grid.scope, judged, grid)


def _with_numbers(table: Table, budget: str, frame: Frame, roots: Sequence[Path]) -> Cells | None:
    """The cells of a table that has a number at the budget; a counted one always has."""
    if table.counted:
        return find(table, budget, frame, roots)
    names = {called(column.dataset) for column in table.measured}
    precision = protocol.load(table.protocol).precision(budget)
    if not any(frame.knows(name, budget, precision) for name in names):
        return None
    cells = find(table, budget, frame, roots)
    return cells if any(record and record.complete for cell in cells.all for record in cell.records) else None


def _numbers(grid: Grid, table: Table, verdict: Verdict) -> dict[str, str]:
    """The numbers at the place where a claim fails or holds most narrowly: of the rows that it names there, and of the
    best others where a row is to be among the best."""
    printed = {c.key: k for k, c in enumerate(table.printed)}
    if verdict.state == OPEN or verdict.where is None or not printed.keys() >= {*verdict.where.columns}:
        return {}
    lines, columns = [line for line in grid.lines if line.kind == "paper"], verdict.where.columns
    rows = [line for line in lines if line.label in verdict.where.rows]
    if verdict.claim.kind in ("best", "top"):
        column, than = table.printed[printed[columns[0]]], verdict.claim.than
        rivals = [line for line in lines if line not in rows and line.label in (than or [line.label])]
        values = [(line.entries[printed[column.key]].value, line) for line in rivals]
        there = [(value.mean, k, line) for k, (value, line) in enumerate(values) if value]
        rows += [line for *_, line in sorted(there, reverse=column.best != "min")[:RIVALS]]
    return {
        f"{line.label} at {key}" if len(columns) > 1 else line.label: line.entries[printed[key]].text
        for line in rows
        for key in columns
        if line.entries[printed[key]].text
    }


# -- claims in words -------------------------------------------------------------------------------------------
# Claims in words: a line each, as the terminal and Markdown have them.


#: State of a claim -> sign and colour.
LOOKS = {
    "holds": ("✓", "green"),
    "holds so far": ("✓", "green"),
    "undecided": ("?", "cyan"),
    "fails": ("✗", "yellow"),
    "not measured": ("·", "dim"),
}


def title(one: Claims) -> str:
    """Its table, at which budget, and whether shipped results are among the numbers."""
    scope = f", {one.scope}" if one.scope else "" if one.table.counted else ", not measured"
    return f"{one.table.id}  {one.table.title}{scope}{' (shipped results among it)' if one.shipped else ''}"


def words(stand: Judged) -> str:
    """A claim, how it stands, and the numbers that decide."""
    numbers = ", ".join(f"{name} {text}" for name, text in stand.numbers.items())
    parts = (stand.verdict.state, how(stand.verdict, stand.reported), numbers)
    return f"{stand.verdict.claim.text}: {'; '.join(part for part in parts if part)}"


def summary(tables: Sequence[Claims]) -> Iterator[str]:
    """How many claims each paper makes, each counted once; and of each budget that has a number, how they stand there
    and how many of the paper's numbers come out."""
    for paper in dict.fromkeys(one.paper for one in tables):
        own = [one for one in tables if one.paper == paper]
        every = {identity for one in own for identity in one.by_identity}
        fixed = {identity for one in own if one.table.counted for identity in one.by_identity}
        if every:
            unmeasured = "" if any(one.grid for one in own) else "; none is measured"
            yield f"{paper}: {counted(len(every), 'claim')}{unmeasured}."
        for budget in dict.fromkeys(one.budget for one in own if one.grid):
            at = [one for one in own if one.grid and one.budget == budget]
            judged = {identity: stand for one in at for identity, stand in one.by_identity.items()}
            counts = Counter(stand.verdict.state for stand in judged.values())
            counts[OPEN] += len((every - fixed if budget else fixed) - judged.keys())
            tally = sum((one.tally for one in at), Tally())
            parts = [_in_words(counts), str(tally) if tally.measured else ""]
            if any(parts):
                scope = f"budget {budget}" if budget else "counted"
                yield f"{paper}, {scope}: {'; '.join(part for part in parts if part)}."


def _in_words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {_stand(n, state)}" for state in LOOKS if (n := counts[state]))


def _stand(n: int, state: str) -> str:
    """The state's words for so many claims: 1 holds, 2 hold."""
    verb, _, rest = state.partition(" ")
    return state if n == 1 or not verb.endswith("s") else f"{verb.removesuffix('s')} {rest}".strip()


def listed(one: Claims) -> Iterator[str]:
    """The claims of a table as a list in Markdown."""
    yield from (f"- {LOOKS[stand.verdict.state][0]} {escape(words(stand))}" for stand in one.judged)


def markdown(tables: Sequence[Claims]) -> Iterator[str]:
    """The page of all claims."""
    yield "# What the papers claim, and what holds here\n"
    yield from (f"- {escape(line)}" for line in summary(tables))
    for one in (one for one in tables if one.judged):
        yield f"\n## {escape(title(one))}\n"
        yield from listed(one)


# -- measured --------------------------------------------------------------------------------------------------
# A paper's page of what was measured: counts, claims, and what we say of them. `report --compare` prints the numbers.
#
# The sentences stand in tables/PAPER/measured.toml, each about a table or about all. Neither images nor a store go into
# the page, so that everybody makes the same one.


#: The sentences, and the page.
SENTENCES, PAGE = "measured.toml", "measured.md"


@dataclass(frozen=True)
class Note:
    """A paragraph of ours, in Markdown."""

    text: str
    table: str = ""  #: that it is about; all if empty


@dataclass(frozen=True)
class _File:
    note: list[Note]


def page(paper: str) -> str:
    """The page in Markdown. Raises FedbenchError for an unknown paper, a faulty file of sentences, and one that names a
    table without numbers."""
    paper, papers = resources.named(paper), resources.papers()
    check_known("paper", paper, papers)
    packs = Packs([*of_papers(), *with_fedbench()])
    with tempfile.TemporaryDirectory() as folder:
        every = list(claims([paper], Frame(Store(Path(folder)), packs), []))
    there = [one for one in every if one.grid is not None and one.shipped]
    notes = _sentences(paper, {one.table.id for one in there})
    own = [of_pack(pack) for pack in packs.whole if pack.path.parent.parent.name == paper]
    lines = [
        f"# {paper}: what was measured", "",
        f"Made by `fedbench results page {paper}` from the result packs and `{SENTENCES}`: change these, not the page. "
        "`fedbench report --table NAME --compare` prints a table's numbers beside the paper's.",
        "", *(f"- {text}" for text in (*map(_pack, own), *summary(every))),
        "", *(note.text for note in notes if not note.table),
        *_counts(there), "", *_decided(there), "",
        *(f"**{note.table}**: {note.text}" for note in notes if note.table),
    ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def _sentences(paper: str, there: set[str]) -> Sequence[Note]:
    path = resources.papers()[paper] / SENTENCES
    notes = reader.read(_File, reader.toml(path, "file of sentences"), str(path)).note if path.exists() else []
    for note in notes:
        if note.table and note.table not in there:
            raise unknown(f"table with numbers in {path}", note.table, there)
    return notes


def _pack(pack: dict[str, object]) -> str:
    days = " to ".join(dict.fromkeys(str(pack[end])[:10] for end in ("first", "last")))
    by, machines = (", ".join(map(str, pack[key])) for key in ("by", "machines"))  # type: ignore[call-overload]
    runs = counted(int(str(pack["runs"])), "run")
    return f"{runs} by {by}, {days}, {duration(float(str(pack['seconds'])))} of training on {machines}."


def _counts(tables: Sequence[Claims]) -> Iterator[str]:
    """A line a table and budget: its cells, the paper's numbers, and how its claims stand."""
    yield f"| table | budget | cells | reported | measured | mean difference | {POINTS:g} points | 2 errors | claims |"
    yield "|:--|:--|--:|--:|--:|--:|--:|--:|:--|"
    for one in tables:
        assert one.grid is not None
        counts, tally = one.grid.counts, one.tally
        cells = f"{counts.get(State.DONE.value, 0)} of {sum(counts.values())}"
        numbers = (tally.reported, tally.measured, *tally.three) if tally.reported else ("",) * 5
        claimed = Counter(stand.verdict.state for stand in one.judged)
        cell = (one.table.id, one.budget, cells, *numbers, _in_words(claimed))
        yield f"| {' | '.join(map(str, cell))} |"


def _decided(tables: Sequence[Claims]) -> Iterator[str]:
    """The claims that numbers speak against or for, each once a budget; of those that do not hold, what decides."""
    judged: dict[tuple[str, str], tuple[Claims, Judged]] = {}
    for one in tables:
        for identity, stand in one.by_identity.items():
            judged.setdefault((one.budget, identity), (one, stand))
    for sign in ("✗", "?", "✓"):
        for one, stand in judged.values():
            state = stand.verdict.state
            if LOOKS[state][0] == sign:
                said = f"{stand.verdict.claim.text}: {state}" if sign == "✓" else words(stand)
                yield f"- {sign} {one.table.id}{one.budget and f', {one.budget}'}: {escape(said)}"
