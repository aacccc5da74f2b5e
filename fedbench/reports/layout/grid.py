"""A table as a grid of formatted cells, which every renderer prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress, groupby

from fedbench.planner.table.claims import Verdict
from fedbench.planner.table.noise import ranks
from fedbench.planner.table.spec import MARKS, Column
from fedbench.reports.numbers.agreement import OFF, OFF_ELSE, Offset, Tally, signed
from fedbench.reports.numbers.measured import Value
from fedbench.results.run import State

#: State -> symbol of an empty cell.
SYMBOLS = {
    State.MISSING: "·",
    State.NOT_BUILT: "–",
    State.NO_DATA: "○",
    State.RUNNING: "…",
    State.FAILED: "✗",
    State.UNEVALUATED: "?",
    State.DAMAGED: "!",
    State.UNDEFINED: "N/A",
    State.NOT_PACKED: "",
    State.NEVER: "never",
}
#: Mark of a value of a stale run.
STALE = "†"
#: Mark of a value that lacks some of its seeds.
PARTIAL = "‡"
#: Mark of a value with runs of a result pack.
SHIPPED = "°"
#: Mark of a value with a run for which a result pack has other numbers.
CONTRADICTED = "≠"
#: Marks that say nothing where every number has them; a note says it once instead.
_SAID_ONCE = (PARTIAL, SHIPPED)


@dataclass(frozen=True)
class Entry:
    """One cell: its numbers, with `text` and `spread` formatted; an empty cell has only a state."""

    state: State
    text: str = ""
    spread: str = ""  #: the ±
    decimals: int | None = None  #: of `text`; None for a mark
    ratio: float | None = None  #: to the value of another row
    rank: int = 0  #: 1 if best of its column, 2 if second, else 0
    value: Value | None = None
    reported: tuple[float, float | None] | None = None  #: the paper's value and ±
    offset: Offset | None = None  #: difference to the reported value
    runs: tuple[str, ...] = ()  #: ids
    shipped: bool = False  #: whether one of its runs comes from a result pack
    contradicted: bool = False  #: whether a result pack has other numbers for one of its runs
    doubtful: bool = False  #: whether the reported value is doubtful, and so no target

    @property
    def near(self) -> bool | None:
        """Whether it is near the reported value; None if unknown."""
        return self.offset.near if self.offset else None

    @property
    def mark(self) -> str:
        """Marks after a value."""
        if not self.text or self.state is State.NEVER:
            return ""
        state = "" if self.state is State.DONE else STALE if self.state is State.STALE else PARTIAL
        return state + SHIPPED * self.shipped + CONTRADICTED * self.contradicted

    @property
    def symbol(self) -> str:
        """The symbol of an empty cell."""
        return SYMBOLS.get(self.state, "")

    @property
    def times(self) -> str:
        """The ratio as text."""
        return "" if self.ratio is None else f"{self.ratio:.2f}×"

    @property
    def delta(self) -> str:
        """The difference to the paper as text, with sign, and a star if it is not near."""
        if self.offset is None:
            return ""
        star = "*" * (self.near is False)
        if self.decimals is None or abs(self.offset.difference) < 1e-9:
            return star or "="
        decimals, sign = (self.decimals, "") if self.ratio is None else (2, "×")
        return signed(self.offset.difference, decimals) + sign + star


def filled(state: State, value: Value, column: Column, runs: tuple[str, ...] = ()) -> Entry:
    """The entry of a value, formatted by its column's decimals and unit."""
    if column.unit == "marks":
        return Entry(state, MARKS.get(value.mean, f"{value.mean:g}"), value=value, runs=runs)
    decimals = column.decimals or 0
    text = f"{round(value.mean, decimals) + 0.0:,.{decimals}f}".replace("-", "−")  # no negative zero
    spread = "" if value.std is None else f"{value.std:.{column.std_decimals}f}"
    return Entry(state, text, spread, decimals, value=value, runs=runs)


def never(count: int, of: int, runs: tuple[str, ...]) -> Entry:
    """The entry of a number of `of` runs, `count` of which never reach the value that it is about: no mean leaves them
    out."""
    return Entry(State.NEVER, "never" if count == of else f"never in {count} of {of} seeds", runs=runs)


def ranked(entries: Sequence[Entry], best: str, decimals: int | None) -> list[Entry]:
    """The entries of a column with their ranks (`noise.ranks`); `best` is "max" or "min"."""
    sign, marked = -1 if best == "min" else 1, list(entries)
    numbered = [(k, entry.value) for k, entry in enumerate(entries) if entry.value]
    found = ranks([sign * value.mean for _, value in numbered], [value.noise for _, value in numbered], decimals or 0)
    for (k, _), rank in zip(numbered, found, strict=True):
        marked[k] = dataclasses.replace(entries[k], rank=rank)
    return marked


