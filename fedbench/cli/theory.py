"""`fedbench theory`: what papers' theorems are worth on simulated problems, where the truth is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedbench.cli import context
from fedbench.errors import unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from fedbench.theory.feddrm import Check
    from fedbench.theory.ftw_erm import Finding


#: (broken on purpose, holds) -> what is printed, and how.
_VERDICTS = {
    (False, True): ("holds", "bold green"),
    (False, False): ("does not hold", "bold red"),
    (True, False): ("fails, as it should", "bold yellow"),
    (True, True): ("holds, but should not", "bold red"),
}


def theory(
    paper: Annotated[str, typer.Option(help="Whose theory: ftw_erm or feddrm.")] = "ftw_erm",
    draws: Annotated[
        int | None, typer.Option(help="Simulated problems (default: 200,000 of three coordinates each; feddrm: 20).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the simulated problems.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check a paper's theory on simulated problems.

    FTW-ERM: how often do its conditions (4.3) and Proposition 3 hold, and how often is then true what they promise?
    FedDRM: what Theorems 2.1, 2.2 and 2.5 claim beside what is measured (some ten seconds).
    """
    import dataclasses
    from itertools import groupby

    from fedbench.theory.feddrm import Check
    from fedbench.theory.papers import PAPERS

    if paper not in PAPERS:
        raise unknown("paper with a theory", paper, PAPERS)
    about = PAPERS[paper]
    draws = about.draws if draws is None else draws
    findings = about.check(draws, seed)
    if as_json:
        listed = [dataclasses.asdict(f) | ({} if isinstance(f, Check) else {"share": f.share}) for f in findings]
        context.print_json({"paper": paper, "draws": draws, "seed": seed, "findings": listed})
        return
    from rich.text import Text

    out = context.out()
    out.print(Text.assemble((about.question, "bold"), f"  {draws:,} {about.problems}, seed {seed}\n"))
    for source, group in groupby(findings, lambda f: f.source):
        parts = list(group)
        for part in _compared(source, parts) if isinstance(parts[0], Check) else _counted(source, parts):
            out.print(part)
    out.print(Text(f"\n{about.terms}", "dim"))


def _counted(source: str, findings: Sequence[Finding]) -> Iterator[RenderableType]:
    """Each condition, its counts and what they show."""
    from rich.text import Text

    yield Text(source, "bold cyan")
    for f in findings:
        counts = Text(f"    held in {f.held:,} of {f.drawn:,} {f.unit}")
        if f.share is None:
            counts.append(" (never)", "bold yellow")
        else:
            then, style = ("always", "green") if f.followed == f.held else (f"{100 * f.share:.1f} %", "red")
            counts.append(f"; then {f.promise}: ").append("never" if not f.followed else then, f"bold {style}")
        yield Text(f"  {f.condition}")
        yield counts
        yield Text(f"    {f.remark}", "dim")


def _compared(source: str, checks: Sequence[Check]) -> Iterator[RenderableType]:
    """Each statement and how it fares, its numbers beside those claimed, and what they show."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(Text(source, "not dim bold cyan"))
    for head in ("measured", "claimed"):
        table.add_column(head, justify="right", no_wrap=True, min_width=9)
    table.add_column("", no_wrap=True, min_width=len(_VERDICTS[True, False][0]))
    for c in checks:
        table.add_row(Padding(Text(c.statement), (0, 0, 0, 2)), "", "", Text(*_VERDICTS[c.control, c.holds]))
        for point in c.points:
            table.add_row(
                Padding(Text(point.at), (0, 0, 0, 4)), f"{point.measured:.3g}", Text(f"{point.claimed:.3g}", "cyan")
            )
        table.add_row(Padding(Text(c.remark, "dim"), (0, 0, 0, 4)))
    yield table
