"""The benchmark's pages: the front page with the arena's best and all papers; one page per paper with its tables, the
paper's numbers and, if a figure ranks the methods, a leaderboard; and one page per method. Their content comes from
`reports.claims`."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench import resources
from fedbench.declaration import Declaration
from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.methods import declarations
from fedbench.protocol import PAPER
from fedbench.reports import claims as of_claims
from fedbench.reports.claims import LOOKS, Claims, Judged
from fedbench.reports.layout.grid import Grid
from fedbench.reports.layout.references import by_family
from fedbench.reports.numbers.agreement import POINTS, Tally
from fedbench.reports.render import html
from fedbench.reports.render.text import brief, harmless
from fedbench.reports.site.leaderboard import Leaderboard, leaderboard, told, top
from fedbench.reports.site.methods import address, linked, method_page
from fedbench.reports.site.names import page_of, picture_of
from fedbench.reports.site.page import NOTEBOOK, Picture, command, document, e, figure, listing, prose, scrolled
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


def _over_all_seeds(tables: Iterable[Claims]) -> int:
    """How many of the paper's numbers are measured over all seeds of their budget; counted ones need none."""
    total = 0
    for one in tables:
        of = 0 if one.table.counted else one.seeds
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
    if counts == [one.seeds]:
        return counted(counts[0], "seed")
    some = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"{some} of {counted(one.seeds, 'seed')}"


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
        pictures = list(_pictures(paper, frame, roots))
        yield from ((one.file, one.content.encode()) for one in pictures)
        yield page_of(paper.name), paper_page(paper, pictures).encode()
    best = [at for paper in papers for at in paper.best.values()]
    for one in declarations.built_in().values():
        yield address(one.name), method_page(one, best).encode()


def _pictures(paper: Paper, frame: Frame, roots: Sequence[Path]) -> Iterator[Picture]:
    """A paper's figures with a number."""
    from fedbench.reports import figures

    budgets = {one.table.id: one.budget for one in paper.best.values()}
    for spec in _figures(paper):
        first = next(iter(spec.series.tables.values())) if spec.series else None  # other figures show data
        if first in budgets:
            request = figures.Request(frame, roots, budget=budgets[first] or None)
            try:
                content = figures.svg(spec, request)
            except FedbenchError:
                continue
            number = spec.id.partition("/")[2]
            yield Picture(picture_of(paper.name, number), f"{_figure(number)}: {spec.title}", content)


def _figure(number: str) -> str:
    """What a figure is called; only papers number theirs."""
    return f"Figure {number}" if number[0].isdigit() else number.capitalize()


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
    """The first page: what fedbench is, a paper's table beside its numbers, the arena's best methods, each paper's
    measured numbers and claims, and all methods."""
    title = "fedbench: federated learning, measured beside reported"
    legend = ", ".join(f"{sign} {meaning}" for sign, meaning in MEANINGS.items())
    with_numbers = [paper for paper in papers if _tally(paper.at()).reported]
    others = [(_named(paper), f"{sum(map(_numbers, paper.at())):,}") for paper in papers if paper not in with_numbers]
    heads = ("paper", "its numbers that we measured", "at its own budget", "claims")
    families = by_family(declarations.built_in().values())
    way = ['<a href="#papers">Papers</a>', '<a href="#methods">Methods</a>']
    way += [f'<a href="{NOTEBOOK[0]}">Your {counted(own, "run")}</a>'] * (own > 0)
    body = [
        f"<h1>{title}</h1>",
        f'<p class="about">{e(ABOUT)} A click on a number shows the command that makes it.</p>',
        f"<p>Install it in a checkout (Linux, Python 3.11 to 3.14):</p>{command(INSTALL)}",
        *_headline(with_numbers),
        *(part for paper in papers for board in paper.boards[:1] for part in _top(paper, board)),
        '<h2 id="papers">The papers</h2>',
        listing(heads, map(_paper_row, with_numbers), look="papers"),
        f'<p class="about">Claims: {legend}.</p>',
        *(["<h2>Tables of our own</h2>", listing(("what", "numbers"), others, look="papers")] if others else []),
        f'<h2 id="methods">{counted(sum(map(len, families.values())), "method")}</h2>',
        f'<div class="families">{"".join(map(_chips, families, families.values()))}</div>',
    ]
    return document(title, " · ".join(way), body, ABOUT)


def _chips(family: str, methods: Iterable[Declaration]) -> str:
    links = " ".join(f'<a href="{address(one.name)}">{e(one.title)}</a>' for one in methods)
    return f'<h3>{e(family)}</h3><p class="chips">{links}</p>'


def _headline(papers: Iterable[Paper]) -> Iterator[str]:
    """The largest table of which all the paper's numbers are measured, over all seeds of the paper's own budget."""
    tables = [(one, paper) for paper in papers for one in paper.at(PAPER) if one.grid and not one.table.counted]
    whole = [(one, paper) for one, paper in tables if _over_all_seeds([one]) == one.tally.reported > 0]
    if not whole:
        return
    one, paper = max(whole, key=lambda of: of[0].tally.reported)
    assert one.grid is not None
    lines = [dataclasses.replace(line, mark="") for line in one.grid.lines if line.part != "added"]
    yield "<h2>Measured beside reported</h2>"
    yield (
        f'<p class="about">{e(one.table.title)} ({_linked(paper)}, {_coverage(one)}). Below each number stands the '
        "paper's, with the difference; * is far off.</p>"
    )
    yield _numbered(one, dataclasses.replace(one.grid, lines=tuple(lines)))


