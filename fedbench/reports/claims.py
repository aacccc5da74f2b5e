"""The papers' claims about their tables, checked on the numbers measured at each budget; and the differences between
measured and reported numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedbench import protocol
from fedbench.errors import check_known
from fedbench.planner import table as tables
from fedbench.planner.cells import SMOKE, Cells, find
from fedbench.planner.counts import fullest, numbers_of
from fedbench.planner.settings import scopes
from fedbench.planner.table.claims import FAILS, FAILS_SO_FAR, HOLDS, OPEN, SO_FAR, UNDECIDED, Verdict
from fedbench.planner.table.spec import Table
from fedbench.protocol import PAPER
from fedbench.reports.layout.build import grid_of
from fedbench.reports.layout.grid import Grid
from fedbench.reports.layout.verdicts import verdicts
from fedbench.reports.numbers.agreement import Tally
from fedbench.reports.render.text import escape, how
from fedbench.results.frame import Frame
from fedbench.results.run import State
from fedbench.words import counted

#: How many rivals are printed for a claim that a row is among the best.
RIVALS = 2


@dataclass(frozen=True)
class Judged:
    """A claim with its verdicts."""

    verdict: Verdict  #: on our numbers
    reported: Verdict  #: on the paper's numbers
    numbers: Mapping[str, str]  #: in the deciding cells: row (and column) -> printed number


@dataclass(frozen=True)
class Claims:
    """The claims of a table at a budget; "" if no budget has numbers, and for counted tables."""

    table: Table
    budget: str
    scope: str  #: the budget as text
    judged: Sequence[Judged]
    grid: Grid | None = None  #: the table's grid, if it has numbers

    @property
    def paper(self) -> str:
        """The name of its table's folder."""
        return self.table.id.partition("/")[0]

    @property
    def shipped(self) -> bool:
        """Whether any number comes from shipped results."""
        return self.grid is not None and any(entry.shipped for line in self.grid.lines for entry in line.entries)

    @cached_property
    def by_identity(self) -> dict[str, Judged]:
        """Identity -> claim: the same text about the same columns is one claim, since a paper's table may be declared
        as a whole and in parts."""
        columns = {column.key: column for column in self.table.columns}
        found = {}
        for claim in self.judged:
            keys = claim.verdict.claim.columns or [column.key for column in self.table.printed]
            parts = [(columns[key], [columns[part] for part in columns[key].of]) for key in keys]
            found[repr((claim.verdict.claim.text, self.table.protocol, parts))] = claim
        return found

    @property
    def seeds(self) -> int:
        """The number of seeds that the budget asks for; 0 if its cells need no runs."""
        return len(protocol.load(self.table.protocol).seeds(self.budget, self.table.seeds)) if self.budget else 0

    @property
    def some_seeds(self) -> set[int]:
        """The numbers of seeds behind its numbers that lack some."""
        entries = (entry for line in self.grid.lines for entry in line.entries) if self.grid else ()
        return {entry.value.seeds for entry in entries if entry.value and entry.state is State.PARTIAL}

    @property
    def tally(self) -> Tally:
        """The differences between the table's numbers and the reported ones."""
        return (self.grid and self.grid.tally) or Tally(len(self.table.trusted))


def claims(
    names: Sequence[str], frame: Frame, roots: Sequence[Path], budget: str | None = None, *, every: bool = False
) -> Iterator[Claims]:
    """The claims of these tables and papers (empty: of all), each at the budget with most numbers (`counts.fullest`),
    or at `budget`, or (`every`) at every budget with a number of its own. A table without claims is included if it
    has a number.

    Raises FedbenchError for an unknown table, paper or budget.
    """
    chosen = list(map(tables.load, tables.of_names(names) or tables.names()))
    budgets = {b for table in chosen if table.protocol for b in protocol.load(table.protocol).budgets}
    check_known("budget", budget, budgets)
    for table in chosen:
        declared = [""] if table.counted else list(protocol.load(table.protocol).budgets)
        if not every:
            declared = [budget or fullest([numbers_of(table, frame, roots)])] if declared != [""] else declared
        wanted = [b for b in declared if b != SMOKE or b == budget]
        measured = _of_their_own({b: cells for b in wanted if (cells := _with_numbers(table, b, frame, roots))})
        if not measured and (table.claim or table.reported):
            yield Claims(table, "", "", [Judged(ours, theirs, {}) for ours, theirs in verdicts(table, {})])
        for budget_, cells in measured.items():
            grid = grid_of(cells, compare=True)
            judged = [Judged(ours, theirs, _numbers(grid, table, ours)) for ours, theirs in grid.verdicts]
            yield Claims(table, budget_, grid.scope, judged, grid)


