"""`fedbench site`: a lab notebook of runs as HTML."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbench.cli import context
from fedbench.words import counted

if TYPE_CHECKING:
    from fedbench.reports.runs import Run
    from fedbench.reports.site.run import Told


def site(
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write to: index.html, run-ID.html.")],
    filter: Annotated[
        list[str] | None,
        typer.Argument(
            help="Which runs: ids, or KEY=VALUE,VALUE (also KEY!=VALUE) with * for any text, such as "
            "method=fedavg,ditto dataset=mnist lr=0.1; table=feddrm/1 and shipped=yes name shipped runs, too; default: "
            "all of one's own.",
        ),
    ] = None,
    mine: Annotated[bool, typer.Option("--mine", help="Leave out shipped results (fedbench results list).")] = False,
) -> None:
    """Write a lab notebook: a sortable table of runs, a page a run; each file stands alone, without a network."""
    from rich.progress import track

    from fedbench.errors import FedbenchError
    from fedbench.files import write_whole
    from fedbench.reports.runs import select
    from fedbench.reports.site.pages import pages

    store = context.store()
    runs = select(store, filter or [], None if mine else context.shelf(), context.roots())
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedbenchError(f"cannot make the folder {folder} ({error.strerror})", "choose another OUT") from error
    size, console = 0, context.err()
    files = pages(runs, _tell)
    for name, page in track(files, "pages", total=1 + len(runs), console=console, transient=True):
        content = page.encode()
        write_whole(folder / name, content)
        size += len(content)
    console.print(
        f"{counted(len(runs), 'run')}, {size / 1e6:.1f} MB: open {folder / 'index.html'}",
        soft_wrap=True, markup=False,
    )  # fmt: skip


def _tell(run: Run) -> Told:
    from fedbench.cli.origin import chain, details
    from fedbench.engine.repeat import commands
    from fedbench.reports.layout.shipped import of_runs
    from fedbench.reports.site.run import Told

    links = chain(run.store, run.artifact)
    if run.shipped:
        return Told(
            [(what, list(of_runs([run.shipped])) * (not i)) for i, (what, _) in enumerate(links)], commands(run.spec)
        )
    origin = [(what if one else f"{what} (not in this store)", details(one) if one else []) for what, one in links]
    return Told(origin, commands(run.spec))
