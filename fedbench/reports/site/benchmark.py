"""The benchmark's pages: the front page with the arena's best and all papers; one page per paper with its tables, the
paper's numbers and, if a figure ranks the methods, a leaderboard; and one page per method. Their content comes from
`reports.claims`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench import protocol, resources
from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.methods import declarations
from fedbench.protocol import PAPER
from fedbench.reports import claims as of_claims
from fedbench.reports.claims import LOOKS, Claims, Judged
from fedbench.reports.numbers.agreement import POINTS, Tally
from fedbench.reports.render import html
from fedbench.reports.render.text import brief, harmless
from fedbench.reports.site.leaderboard import Leaderboard, leaderboard, told, top
from fedbench.reports.site.methods import address, family, linked, method_page
from fedbench.reports.site.names import page_of, picture_of
from fedbench.reports.site.page import NOTEBOOK, command, document, e, listing, prose, scrolled
from fedbench.results.frame import Frame
from fedbench.words import counted

if TYPE_CHECKING:
    from fedbench.reports.figures.spec import FigureSpec


@dataclass(frozen=True)
class Paper:
    """A paper's tables with their claims, at each budget with a number."""

    name: str
    tables: Sequence[Claims]

    @cached_property
    def page(self) -> tuple[str, str]:
        """The title of its README, and the README's first sentence in Markdown."""
        title, first = resources.page(resources.papers()[self.name])
        return title or self.name, re.split(r"\.(?= |$)(?! [a-z])", first)[0]

    @property
    def measured(self) -> list[Claims]:
        return [one for one in self.tables if one.grid is not None]

    @cached_property
    def best(self) -> dict[str, Claims]:
        """Table's id -> its claims at the budget with most numbers; if equal, at the protocol's first such budget."""
        found: dict[str, Claims] = {}
        for one in self.tables:
            if one.table.id not in found or _numbers(one) > _numbers(found[one.table.id]):
                found[one.table.id] = one
        return found

    @property
    def judged(self) -> dict[str, Judged]:
        """Identity -> claim at the paper's budget if it is measured there, else at the budget with most numbers."""
        found: dict[str, Judged] = {}
        for one in sorted(self.tables, key=lambda one: (one.budget == PAPER, _numbers(one))):
            for identity, claim in one.by_identity.items():
                if identity not in found or LOOKS[claim.verdict.state][0] != "·":
                    found[identity] = claim
        return found

    def at(self, budget: str | None = None) -> list[Claims]:
        """Its tables at a budget; by default each table at its `best` budget."""
        return [*self.best.values()] if budget is None else [one for one in self.tables if one.budget == budget]

    @property
    def headline(self) -> str:
        """The id of the table that its page begins with: that with most of the paper's numbers; "" if none has any."""
        measured = [one for one in self.best.values() if one.grid and not one.table.counted]
        return max(measured, key=lambda one: one.tally.measured).table.id if measured else ""

    @property
    def boards(self) -> list[Leaderboard]:
        """A leaderboard for each table that alone is ranked by a figure of the paper."""
        ids = [figure.ranked[0] for figure in _figures(self) if len(figure.ranked) == 1]
        return [Leaderboard.of(one.table, one.grid) for id in ids if (one := self.best.get(id)) and one.grid]


def _tally(tables: Iterable[Claims]) -> Tally:
    return sum((one.tally for one in tables), Tally())


def _seeds(one: Claims) -> int:
    """How many seeds its budget has."""
    return len(protocol.load(one.table.protocol).seeds(one.budget, one.table.seeds))


def _over_all_seeds(tables: Iterable[Claims]) -> int:
    """How many of the paper's numbers are measured over all seeds of their budget; counted ones need none."""
    total = 0
    for one in tables:
        of = 0 if one.table.counted or one.grid is None else _seeds(one)
        lines = [line for line in one.grid.lines if line.in_table] if one.grid else []
        entries = [entry for line in lines for entry in line.entries if entry.offset and entry.value]
        total += sum(entry.value is not None and entry.value.seeds >= of for entry in entries)
    return total


def _coverage(one: Claims) -> str:
    """How many of its budget's seeds a table's numbers are means over, such as 1 of 5 seeds; "" if it needs none."""
    if one.grid is None or one.table.counted:
        return ""
    values = (entry.value for line in one.grid.lines if line.in_table for entry in line.entries)
    counts = sorted({value.seeds for value in values if value})
    if not counts:  # runs that are not evaluated yet
        return ""
    if counts == [_seeds(one)]:
        return counted(counts[0], "seed")
    some = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"{some} of {counted(_seeds(one), 'seed')}"


def _numbers(one: Claims) -> int:
    return sum(entry.value is not None for line in one.grid.lines for entry in line.entries) if one.grid else 0


