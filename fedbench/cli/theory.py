"""`fedbench theory`: what FTW-ERM's conditions are worth on random problems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedbench.cli import context

if TYPE_CHECKING:
    from rich.text import Text

    from fedbench.theory.ftw_erm import Finding

_TERMS = """
FTW: weighted, under the test second moment; ERM: unweighted, under the training one (the paper's proofs take it so).
B bias, V variance, R = B + V; s = sqrt(λ'/λ), ξ = λ/(λ + μ)."""


def theory(
    draws: Annotated[int, typer.Option(help="Random problems, of three coordinates each.")] = 200_000,
    seed: Annotated[int, typer.Option(help="Of the random problems.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check FTW-ERM's conditions (4.3) and Proposition 3 on random problems of its one-hot case.

    How often does each hold, and how often is then true what it promises?
    """
    import dataclasses

    from fedbench.theory.ftw_erm import census

    found = census(draws, seed)
    if as_json:
        told = [{**dataclasses.asdict(f), "share": f.share} for f in found]
        context.print_json({"draws": draws, "seed": seed, "findings": told})
        return
    from rich.text import Text

    out = context.out()
    out.print(
        Text.assemble(("When does weighting help?", "bold"), f"  {draws:,} random one-hot problems, seed {seed}\n")
    )
    before = ""
    for f in found:
        if f.source != before:
            out.print(Text(f.source, "bold cyan"))
        before = f.source
        for line in _said(f):
            out.print(line)
    out.print(Text(_TERMS, "dim"))


def _said(f: Finding) -> list[Text]:
    """The condition, its counts and what they show."""
    from rich.text import Text

    counts = Text(f"    held in {f.held:,} of {f.drawn:,} {f.unit}")
    if f.share is None:
        counts.append(" (never)", "bold yellow")
    else:
        then, style = ("always", "green") if f.followed == f.held else (f"{100 * f.share:.1f} %", "red")
        counts.append(f"; then {f.promise}: ").append("never" if not f.followed else then, f"bold {style}")
    return [Text(f"  {f.condition}"), counts, Text(f"    {f.remark}", "dim")]