@dataclass(frozen=True)
class Line:
    """A row of the printed table.

    kind: "paper" (a row of the paper), "reported" (the paper's numbers for the row above), "added" (a row that the
    paper does not have), "yours" (runs in the store that belong to no row), "run" (compared runs).
    """

    label: str
    kind: str
    entries: tuple[Entry, ...]
    mark: str = ""  #: the letter of its method's footnotes
    method: str = ""
    source: str = ""  #: SHA-256 of a user's method's file
    keys: tuple[str, ...] = ()  #: values of the grid's keys
    cites: tuple[str, ...] = ()  #: keys of its method's references

    @property
    def in_table(self) -> bool:
        """Whether it is a row of the table, so that empty cells need a symbol."""
        return self.kind in ("paper", "added", "run")

    @property
    def filled(self) -> bool:
        """Whether it has a number."""
        return any(entry.text for entry in self.entries)

    @property
    def part(self) -> str:
        """Its part of the table, below a rule of its own: "added", "yours", or "" for all others."""
        return self.kind if self.kind in ("added", "yours") else ""


@dataclass(frozen=True)
class Heading:
    """Heading of a column. A group's heading spans adjacent columns of the group."""

    group: str
    label: str
    metric: str
    unit: str  #: as printed, such as %


@dataclass(frozen=True)
class Grid:
    """A table ready for print."""

    id: str
    title: str
    stub: str  #: heading of the rows
    budget: str  #: empty for counted tables
    precision: str  #: empty for counted tables
    scope: str  #: both as text, such as "budget small" or "budget small in bf16"
    heads: tuple[Heading, ...]
    lines: tuple[Line, ...]
    topic: str = ""  #: the caption in a paper, if not the title
    basis: str = ""  #: the line below the title: budget, seeds, other budgets that have numbers
    about: tuple[str, ...] = ()  #: brief notes below the table: meaning of ±, number of filled cells
    command: str = ""  #: the command that fills the missing cells, if any
    notes: tuple[str, ...] = ()  #: all other notes
    cautions: tuple[str, ...] = ()  #: which of the other notes a reader should not miss, in a few words each
    reader: tuple[str, ...] = ()  #: what the reader of a paper needs: meaning of ±, number of seeds, what was trained
    absent: tuple[str, ...] = ()  #: per row, its cells without a number
    one_machine: bool = False  #: whether all runs, shipped ones too, are of one machine
    footnotes: tuple[tuple[str, str], ...] = ()  #: (letters of methods, how they deviate from their papers)
    verdicts: tuple[tuple[Verdict, Verdict], ...] = ()  #: each claim on our numbers and on the paper's
    problems: tuple[str, ...] = ()  #: why cells failed or could not be read
    counts: dict[str, int] = field(default_factory=dict)  #: state -> number of cells
    tally: Tally | None = None  #: agreement with the reported numbers, if `compare`
    makers: tuple[str, ...] = ()  #: who made its shipped runs
    of_paper: bool = True  #: whether it is a paper's table
    name: str = ""  #: what LaTeX names it after, label and macros, if not its id
    spread: str = "small"  #: how LaTeX prints a ± (`render.SPREADS`)
    exchanged: bool = False  #: whether LaTeX prints the rows as columns
    references: tuple[str, ...] = ()  #: keys of what is to be cited: the paper, methods, data sets, fedbench
    keys: tuple[str, ...] = ()  #: keys in which the rows differ: a column each, instead of the column of labels
    #: (heading, lines) of a paper's appendix (see `appendix`), if requested.
    appendix: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @cached_property
    def numbers(self) -> list[Entry]:
        """The entries with a number, without the paper's."""
        return [e for line in self.lines if line.kind != "reported" for e in line.entries if e.text]

    @cached_property
    def _common(self) -> str:
        """The marks of `_SAID_ONCE` that every number has, and those of shipped runs if all are of one machine."""
        measured = [entry for entry in self.numbers if entry.decimals is not None]
        every = "".join(mark for mark in _SAID_ONCE if all(mark in entry.mark for entry in measured))
        return every + SHIPPED * self.one_machine

    def mark(self, entry: Entry) -> str:
        """The marks after a value, but for those that a note below says once."""
        return "".join(mark for mark in entry.mark if mark not in self._common)

    @property
    def unit(self) -> str:
        """The unit of all columns, or "" if they differ or have none."""
        units = {head.unit for head in self.heads}
        return units.pop() if len(units) == 1 else ""

    def heading(self, head: Heading) -> str:
        """A column's label, with its unit unless all columns share it."""
        return head.label if self.unit or not head.unit else f"{head.label} ({head.unit})"

    def unmarked(self) -> Grid:
        """The grid without letters of footnotes, for formats that omit footnotes."""
        return dataclasses.replace(self, lines=tuple(dataclasses.replace(line, mark="") for line in self.lines))

    @property
    def caption(self) -> str:
        """The title with the unit of all columns."""
        return f"{self.title}, in {self.unit}" if self.unit else self.title

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Group headings with the number of columns each spans; empty if no column has one."""
        spans = [(group, len(list(members))) for group, members in groupby(self.heads, key=lambda h: h.group)]
        return spans if any(group for group, _ in spans) else []


def grid_of_runs(
    id: str,
    title: str,
    keys: Sequence[str],
    heads: Iterable[Heading],
    lines: Iterable[Line],
    about: Iterable[str],
    problems: Sequence[str] = (),
    reader: Sequence[str] = (),
) -> Grid:
    """A grid of any runs, which belongs to no paper and has no budget."""
    return Grid(
        id=id,
        title=title,
        stub="",
        keys=tuple(keys),
        budget="",
        precision="",
        scope="",
        heads=tuple(heads),
        lines=tuple(lines),
        about=tuple(about),
        problems=tuple(problems),
        reader=tuple(reader),
        of_paper=False,
    )


def telling_keys(grid: Grid) -> tuple[Grid, tuple[str, ...]]:
    """(A table of runs without the last keys that are not needed to tell its rows apart, their names)."""
    kept = list(range(len(grid.keys)))
    for key in reversed(kept[1:]):
        rest = [k for k in kept if k != key]
        if len({tuple(line.keys[k] for k in rest) for line in grid.lines}) == len(grid.lines):
            kept = rest
    lines = tuple(dataclasses.replace(line, keys=tuple(line.keys[k] for k in kept)) for line in grid.lines)
    left = tuple(key for k, key in enumerate(grid.keys) if k not in kept)
    return dataclasses.replace(grid, keys=tuple(grid.keys[k] for k in kept), lines=lines), left


def only_done(grid: Grid) -> Grid:
    """The grid without rows and columns that have no number, and with a note on them."""
    rows = [line.filled for line in grid.lines]
    for k, line in enumerate(grid.lines):
        rows[k] = rows[k - 1] if line.kind == "reported" else rows[k]  # kept with the row above
    ours = [line for line in grid.lines if line.kind != "reported"]
    columns = [any(line.entries[j].text for line in ours) for j in range(len(grid.heads))]
    lines = tuple(
        dataclasses.replace(line, entries=tuple(compress(line.entries, columns))) for line in compress(grid.lines, rows)
    )
    empty = sum(not line.filled for line in ours), columns.count(False)
    of = len(ours), len(columns)
    words = [f"{n} of {all} {what}" for n, all, what in zip(empty, of, ("rows", "columns"), strict=True) if n]
    note = (f"Left out, as they have no number: {' and '.join(words)}.",) if words else ()
    gone = {key for line in grid.lines for key in line.cites} - {key for line in lines for key in line.cites}
    gone -= {*grid.references[: grid.of_paper]}  # the paper comes first
    return dataclasses.replace(
        grid,
        heads=tuple(compress(grid.heads, columns)),
        lines=lines,
        about=(*grid.about, *note),
        references=tuple(key for key in grid.references if key not in gone),
    )


def legend(grid: Grid) -> list[tuple[str, str]]:
    """(symbol, meaning) of the symbols and marks in the grid."""
    entries = [entry for line in grid.lines if line.kind != "reported" for entry in line.entries]
    of_table = [entry for line in grid.lines if line.in_table for entry in line.entries]
    found = [(SYMBOLS[s] or "blank", s.value) for s in SYMBOLS if any(e.state is s and not e.text for e in of_table)]
    marks = (
        (STALE, "stale: of another version of the code"),
        (PARTIAL, "not of all its seeds yet"),
        (SHIPPED, "shipped"),
        (CONTRADICTED, "another pack has other numbers"),
    )
    found += [(mark, meaning) for mark, meaning in marks if any(mark in grid.mark(e) for e in entries)]
    compared = any(line.kind == "reported" for line in grid.lines)
    if any(e.doubtful for line in grid.lines for e in line.entries):
        found.append(("5.0?", "doubtful in the paper, no target"))
    off = [e.offset for e in of_table if compared and e.offset and e.near is False]
    found += [("*", OFF)] if any(o.points is not None for o in off) else []
    found += [("*", OFF_ELSE)] if any(o.points is None for o in off) else []
    return found
