"""The benchmark's pages: an overview of all papers; one page per paper with its tables, the paper's numbers and, if a
figure ranks the methods, a leaderboard; and one page per method. Their content comes from `reports.claims`."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedbench import resources
from fedbench.declaration import Declaration
from fedbench.errors import FedbenchError
from fedbench.methods import declarations
from fedbench.planner.table.spec import Table
from fedbench.reports import claims as of_claims
from fedbench.reports.claims import LOOKS, Claims, Judged
from fedbench.reports.compare.significance import neighbours, ranks_of
from fedbench.reports.layout.grid import Grid, Line
from fedbench.reports.numbers.agreement import POINTS, Tally
from fedbench.reports.render import html
from fedbench.reports.render.text import brief, harmless
from fedbench.reports.site.page import card, command, document, e, folded, listing, sort_head, values
from fedbench.results.frame import Frame
from fedbench.words import counted

if TYPE_CHECKING:
    from fedbench.reports.figures.spec import FigureSpec

#: Budget of the papers' own training.
PAPER = "paper"
#: File of the index of the user's runs in the same folder, and the link (HTML) at its top.
NOTEBOOK = ("runs.html", '<a href="index.html">All papers</a>')
#: Other pages, and how their names begin: a user's paper may be called so.
PAGES, PREFIXES = ("index", "runs"), ("method-", "run-", "paper-")
#: The family of methods that communicate after every step.
GRADIENT = "one gradient a round"
#: Number of shades of a heat map, from the best rank to the worst.
SHADES = 8


def address(method: str) -> str:
    """The file of a method's page."""
    return f"method-{method}.html"


def _file(text: str) -> str:
    """A text as a part of a file's name: other letters than those of addresses are replaced, and texts that then are
    equal, or differ in capitals only, stay apart."""
    safe = re.sub(r"[^a-z0-9_-]+", "-", text.lower())
    return safe if safe == text else f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def page_of(paper: str) -> str:
    """The file of a paper's page, which is called as the paper, unless another page or no address is called so."""
    taken = paper in PAGES or paper.startswith(PREFIXES) or paper != _file(paper)
    return f"paper-{_file(paper)}.html" if taken and paper in resources.of_user() else f"{paper}.html"


def picture_of(paper: str, number: str) -> str:
    """The file of a figure of a paper."""
    of_user = paper in resources.of_user()
    return f"figure-{_file(f'{paper}/{number}')}.svg" if of_user else f"{paper}-{number}.svg"


def family(one: Declaration) -> str:
    """The family of a method: the kind of models that it trains."""
    if one.one_step:
        return GRADIENT
    if one.clusters_by:
        return "clustered"
    return "personalised" if one.personalised else "one model for all"


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
    for one in declarations.built_in().values():
        yield address(one.name), method_page(one, papers).encode()


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


# -- front -----------------------------------------------------------------------------------------------------


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


# -- paper -----------------------------------------------------------------------------------------------------


def paper_page(paper: Paper, pictures: Mapping[str, str]) -> str:
    """A paper's page; `pictures`: file of a figure -> its title."""
    title, about = paper.page
    budgets: dict[str, list[Claims]] = {}  # table's id -> its claims at each measured budget, the fullest first
    for one in sorted(paper.measured, key=lambda one: one is not paper.best[one.table.id]):
        budgets.setdefault(one.table.id, []).append(one)
    order = [id for id in paper.best if id in budgets]
    body = [
        f"<h1>{e(title)}</h1>", f'<p class="about">{e(about)}</p>',
        *_leaderboards(paper),
        _contents(paper),
        *(f'<figure><img src="{e(file)}" alt="{e(what)}" loading="lazy"></figure>' for file, what in pictures.items()),
        *(_table(budgets[id], opened=id == order[0]) for id in order),
    ]  # fmt: skip
    return document(title, NOTEBOOK[1], body)


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
        f'<p>{"<br>".join(lines)}</p><div class="scroll">{html.table(grid, _linked)}</div>{_claims(one.judged)}'
        f"<details><summary>Notes, and what departs from the paper</summary>"
        f"<ul>{''.join(f'<li>{text}</li>' for text in notes)}</ul></details>"
        + command(f"fedbench report --table {one.table.id}{one.budget and f' --budget {one.budget}'} --compare")
        + "</section>"
    )


def _linked(line: Line, escape: Callable[[str], str] = str) -> str:
    """The label of a row as a link to its method's page; `escape` is needed unless the row is already `harmless`."""
    known, label = line.method in declarations.built_in(), escape(line.label)
    return f'<a href="{address(line.method)}">{label}</a>' if known else label


