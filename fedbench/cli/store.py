"""`fedbench store clean`: the store swept."""

from __future__ import annotations

from typing import Annotated

import typer

from fedbench.cli import context
from fedbench.cli.strict import App

store_app = App(no_args_is_help=True, help="The store itself.")


@store_app.callback()
def _about() -> None:
    """The store itself: what killed processes have left there, cleared away."""


@store_app.command()
def clean(json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False) -> None:
    """Delete what killed processes have left behind: half-written artifacts, temporary files, empty work folders.

    Artifacts, checkpoints and downloads stay, and so does what a living process is at.
    """
    store = context.store()
    gone = [str(path.relative_to(store.home)) for path in store.clean()]
    if json:
        context.print_json({"home": str(store.home), "removed": gone})
        return
    console = context.out()
    for path in gone:
        console.print(f"removed {path}")
    if not gone:
        console.print(f"nothing to clear in {store.home}")
