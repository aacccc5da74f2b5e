"""`fedbench figure`: draw a figure of a paper from the images themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbench.cli import context
from fedbench.errors import FedbenchError, unknown

if TYPE_CHECKING:
    from rich.console import Console

    from fedbench.report.figures import FigureSpec, Panel

_TERMS = (
    "s = sqrt(λ'/λ) of the eigenvalues of XᵀX/n, up to the numerical rank; raw leaves out the 1/n, as the paper's "
    "figures do. bound = (1 + sqrt(1 + 4ξ))/2 with ξ = λ/(λ + S²), λ = {ridge:g}."
)


def figure(
    name: Annotated[str, typer.Argument(help="The figure: ftw_erm/2 or ftw_erm/3.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file: .png, .svg, .pdf, .csv or .json (default: PAPER-NUMBER.png)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as one JSON document.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the numbers as CSV.")] = False,
    partition: Annotated[
        str | None, typer.Option(metavar="ID", help="Draw it of this partition's clients instead.")
    ] = None,
    client: Annotated[
        list[int] | None, typer.Option(help="With --partition: only these clients, from 0 (repeat it).")
    ] = None,
    ridge: Annotated[float, typer.Option(metavar="λ", help="Penalty that the bound on the ratio is taken for.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the draw of the clients' images.")] = 0,
) -> None:
    """Draw a figure. Never trains; partitions that are not there are made.

    With --json or --csv the numbers are printed, and a file is written only where -o names one.
    """
    from fedbench.files import write_whole
    from fedbench.report import figures
    from fedbench.report.figures import data, draw

    wanted = figures.load(name)
    if as_json and as_csv:
        raise FedbenchError("--json and --csv exclude each other", "choose one")
    if client and partition is None:
        raise FedbenchError("--client goes with --partition only", "leave it out")
    path = output or (None if as_json or as_csv else Path(f"{wanted.id.replace('/', '-')}.png"))
    kind = path.suffix.removeprefix(".").lower() if path else ""
    if path and not kind:
        raise FedbenchError(f"cannot tell the format from the name {path}", "end it in .png, .svg, .pdf, .csv or .json")
    if path and kind not in (*draw.FORMATS, "csv", "json"):
        raise unknown("format of a figure", kind, (*draw.FORMATS, "csv", "json"))
    panels = _panels(wanted, partition, client, ridge, seed)

    texts = {"csv": data.as_csv, "json": data.as_json}
    if as_json or as_csv:
        typer.echo(texts["json" if as_json else "csv"](wanted, panels), nl=False)
    elif context.out().is_terminal:
        _show(wanted, panels, context.out())
    if path:
        older = path.exists()
        made = texts[kind](wanted, panels).encode() if kind in texts else draw.render(wanted, panels, kind)
        write_whole(path, made)
        context.err().print(f"{wanted.id} written to {path}{' (over an older one)' if older else ''}", soft_wrap=True)


def _panels(
    wanted: FigureSpec, partition: str | None, clients: list[int] | None, ridge: float, seed: int
) -> Sequence[Panel]:
    from fedbench.report.figures import source

    store, roots, notify = context.store(), context.roots(), context.err().print
    if partition is None:
        return source.panels(wanted, store, roots, notify, seed=seed, ridge=ridge)
    from fedbench import partition as partitions

    found = partitions.read(store.find(partition, ("partition",)))
    return [source.of_partition(found, store, roots, notify, clients=clients or None, ridge=ridge)]


def _show(wanted: FigureSpec, panels: Sequence[Panel], out: Console) -> None:
    """The findings, client by client."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from fedbench.report.figures import findings

    out.print(Text.assemble((wanted.id, "bold cyan"), "  ", (wanted.title, "bold")))
    heads = ("client", "train", "test", "rank", "max raw", "max s", "s < 1", "s < bound", "s < 1.618")
    for panel in panels:
        table = Table(
            *heads, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, title_justify="left"
        )
        table.title = Text(f"{panel.title}  (partition {panel.partition})", "bold")
        for column in table.columns:
            column.justify = "right"
        for told in map(findings, panel.curves):
            rank = min(told["rank_train"], told["rank_test"])
            cells = [str(told["client"]), f"{told['n_train']:,}", f"{told['n_test']:,}", f"{rank:,}"]
            cells += ["-" if told[k] is None else f"{told[k]:.3f}" for k in ("largest_raw", "largest")]
            for key in ("below_1", "below_bound", "below_1.618"):
                share = told[key]
                cells.append("-" if share is None else f"[{'green' if share == 1 else 'yellow'}]{_percent(share)}[/]")
            table.add_row(*cells)
        out.print(table)
        out.print()
    out.print(Text(_TERMS.format(ridge=panels[0].curves[0].ridge), "dim"))


def _percent(share: float) -> str:
    """Rounded down, so that 100 % means all."""
    return f"{int(1000 * share) / 10:.1f} %"
