"""Grids for terminals, with rules as in printed tables and colours that have a meaning."""

from __future__ import annotations

import dataclasses
import io
import textwrap
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from fedbench.planner.table.claims import FAILS, FAILS_SO_FAR, HOLDS, SO_FAR
from fedbench.reports.layout.grid import Entry, Grid, Line
from fedbench.reports.render.text import brief, claims, filling, harmless, pointer
from fedbench.words import counted

_GAP = 3
#: Maximal number of rows of a table of runs on a terminal.
_ROWS = 100
_VERDICT = {HOLDS: "green", SO_FAR: "green", FAILS: "yellow", FAILS_SO_FAR: "yellow"}


def show(grids: Sequence[Grid], console: Console, notes: str = "brief", fit: bool = False) -> None:
    """Print the grids one below the other, with these `notes`. `fit` leaves out rows and columns of tables of runs that
    are too large for the console."""
    for i, grid in enumerate(grids):
        if i:
            console.print()
        whole = harmless(grid if notes == "full" else grid.unmarked())
        _show(_fitted(whole, console.width) if fit and whole.keys else whole, console, notes)


def plain(grids: Sequence[Grid], notes: str = "brief") -> str:
    """The grids as text without colours, for a file."""
    # Without force_jupyter=False, rich in a notebook would show every line as a separate output.
    console = Console(file=io.StringIO(), width=110, color_system=None, highlight=False, force_jupyter=False)
    show(grids, console, notes)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def _fitted(grid: Grid, width: int) -> Grid:
    """A table of runs cut to its first `_ROWS` rows and to a width: it loses keys that the other keys make redundant,
    then the last numbers, then the last keys. A note names what is left out."""
    shown = grid.lines[:_ROWS]
    keys, heads = list(range(len(grid.keys))), list(range(len(grid.heads)))

    def part() -> Grid:
        lines = [
            dataclasses.replace(
                line, keys=tuple(line.keys[k] for k in keys), entries=tuple(line.entries[j] for j in heads)
            )
            for line in shown
        ]
        return dataclasses.replace(
            grid, keys=tuple(grid.keys[k] for k in keys), heads=tuple(grid.heads[j] for j in heads), lines=tuple(lines)
        )

    def redundant(key: int) -> bool:
        return len({tuple(line.keys[k] for k in keys if k != key) for line in shown}) == len(shown)

    for indices, may_go in ((keys, redundant), (heads, lambda _: True), (keys, lambda _: True)):
        for column in reversed(indices[1:]):
            if _Layout(part(), with_spread=True).width > width and may_go(column):
                indices.remove(column)
    rest = [key for k, key in enumerate(grid.keys) if k not in keys]
    rest += [f"{head.label} {head.group.lower()}".strip() for j, head in enumerate(grid.heads) if j not in heads]
    rows = len(grid.lines) - len(shown)
    left = [*([counted(rows, "more row")] if rows else []), *([f"the columns {', '.join(rest)}"] if rest else [])]
    said = f"Left out here: {'; '.join(left)}. Filters choose runs; -o FILE.csv or .html writes all."
    fitted = part()
    return dataclasses.replace(fitted, about=(said, *fitted.about)) if left else fitted


def _show(grid: Grid, console: Console, notes: str) -> None:
    layout = _Layout(grid, with_spread=True)
    if console.is_terminal and layout.width > console.width:
        layout = _Layout(grid, with_spread=False)
    width = min(console.width, max(layout.width, 80)) if console.is_terminal else max(layout.width, 80)

    def say(text: str, style: str = "dim", first: str = "  ", then: str = "  ") -> None:
        body = textwrap.fill(text, width, initial_indent=first, subsequent_indent=then, break_on_hyphens=False)
        console.print(Text(body, style), soft_wrap=True)

    console.print(Text.assemble((grid.id, "bold cyan"), "  ", (grid.caption, "bold")), soft_wrap=True)
    if grid.basis:
        say(grid.basis)
    for line in layout.lines():
        console.print(line, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)
    for text in _too_narrow(grid, layout, console):
        say(text)
    if notes != "none":
        for text in brief(grid):
            say(text)
        for text in filling(grid):
            console.print(Text(f"  {text}", "dim"), soft_wrap=True)  # not wrapped, so that it can be copied
    for text in grid.problems:
        say(text, "red", "  ✗ ", "    ")
    if notes == "brief":
        for text in pointer(grid):
            say(text)
    if notes != "full":
        return
    for text in grid.notes:
        say(text)
    for letters, text in grid.footnotes:
        say(text, first=f"  {letters} ", then="    ")
    for (text, verdict), (ours, _) in zip(claims(grid), grid.verdicts, strict=True):
        say(f"{text}: {verdict}", _VERDICT.get(ours.state, "dim"))


