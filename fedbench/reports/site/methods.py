"""Pages of methods: what a method is, its hyper-parameters and deviations, and where it stands in each table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fedbench.declaration import Declaration
from fedbench.methods import declarations
from fedbench.planner.table.spec import Table
from fedbench.reports.claims import Claims
from fedbench.reports.layout.grid import Line
from fedbench.reports.layout.references import Reference, family, of_method
from fedbench.reports.site.names import page_of
from fedbench.reports.site.page import NOTEBOOK, coded, command, document, e, folded, listing, values


def address(method: str) -> str:
    """The file of a method's page."""
    return f"method-{method}.html"


def linked(line: Line, escape: Callable[[str], str] = str) -> str:
    """The label of a row as a link to its method's page; `escape` is needed unless the row is already `harmless`."""
    known, label = line.method in declarations.built_in(), escape(line.label)
    return f'<a href="{address(line.method)}">{label}</a>' if known else label


def method_page(one: Declaration, tables: Sequence[Claims]) -> str:
    """A method's page: its description, hyper-parameters, deviations, and mean rank in each of the tables."""
    parts = (" ".join(part.split()) for part in one.text.split("\n\n"))
    facts = {
        "family": family(one),
        "sends": "a gradient after every step" if one.one_step else "",
        "clusters by": one.clusters_by,
        "answers for": ", ".join(f"{who} clients" for who in one.serves),
        "routes images": "yes" if one.routes else "",
        "version": str(one.version),
    }
    options = [
        (
            f"<code>--{e(name.replace('_', '-'))}</code><small>{e(it.help)}</small>",
            *map(e, (it.default, it.symbol, it.source)),
        )
        for name, it in one.hyper_parameters.items()
    ]
    rows = list(_places(one, tables))
    heads = ("table", "our mean rank", "the paper's", "of rows", "row", "budget")
    of_options = ("option", "default", "symbol", "source")
    body = [
        f"<h1>{e(one.title)}</h1>",
        f'<p class="about">{e(one.summary)}.</p>',
        *(f"<p>From {_paper(paper)}</p>" for _, paper in of_method(one.name)),
        *(f"<p>{coded(part)}</p>" for part in parts if not part.startswith("deviates:")),
        values((name, value) for name, value in facts.items() if value),
        command(f"fedbench train --method {one.name}"),
        *(["<h2>Where it stands</h2>", listing(heads, rows, look="stands")] if rows else []),
        *(["<h2>Hyper-parameters</h2>", listing(of_options, options, texts=4, look="stands")] if options else []),
        folded("How it deviates from its paper", one.deviations),
    ]
    about = f"{one.title}: {one.summary}. Its hyper-parameters and where it stands in fedbench's tables."
    return document(one.title, NOTEBOOK[1], body, about)


def _paper(paper: Reference) -> str:
    """A paper as HTML: a link to arXiv, if it is there."""
    words = e(paper.words)
    return f'<a href="https://arxiv.org/abs/{paper.arxiv}">{words}</a>' if paper.arxiv else words


def _places(one: Declaration, tables: Sequence[Claims]) -> Iterator[Sequence[str]]:
    """One line per row of the method in each table, with the row's mean ranks."""
    for at in tables:
        if at.grid is None or at.table.counted:
            continue
        lines = [line for line in at.grid.lines if line.in_table]
        of_method = [line for line in lines if line.method == one.name]
        for line in of_method if len(of_method) < len(lines) else ():
            ours, theirs = (_mean_rank(at.table, lines, line, measured) for measured in (True, False))
            if ours:
                id = at.table.id
                link = f'<a href="{e(page_of(at.paper))}#{e(id.partition("/")[2])}">{e(id)}</a>'
                named = f"{link}<small>{e(at.table.title)}</small>"
                yield named, ours, theirs, str(len(lines)), e(line.label), e(at.budget)


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
