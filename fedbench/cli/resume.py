"""`fedbench resume`: interrupted and failed runs go on, whichever command began them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from fedbench.cli import context
from fedbench.cli.evaluate import show
from fedbench.cli.where import ExecutorName
from fedbench.errors import FedbenchError
from fedbench.store import Store
from fedbench.store.unfinished import End, Unfinished, unfinished


def resume(
    id: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Ids of runs, or their beginnings.")] = None,
    all: Annotated[bool, typer.Option("--all", help="All interrupted runs.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    executor: ExecutorName = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print the runs' ids and metrics as JSON.")] = False,
) -> None:
    """Go on with runs that were interrupted or failed ('fedbench status' lists them).

    Of a user's own files the command that began a run is to be given again.
    """
    from fedbench.cli.live import run as train
    from fedbench.engine.engines import Where
    from fedbench.engine.job import Job

    store = context.store()
    if bool(id) is all:
        raise FedbenchError("resume needs the ids of runs or --all", "'fedbench status' lists them")
    waiting = [run for run in unfinished(store) if run.state is not End.RUNNING]
    chosen = [_one(waiting, word, store) for word in dict.fromkeys(id or [])]
    chosen = chosen or [run for run in waiting if run.state is End.INTERRUPTED]
    jobs = []
    for run in chosen:
        if (own := own_files(run)) is not None:
            raise FedbenchError(f"run {run.id} is of {own}, a user's file", "give the command that began it again")
        job = Job.of(run.spec.setting, run.spec.method, run.spec.params)
        if job.spec.id != run.id:
            raise FedbenchError(
                f"run {run.id} is of another version of {run.spec.method}", f"remove it: fedbench remove {run.id}"
            )
        jobs.append(replace(job, keep=run.keep).again(store))
    if not jobs:
        context.err().print("no run was interrupted")
        show([], store, json)
        return
    where = Where(device, executor)
    with where.engine_for(store, context.roots(), jobs[0].spec.setting.precision) as engine:
        show([artifact for job in jobs for artifact in train([job], engine)], store, json)


def _one(waiting: list[Unfinished], prefix: str, store: Store) -> Unfinished:
    hits = [run for run in waiting if prefix and run.id.startswith(prefix)]
    if len(hits) != 1:
        which = "several runs" if hits else "no run"
        raise FedbenchError(f"{which} '{prefix}' to go on with in {store.home}", "'fedbench status' lists them")
    return hits[0]


def own_files(run: Unfinished) -> str | None:
    """What of a run is a user's file, which only its path can name; None of one of fedbench's own parts."""
    spec = run.spec
    if spec.source is not None:
        return f"method {spec.method}"
    names = {"model": spec.setting.model, "partitioner": spec.setting.partition.scheme}
    return next((f"{kind} {name}" for kind, name in names.items() if "@" in name), None)
