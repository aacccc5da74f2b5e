"""`fedbench status`: progress of running and interrupted runs; `--resume` continues runs, whichever command started
them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
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
    watch: Annotated[bool, "Update every two seconds, until Ctrl-C.", "-w"] = False,
    resume: Annotated[
        list[str] | None, "Continue this run (repeatable), or all: every interrupted one.", "--resume", "ID"
    ] = None,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Show active runs of all processes, and interrupted and failed runs; or continue these. A run that uses
    your own files is continued by the command that started it.
    """
    if watch and (json or resume):
        raise FedbenchError(f"--watch does not go with --{'json' if json else 'resume'}", "leave one of the two out")
    store = context.store()
    if resume:
        _resume(resume, store, device, json)
    elif json:
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
    return (
        f"fedbench status --resume {run.id}"
        if run.state is not UnfinishedState.RUNNING and user_file(run) is None
        else None
    )


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


def _resume(words: Sequence[str], store: Store, device: str, as_json: bool) -> None:
    """Continue the runs with these ids, or beginnings of ids; 'all' is every interrupted run."""
    from fedbench.cli.evaluate import show
    from fedbench.cli.making import run as train
    from fedbench.engine.engines import Where
    from fedbench.engine.job import Job
    from fedbench.engine.keep import MODEL

    waiting = [run for run in unfinished(store) if run.state is not UnfinishedState.RUNNING]
    if "all" in words:
        chosen = [run for run in waiting if run.state is UnfinishedState.INTERRUPTED]
    else:
        chosen = [_one(waiting, word, store) for word in dict.fromkeys(words)]
    jobs = []
    for run in chosen:
        if (name := user_file(run)) is not None:
            raise FedbenchError(
                f"run {run.id} is of {name}, a user's file", "continue it with the command that started it"
            )
        job = Job.of_spec(run.spec, f"remove it: fedbench remove {run.id}")
        jobs.append(replace(job, keep=run.keep & {MODEL}).again(store))  # older versions kept more
    if not jobs:
        context.err().print("no run was interrupted")
        show([], store, as_json)
        return
    with Where(device).engine_for(store, context.roots(), jobs[0].spec.setting.precision) as engine:
        show([artifact for job in jobs for artifact in train([job], engine)], store, as_json)


def _one(waiting: Sequence[Unfinished], prefix: str, store: Store) -> Unfinished:
    hits = [run for run in waiting if run.id.startswith(prefix)]
    if len(hits) != 1:
        which = "several runs" if hits else "no run"
        raise FedbenchError(f"{which} '{prefix}' to resume in {store.home}", "'fedbench status' lists them")
    return hits[0]
