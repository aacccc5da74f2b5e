"""The folder of a run under way: which run it is, how far it has come, and why it failed."""

from __future__ import annotations

import contextlib
import shutil
import traceback
from typing import Any

from fedbench.engine.job import Job
from fedbench.errors import DivergedError, FedbenchError
from fedbench.files import disk_errors, read_json, write_json
from fedbench.store import CHECKPOINT, Store
from fedbench.store.folder import SPEC


def announce(job: Job, store: Store) -> None:
    """Say in the run's work folder which run is under way."""
    folder = store.work(job.spec.id)
    with disk_errors("starting a run", folder):
        write_json(folder / SPEC, {"run": job.spec.to_dict(), **_wishes(job)})


def _wishes(job: Job) -> dict[str, Any]:
    """What a job is told by, beside its spec."""
    return {"overrides": dict(job.overrides), "keep": sorted(job.keep)}


def saved_round(job: Job, store: Store) -> int:
    """The round after which a restart of the run goes on; 0 if it would begin anew."""
    try:
        saved = read_json(store.work(job.spec.id) / CHECKPOINT)
    except FileNotFoundError:
        return 0
    round = saved.get("round")
    return round if isinstance(round, int) and saved.get("code") == job.code else 0


def leave(job: Job, store: Store) -> None:
    """Leave of the work folder what is of further use: nothing of a run that is complete, else a checkpoint."""
    folder = store.work(job.spec.id)
    if job.done(store) is not None:
        (folder / CHECKPOINT).unlink(missing_ok=True)  # before what it lists: killed in between, it would seem damaged
        shutil.rmtree(folder, ignore_errors=True)
        store.forget_failure(job.spec.id)
    elif not (folder / CHECKPOINT).exists():
        for path in folder.iterdir():
            if path.name != "claim.json":
                path.unlink(missing_ok=True)


def record_failure(job: Job, store: Store, error: Exception) -> None:
    """Record why the run failed."""
    reason = str(error) if isinstance(error, FedbenchError) else f"{type(error).__name__}: {error}"
    run = {"spec": job.spec.to_dict(), "diverged": isinstance(error, DivergedError), **_wishes(job)}
    with contextlib.suppress(FedbenchError):  # a full disk: what is raised already says so
        store.record_failure(job.spec.id, reason, "".join(traceback.format_exception(error)), **run)
