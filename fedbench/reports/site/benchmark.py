"""The benchmark's pages: an overview of all papers; one page per paper with its tables, the paper's numbers and, if a
figure ranks the methods, a leaderboard; and one page per method. Their content comes from `reports.claims`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench import resources
from fedbench.errors import FedbenchError
from fedbench.methods import declarations
from fedbench.protocol import PAPER
from fedbench.reports import claims as of_claims
from fedbench.reports.claims import LOOKS, Claims, Judged
from fedbench.reports.numbers.agreement import POINTS, Tally
from fedbench.reports.render import html
from fedbench.reports.render.text import brief, harmless
from fedbench.reports.site.leaderboard import leaderboard
from fedbench.reports.site.methods import address, family, linked, method_page
from fedbench.reports.site.names import page_of, picture_of
from fedbench.reports.site.page import NOTEBOOK, command, document, e, listing
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
        """The title and the first sentence of its README, as plain text."""
        title, first = resources.page(resources.papers()[self.name])
        sentence = re.split(r"\.(?= |$)(?! [a-z])", re.sub(r"[*`]|\]\([^)]*\)", "", first))[0]
        return title or self.name, sentence

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

    def tally(self, budget: str | None = None) -> Tally:
        """The tally of the paper's numbers at a budget; by default of each table at its `best` budget."""
        tables = self.best.values() if budget is None else [one for one in self.tables if one.budget == budget]
        return sum((one.tally for one in tables), Tally())


def _numbers(one: Claims) -> int:
    return sum(entry.value is not None for line in one.grid.lines for entry in line.entries) if one.grid else 0


def pages(frame: Frame, roots: Sequence[Path], own: int = 0, names: Sequence[str] = ()) -> Iterator[tuple[str, bytes]]:
    """(File name, content) of all pages and pictures of these tables and papers (`names`; empty: all), without figures
    that have no number. `own`: the number of the user's runs, which have pages in the same folder."""
    every = list(of_claims.claims(names, frame, roots, every=True))
    names = dict.fromkeys(one.paper for one in every)
    papers = [Paper(name, [one for one in every if one.paper == name]) for name in names]
    papers.sort(key=lambda paper: not paper.tally().reported)  # papers without reported numbers last
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
    from fedbench.reports.figures import kinds

    budgets = {one.table.id: one.budget for one in paper.best.values()}
    for figure in _figures(paper):
        first = next(iter(figure.series.tables.values())) if figure.series else None  # other figures show data
        if first in budgets:
            request = figures.Request(frame, roots, budget=budgets[first] or None)
            try:
                picture = kinds.render(figure, figures.kind_of(figure).gather(figure, request), "svg")
            except FedbenchError:
                continue
            number = figure.id.partition("/")[2]
            yield picture_of(paper.name, number), (f"Figure {number}: {figure.title}", picture)


def _figures(paper: Paper) -> Iterator[FigureSpec]:
    from fedbench.reports.figures.spec import of_papers

    yield from (figure for name, figure in of_papers().items() if name.startswith(f"{paper.name}/"))


#: Sign of a claim -> its meaning.
MEANINGS = {"✓": "holds", "✗": "fails", "?": "undecided", "·": "not measured"}


def front(papers: Sequence[Paper], own: int) -> str:
    """The first page: for each paper, the share of its numbers that are measured, and its claims by state."""
    chips: dict[str, list[str]] = {}
    for one in declarations.built_in().values():
        chips.setdefault(family(one), []).append(f'<a href="{address(one.name)}">{e(one.title)}</a>')
    methods = "".join(f'<h3>{e(kind)}</h3><p class="chips">{" ".join(links)}</p>' for kind, links in chips.items())
    legend = ", ".join(f"{sign} {meaning}" for sign, meaning in MEANINGS.items())
    heads = ("paper", "its numbers that are measured", "at its own budget", "claims")
    body = [
        "<h1>Federated learning, measured beside reported</h1>",
        '<p class="about">The tables of these papers, made again by one trainer. Each number leads to the command that '
        "makes it; what has not been run is a dot.</p>",
        *([f'<p><a href="{NOTEBOOK[0]}">Your {counted(own, "run")}</a></p>'] if own else []),
        listing(heads, map(_paper_row, papers), look="papers"),
        f'<p class="about">Claims of the papers: {legend}.</p>',
        f"<h2>{counted(sum(map(len, chips.values())), 'method')}</h2>{methods}",
    ]
    return document("fedbench", "", body)


