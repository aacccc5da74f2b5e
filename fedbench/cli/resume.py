"""`fedbench resume`: continue interrupted and failed runs, whichever command started them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fedbench.cli import context, options
from fedbench.cli.evaluate import show
from fedbench.cli.making import WHERE
from fedbench.cli.making import run as train
from fedbench.cli.parser import App
from fedbench.cli.status import user_file
from fedbench.engine.engines import Where
from fedbench.errors import FedbenchError
from fedbench.store import Store
from fedbench.store.unfinished import Unfinished, UnfinishedState, unfinished

app = App()


@app.command("resume")
@options.grouped(place={"executor": WHERE["executor"]})
def resume(
    id: Annotated[list[str] | None, options.argument("Ids of runs, or their beginnings.", "ID...")] = None,
    all: Annotated[bool, "All interrupted runs."] = False,
    device: options.Device = "auto",
    *,
    place: dict[str, str],
    json: options.Json = False,
) -> None:
    """Go on with runs that were interrupted or failed ('fedbench status' lists them).

    Of a user's own files the command that began a run is to be given again.
    """
    from fedbench.engine.job import Job
    from fedbench.engine.keep import MODEL

    store = context.store()
    if bool(id) is all:
        raise FedbenchError("resume needs the ids of runs or --all", "'fedbench status' lists them")
    waiting = [run for run in unfinished(store) if run.state is not UnfinishedState.RUNNING]
    chosen = [_one(waiting, word, store) for word in dict.fromkeys(id or [])]
    chosen = chosen or [run for run in waiting if run.state is UnfinishedState.INTERRUPTED]
    jobs = []
    for run in chosen:
        if (name := user_file(run)) is not None:
            raise FedbenchError(f"run {run.id} is of {name}, a user's file", "give the command that began it again")
        job = Job.of_spec(run.spec, f"remove it: fedbench remove {run.id}")
        jobs.append(replace(job, keep=run.keep & {MODEL}).again(store))  # older versions kept more
    if not jobs:
        context.err().print("no run was interrupted")
        show([], store, json)
        return
    where = Where(device, **place)
    with where.engine_for(store, context.roots(), jobs[0].spec.setting.precision) as engine:
        show([artifact for job in jobs for artifact in train([job], engine)], store, json)


def _one(waiting: list[Unfinished], prefix: str, store: Store) -> Unfinished:
    hits = [run for run in waiting if prefix and run.id.startswith(prefix)]
    if len(hits) != 1:
        which = "several runs" if hits else "no run"
        raise FedbenchError(f"{which} '{prefix}' to resume in {store.home}", "'fedbench status' lists them")
    return hits[0]
