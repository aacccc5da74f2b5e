"""A grid as a tabular of booktabs that fits a width.

A table that is too wide is set smaller first, then with its headings on several lines; what changes it follows in this
order, and is said: fewer decimals, ± below the numbers, rows and columns exchanged. A table of runs then loses keys
that tell no rows apart, and one that is still too wide is continued below itself.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from fedbench.reports.layout.grid import CONTRADICTED, PARTIAL, SHIPPED, STALE, Entry, Grid, Heading, Line, telling_keys
from fedbench.reports.render.latex.characters import escape
from fedbench.reports.render.latex.widths import SIZES, broken, width
from fedbench.reports.widths import COLUMN, PAGE, inches
from fedbench.results.run import State
from fedbench.words import plain

#: Commands of marks after values.
_MARKS = {STALE: r"\dagger", PARTIAL: r"\ddagger", SHIPPED: r"\circ", CONTRADICTED: r"\neq"}
#: (font size, half of the space between columns in points), the largest first.
_SIZES = (
    (r"\small", 5.0),
    (r"\small", 3.5),
    (r"\footnotesize", 3.5),
    (r"\footnotesize", 2.5),
    (r"\scriptsize", 3.0),
    (r"\scriptsize", 1.5),
)
#: Points per inch.
_INCH = 72.27
#: Width of a citation in a label, in points.
_CITATION = 50.0
#: Largest share of the width that labels of rows take before they are broken, and the least room of a broken one.
_STUB, _WORD = 0.4, 45.0


@dataclass(frozen=True)
class Piece:
    """LaTeX, and its width in points at a font size of 10 points."""

    latex: str = ""
    width: float = 0.0

    @classmethod
    def of(cls, text: str, *, bold: bool = False) -> Piece:
        """A text, escaped."""
        return cls(escape(plain(text)), width(plain(text), bold=bold))

    def __add__(self, other: Piece) -> Piece:
        return Piece(self.latex + other.latex, self.width + other.width)

    def within(self, before: str, after: str = "}", scale: float = 1.0) -> Piece:
        """The piece between LaTeX that takes no room; `scale`: of its font."""
        return Piece(f"{before}{self.latex}{after}", self.width * scale)


def stacked(pieces: Sequence[Piece], place: str = "c") -> Piece:
    """Pieces below each other; `place`: which of them stands on the line (t, c, b)."""
    if len(pieces) == 1:
        return pieces[0]
    body = r"\\ ".join(piece.latex for piece in pieces)
    return Piece(rf"\begin{{tabular}}[{place}]{{@{{}}c@{{}}}}{body}\end{{tabular}}", max(p.width for p in pieces))


@dataclass(frozen=True)
class Form:
    """How numbers are printed, and where."""

    spread: str = "small"  #: one of `render.SPREADS`
    fewer: int = 0  #: decimals left out
    below: bool = False  #: ± below the number
    exchanged: bool = False  #: methods are columns
    bare: bool = False  #: without the zero before the point, as fractions are in `.76(.02)`

    def said(self, usual: Form) -> list[str]:
        """What is other than usual."""
        return [
            *(["one decimal less"] if self.fewer else []),
            *(["± below the numbers"] if self.below else []),
            *(["rows and columns exchanged"] if self.exchanged != usual.exchanged else []),
        ]


@dataclass(frozen=True)
class Tabular:
    """A table that fits, as LaTeX."""

    latex: str
    size: str  #: font size and space between columns
    wide: bool  #: whether it needs the width of a page with two columns
    said: tuple[str, ...]  #: what was changed for the width, but for the size of letters
    broken: bool = False  #: whether headings stand on several lines

    @property
    def steps(self) -> list[str]:
        """All that was done for the width, in order."""
        letters = self.size.partition("\\setlength")[0]
        smaller = [f"letters of {letters}"] if letters != _SIZES[0][0] else []
        return [*smaller, *(["headings on several lines"] if self.broken else []), *self.said]


@dataclass(frozen=True)
class _Label:
    """The texts of a row or column, one per level, and its kind (that of a line; "" for the grid's columns)."""

    texts: tuple[str, ...]
    kind: str = ""
    mark: str = ""
    cite: str = ""
    method: int = 0  #: the level of the method, which is marked and cited


@dataclass(frozen=True)
class _Matrix:
    """Labels of rows and columns, and the cells [row][column]."""

    names: tuple[str, ...]  #: headings of the levels of rows
    levels: tuple[str, ...]  #: names of the levels of columns, of an exchanged table
    rows: tuple[_Label, ...]
    columns: tuple[_Label, ...]
    cells: tuple[tuple[Piece, ...], ...]

    def exchanged(self) -> _Matrix:
        names = tuple("" for _ in self.columns[0].texts)
        return _Matrix(names, self.names, self.columns, self.rows, tuple(zip(*self.cells, strict=True)))

    def part(self, columns: slice) -> _Matrix:
        cells = tuple(row[columns] for row in self.cells)
        return dataclasses.replace(self, columns=self.columns[columns], cells=cells)


def fitted(grid: Grid, chosen: str, form: Form, cite: Callable[[Line], str] | None = None) -> Tabular:
    """The grid's tabular. `chosen`: column, page, inches, or "" for a column where it fits as it is, else a page;
    `cite`: a line -> the key of what its label cites."""
    if chosen:
        wide = inches(chosen)
        return _fit(grid, form, wide * _INCH, wide > COLUMN * 1.2, cite)
    column = _as_it_is(grid, form, COLUMN * _INCH, False, cite, _SIZES[:4])
    return column or _fit(grid, form, PAGE * _INCH, True, cite)


def _fit(grid: Grid, form: Form, most: float, wide: bool, cite: Callable[[Line], str] | None) -> Tabular:
    for other in _forms(grid, form):
        if found := _as_it_is(grid, other, most, wide, cite):
            return found
    slim, left = telling_keys(grid) if grid.keys else (grid, ())
    if left:
        found = _fit(slim, form, most, wide, cite)
        return dataclasses.replace(found, said=(f"without {', '.join(left)}, which tell no rows apart", *found.said))
    forms = [*_forms(grid, form)]
    narrowest = forms[len(forms) // 2 - 1]  # before rows and columns are exchanged
    size, space = _SIZES[-1]
    layout = _Layout(_matrix(grid, narrowest, size, cite), size, space, True, most)
    blocks = layout.blocks(most)
    latex = "\n\\par\\smallskip\n".join(dataclasses.replace(layout, matrix=block).latex for block in blocks)
    return Tabular(latex, layout.command, wide, (*narrowest.said(form), "continued below itself"), True)


def _as_it_is(
    grid: Grid,
    form: Form,
    most: float,
    wide: bool,
    cite: Callable[[Line], str] | None,
    sizes: Sequence[tuple[str, float]] = _SIZES,
) -> Tabular | None:
    """The tabular in this form at the largest font size that fits; None if none does."""
    matrices = {size: _matrix(grid, form, size, cite) for size, _ in sizes}
    for wrapped in (False, True):
        for size, space in sizes:
            layout = _Layout(matrices[size], size, space, wrapped, most)
            if layout.width <= most:
                return Tabular(layout.latex, layout.command, wide, tuple(form.said(_usual(grid, form))), wrapped)
    return None


def _usual(grid: Grid, form: Form) -> Form:
    return dataclasses.replace(form, exchanged=grid.exchanged)


def _forms(grid: Grid, form: Form) -> Iterator[Form]:
    """The form, then those that need less room: fewer decimals, ± below, exchanged."""
    fewer = [0, *([1] if any(_can_lose(grid, column) for column in range(len(grid.heads))) else [])]
    spread = form.spread != "none" and any(entry.spread for entry in grid.numbers)
    for exchanged in (form.exchanged, not form.exchanged):
        of = [dataclasses.replace(form, fewer=n, exchanged=exchanged) for n in fewer]
        yield from of
        if spread:
            yield dataclasses.replace(of[-1], below=True)


def _can_lose(grid: Grid, column: int) -> bool:
    """Whether a column's numbers can lose a decimal: fractions keep two, others one."""
    least = 2 if _fractions(grid, column) else 1
    return any((line.entries[column].decimals or 0) > least for line in grid.lines if line.entries[column].value)


def _fractions(grid: Grid, column: int) -> bool:
    """Whether a column's numbers are all fractions."""
    values = (line.entries[column].value for line in grid.lines)
    return not grid.heads[column].unit and all(0 <= value.mean <= 1 for value in values if value)


def _matrix(grid: Grid, form: Form, size: str, cite: Callable[[Line], str] | None) -> _Matrix:
    method = next((level for level, key in enumerate(grid.keys) if key in ("row", "method")), 0)
    rows = tuple(
        _Label(line.keys or (line.label,), _kind(line), line.mark, cite(line) if cite else "", method)
        for line in grid.lines
    )
    heads = [grid.heading(_in_words(head)) for head in grid.heads]
    groups = [head.group for head in grid.heads] if grid.groups else None
    columns = tuple(_Label((groups[k], text) if groups else (text,)) for k, text in enumerate(heads))
    forms = [_of_column(grid, k, form) for k in range(len(grid.heads))]
    cells = tuple(
        tuple(_cell(grid, line, entry, of, size) for entry, of in zip(line.entries, forms, strict=True))
        for line in grid.lines
    )
    names = tuple(_HEADS.get(key, key.replace("_", " ")) for key in grid.keys) or (grid.stub,)
    matrix = _Matrix(names, (), rows, columns, cells)
    return matrix.exchanged() if form.exchanged else matrix


def _of_column(grid: Grid, column: int, form: Form) -> Form:
    """The form of a column's numbers, the same in all its cells."""
    bare = form.spread == "paren" and _fractions(grid, column)
    return dataclasses.replace(form, fewer=form.fewer if _can_lose(grid, column) else 0, bare=bare)


def _in_words(head: Heading) -> Heading:
    """The heading, with a metric's name in words where it is all that there is."""
    named = head.label == head.metric
    return dataclasses.replace(head, label=head.label.replace("_", " ")) if named else head


#: Key of runs -> the head of its column, where an author has a word for it.
_HEADS = {
    "row": "Method",
    "method": "Method",
    "dataset": "Data set",
    "split": "Partition",
    "clients": "Clients",
    "model": "Network",
    "lr": "Learning rate",
    "batch_size": "Batch",
    "seed": "Seed",
}
#: Kinds of rows that stand below a rule of their own.
PARTS = ("added", "yours")


def _kind(line: Line) -> str:
    return line.part or ("reported" if line.kind == "reported" else "line")


def _cell(grid: Grid, line: Line, entry: Entry, form: Form, size: str) -> Piece:
    if not entry.text:
        return Piece.of(entry.symbol if entry.state is State.UNDEFINED else "--" if line.in_table else "")
    value, spread = _texts(entry, form)
    number = Piece.of(value, bold=entry.rank == 1)
    if entry.rank:
        number = number.within(r"\textbf{" if entry.rank == 1 else r"\underline{")
    if entry.times:
        number += Piece.of(f" ({entry.times})")
    marks = grid.mark(entry) if line.kind != "reported" else ""
    tail = Piece(f"$^{{{''.join(_MARKS[mark] for mark in marks)}}}$", 5.0 * len(marks)) if marks else Piece()
    if line.kind == "reported" and entry.delta:
        tail = _small(Piece.of(f" ({entry.delta})"), size)
    tail = _off(spread, form, size) + tail if spread and not form.below else tail
    whole = number + tail
    if spread and form.below:
        whole = stacked([whole, _small(Piece.of(f"±{spread}"), size)])
    return whole.within(r"{\itshape ") if line.kind == "reported" else whole


def _small(piece: Piece, size: str) -> Piece:
    """The piece in a smaller font than one of this size."""
    small = r"\tiny" if size == r"\scriptsize" else r"\scriptsize"
    return piece.within(f"{{{small} ", scale=SIZES[small] / SIZES[size])


def _off(spread: str, form: Form, size: str) -> Piece:
    """The ± after a number."""
    if form.spread == "paren":
        return Piece.of(f"({spread})")
    if form.spread == "pm":
        return Piece(r" $\pm$ ", 14.0) + Piece.of(spread)
    return _small(Piece(r"$\,\pm\,$", 11.5) + Piece.of(spread), size)


def _texts(entry: Entry, form: Form) -> tuple[str, str]:
    """The number and its ±, with fewer decimals and without a leading zero where the form says so."""
    value, spread = entry.text, "" if form.spread == "none" else entry.spread
    if form.fewer and entry.value and entry.decimals:
        decimals = entry.decimals - form.fewer
        doubt = "?" * value.endswith("?")
        value = f"{round(entry.value.mean, decimals) + 0.0:,.{decimals}f}".replace("-", "−") + doubt
        if spread and entry.value.std is not None and len(spread.partition(".")[2]) > form.fewer:
            spread = f"{entry.value.std:.{len(spread.partition('.')[2]) - form.fewer}f}"
    if form.bare:
        value, spread = (text.removeprefix("0") if text.startswith("0.") else text for text in (value, spread))
    return value, spread


@dataclass(frozen=True)
class _Layout:
    """A matrix at a font size, with its widths in points."""

    matrix: _Matrix
    size: str
    space: float  #: half of the space between columns
    wrapped: bool  #: whether headings are broken
    most: float

    @property
    def command(self) -> str:
        return f"{self.size}\\setlength{{\\tabcolsep}}{{{self.space:g}pt}}"

    @cached_property
    def stubs(self) -> list[list[Piece]]:
        """The labels of rows, [row][level], broken where they take too much of the width."""
        levels = range(len(self.matrix.names))
        whole = [max(width(label.texts[level]) for label in self.matrix.rows) for level in levels]
        most = _STUB * self.most / SIZES[self.size]
        # The widest level takes what the others leave.
        widest = max(levels, key=whole.__getitem__)
        rooms = [math.inf if level != widest else max(_WORD, most - sum(whole) + whole[level]) for level in levels]
        return [[self._stub(label, level, rooms[level]) for level in levels] for label in self.matrix.rows]

    def _stub(self, label: _Label, level: int, room: float) -> Piece:
        lines = broken(label.texts[level], room) if width(label.texts[level]) > room else [label.texts[level]]
        if len(lines) == 1:
            return _decorated(Piece.of(lines[0]), label, level)
        body = _decorated(Piece(escape(plain(label.texts[level])), room), label, level).latex
        scaled = max(map(width, lines)) * SIZES[self.size] + 1
        return Piece(rf"\parbox[t]{{{scaled:.0f}pt}}{{\raggedright {body}\strut}}", max(map(width, lines)) + 1)

    @cached_property
    def bodies(self) -> list[float]:
        """The widths of the columns' cells."""
        return [max((row[k].width for row in self.matrix.cells), default=0.0) for k in range(len(self.matrix.columns))]

    @cached_property
    def heads(self) -> list[list[Piece]]:
        """The labels of columns, [level][column]; only the last level is not shared."""
        levels = range(len(self.matrix.columns[0].texts))
        return [[self._head(label, level, k) for k, label in enumerate(self.matrix.columns)] for level in levels]

    def _head(self, label: _Label, level: int, column: int) -> Piece:
        text = label.texts[level]
        lines = [text]
        if self.wrapped and level == len(label.texts) - 1:
            longest = max(map(width, text.split()), default=0.0)
            lines = broken(text, max(self.bodies[column] * 1.1, longest))
        pieces = [Piece.of(line) for line in lines]
        pieces[-1] = _decorated(pieces[-1], label, level)
        return stacked(pieces, "b")

    @cached_property
    def widths(self) -> list[float]:
        """The widths of the columns at 10 points, as wide as their cells and labels need."""
        last = len(self.heads) - 1
        widths = [max(body, self.heads[last][k].width) for k, body in enumerate(self.bodies)]
        for level in range(last):
            for start, end in self.spans(level):
                need = self.heads[level][start].width - sum(widths[start:end])
                need -= 2 * self.space / SIZES[self.size] * (end - start - 1)
                widths[end - 1] += max(0.0, need)
        return widths

    def spans(self, level: int) -> list[tuple[int, int]]:
        """(Start, end) of adjacent columns that share their labels up to this level."""
        keys = [label.texts[: level + 1] for label in self.matrix.columns]
        spans, at = [], 0
        for _, members in groupby(keys):
            count = len(list(members))
            spans.append((at, at + count))
            at += count
        return spans

    @cached_property
    def stub_widths(self) -> list[float]:
        names = [Piece.of(name).width for name in self.matrix.names]
        below = [Piece.of(name).width for name in self.matrix.levels]
        names[-1] = max([names[-1], *below])
        return [max([names[k], *(row[k].width for row in self.stubs)]) for k in range(len(names))]

    @cached_property
    def width(self) -> float:
        """The width of the whole, in points."""
        every = [*self.stub_widths, *self.widths]
        return sum(every) * SIZES[self.size] + 2 * self.space * (len(every) - 1)

    def blocks(self, most: float) -> list[_Matrix]:
        """Parts of the matrix that fit, as few as possible: of whole groups of columns, else of equally many."""

        def fits(start: int, end: int) -> bool:
            return dataclasses.replace(self, matrix=self.matrix.part(slice(start, end))).width <= most

        count = len(self.matrix.columns)
        groups = [start for start, _ in self.spans(0)] if len(self.heads) > 1 else []
        full = _cuts(count, fits)
        even = math.ceil(count / (len(full) - 1))
        ways = (
            _cuts(count, lambda start, end: fits(start, end) and not any(start < group < end for group in groups)),
            _cuts(count, lambda start, end: fits(start, end) and end - start <= even),
            full,
        )
        cuts = next(cuts for cuts in ways if len(cuts) == len(full))
        return [self.matrix.part(slice(start, end)) for start, end in itertools.pairwise(cuts)]

    @property
    def latex(self) -> str:
        matrix, stubs = self.matrix, len(self.matrix.names)
        out = [rf"\begin{{tabular}}{{@{{}}{'l' * stubs}{'c' * len(matrix.columns)}@{{}}}}", r"\toprule"]
        last = len(self.heads) - 1
        for level in range(last):
            names, rules = [], []
            for start, end in self.spans(level):
                head = self.heads[level][start].latex
                names.append(rf"\multicolumn{{{end - start}}}{{c}}{{{head}}}" if head else " & " * (end - start - 1))
                if matrix.columns[start].texts[level] and end - start > 1:
                    rules.append(rf"\cmidrule(lr){{{start + stubs + 1}-{end + stubs}}}")
            out += [f"{self._corner(level)}{' & '.join(names)} \\\\", *(["".join(rules)] if rules else [])]
        out += [f"{self._corner(last)}{' & '.join(head.latex for head in self.heads[last])} \\\\", r"\midrule"]
        before: _Label | None = None
        for label, pieces, cells in zip(matrix.rows, self.stubs, matrix.cells, strict=True):
            if label.kind in PARTS and label.kind != (before.kind if before else ""):
                out += [r"\midrule"] if before and before.kind else []
                out += ["% yours: of this store, and no row of the table"] if label.kind == "yours" else []
            if before and stubs > 1 and label.texts[0] != before.texts[0]:
                out.append(r"\addlinespace")
            same = [bool(before) and label.texts[: k + 1] == before.texts[: k + 1] for k in range(stubs - 1)]
            named = ["" if same[k : k + 1] == [True] else piece.latex for k, piece in enumerate(pieces)]
            out.append(f"{' & '.join([*named, *(cell.latex for cell in cells)])} \\\\")
            before = label if label.kind != "reported" else before
        return "\n".join([*out, r"\bottomrule", r"\end{tabular}"])

    def _corner(self, level: int) -> str:
        """The cells above the rows' labels in the heading's line of a level."""
        texts = [""] * len(self.matrix.names)
        if level == len(self.heads) - 1:
            texts = [Piece.of(name).latex for name in self.matrix.names]
        if self.matrix.levels and len(self.heads) > 1:
            texts[-1] = Piece.of(self.matrix.levels[level]).latex
        return "".join(f"{text} & " for text in texts)


def _cuts(count: int, fits: Callable[[int, int], bool]) -> list[int]:
    """Where parts begin and end that each have as many of the columns as fit, at least one."""
    cuts = [0]
    while cuts[-1] < count:
        end = cuts[-1] + 1
        while end < count and fits(cuts[-1], end + 1):
            end += 1
        cuts.append(end)
    return cuts


def _decorated(piece: Piece, label: _Label, level: int) -> Piece:
    """A label's text with what its kind and its citation add."""
    if label.kind == "reported" and level == 0:
        return Piece(rf"\quad{{\itshape {piece.latex}}}", piece.width + 10)
    if level == label.method and label.mark:
        piece = Piece(rf"{piece.latex}\tnote{{{escape(label.mark)}}}", piece.width + 5 * len(label.mark))
    if level == label.method and label.cite:
        piece = Piece(rf"{piece.latex}~\cite{{{label.cite}}}", piece.width + _CITATION)
    return piece
