"""Grids as one self-contained HTML page, in a light and a dark theme, suitable for printing.

All texts of a grid are escaped first (`text.harmless`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from fedbench.reports.layout.grid import Entry, Grid, Line
from fedbench.reports.render.text import brief, claims, harmless, shown

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #667085; --line: #d5dae1; --page: #fff; --best: #0b6e4f;
  --off: #a15c00; --shade: #f5f7fa; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #98a2b3; --line: #39424f; --page: #14181f;
  --best: #6fd0a8; --off: #e8b25c; --shade: #1c222b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.5rem; max-width: 72rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
"""
#: Style of tables and their notes, on any page.
TABLES = """
section { margin-bottom: 3.5rem; }
h2 { font-size: 1.15rem; font-weight: 600; margin: 0 0 .8rem; }
h2 small { color: var(--soft); font-weight: 400; margin-left: .5rem; }
details { margin-top: .8rem; } summary { color: var(--soft); font-size: .87rem; cursor: pointer; }
.basis { color: var(--soft); font-size: .87rem; margin: 0 0 .8rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; border-top: 2px solid var(--ink); border-bottom: 2px solid var(--ink);
  font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .32rem .8rem; text-align: right; white-space: nowrap; }
th { font-weight: 600; } tbody th, thead th.key { text-align: left; font-weight: 400; }
thead tr:last-child th { border-bottom: 1px solid var(--ink); }
thead th.group { text-align: center; border-bottom: 1px solid var(--line); }
tbody tr:hover { background: var(--shade); }
tr.first > * { border-top: 1px solid var(--ink); }
tr.reported > * { color: var(--soft); font-size: .87em; padding-top: 0; }
tr.reported th { padding-left: 1.8rem; font-style: italic; }
.spread, .ratio { color: var(--soft); font-size: .82em; } .state { color: var(--soft); }
.best { font-weight: 700; color: var(--best); } .second { text-decoration: underline; text-underline-offset: 3px; }
.near { color: var(--best); } .off { color: var(--off); }
ul { color: var(--soft); font-size: .87rem; margin: .8rem 0 0; padding-left: 1.1rem; } sup { font-size: .7em; }
code { overflow-wrap: anywhere; }
"""
#: Colours that are legible on both light and dark pages.
_INKS = "--ink: currentColor; --soft: #808b9c; --line: #80808066; --best: #1f9d74; --off: #c07a1a; --shade: #80808022;"


def document(grids: Sequence[Grid], notes: str) -> str:
    """A complete page with all grids; all but the brief notes are folded, unless `notes` are "full"."""
    safe = [harmless(grid, escape) for grid in grids]
    title = ", ".join(grid.id for grid in safe)
    body = "\n".join(_section(grid, notes) for grid in safe)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>fedbench: {title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}{TABLES}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def fragment(grids: Sequence[Grid]) -> str:
    """The grids as a part of another page, such as a notebook, whose style does not change."""
    body = "\n".join(_section(harmless(grid, escape), "brief") for grid in grids)
    return f'<style>.fedbench {{ {_INKS}{TABLES} }}</style>\n<div class="fedbench">\n{body}\n</div>'


def _section(grid: Grid, notes: str) -> str:
    scope = f", {grid.scope}" if grid.scope else ""
    command = [f"To fill them: <code>{grid.command}</code>"] if grid.command else []
    problems = [f'<span class="off">Problem: {text}</span>' for text in grid.problems]
    more = [*grid.notes, *(f"<sup>{letters}</sup> {text}" for letters, text in grid.footnotes)]
    more += [f"{text}: <em>{verdict}</em>" for text, verdict in claims(grid)]
    out = [
        f"<section>\n<h2>{grid.caption}<small>{grid.id}{scope}</small></h2>",
        *([f'<p class="basis">{grid.basis}</p>'] if grid.basis else []),
        f'<div class="scroll">{table(grid)}</div>',
        _list([*([] if notes == "none" else [*brief(grid, escape), *command]), *problems]),
    ]
    if more and notes != "none":
        folded = "<details open>" if notes == "full" else "<details>"
        out.append(f"{folded}<summary>{'All notes' if len(more) > 1 else 'One note'}</summary>{_list(more)}</details>")
    return "\n".join([*out, "</section>"])


def table(grid: Grid, name: Callable[[Line], str] | None = None) -> str:
    """The HTML table of a `harmless` grid. `name` returns a row's label as HTML, by default the plain label; with
    `name`, attributes name each row's method and each column, for the page's script."""
    plainly = name is None
    return f"<table>\n{_head(grid, plainly)}\n{_body(grid, name)}\n</table>"


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>" if items else ""


def _head(grid: Grid, plainly: bool) -> str:
    groups = "".join(
        f'<th class="group" colspan="{span}" scope="colgroup"><span>{group}</span></th>'
        if group
        else f'<td colspan="{span}"></td>'
        for group, span in grid.groups
    )
    stubs = grid.keys or (grid.stub,)
    first = f"<tr>{'<td></td>' * len(stubs)}{groups}</tr>\n" if groups else ""
    labels = "".join(f'<th scope="col" class="key">{key}</th>' for key in stubs)
    keys = ["" if plainly else f' data-column="{"/".join(filter(None, (h.group, h.label)))}"' for h in grid.heads]
    labels += "".join(f'<th scope="col"{k}>{grid.heading(h)}</th>' for h, k in zip(grid.heads, keys, strict=True))
    return f"<thead>\n{first}<tr>{labels}</tr>\n</thead>"


def _body(grid: Grid, name: Callable[[Line], str] | None) -> str:
    rows, before = [], ""
    for line in grid.lines:
        if line.part == "yours" != before:
            columns = len(grid.keys or ("",)) + len(grid.heads)
            rows.append(f'<tr class="first"><th scope="colgroup" colspan="{columns}">yours</th></tr>')
        kind = "first" if line.part == "added" != before else line.kind
        before = line.part or before
        marks = f"<sup>{line.mark}</sup>" if line.mark else ""
        cells = "".join(f"<td>{_cell(grid, line, entry)}</td>" for entry in line.entries)
        label = name(line) if name else line.label
        stubs = "".join(f'<th scope="row">{key}</th>' for key in line.keys or (f"{label}{marks}",))
        method = f' data-method="{line.method}"' if name and line.method else ""
        rows.append(f'<tr class="{kind}"{method}>{stubs}{cells}</tr>')
    return "<tbody>\n" + "\n".join(rows) + "\n</tbody>"


def _cell(grid: Grid, line: Line, entry: Entry) -> str:
    if not entry.text:
        sign = shown(line, entry)
        return f'<span class="state" title="{escape(entry.state.value)}">{escape(sign)}</span>' if sign else ""
    text = entry.text
    if entry.rank:
        text = f'<span class="{"best" if entry.rank == 1 else "second"}">{text}</span>'
    text += f' <span class="ratio">{entry.times}</span>' if entry.times else ""
    spread = f' <span class="spread">± {entry.spread}</span>' if entry.spread else ""
    if line.kind == "reported":
        judged = {True: ' class="near"', False: ' class="off"', None: ""}[entry.near]
        return text + spread + (f" <span{judged}>{escape(entry.delta)}</span>" if entry.delta else "")
    return text + spread + grid.mark(entry)