def pages(frame: Frame, roots: Sequence[Path], own: int = 0, names: Sequence[str] = ()) -> Iterator[tuple[str, bytes]]:
    """(File name, content) of all pages and pictures of these tables and papers (`names`; empty: all), without figures
    that have no number. `own`: the number of the user's runs, which have pages in the same folder."""
    every = list(of_claims.claims(names, frame, roots, every=True))
    of_papers = by_key((one.paper, one) for one in every)
    papers = [Paper(name, tables) for name, tables in of_papers.items()]
    papers.sort(key=lambda paper: not _tally(paper.at()).reported)  # papers without reported numbers last
    yield "index.html", front(papers, own).encode()
    for paper in papers:
        pictures = dict(_pictures(paper, frame, roots))
        yield from ((name, content) for name, (_, content) in pictures.items())
        titles = {name: title for name, (title, _) in pictures.items()}
        yield page_of(paper.name), paper_page(paper, titles).encode()
    best = [at for paper in papers for at in paper.best.values()]
    for one in declarations.built_in().values():
        yield address(one.name), method_page(one, best).encode()


def _pictures(paper: Paper, frame: Frame, roots: Sequence[Path]) -> Iterator[tuple[str, tuple[str, bytes]]]:
    """(File name, (title, SVG)) of a paper's figures with a number."""
    from fedbench.reports import figures

    budgets = {one.table.id: one.budget for one in paper.best.values()}
    for figure in _figures(paper):
        first = next(iter(figure.series.tables.values())) if figure.series else None  # other figures show data
        if first in budgets:
            request = figures.Request(frame, roots, budget=budgets[first] or None)
            try:
                picture = figures.svg(figure, request).encode()
            except FedbenchError:
                continue
            number = figure.id.partition("/")[2]
            yield picture_of(paper.name, number), (f"Figure {number}: {figure.title}", picture)


def _figures(paper: Paper) -> Iterator[FigureSpec]:
    from fedbench.reports.figures.spec import of_papers

    yield from (figure for name, figure in of_papers().items() if name.startswith(f"{paper.name}/"))


#: Sign of a claim -> its meaning.
MEANINGS = {"✓": "holds", "✗": "fails", "?": "undecided", "·": "not measured"}


#: What fedbench is, for visitors and for previews of links to it.
ABOUT = (
    "fedbench regenerates the tables and figures of four papers on federated learning, and puts a method, network, "
    "data set or table of your own beside them."
)
#: The first command of README.md.
INSTALL = "python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt . && .venv/bin/fedbench demo"
#: Rows of the first page's leaderboard.
TOP = 10


def front(papers: Sequence[Paper], own: int) -> str:
    """The first page: what fedbench is, the arena's best methods, each paper's measured numbers and claims, and all
    methods."""
    chips: dict[str, list[str]] = {}
    for one in declarations.built_in().values():
        chips.setdefault(family(one), []).append(f'<a href="{address(one.name)}">{e(one.title)}</a>')
    methods = "".join(f'<h3>{e(kind)}</h3><p class="chips">{" ".join(links)}</p>' for kind, links in chips.items())
    legend = ", ".join(f"{sign} {meaning}" for sign, meaning in MEANINGS.items())
    heads = ("paper", "its numbers that are measured", "at its own budget", "claims")
    body = [
        "<h1>fedbench: federated learning, measured beside reported</h1>",
        f'<p class="about">{e(ABOUT)} A click on a number shows the command that makes it; what has not been run is a '
        "dot.</p>",
        f"<p>In a checkout, on Linux with Python 3.11 to 3.14:</p>{command(INSTALL)}",
        *([f'<p><a href="{NOTEBOOK[0]}">Your {counted(own, "run")}</a></p>'] if own else []),
        *(part for paper in papers for board in paper.boards[:1] for part in _top(paper, board)),
        "<h2>The papers</h2>",
        listing(heads, map(_paper_row, papers), look="papers"),
        f'<p class="about">Claims of the papers: {legend}.</p>',
        f"<h2>{counted(sum(map(len, chips.values())), 'method')}</h2>{methods}",
    ]
    return document("fedbench: federated learning, measured beside reported", "", body, ABOUT)


def _top(paper: Paper, board: Leaderboard) -> Iterator[str]:
    yield f"<h2>{e(board.grid.title)}: the first {min(TOP, len(board.first))}</h2>"
    yield f'<p class="about">{e(told(board))} <a href="{e(page_of(paper.name))}">All methods and columns</a></p>'
    yield top(board, TOP)


def _paper_row(paper: Paper) -> Sequence[str]:
    title, about = paper.page
    link = f'<a href="{e(page_of(paper.name))}">{e(title)}</a><small>{prose(about)}</small>'
    return link, _share(paper.at()), _share(paper.at(PAPER)), _signs(paper.judged.values())


