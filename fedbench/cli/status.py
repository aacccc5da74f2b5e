"""`fedbench status`: progress of running and interrupted runs, read-only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from fedbench.cli import context, options, printing
from fedbench.cli.describe import describe
from fedbench.cli.listing import unfinished_document
from fedbench.cli.parser import App
from fedbench.errors import FedbenchError
from fedbench.store import Store
from fedbench.store.unfinished import Unfinished, UnfinishedState, unfinished
from fedbench.words import duration, plain, size

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

app = App()

#: Seconds between two updates of --watch.
WATCH_SECONDS = 2.0
_BAR = 12


@app.command("status")
def status(
    watch: Annotated[bool, "Look again every two seconds, until Ctrl-C.", "-w"] = False,
    json: options.Json = False,
) -> None:
    """Show the runs under way, by whichever process, and those that were interrupted or failed."""
    if watch and json:
        raise FedbenchError("--watch does not go with --json", "leave one of the two out")
    store = context.store()
    if json:
        printing.print_json([{**unfinished_document(run), "goes_on": goes_on(run)} for run in unfinished(store)])
    elif watch:
        _watch(store)
    else:
        context.out().print(_view(store))


def _watch(store: Store) -> None:
    from rich.live import Live

    console = context.out()
    try:
        with Live(_view(store), console=console, auto_refresh=False, screen=console.is_terminal) as live:
            while True:
                time.sleep(WATCH_SECONDS)
                live.update(_view(store), refresh=True)
    except KeyboardInterrupt:
        return


def goes_on(run: Unfinished) -> str | None:
    """The command that resumes a run that has stopped; None for a run that needs a user's file."""
    return f"fedbench resume {run.id}" if run.state is not UnfinishedState.RUNNING and user_file(run) is None else None


def _view(store: Store) -> Group:
    from rich.console import Group
    from rich.text import Text

    runs = unfinished(store)
    under_way = [run for run in runs if run.state is UnfinishedState.RUNNING]
    parts: list[RenderableType] = [_under_way(under_way)] if under_way else [Text(f"nothing runs in {store.home}")]
    for run in (run for run in runs if run.state is not UnfinishedState.RUNNING):
        style = "red" if run.state is UnfinishedState.FAILED else "yellow"
        saved = f"round {run.round} of {run.spec.setting.rounds} is saved" if run.round else "nothing is saved"
        reached = "" if run.accuracy is None else f", accuracy {run.accuracy:.1%}"
        parts.append(Text.assemble(f"\n{run.id} ", (str(run.state), style), f": {plain(describe(run.spec))}"))
        ago = duration(time.time() - run.time)
        parts.append(Text(f"  {saved}{reached}, {ago} ago" + (f"; {plain(run.reason)}" if run.reason else "")))
        parts.append(Text(f"  {goes_on(run) or 'the command that started it resumes it'}", "bold"))
    return Group(*parts)


def _under_way(runs: Sequence[Unfinished]) -> RenderableType:
    headings = ("run", "what", "rounds", "left", "accuracy", "where")
    table = printing.table(*headings, right=("rounds", "left", "accuracy"), whole=("run", "left"))
    for run in runs:
        rounds, left = run.spec.setting.rounds, run.seconds_left
        bar = "━" * round(_BAR * run.round / rounds)
        table.add_row(
            run.id,
            plain(describe(run.spec)),
            f"{bar} {run.round}/{rounds}",
            "–" if left is None else duration(left),
            "–" if run.accuracy is None else f"{run.accuracy:.1%}",
            plain(_where(run)),
        )
    return table


def _where(run: Unfinished) -> str:
    """Process, host, device, executor, current activity before the first round, and memory of the GPU."""
    assert run.holder is not None
    note = run.progress
    words = [f"process {run.holder['pid']} on {run.holder['host']}"]
    words += [str(note[name]) for name in ("device", "executor", "doing") if note.get(name)]
    gpu = note.get("gpu")
    if isinstance(gpu, dict):
        words.append(f"{size(gpu.get('reserved', 0))} of {size(gpu.get('bytes', 0))}")
    return ", ".join(words if note else [*words, "starting"])


def user_file(run: Unfinished) -> str | None:
    """The part of a run that a user's file defines, whose path no spec contains; None if all parts are fedbench's."""
    spec = run.spec
    if spec.source is not None:
        return f"method {spec.method}"
    names = {"model": spec.setting.model, "partitioner": spec.setting.partition.scheme}
    return next((f"{kind} {name}" for kind, name in names.items() if "@" in name), None)
