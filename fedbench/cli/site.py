"""`fedbench site`: the benchmark, or a notebook of some runs, as web pages."""

from __future__ import annotations

import itertools
import os
import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedbench import resources
from fedbench.cli import context, options
from fedbench.cli.parser import App
from fedbench.errors import FedbenchError
from fedbench.words import counted

if TYPE_CHECKING:
    from fedbench.reports.site.pages import Origin
    from fedbench.results.run import Run

app = App()


@app.command("site")
def site(
    folder: Annotated[Path, options.argument("The folder to write to (index.html and others).", "OUT")],
    filter: options.Filters = None,
    no_shipped: options.NoShipped = False,
) -> None:
    """Write web pages: papers with their reported numbers, methods, the arena, your own runs. With papers
    (flux, ./mine): only these. With filters: a notebook of only these runs. The pages need no network and no
    server.
    """
    from rich.progress import track

    from fedbench.files import write_whole
    from fedbench.planner.runs import select
    from fedbench.reports.site import benchmark
    from fedbench.reports.site.page import NOTEBOOK, shared
    from fedbench.reports.site.pages import pages

    named = {word: resources.named(word) for word in filter or ()}
    papers = [name for name in named.values() if resources.paper(name)]
    filter = [word for word, name in named.items() if name not in papers]
    if papers and filter:
        raise FedbenchError(f"pages are of papers ({papers[0]}) or of runs ({filter[0]})", "leave one of the two out")
    frame = context.frame(shipped=not no_shipped)
    try:
        runs = [] if papers else select(frame, filter, context.roots())
    except FedbenchError:
        if filter:
            raise
        runs = []  # the store has no run yet
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedbenchError(f"cannot make the folder {folder} ({error.strerror})", "choose another OUT") from error
    size, console = 0, context.err()
    files = {name: text.encode() for name, text in shared().items()}.items()
    notebook = ((name, text.encode()) for name, text in pages(runs, _origin, *(() if filter else NOTEBOOK)))
    of_papers = () if filter else benchmark.pages(frame, context.roots(), len(runs), papers)
    every = itertools.chain(files, of_papers, notebook if runs else ())
    for name, content in track(every, "pages", total=None, console=console, transient=True):
        content = _without_places(content, context.store().home)
        write_whole(folder / name, content)
        size += len(content)
    written = counted(len(papers), "paper") if papers else counted(len(runs), "run")
    console.print(
        f"{written}, {size / 1e6:.1f} MB: open {folder / 'index.html'}",
        soft_wrap=True,
        markup=False,
    )


def _without_places(content: bytes, home: Path) -> bytes:
    """A page without the paths of the store and of the user's home, which errors name: pages are made to be shared."""
    for place, word in ((home, b"STORE"), (Path(os.path.expanduser("~")), b"~")):
        text = escape(str(place)).encode(errors="replace")
        content = re.sub(re.escape(text) + rb"(?=[/\s:;,)&<]|$)", word, content) if len(text) > 1 else content
    return content


def _origin(run: Run) -> Origin:
    from fedbench.cli.origin import chain, details
    from fedbench.reports.layout.grid import SHIPPED
    from fedbench.reports.layout.shipped import of_runs

    origin = []
    for n, (what, one) in enumerate(chain(run.store, run.artifact)):
        if run.shipped:
            made = () if n else of_runs([run.shipped])
            origin.append((what, [line.removeprefix(f"{SHIPPED} ") for line in made]))
        else:
            origin.append((what, details(one, to_share=True)) if one else (f"{what} (not in this store)", []))
    return origin
