"""The notebook of any runs: an index, and one page per run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

from fedbench.errors import FedbenchError
from fedbench.partitions import schemes
from fedbench.planner import again
from fedbench.planner.runs import label, text
from fedbench.reports.compare.comparison import Comparison, Group, compare
from fedbench.reports.compare.layout import grid
from fedbench.reports.compare.numbers import scale
from fedbench.reports.figures.kind import quantity
from fedbench.reports.layout.grid import Entry, Grid, Line
from fedbench.reports.render.text import signs
from fedbench.reports.site import pictures
from fedbench.reports.site.page import Picture, card, command, document, e, folded, scrolled, sort_head, values
from fedbench.results.run import Run, by_other_code
from fedbench.specs import Setting
from fedbench.store.provenance import other_code

#: (name, value) of fields of a method, a partition or a setting.
Rows = Iterable[tuple[str, str]]
#: (artifact, its details), from the run back to the images; the caller finds them.
Origin = Sequence[tuple[str, Sequence[str]]]


def name(run: Run) -> str:
    """The file of a run's page."""
    return f"run-{run.id}.html"


def run_page(side: Comparison, group: Group, run: Run, history: Origin, shown: Sequence[Picture], index: str) -> str:
    """The page of one run of a group, with these pictures."""
    way = f'<a href="{index}">All runs</a>{_seeds(group, run)}'
    keys = sorted(_shown(side.keys), key=lambda key: key not in FIRST)
    title = label(run, keys or ["method"], side.names_of_methods)
    about = [f"{run.values['dataset']} {run.values['split']}", f"seed {run.spec.setting.seed}", f"run {run.id}"]
    stale = [*(["shipped"] if run.shipped else []), *["stale: of another version of the code"] * run.stale]
    stale += ["made by other code than today's"] * other_code(run.artifact.provenance)
    body = [f"<h1>{e(title)}</h1>", f'<p class="about">{e(" · ".join([*about, *stale]))}</p>', _tiles(side, run)]
    body += ['<div class="cards">', *_cards(side, run, history, shown), "</div>"]
    return document(f"{title}, seed {run.spec.setting.seed}", way, body, " · ".join(about))


#: Most other seeds that a run's page links to, so that pages do not grow with the square of the seeds.
NEAR = 10