def _too_narrow(grid: Grid, layout: _Layout, console: Console) -> Iterator[str]:
    """Notes on what is lost or wrapped if the terminal is too narrow."""
    if not layout.with_spread and any(e.spread for line in grid.lines for e in line.entries):
        yield "The terminal is too narrow for the ± of the values: widen it, or write them with -o FILE."
    if console.is_terminal and layout.width > console.width:
        yield (
            f"{layout.width} characters wide, so that lines wrap here: choose columns (--column, in which * is any "
            "text), or write it with -o FILE.html."
        )


class _Layout:
    """The widths of a grid's columns, and its lines in these widths."""

    def __init__(self, grid: Grid, with_spread: bool) -> None:
        self.grid, self.with_spread = grid, with_spread
        stubs = zip(grid.keys or ("",), *(line.keys or (_label(line),) for line in grid.lines), strict=True)
        self.stubs = [max(map(cell_len, column)) for column in stubs]
        self.stub = sum(self.stubs) + _GAP * (len(self.stubs) - 1)
        columns = list(zip(*(line.entries for line in grid.lines), strict=True))
        kinds = [line.kind for line in grid.lines]
        self.heads = [grid.heading(h) for h in grid.heads]
        self.values = [max((cell_len(_value(e)) for e in column), default=0) for column in columns]
        self.tails = [
            max((cell_len(self.tail(e, k)) for e, k in zip(column, kinds, strict=True)), default=0)
            for column in columns
        ]
        self.widths = [max(v + t, cell_len(h)) for v, t, h in zip(self.values, self.tails, self.heads, strict=True)]
        start = 0  # a group heading may be wider than its columns
        for group, span in grid.groups:
            short = cell_len(group) - sum(self.widths[start : start + span]) - _GAP * (span - 1)
            self.widths[start] += max(0, short)
            start += span

    @property
    def width(self) -> int:
        return self.stub + sum(w + _GAP for w in self.widths)

    def tail(self, entry: Entry, kind: str) -> str:
        """The text after a value: ratio, ± and marks, or for a reported value the difference of ours to it."""
        ratio = f"  {entry.times}" if entry.times else ""
        spread = f" ± {entry.spread}" if entry.spread and self.with_spread else ""
        if kind == "reported" and entry.delta:
            return f"{ratio}{spread} ({entry.delta})"
        return ratio + spread + self.grid.mark(entry)

    def lines(self) -> list[Text]:
        grid, out = self.grid, [Text("━" * self.width, "dim")]
        if grid.groups:
            names, rules, start = Text(" " * self.stub), Text(" " * self.stub), 0
            for group, span in grid.groups:
                width = sum(self.widths[start : start + span]) + _GAP * (span - 1)
                names.append(" " * _GAP + group.center(width), "bold")
                rules.append(" " * _GAP + ("─" if group else " ") * width, "dim")
                start += span
            out += [names, rules]
        head = Text(self.left(grid.keys or ("",)), "bold")
        for name, width in zip(self.heads, self.widths, strict=True):
            head.append(" " * _GAP + name.center(width), "bold")
        out += [head, self.rule()]
        before = ""
        for line in grid.lines:
            if line.part and line.part != before:
                out.append(self.rule())
            if line.part == "yours" != before:
                out.append(Text("yours".ljust(self.width), "dim"))
            before = line.part or ("" if line.kind != "reported" else before)
            out.append(self.row(line))
        return [*out, Text("━" * self.width, "dim")]

    def left(self, texts: Sequence[str]) -> str:
        """A line's texts before its values (its label or its keys), padded to their columns."""
        padded = (text + " " * (width - cell_len(text)) for text, width in zip(texts, self.stubs, strict=True))
        return (" " * _GAP).join(padded)

    def rule(self) -> Text:
        return Text("─" * self.width, "dim")

    def row(self, line: Line) -> Text:
        dim = line.kind == "reported"
        out = Text()
        empty = not any(e.text for e in line.entries)
        out.append(self.left(line.keys or (_label(line),)), "dim" if dim or empty else "cyan" if line.part else "")
        for entry, width, values, tails in zip(line.entries, self.widths, self.values, self.tails, strict=True):
            left = (width - values - tails) // 2
            out.append(" " * (_GAP + left))
            value = _value(entry) if line.in_table or entry.text else ""
            style = "dim" if dim or not entry.text else {1: "bold", 2: "underline"}.get(entry.rank, "")
            out.append(" " * (values - cell_len(value)))
            out.append(value, style)
            tail = self.tail(entry, line.kind)
            colour = {True: "green", False: "yellow"}.get(entry.near, "dim") if dim and entry.delta else "dim"  # type: ignore[arg-type]
            out.append(tail, colour)
            out.append(" " * (width - values - left - cell_len(tail)))
        return out


def _label(line: Line) -> str:
    if line.kind == "reported":
        return f"  {line.label}"
    return line.label + (f" {line.mark}" if line.mark else "")


def _value(entry: Entry) -> str:
    return entry.text or entry.symbol