def _claims(judged: Iterable[Judged]) -> str:
    items = [
        f"<li>{_sign(LOOKS[claim.verdict.state][0])} {e(claim.verdict.claim.text)}"
        f"<small>{e(of_claims.words(claim).removeprefix(claim.verdict.claim.text + ': '))}</small></li>"
        for claim in judged
    ]
    return f'<ul class="claims">{"".join(items)}</ul>' if items else ""


# -- leaderboards ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """A row of a leaderboard."""

    line: Line
    family: str
    ranks: Sequence[float]  #: in each ranked column, within the row's class
    of: int  #: number of rows in its class
    cost: float | None  #: MB sent and received; None if unknown

    @property
    def mean(self) -> float:
        return float(np.mean(self.ranks))


def _leaderboards(paper: Paper) -> Iterator[str]:
    """A leaderboard for each table that alone is ranked by a figure of the paper."""
    for figure in _figures(paper):
        one = paper.best.get(figure.ranked[0]) if len(figure.ranked) == 1 else None
        if one and one.grid:
            yield leaderboard(one.table, one.grid)


def leaderboard(table: Table, grid: Grid) -> str:
    """A heat map of a table's rows, sorted by average rank over the columns of the table's metric. Methods that send a
    gradient at every step are a separate class, because they send ten times as much as others."""
    ranked = [k for k, c in enumerate(table.printed) if c.metric == table.metric and not c.of]
    rest = [k for k, c in enumerate(table.printed) if k not in ranked]
    rows_of_table = [line for line in grid.lines if line.in_table]
    whole = [line for line in rows_of_table if all(line.entries[k].value for k in ranked)]
    every_step = [line for line in whole if _family(line) == GRADIENT]
    first = _standings(table, [line for line in whole if line not in every_step], ranked)
    last = _standings(table, every_step, ranked)
    median = float(np.median([one.cost for one in first if one.cost] or [1.0]))
    heads = [sort_head("method", "key"), sort_head("family", "key"), sort_head("mean rank")]
    heads += [sort_head(grid.heads[k].label, group=grid.heads[k].group) for k in [*ranked, *rest]]
    rows = [_standing_row(one, ranked, rest, median) for one in first]
    if last:
        rows.append(f'<tr class="class"><th colspan="{len(heads)}" class="key">one communication a step</th></tr>')
        rows += [_standing_row(one, ranked, rest, median) for one in last]
    families = "".join(f"<option>{e(name)}</option>" for name in sorted({one.family for one in (*first, *last)}))
    tools = (
        f'<label>Family <select data-filter="family"><option value="">all</option>{families}</select></label> '
        '<label>Traffic <select data-filter="cost"><option value="">any</option><option value="1.01">at most the '
        'median</option><option value="2">at most twice the median</option></select></label> <output></output>'
    )
    lacking = ", ".join(line.label for line in rows_of_table if line not in whole)
    heat = f'<table class="heat"><thead><tr>{"".join(heads)}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    said = f'<p>{e(_told(first, ranked))}</p><div class="tools">{tools}</div><div class="scroll tall">{heat}</div>'
    left = folded("Rows without a number in every column", [lacking] if lacking else [])
    return card(grid.title, said + left, wide=True)


def _family(line: Line) -> str:
    known = declarations.built_in().get(line.method)
    return family(known) if known else "own"


def _standings(table: Table, lines: Sequence[Line], ranked: Sequence[int]) -> list[Standing]:
    """The standings of rows of one class, best first."""
    if not lines:
        return []
    values_of = np.array([[_value(line, k) for line in lines] for k in ranked])
    ranks = ranks_of(values_of, table.best)
    sizes = [k for k, c in enumerate(table.printed) if c.unit == "megabytes"]
    standings = []
    for line, of_line in zip(lines, ranks.T.tolist(), strict=True):
        sent = [value.mean for k in sizes if (value := line.entries[k].value)]
        cost = sum(sent) if len(sent) == len(sizes) else None
        standings.append(Standing(line, _family(line), of_line, len(lines), cost))
    return sorted(standings, key=lambda one: one.mean)


def _value(line: Line, k: int) -> float:
    value = line.entries[k].value
    assert value is not None
    return value.mean


