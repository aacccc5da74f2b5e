"""The first page: a row for each group of runs that differ in nothing but seeds, as `compare` shows them."""

from __future__ import annotations

from collections.abc import Iterable

from fedbench.reports.compare.comparison import Comparison, Group
from fedbench.reports.compare.layout import grid
from fedbench.reports.layout.grid import Entry, Grid, Line
from fedbench.reports.render.text import signs
from fedbench.reports.runs import text
from fedbench.reports.site.page import document, e, folded
from fedbench.reports.site.run import name
from fedbench.reports.status.versions import by_other_code


def page(side: Comparison) -> str:
    """The index of all runs, which links to the page of each."""
    table = grid(side)
    rows = "\n".join(_row(side, table, group, line) for group, line in zip(side.groups, table.lines, strict=True))
    tools = (
        '<div class="tools"><input type="search" id="filter" placeholder="Filter: words of a row, an id" '
        'aria-label="Filter the rows"><output></output></div>'
    )
    body = [
        "<h1>Runs</h1>",
        f'<p class="about">{e(". ".join([table.title, *by_other_code(run.artifact for run in side.runs)]))}</p>',
        tools,
        f'<div class="scroll"><table>\n<thead><tr>{"".join(_heads(side, table))}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>",
        folded("Notes", [*signs(table), *table.about]),
        folded("Problems", table.problems),
    ]
    return document("Runs", "", body)


def _heads(side: Comparison, table: Grid) -> Iterable[str]:
    """Columns by whose heads the rows are sorted, at first from the better end where a number has one."""
    best = {number.name: number.best for number in side.numbers}
    for key in table.keys:
        yield _head(key.replace("_", " "), "key")
    for head in table.heads:
        way = "descending" if best.get(head.metric) == "max" else "ascending"
        group = f"<small>{e(head.group)}</small>" if head.group else ""
        yield _head(table.heading(head), "", group, way)
    yield _head(_pages(side), "key")


def _pages(side: Comparison) -> str:
    return "Page" if len(side.groups) == len(side.runs) else "Page of seed"


def _head(label: str, kind: str, before: str = "", first: str = "ascending") -> str:
    look = f' class="{kind}"' if kind else ""
    button = f'<button type="button">{before}{e(label)}</button>'
    return f'<th scope="col" aria-sort="none" data-first="{first}"{look}>{button}</th>'


def _row(side: Comparison, table: Grid, group: Group, line: Line) -> str:
    cells = [_key(group, key, shown, i == 0) for i, (key, shown) in enumerate(zip(table.keys, line.keys, strict=True))]
    for head, entry in zip(table.heads, line.entries, strict=True):
        cells.append(_cell(f"{table.heading(head)} {head.group.lower()}".strip(), entry))
    pages = " ".join(f'<a href="{e(name(run))}" title="{e(run.id)}">{run.spec.setting.seed}</a>' for run in group)
    words = e(" ".join([line.label, line.method, *(run.id for run in group)]))
    last = f'<td class="key" data-head="{_pages(side)}">{pages}</td>'
    return f'<tr data-words="{words}">{"".join(cells)}{last}</tr>'


def _key(group: Group, key: str, shown: str, first: bool) -> str:
    """A value in which rows differ, a number to be sorted as such; the first of a row leads to its page."""
    value = group[0].values.get(key)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    order = f' data-value="{e(text(value))}"' if number else ""
    content = f'<a href="{e(name(group[0]))}">{e(shown) or "none"}</a>' if first else e(shown)
    return f'<th scope="row" class="key" data-head="{e(key.replace("_", " "))}"{order}>{content}</th>'


def _cell(head: str, entry: Entry) -> str:
    if not entry.text:
        about = f'data-head="{e(head)}" data-value="" title="{e(entry.state.value)}"'
        return f"<td {about}>{e(entry.symbol)}</td>"
    look = {1: ' class="best"', 2: ' class="second"'}.get(entry.rank, "")
    spread = f' <span class="spread">± {e(entry.spread)}</span>' if entry.spread else ""
    order = "" if entry.value is None else f' data-value="{entry.value.mean:.6g}"'
    return f'<td data-head="{e(head)}"{order}><span{look}>{e(entry.text)}</span>{spread}{e(entry.mark)}</td>'
