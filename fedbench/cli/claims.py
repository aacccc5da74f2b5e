"""`fedbench claims`: what papers claim of their tables, and what of it holds on the numbers that there are."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbench.cli import complete, context
from fedbench.errors import FedbenchError

if TYPE_CHECKING:
    from fedbench.reports.claims import Claims


@context.uncollected()
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
    """Every claim of the papers' tables: holds, holds so far (numbers are missing), is undecided (within the noise of
    the seeds), fails, or not measured; at which budget, with the numbers that decide. Never trains."""
    from fedbench.files import write_whole
    from fedbench.reports.claims import claims as every
    from fedbench.reports.claims_in_words import LOOKS, markdown, summary, title, words
    from fedbench.reports.status.index import Index

    if output is not None and output.suffix != ".md":
        raise FedbenchError(f"claims are written in Markdown, and {output} does not end so", "-o NAME.md")
    store = context.store()
    index = Index(store, None if mine else context.shelf())
    tables = list(every(names or (), store, context.roots(), index, budget))
    if as_json:
        context.print_json([_document(one) for one in tables])
        return
    if output is not None:
        write_whole(output, ("\n".join(markdown(tables)) + "\n").encode())
        context.err().print(f"the claims of {len(tables)} tables written to {output}", soft_wrap=True, markup=False)
        return
    out = context.out()
    for one in (one for one in tables if one.stands):
        out.print(title(one), style="bold", soft_wrap=True, markup=False, highlight=False)
        for stand in one.stands:
            sign, style = LOOKS[stand.verdict.state]
            out.print(f"  {sign} {words(stand)}", style=style, soft_wrap=True, markup=False, highlight=False)
    if not any(one.stands for one in tables):
        context.err().print("no claims are declared of these tables")
    for line in summary(tables):
        out.print(line, soft_wrap=True, markup=False)


def _document(one: Claims) -> dict[str, Any]:
    return {
        "table": one.table.id, "title": one.table.title, "budget": one.budget or None, "shipped": one.shipped,
        "numbers": dataclasses.asdict(one.tally),
        "claims": [
            {
                "text": stand.verdict.claim.text, "kind": stand.verdict.claim.kind, "state": stand.verdict.state,
                "held": stand.verdict.held, "made": stand.verdict.made, "asked": stand.verdict.asked,
                "undecided": stand.verdict.unsure,
                "detail": stand.verdict.detail, "numbers": dict(stand.numbers),
                "reported": stand.reported.state if stand.reported.made else None,
            }
            for stand in one.stands
        ],
    }  # fmt: skip