def _standing_row(one: Standing, ranked: Sequence[int], rest: Sequence[int], median: float) -> str:
    line = one.line
    relative = f' data-cost="{one.cost / median:.3g}"' if one.cost else ""
    cells = [
        f'<th scope="row" class="key">{_linked(line, e)}</th>',
        f'<td class="key">{e(one.family)}</td><td data-value="{one.mean:.4g}"><b>{one.mean:.1f}</b></td>',
    ]
    for k, rank in zip(ranked, one.ranks, strict=True):
        shade = min(SHADES - 1, int((rank - 1) / max(one.of - 1, 1) * SHADES))
        cells.append(
            f'<td class="s{shade}" data-value="{_value(line, k):.6g}" title="rank {rank:g} of {one.of}">'
            f"{e(line.entries[k].text)}<small>{rank:g}</small></td>"
        )
    cells += [f"<td>{e(line.entries[k].text or line.entries[k].symbol)}</td>" for k in rest]
    return f'<tr data-family="{e(one.family)}"{relative}>{"".join(cells)}</tr>'


def _told(standings: Sequence[Standing], ranked: Sequence[int]) -> str:
    """A sentence on the ranks, and on the differences between neighbours that are significant."""
    numbers = np.array([[_value(one.line, k) for one in standings] for k in ranked])
    said = (
        f"{counted(len(standings), 'method')} by their average rank over {counted(len(ranked), 'column')}; dark is best"
    )
    return f"{said}; {neighbours(numbers, range(len(standings)))}."


# -- method ----------------------------------------------------------------------------------------------------


def method_page(one: Declaration, papers: Sequence[Paper]) -> str:
    """A method's page: its description, hyper-parameters, deviations, and mean rank in each table."""
    parts = (" ".join(part.split()) for part in one.text.split("\n\n"))
    facts = {
        "family": family(one),
        "clusters by": one.clusters_by,
        "answers for": ", ".join(f"{who} clients" for who in one.serves),
        "routes images": "yes" if one.routes else "",
        "version": str(one.version),
    }
    options = [
        (f"<code>--{e(name.replace('_', '-'))}</code>", *map(e, (it.symbol, it.help, it.source, it.default)))
        for name, it in one.hyper_parameters.items()
    ]
    rows = list(_places(one, papers))
    tables = ("table", "what", "row", "budget", "mean rank", "in the paper", "of rows")
    body = [
        f"<h1>{e(one.title)}</h1>", f'<p class="about">{e(one.summary)}</p>',
        *(f"<p>{_prose(part)}</p>" for part in parts if not part.startswith("deviates:")),
        values((name, value) for name, value in facts.items() if value),
        command(f"fedbench train --method {one.name}"),
        *(["<h2>Where it stands</h2>", listing(tables, rows, texts=4)] if rows else []),
        *(["<h2>Hyper-parameters</h2>", listing(("option", "", "what", "source", "default"), options, texts=4)]
          if options else []),
        folded("How it deviates from its paper", one.deviations),
    ]  # fmt: skip
    return document(one.title, NOTEBOOK[1], body)


def _prose(text: str) -> str:
    """A paragraph of a docstring as HTML; names in backticks become code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", e(text))


def _places(one: Declaration, papers: Sequence[Paper]) -> Iterator[Sequence[str]]:
    """One line per row of the method in each table at its `best` budget, with the row's mean ranks."""
    for paper in papers:
        for id, at in paper.best.items():
            if at.grid is None or at.table.counted:
                continue
            lines = [line for line in at.grid.lines if line.in_table]
            of_method = [line for line in lines if line.method == one.name]
            for line in of_method if len(of_method) < len(lines) else ():
                ours, theirs = (_mean_rank(at.table, lines, line, measured) for measured in (True, False))
                if ours:
                    link = f'<a href="{e(page_of(paper.name))}#{e(id.partition("/")[2])}">{e(id)}</a>'
                    yield link, e(at.table.title), e(line.label), e(at.budget), ours, theirs, str(len(lines))


def _mean_rank(table: Table, lines: Sequence[Line], line: Line, measured: bool) -> str:
    """A row's mean rank over the columns in which it has a (measured or reported) number; "" if it has none."""

    def number(of: Line, k: int) -> float | None:
        value, reported = of.entries[k].value, of.entries[k].reported
        return (value.mean if value else None) if measured else (reported[0] if reported else None)

    ranks = []
    for k, column in enumerate(table.printed):
        if column.best != "none" and (this := number(line, k)) is not None:
            sign = -1 if column.best == "min" else 1
            others = (number(of, k) for of in lines)
            ranks.append(1 + sum(sign * other > sign * this for other in others if other is not None))
    return f"{np.mean(ranks):.1f}" if ranks else ""
