"""`fedbench store`: clear away the leftovers of killed processes, and bring an older store up to date."""

from __future__ import annotations

from fedbench.cli import context, options, printing
from fedbench.cli.parser import App
from fedbench.words import counted

app = App(name="store", no_args_is_help=True, help="Clean or upgrade the store.")


@app.callback()
def _about() -> None:
    """The store itself: clear away what killed processes have left there, or bring an older store up to date."""


@app.command()
def clean(json: options.Json = False) -> None:
    """Delete the remains of killed processes: half-written artifacts, temporary files, empty work folders.
    Artifacts, checkpoints, downloads and the files of active processes stay.
    """
    store = context.store()
    gone = [str(path.relative_to(store.home)) for path in store.clean()]
    if json:
        printing.print_json({"home": str(store.home), "removed": gone})
        return
    console = context.out()
    for path in gone:
        console.print(f"removed {path}")
    if not gone:
        console.print(f"nothing to clear in {store.home}")


@app.command("upgrade")
def upgrade_store(json: options.Json = False) -> None:
    """Upgrade a store of an older fedbench: its runs get new ids and keep all numbers. If it is interrupted,
    the same command continues.
    """
    from fedbench.store.upgrade import FORMER, upgrade

    home = context.home()
    done = upgrade(home)
    if json:
        printing.print_json({"home": str(home), **vars(done)})
        return
    console = context.out()
    console.print(f"{counted(len(done.renamed), 'run')} in {home} renamed" if done.renamed else f"{home} is up to date")
    for former, id in done.same.items():
        console.print(f"run {former} was run {id} under another budget: now one")
    for former, id in done.aside.items():
        console.print(f"run {former} is the same training as {id} with other files: moved to {home / FORMER / former}")
    for name in done.left:
        console.print(f"{name} is damaged: left as it is")