def _of_their_own(measured: Mapping[str, Cells]) -> dict[str, Cells]:
    """The budgets with a run that no other one has: where two ask for the same training, the one with more seeds."""
    runs = {
        budget: {record.id for cell in cells.all for record in cell.records if record and record.complete}
        for budget, cells in measured.items()
    }
    order = sorted(measured, key=lambda budget: (-len(runs[budget]), budget != PAPER))
    kept = [b for k, b in enumerate(order) if not runs[b] or not any(runs[b] <= runs[other] for other in order[:k])]
    return {budget: cells for budget, cells in measured.items() if budget in kept}


def _with_numbers(table: Table, budget: str, frame: Frame, roots: Sequence[Path]) -> Cells | None:
    """The cells of a table, or None if it has no number at the budget; a counted one always has."""
    if table.counted:
        return find(table, budget, frame, roots)
    if not any(frame.scopes & scopes(table, column, budget) for column in table.measured):
        return None
    cells = find(table, budget, frame, roots)
    return cells if any(record and record.complete for cell in cells.all for record in cell.records) else None


def _numbers(grid: Grid, table: Table, verdict: Verdict) -> dict[str, str]:
    """Row (and column) -> printed number in the cells with a claim's smallest margin; for claims about the best, also
    of the best other rows."""
    printed = {c.key: k for k, c in enumerate(table.printed)}
    where = verdict.decides.where if verdict.decides and verdict.detail else None
    if where is None or not printed.keys() >= {*where.columns}:
        return {}
    lines, columns = [line for line in grid.lines if line.kind == "paper"], where.columns
    rows = [line for line in lines if line.label in where.rows]
    if verdict.claim.kind in ("best", "top"):
        column, than = table.printed[printed[columns[0]]], verdict.claim.than
        rivals = [line for line in lines if line not in rows and line.label in (than or [line.label])]
        values = [(line.entries[printed[column.key]].value, line) for line in rivals]
        measured = [(value.mean, k, line) for k, (value, line) in enumerate(values) if value]
        rows += [line for *_, line in sorted(measured, reverse=column.best != "min")[:RIVALS]]
    return {
        f"{line.label} at {key}" if len(columns) > 1 else line.label: line.entries[printed[key]].text
        for line in rows
        for key in columns
        if line.entries[printed[key]].text
    }


#: State of a claim -> (sign, colour).
LOOKS = {
    HOLDS: ("✓", "green"),
    SO_FAR: ("✓", "green"),
    UNDECIDED: ("?", "cyan"),
    FAILS_SO_FAR: ("✗", "yellow"),
    FAILS: ("✗", "yellow"),
    OPEN: ("·", "dim"),
}


def title(claims: Claims) -> str:
    """The table's id and title, the budget, and whether some numbers are shipped."""
    scope = f", {claims.scope}" if claims.scope else "" if claims.table.counted else ", not measured"
    return f"{claims.table.id}  {claims.table.title}{scope}{' (shipped results among it)' if claims.shipped else ''}"


def words(claim: Judged) -> str:
    """A claim, its verdicts, and the deciding numbers."""
    numbers = ", ".join(f"{name} {text}" for name, text in claim.numbers.items())
    parts = (claim.verdict.state, how(claim.verdict, claim.reported), numbers)
    return f"{claim.verdict.claim.text}: {'; '.join(part for part in parts if part)}"


@dataclass(frozen=True)
class Line:
    """A claim on one line."""

    state: str
    text: str
    table: str
    margin: str  #: the smallest margin, negative where it fails, and two standard errors of it
    budget: str
    seeds: str  #: least number of seeds of the numbers with this margin, of those of the budget

    @property
    def sign(self) -> str:
        return LOOKS[self.state][0]

    @classmethod
    def of(cls, claims: Claims, claim: Judged) -> Line:
        verdict, decides = claim.verdict, claim.verdict.decides
        margin = seeds = ""
        if decides is not None and decides.margin is not None:
            noise = "" if decides.noise == 0 else " ± ?" if decides.noise is None else f" ± {decides.noise:.2g}"
            margin = f"{decides.margin:+.3g}{noise}".replace("-", "−")
            seeds = f"{decides.seeds} of {claims.seeds}" if claims.seeds else ""
        return cls(verdict.state, verdict.claim.text, claims.table.id, margin, claims.budget, seeds)