def near(group: Group, run: Run) -> Sequence[Run]:
    """The run and the NEAR of its group, which is sorted by seed, that stand nearest to it."""
    first = min(max([one.id for one in group].index(run.id) - NEAR // 2, 0), max(len(group) - NEAR - 1, 0))
    return group[first : first + NEAR + 1]


def _seeds(group: Group, run: Run) -> str:
    """Links to the other runs of the group, or to the nearest."""
    if len(group) == 1:
        return ""
    links = [
        f"<b>{one.spec.setting.seed}</b>" if one is run else f'<a href="{e(name(one))}">{one.spec.setting.seed}</a>'
        for one in near(group, run)
    ]
    more = f" of {len(group)}" if len(group) > len(links) else ""
    return f" · seed {' '.join(links)}{more}"


def _tiles(side: Comparison, run: Run) -> str:
    tiles = []
    for number in side.numbers:
        value = side.values.get((run.id, number.name))
        if value is not None:
            factor, unit, decimals = scale(number.unit, [value])
            words = f"{number.label} {number.group.lower()}".strip()
            tiles.append(f"<div><b>{value * factor:,.{decimals}f} {e(unit)}</b><span>{e(words)}</span></div>")
    return f'<div class="tiles">{"".join(tiles)}</div>' if tiles else ""


def _cards(side: Comparison, run: Run, history: Origin, shown: Sequence[Picture]) -> Iterable[str]:
    if run.id not in side.metrics:
        problems = [p for p in side.problems if run.id in p] or side.problems
        yield card("No metrics", f'<p class="off">{e(" ".join(problems))}</p>', wide=True)
    drawn = [card(one.title, f"{one.image}<p>{e(one.words)}</p>") for one in shown if one.content]
    if run.id in side.metrics:
        drawn.insert(1, card("Clients", _clients(run)))
    yield from drawn
    if missing := [f"<li>{e(one.words)}</li>" for one in shown if not one.content]:
        yield card("Not drawn", f"<ul>{''.join(missing)}</ul>", wide=True)
    rows = {"method": _method(run), "data": _data(run), "training": _setting(run)}
    parts = (f"<div><h3>{title}</h3>{values(fields)}</div>" for title, fields in rows.items())
    yield card("Make it again", _again(run), wide=True)
    yield card("Settings", f'<div class="parts">{"".join(parts)}</div>', wide=True)
    origin = "".join(folded(what, details) or f"<p>{e(what)}</p>" for what, details in history)
    yield card("Where it comes from", origin, wide=True)
    if deviations := run.artifact.provenance.get("deviations"):
        yield card("Notes", folded("How the method deviates from its paper", map(str, deviations)), wide=True)


def _clients(run: Run) -> str:
    """A table of the run's clients, which can be sorted, the worst first."""
    try:
        rows, words = pictures.clients(run)
    except FedbenchError as error:
        return f"<p>{e(error)}</p>"
    most = 100 if rows[0]["unit"] == "%" else max(row["value"] for row in rows)
    heads = sort_head("client", "key") + sort_head(quantity(rows[0]), first="descending")
    lines = "".join(
        f'<tr><th scope="row" class="key">{e(row.get("client_name", row["client"]))}{_UNSEEN * row["unseen"]}</th>'
        f'<td data-value="{row["value"]:.6g}">{row["value"]:.2f} '
        f'<meter max="{most:g}" value="{row["value"]:.4g}" aria-hidden="true"></meter></td></tr>'
        for row in rows
    )
    table = f'<table class="clients"><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>'
    return f"{scrolled(table, 'tall')}<p>{e(words)}</p>"


#: Beside the name of a client that never trains.
_UNSEEN = " <small>unseen: never trains</small>"


def _again(run: Run) -> str:
    lines = again.commands(run.spec)
    if lines:
        return "".join(map(command, lines))
    return f"<p>Its setting is that of a table's file, which is not here:</p>{command(f'fedbench show {run.id}')}"


def _method(run: Run) -> Rows:
    yield "method", f"{run.title} ({run.spec.method}, version {run.spec.method_version})"
    yield from _known(run.spec.params.items())


def _data(run: Run) -> Rows:
    part = run.spec.setting.partition
    yield from (("data set", part.dataset.name), ("split", schemes.label(part)), ("partition", part.id))
    facts = {key: value for key, value in schemes.facts(part).items() if key not in ("dataset", "version")}
    yield from _known(("partition_seed" if key == "seed" else key, value) for key, value in facts.items())


def _setting(run: Run) -> Rows:
    setting = run.spec.setting
    yield from _known((f.name, getattr(setting, f.name)) for f in dataclasses.fields(Setting) if f.name != "partition")


def _known(rows: Iterable[tuple[str, object]]) -> Rows:
    return ((key.replace("_", " "), text(value)) for key, value in rows if value is not None)


#: If there are more setting columns, only the first and those in `TELLING` are visible at first, so that the numbers
#: are visible without scrolling.
SETTINGS = 6
TELLING = ("row", "method", "dataset", "split", "clients", "lr", "rounds")
#: The settings that stand first.
FIRST = ("row", "method")


def _shown(keys: Sequence[str]) -> list[str]:
    """The settings that are visible at first."""
    return [key for key in TELLING if key in keys] if len(keys) > SETTINGS else [*keys]


def index_page(side: Comparison, way: str = "") -> str:
    """The index of all runs: a row per group of runs that differ only in seeds, as in `compare`, with links to their
    pages; `way` is the navigation at its top (HTML)."""
    table = grid(side)
    rows = "\n".join(_row(side, table, group, line) for group, line in zip(side.groups, table.lines, strict=True))
    tools = (
        '<div class="tools"><input type="search" id="filter" placeholder="Filter: words of a row, an id" '
        'aria-label="Filter the rows"><output></output></div><details class="columns"><summary>Columns</summary>'
        "<div></div></details>"
    )
    head = f"<thead><tr>{''.join(_heads(side, table))}</tr></thead>"
    body = [
        "<h1>Runs</h1>",
        f'<p class="about">{e(". ".join([table.title, *by_other_code(side.runs)]))}</p>',
        tools,
        scrolled(f"<table>\n{head}\n<tbody>\n{rows}\n</tbody></table>", "tall"),
        folded("Notes", [*signs(table), *table.about, *table.notes]),
        folded("Problems", table.problems),
    ]
    return document("Runs", way, body, table.title)


def _heads(side: Comparison, table: Grid) -> Iterable[str]:
    """The headings of sortable columns; the first click sorts by a number with the best first."""
    best = {number.name: number.best for number in side.numbers}
    shown = _shown(table.keys)
    for i, key in enumerate(table.keys[k] for k in _keys(table)):
        yield sort_head(key.replace("_", " "), "key", off=key not in shown and i > 0)
    for head in table.heads:
        way = "descending" if best.get(head.metric) == "max" else "ascending"
        yield sort_head(table.heading(head), group=head.group, first=way)
    yield sort_head("Page of seed", "key")


def _keys(table: Grid) -> list[int]:
    """The places of the keys in their order on the page: what was trained stands first, and then on what."""
    return sorted(range(len(table.keys)), key=lambda k: table.keys[k] not in FIRST)


def _row(side: Comparison, table: Grid, group: Group, line: Line) -> str:
    cells = [_key(group, table.keys[k], line.keys[k], i == 0) for i, k in enumerate(_keys(table))]
    cells += [_cell(table, entry) for entry in line.entries]
    pages = " ".join(f'<a href="{e(name(run))}" title="{e(run.id)}">{run.spec.setting.seed}</a>' for run in group)
    words = e(" ".join([line.label, line.method, *(run.id for run in group)]))
    last = f'<td class="key">{pages}</td>'
    return f'<tr data-words="{words}">{"".join(cells)}{last}</tr>'


def _key(group: Group, key: str, shown: str, first: bool) -> str:
    """The cell of a key; numbers have a value to sort by, and the first cell of a row links to its page."""
    value = group[0].values.get(key)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    order = f' data-value="{e(text(value))}"' if number else ""
    content = f'<a href="{e(name(group[0]))}">{e(shown) or "none"}</a>' if first else e(shown)
    return f'<th scope="row" class="key"{order}>{content}</th>'


def _cell(table: Grid, entry: Entry) -> str:
    if not entry.text:
        return f'<td data-value="" title="{e(entry.state.value)}">{e(entry.symbol)}</td>'
    look = {1: ' class="best"', 2: ' class="second"'}.get(entry.rank, "")
    spread = f' <span class="spread">± {e(entry.spread)}</span>' if entry.spread else ""
    order = "" if entry.value is None else f' data-value="{entry.value.mean:.6g}"'
    return f"<td{order}><span{look}>{e(entry.text)}</span>{spread}{e(table.mark(entry))}</td>"


def pages(
    runs: Sequence[Run], history_of: Callable[[Run], Origin], index: str = "index.html", way: str = ""
) -> Iterator[tuple[str, str]]:
    """(File name, content) of the index, which has the name `index` and the navigation `way` (HTML), of each run's
    page, and of their pictures.

    `history_of` returns the origin of a run. Pages of runs with unavailable metrics print the reason.
    """
    side = compare(runs)
    yield index, index_page(side, way)
    partitions: dict[str, Picture] = {}
    for groups, curves in pictures.shared(side):
        yield from _files(curves)
        for group in groups:
            for run in group:
                spec = run.spec.setting.partition
                if spec.id not in partitions:
                    partitions[spec.id] = pictures.of_partition(spec, run.store)
                    yield from _files([partitions[spec.id]])
                shown = [*(curves if run.id in side.metrics else ()), partitions[spec.id]]
                yield name(run), run_page(side, group, run, history_of(run), shown, index)


def _files(shown: Iterable[Picture]) -> Iterator[tuple[str, str]]:
    return ((one.file, one.content) for one in shown if one.content)