def _share(tables: Sequence[Claims]) -> str:
    """The share of the paper's numbers that are measured as a bar and in words, how many of them are over all seeds,
    and how many are near."""
    tally = _tally(tables)
    if not tally.reported:
        return ""
    name = f"{tally.measured:,} of {tally.reported:,}"
    bar = f'<meter max="{tally.reported}" value="{tally.measured}" aria-label="{name} measured"></meter>'
    seeds = f", {_over_all_seeds(tables):,} over all seeds" if tally.measured else ""
    near = f", {tally.three[1]} within {POINTS:g} points" if tally.three[1] else ""
    return f'{bar}<small title="{e(tally)}">{name}{seeds}{near}</small>'


def _signs(judged: Iterable[Judged]) -> str:
    """The number of claims in each state, after its sign."""
    states = Counter(LOOKS[claim.verdict.state][0] for claim in judged)
    return " ".join(_sign(sign, f" {states[sign]}") for sign in MEANINGS if states[sign])


def _sign(sign: str, more: str = "") -> str:
    return f'<span class="sign {MEANINGS[sign].split()[0]}" title="{MEANINGS[sign]}">{sign}{more}</span>'


def paper_page(paper: Paper, pictures: Mapping[str, str]) -> str:
    """A paper's page, which begins with its leaderboards and its fullest table; tables without a number are one line.
    `pictures`: file of a figure -> its title."""
    title, about = paper.page
    budgets: dict[str, list[Claims]] = {}  # table's id -> its claims at each measured budget, the fullest first
    for one in sorted(paper.measured, key=lambda one: one is not paper.best[one.table.id]):
        budgets.setdefault(one.table.id, []).append(one)
    first, boards = paper.headline, paper.boards
    body = [
        f"<h1>{e(title)}</h1>",
        f'<p class="about">{prose(about)}</p>',
        *map(leaderboard, boards),
        *([_table(budgets[first], opened=not boards)] if first else []),
        *(f'<figure><img src="{e(file)}" alt="{e(what)}" loading="lazy"></figure>' for file, what in pictures.items()),
        *(_table(budgets[id]) for id in paper.best if id in budgets and id != first),
        _unmeasured([one for id, one in paper.best.items() if id not in budgets]),
    ]
    plainly = re.sub(r"[*`\[]|\]\([^)]*\)", "", about)
    return document(f"{title} in fedbench", NOTEBOOK[1], body, plainly)


def _unmeasured(tables: Sequence[Claims]) -> str:
    """One line that unfolds the tables that nobody has measured, with the commands that make them."""
    rows = [
        (e(one.table.id), e(one.table.title), f"<code>fedbench train --table {e(one.table.id)}</code>")
        for one in tables
    ]
    if not rows:
        return ""
    summary = f"{counted(len(rows), 'table')} that nobody has measured yet"
    return f"<details><summary>{summary}</summary>{listing(('table', 'what', 'command'), rows, texts=3)}</details>"


def _table(budgets: Sequence[Claims], opened: bool = False) -> str:
    """A foldable section with a table at each budget that has a number; its summary says how full the fullest is."""
    one = budgets[0]
    budget = ", ".join(filter(None, (one.budget or "counted", _coverage(one))))
    facts = f"<small>{e(budget)}</small><small>{_share([one])}</small><small>{_signs(one.judged)}</small>"
    return (
        f'<details class="table" id="{e(one.table.id.partition("/")[2])}"{" open" * opened}>'
        f"<summary><span><b>{e(one.table.id)}</b> {e(one.table.title)}</span>{facts}</summary>"
        f"{''.join(map(_at_budget, budgets))}</details>"
    )


def _at_budget(one: Claims) -> str:
    assert one.grid is not None
    grid = harmless(one.grid, escape)
    lines = [e(text) for text in (one.grid.basis, *one.grid.makers) if text]
    notes = [*brief(grid, escape), *grid.notes, *(f"{letters}: {text}" for letters, text in grid.footnotes)]
    return (
        f'<section class="wide" data-table="{e(one.table.id)}" data-budget="{e(one.budget)}">'
        f"<p>{'<br>'.join(lines)}</p>{scrolled(html.table(grid, linked))}{_claims(one.judged)}"
        f"<details><summary>Notes, and what departs from the paper</summary>"
        f"<ul>{''.join(f'<li>{text}</li>' for text in notes)}</ul></details>"
        + command(f"fedbench report --table {one.table.id}{one.budget and f' --budget {one.budget}'} --compare")
        + "</section>"
    )


def _claims(judged: Iterable[Judged]) -> str:
    items = [
        f"<li>{_sign(LOOKS[claim.verdict.state][0])} {e(claim.verdict.claim.text)}"
        f"<small>{e(of_claims.words(claim).removeprefix(claim.verdict.claim.text + ': '))}</small></li>"
        for claim in judged
    ]
    return f'<ul class="claims">{"".join(items)}</ul>' if items else ""