def _top(paper: Paper, board: Leaderboard) -> Iterator[str]:
    count = min(TOP, len(board.first))
    yield f"<h2>The best {count} of {counted(len(board.first), 'method')}</h2>"
    link = f'<a href="{e(page_of(paper.name))}">All methods and columns</a>'
    yield f'<p class="about">{e(board.grid.title)}. {e(told(board))} {link}</p>'
    yield top(board, TOP)


def _linked(paper: Paper) -> str:
    return f'<a href="{e(page_of(paper.name))}">{e(paper.page[0])}</a>'


def _named(paper: Paper) -> str:
    return f"{_linked(paper)}<small>{prose(paper.page[1])}</small>"


def _paper_row(paper: Paper) -> Sequence[str]:
    return _named(paper), _share(paper.at()), _share(paper.at(PAPER)), _signs(paper.judged.values())


def _share(tables: Sequence[Claims]) -> str:
    """The share of the paper's numbers that are measured as a bar and in words, how many of them are over all seeds,
    and how many are near."""
    tally = _tally(tables)
    if not tally.reported:
        return ""
    name = f"{tally.measured:,} of {tally.reported:,}"
    bar = f'<meter max="{tally.reported}" value="{tally.measured}" aria-label="{name} measured"></meter>'
    seeds = f"; {_over_all_seeds(tables):,} over all seeds" if tally.measured else ""
    near = f"; {tally.three[1]} within {POINTS:g} points" if tally.three[1] else ""
    return f'{bar}<small title="{e(tally)}">{name}{seeds}{near}</small>'


def _signs(judged: Iterable[Judged]) -> str:
    """The number of claims in each state, after its sign."""
    states = Counter(LOOKS[claim.verdict.state][0] for claim in judged)
    return " ".join(_sign(sign, f" {states[sign]}") for sign in MEANINGS if states[sign])


def _sign(sign: str, more: str = "") -> str:
    return f'<span class="sign {MEANINGS[sign].split()[0]}" title="{MEANINGS[sign]}">{sign}{more}</span>'


def paper_page(paper: Paper, pictures: Sequence[Picture]) -> str:
    """A paper's page, which begins with its leaderboards and its fullest table; tables without a number are one
    line."""
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
        *([f'<div class="figures">{"".join(map(figure, pictures))}</div>'] if pictures else []),
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
    summary = f"{counted(len(rows), 'table')} not measured yet"
    listed = listing(("table", "what", "command"), rows, texts=3, look="what")
    return f"<details><summary>{summary}</summary>{listed}</details>"


def _table(budgets: Sequence[Claims], opened: bool = False) -> str:
    """A foldable section with a table at each budget that has a number; its summary says how full the fullest is."""
    one = budgets[0]
    budget = ", ".join(filter(None, (one.budget or "counted", _coverage(one))))
    facts = f"<small>{e(budget)}</small><small>{_share([one])}</small><small>{_signs(one.judged)}</small>"
    return (
        f'<details class="table" id="{e(one.table.id.partition("/")[2])}"{" open" * opened}>'
        f"<summary><span><b>{e(one.table.id)}</b> {e(one.table.title)}</span>{facts}</summary>"
        f"{_at_budget(one)}{''.join(map(_other_budget, budgets[1:]))}</details>"
    )


def _other_budget(one: Claims) -> str:
    """A budget with fewer numbers, folded."""
    summary = f"Budget {e(one.budget)}: {_share([one]) or _coverage(one)}"
    return f"<details><summary>{summary}</summary>{_at_budget(one)}</details>"


def _at_budget(one: Claims) -> str:
    assert one.grid is not None
    grid = harmless(one.grid, escape)
    lines = [e(text) for text in (one.grid.basis, *one.grid.makers) if text]
    notes = [*brief(grid, escape), *grid.notes, *(f"{letters}: {text}" for letters, text in grid.footnotes)]
    return (
        f'<section class="wide"><p>{"<br>".join(lines)}</p>{_numbered(one, one.grid)}{_claims(one.judged)}'
        f"<details><summary>Notes, and what departs from the paper</summary>"
        f"<ul>{''.join(f'<li>{text}</li>' for text in notes)}</ul></details>"
        + command(f"fedbench report --table {one.table.id}{one.budget and f' --budget {one.budget}'} --compare")
        + "</section>"
    )


def _numbered(one: Claims, grid: Grid) -> str:
    """A grid of a table at a budget, whose numbers show the command that makes them."""
    table = scrolled(html.table(harmless(grid, escape), linked))
    return f'<div data-table="{e(one.table.id)}" data-budget="{e(one.budget)}">{table}</div>'


def _claims(judged: Iterable[Judged]) -> str:
    items = [
        f"<li>{_sign(LOOKS[claim.verdict.state][0])} {e(claim.verdict.claim.text)}"
        f"<small>{e(of_claims.words(claim).removeprefix(claim.verdict.claim.text + ': '))}</small></li>"
        for claim in judged
    ]
    return f'<ul class="claims">{"".join(items)}</ul>' if items else ""
