"""`fedbench claims`: what papers claim of their tables, and what of it holds on the numbers that there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbench.cli import complete, context

if TYPE_CHECKING:
    from fedbench.reports.claims import Claims, Stand

#: State of a claim -> sign and colour.
_LOOKS = {
    "holds": ("✓", "green"),
    "holds so far": ("✓", "green"),
    "fails": ("✗", "yellow"),
    "not measured": ("·", "dim"),
}


def claims(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Papers (feddrm) or tables (feddrm/1, 1); default: all.", autocompletion=complete.tables),
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Of the runs (default: each that has a number).")] = None,
    mine: Annotated[bool, typer.Option("--mine", help="Leave out shipped results (fedbench results list).")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write Markdown to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Every claim of the papers' tables: holds, holds so far (numbers are missing), fails, or not measured; at which
    budget, with the numbers that decide. Never trains."""
    from fedbench.files import write_whole
    from fedbench.reports import claims as page
    from fedbench.reports.status.index import Index
    from fedbench.results.shelf import Shelf

    store = context.store()
    index = Index(store, None if mine else Shelf.of(store))
    tables = list(page.claims(names or (), store, context.roots(), index, budget))
    if as_json:
        context.print_json([_document(one) for one in tables])
        return
    if output is not None:
        write_whole(output, ("\n".join(_markdown(tables)) + "\n").encode())
        context.err().print(f"the claims of {len(tables)} tables written to {output}", soft_wrap=True, markup=False)
        return
    out = context.out()
    for one in tables:
        out.print(_title(one), style="bold", soft_wrap=True, markup=False, highlight=False)
        for stand in one.stands:
            sign, style = _LOOKS[stand.verdict.state]
            out.print(f"  {sign} {_words(stand)}", style=style, soft_wrap=True, markup=False, highlight=False)
    for line in _summary(tables):
        out.print(line, soft_wrap=True, markup=False)


def _title(one: Claims) -> str:
    scope = f", {one.scope}" if one.scope else "" if one.table.counted else ", not measured"
    return f"{one.table.id}  {one.table.title}{scope}{' (shipped results among it)' if one.shipped else ''}"


def _words(stand: Stand) -> str:
    """A claim, how it stands, and the numbers that decide."""
    from fedbench.reports.render.text import how

    numbers = ", ".join(f"{name} {text}" for name, text in stand.numbers.items())
    parts = (stand.verdict.state, how(stand.verdict, stand.reported), numbers)
    return f"{stand.verdict.claim.text}: {'; '.join(part for part in parts if part)}"


def _summary(tables: Sequence[Claims]) -> Iterator[str]:
    """How many claims of each paper stand how."""
    papers: dict[str, Counter[str]] = {}
    for one in tables:
        own = papers.setdefault(one.table.id.partition("/")[0], Counter())
        own.update(stand.verdict.state for stand in one.stands)
    for paper, counts in papers.items():
        words = ", ".join(f"{counts[state]} {state}" for state in _LOOKS if counts[state])
        yield f"{paper}: {counts.total()} claims; {words}."


def _markdown(tables: Sequence[Claims]) -> Iterator[str]:
    from fedbench.reports.render.markdown import escape

    yield "# What the papers claim, and what holds here\n"
    yield from (f"- {escape(line)}" for line in _summary(tables))
    for one in tables:
        yield f"\n## {escape(_title(one))}\n"
        yield from (f"- {_LOOKS[stand.verdict.state][0]} {escape(_words(stand))}" for stand in one.stands)


def _document(one: Claims) -> dict[str, Any]:
    return {
        "table": one.table.id, "title": one.table.title, "budget": one.budget or None, "shipped": one.shipped,
        "claims": [
            {
                "text": stand.verdict.claim.text, "kind": stand.verdict.claim.kind, "state": stand.verdict.state,
                "held": stand.verdict.held, "made": stand.verdict.made, "asked": stand.verdict.asked,
                "detail": stand.verdict.detail, "numbers": dict(stand.numbers),
                "reported": stand.reported.state if stand.reported.made else None,
            }
            for stand in one.stands
        ],
    }  # fmt: skip