def lines(tables: Sequence[Claims]) -> list[Line]:
    """A line for each claim, of the first table that measures it, in the order of the tables."""
    judged: dict[tuple[str, str], Line] = {}
    for table in tables:
        for identity, claim in table.by_identity.items():
            key = table.paper, identity
            if key not in judged or judged[key].state == OPEN:
                judged[key] = Line.of(table, claim)
    return list(judged.values())


def summary(tables: Sequence[Claims]) -> Iterator[str]:
    """Lines with each paper's number of claims, without repetitions; and for each budget with a number, the claims by
    state, how many of the paper's numbers are measured, and how they agree with them."""
    for paper in dict.fromkeys(table.paper for table in tables):
        of_paper = [table for table in tables if table.paper == paper]
        every = {identity for table in of_paper for identity in table.by_identity}
        fixed = {identity for table in of_paper if table.table.counted for identity in table.by_identity}
        if every:
            unmeasured = "" if any(table.grid for table in of_paper) else "; none is measured"
            yield f"{paper}: {counted(len(every), 'claim')}{unmeasured}."
        for budget in dict.fromkeys(table.budget for table in of_paper if table.grid):
            at = [table for table in of_paper if table.grid and table.budget == budget]
            judged = {identity: claim for table in at for identity, claim in table.by_identity.items()}
            counts = Counter(claim.verdict.state for claim in judged.values())
            counts[OPEN] += len((every - fixed if budget else fixed) - judged.keys())
            tally = sum((table.tally for table in at), Tally())
            numbers = f"{tally}{_coverage(at)}" if tally.measured else ""
            if parts := [part for part in (in_words(counts), numbers) if part]:
                yield f"{paper}, {_training(budget)}: {'; '.join(parts)}."


def at_a_glance(tables: Sequence[Claims]) -> Iterator[str]:
    """A line for each paper: its claims by state, and how many of its numbers are measured at which budget."""
    for paper in dict.fromkeys(table.paper for table in tables):
        of_paper = [table for table in tables if table.paper == paper]
        states = Counter(line.state for line in lines(of_paper))
        numbers = []
        for budget in dict.fromkeys(table.budget for table in of_paper if table.budget):
            tally = sum((table.tally for table in of_paper if table.budget == budget), Tally())
            numbers += [f"{tally.measured} of {tally.reported} {_training(budget)}"] if tally.measured else []
        if states:
            measured = f"; numbers measured: {', '.join(numbers)}" if numbers else ""
            yield f"{paper}: {counted(states.total(), 'claim')}: {in_words(states)}{measured}."


def _training(budget: str) -> str:
    return "counted" if not budget else "at the paper's training" if budget == PAPER else f"at budget {budget}"


def _coverage(tables: Sequence[Claims]) -> str:
    """Over how many of the budget's seeds the numbers of these tables that the paper reports are."""
    asked = max(table.seeds for table in tables)
    if asked < 2:
        return ""
    whole = sum(table.tally.whole for table in tables)
    some = sorted({seeds for table in tables for seeds in table.some_seeds})
    parts = [f"{whole} over all seeds"]
    if some:
        least, most = some[0], some[-1]
        parts.append(f"the others over {least if least == most else f'{least} to {most}'} of {asked} seeds")
    return f"; {', '.join(parts)}"


def in_words(counts: Mapping[str, int]) -> str:
    """The number of claims in each state."""
    return ", ".join(f"{n} {_stand(n, state)}" for state in LOOKS if (n := counts[state]))


def _stand(n: int, state: str) -> str:
    """The state's words for `n` claims: 1 holds, 2 hold."""
    verb, _, rest = state.partition(" ")
    return state if n == 1 or not verb.endswith("s") else f"{verb.removesuffix('s')} {rest}".strip()


#: Headings of the claims as a table.
HEADS = ("verdict", "claim", "table", "margin", "budget", "seeds")


def cells_of(line: Line) -> tuple[str, ...]:
    """A line's texts under HEADS."""
    return (f"{line.sign} {line.state}", line.text, line.table, line.margin, line.budget, line.seeds)


def as_table(lines: Sequence[Line]) -> Iterator[str]:
    """The claims as a table in Markdown."""
    yield f"| {' | '.join(HEADS)} |"
    yield "|:--|:--|:--|--:|:--|:--|"
    for line in lines:
        verdict, text, table, *numbers = cells_of(line)
        yield f"| {' | '.join([verdict, escape(text), escape(table), *numbers])} |"


def markdown(tables: Sequence[Claims]) -> Iterator[str]:
    """The page of all claims, in Markdown."""
    yield "# What the papers claim, and what holds here\n"
    yield from (f"- {escape(line)}" for line in summary(tables))
    yield ""
    yield from as_table(lines(tables))