def _paper_row(paper: Paper) -> Sequence[str]:
    title, about = paper.page
    link = f'<a href="{e(page_of(paper.name))}">{e(title)}</a><small>{e(about)}</small>'
    return link, _share(paper.tally()), _share(paper.tally(PAPER)), _signs(paper.judged.values())


def _share(tally: Tally) -> str:
    """The share of the paper's numbers that are measured as a bar and in words, and how many of them are near."""
    if not tally.reported:
        return ""
    bar = f'<meter max="{tally.reported}" value="{tally.measured}"></meter>'
    near = f", {tally.three[1]} within {POINTS:g} points" if tally.three[1] else ""
    return f'{bar}<small title="{e(tally)}">{tally.measured:,} of {tally.reported:,}{near}</small>'


def _signs(judged: Iterable[Judged]) -> str:
    """The number of claims in each state, after its sign."""
    states = Counter(LOOKS[claim.verdict.state][0] for claim in judged)
    return " ".join(_sign(sign, f" {states[sign]}") for sign in MEANINGS if states[sign])


def _sign(sign: str, more: str = "") -> str:
    return f'<span class="sign {MEANINGS[sign].split()[0]}" title="{MEANINGS[sign]}">{sign}{more}</span>'


def paper_page(paper: Paper, pictures: Mapping[str, str]) -> str:
    """A paper's page; `pictures`: file of a figure -> its title."""
    title, about = paper.page
    budgets: dict[str, list[Claims]] = {}  # table's id -> its claims at each measured budget, the fullest first
    for one in sorted(paper.measured, key=lambda one: one is not paper.best[one.table.id]):
        budgets.setdefault(one.table.id, []).append(one)
    order = [id for id in paper.best if id in budgets]
    body = [
        f"<h1>{e(title)}</h1>",
        f'<p class="about">{e(about)}</p>',
        *_leaderboards(paper),
        _contents(paper),
        *(f'<figure><img src="{e(file)}" alt="{e(what)}" loading="lazy"></figure>' for file, what in pictures.items()),
        *(_table(budgets[id], opened=id == order[0]) for id in order),
    ]
    return document(title, NOTEBOOK[1], body)


def _leaderboards(paper: Paper) -> Iterator[str]:
    """A leaderboard for each table that alone is ranked by a figure of the paper."""
    for figure in _figures(paper):
        one = paper.best.get(figure.ranked[0]) if len(figure.ranked) == 1 else None
        if one and one.grid:
            yield leaderboard(one.table, one.grid)


def _contents(paper: Paper) -> str:
    """The list of a paper's tables, with the shares of measured numbers and the claims by state."""
    at_own = {one.table.id: one.tally for one in paper.tables if one.budget == PAPER}
    rows = []
    for id, one in paper.best.items():
        anchor = e(id.partition("/")[2])
        link = f'<a href="#{anchor}">{anchor}</a>' if one.grid else anchor
        budget = one.budget or ("counted" if one.table.counted else "not measured")
        shares = _share(one.tally), _share(at_own.get(id, Tally()))
        rows.append((link, e(one.table.title), e(budget), *shares, _signs(one.judged)))
    heads = ("table", "what", "budget", "the paper's numbers", "at its own budget", "claims")
    return listing(heads, rows, texts=3)


def _table(budgets: Sequence[Claims], opened: bool) -> str:
    """A foldable section with a table at each budget that has a number."""
    table = budgets[0].table
    return (
        f'<details class="table" id="{e(table.id.partition("/")[2])}"{" open" * opened}>'
        f"<summary><b>{e(table.id)}</b> {e(table.title)}</summary>{''.join(map(_at_budget, budgets))}</details>"
    )


def _at_budget(one: Claims) -> str:
    assert one.grid is not None
    grid = harmless(one.grid, escape)
    lines = [e(text) for text in (one.grid.about[0], *one.grid.makers)]  # the budget; the origin of shipped runs
    notes = [*brief(grid, escape), *grid.notes, *(f"{letters}: {text}" for letters, text in grid.footnotes)]
    return (
        f'<section class="wide" data-table="{e(one.table.id)}" data-budget="{e(one.budget)}">'
        f'<p>{"<br>".join(lines)}</p><div class="scroll">{html.table(grid, linked)}</div>{_claims(one.judged)}'
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
