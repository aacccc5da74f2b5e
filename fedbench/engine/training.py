"""From jobs to trainers with all their inputs, and from a trained trainer to the run's artifact."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench import machine, models
from fedbench.engine import keep as keeping
from fedbench.engine.inputs import Data, federations_of
from fedbench.engine.job import Job
from fedbench.errors import FedbenchError
from fedbench.measure import stored
from fedbench.metrics import method_metrics
from fedbench.plugins import in_words, mistake
from fedbench.store import Artifact, Store
from fedbench.store.provenance import MADE_FROM, fingerprint

if TYPE_CHECKING:
    import pyarrow as pa
    import torch
    from torch import nn

    from fedbench.core.federation import Federation
    from fedbench.core.server import Server
    from fedbench.core.state import State
    from fedbench.core.trainer import Trainer
    from fedbench.methods.base import Method
    from fedbench.store.claim import Claim


# -- association -----------------------------------------------------------------------------------------------
# Which cluster serves a client whose distribution is known, after its data have drifted between training and test.


def known_association(
    assigned: Mapping[int, int], groups: Sequence[int], test_groups: Sequence[int]
) -> Mapping[int, int]:
    """Client -> cluster, by client -> cluster after training and each client's true group [M] in training and test.

    Client i is served by the cluster of most clients that last trained on its test distribution (ties: the smallest
    number; flux/protocol.md#drifting-data), or where nobody did by its own (where the released code has the nearest
    centroid, which not every method has).
    """
    if not assigned or test_groups == groups:
        return assigned
    votes: dict[int, Counter[int]] = {}
    for i, m in sorted(assigned.items()):
        votes.setdefault(groups[i], Counter())[m] += 1
    cluster_of = {g: min(count, key=lambda m: (-count[m], m)) for g, count in votes.items()}
    return {**assigned, **{i: cluster_of[group] for i, group in enumerate(test_groups) if group in cluster_of}}


# -- training --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """Trainers that share one executor, and what the artifacts' provenance says of all of them."""

    trainers: list[Trainer]
    how: Mapping[str, Any]


def start_of(job: Job, federation: Federation) -> tuple[nn.Module, State]:
    """The network and the state that the clients of a job's run start from."""
    from fedbench.core.simulation import initialise

    setting = job.spec.setting
    return initialise(
        job.method, lambda: models.initial(setting, federation.shape, federation.classes), federation, setting
    )


@contextlib.contextmanager
def prepared(
    ours: Sequence[tuple[Job, Claim]],
    store: Store,
    roots: list[Path],
    device: torch.device,
    executor: str,
    data: Mapping[str, Data] | None = None,
) -> Iterator[Prepared]:
    """The trainers of claimed jobs that differ in nothing but their seeds, each in its work folder; their inputs are
    those of `data` by the ids of their partitions, else loaded, or made if need be."""
    import torch

    from fedbench.core import executors
    from fedbench.core.checkpoint import Checkpoint
    from fedbench.core.plan import Plan
    from fedbench.core.trainer import Trainer

    jobs = [job for job, _ in ours]
    job, setting = jobs[0], jobs[0].spec.setting
    # The code as it is now, not at the end; and what a method says of itself, lest a mistake in it loses the run.
    how: dict[str, Any] = {
        "fingerprint": fingerprint(*job.parts), "fingerprint_parts": job.parts, **_said(job.method),
    }  # fmt: skip
    federations, how[MADE_FROM] = federations_of(jobs, store, roots, device, data)
    plans = [Plan(j.spec.setting, f.n_train, f.shape[:2]) for j, f in zip(jobs, federations, strict=True)]
    starts = [start_of(j, f) for j, f in zip(jobs, federations, strict=True)]
    model = starts[0][0]
    name = setting.executor or executor
    if name == "auto":
        name = executors.suited(model, federations[0], setting, plans[0].trainees)
    # What a run compiles, the next one finds; torch's own place is one for all users of a machine.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(store.home / "compiled"))
    runner = executors.make(name, model, federations[0], setting)
    try:
        trainers = [
            # The first job's method does for all: it is the same, and stacks are made by the method object.
            Trainer(
                *(j.spec.setting, job.method, f, *start, runner, plan),
                Checkpoint(store.work(j.spec.id), j.code, guard=claim.beat, keep=j.keep),
                associate=partial(known_association, groups=f.groups, test_groups=f.test_groups),
            )
            for (j, claim), f, start, plan in zip(ours, federations, starts, plans, strict=True)
        ]
        how |= {
            "executor": name,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "threads": torch.get_num_threads(),
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "processor": machine.processor(),
            "cores": executors.available_cores(),
        }
        if isinstance(runner, executors.Stacked) and device.type == "cpu":
            how["stacks"] = runner.stacks
        if len(jobs) > 1:  # the seconds of the clients' local work are then this share of what all took
            how["together"] = len(jobs)
        yield Prepared(trainers, how)
    finally:
        runner.close()


def _said(method: Method) -> dict[str, Any]:
    """What a method says of itself. Raises FedbenchError unless it can be written down."""
    measures = method.measures
    method_metrics.check(measures, method.name)
    said = {
        "title": method.title, "defaults": type(method)().params, "deviations": method.deviations(),
        method_metrics.MEASURES: stored(measures),
    }  # fmt: skip
    if not (isinstance(said["deviations"], list) and all(isinstance(line, str) for line in said["deviations"])):
        raise FedbenchError(f"deviations() of {method.name} gives {said['deviations']!r}, not a list of texts")
    return said


def write(job: Job, store: Store, trainer: Trainer, how: Mapping[str, Any]) -> Artifact:
    """The artifact of a job whose trainer has come to the last round."""
    from fedbench.core import tables

    checkpoint, about = trainer.checkpoint, {"classes": str(trainer.federation.classes)}

    def few_words(part: pa.Table) -> pa.Table:
        """The views as words of a dictionary."""
        view = part.schema.get_field_index("view")
        worded = part.set_column(view, "view", part.column("view").dictionary_encode())
        return worded.replace_schema_metadata(about)

    with store.writing(job.spec, {"partition": job.spec.setting.partition.id}, job.replaces) as writer:
        writer.table("predictions", map(few_words, checkpoint.parts("predictions")))
        writer.table("rounds", tables.rounds(checkpoint.rounds))
        writer.table("clients", trainer.clients_table())
        descriptors, remark = _described(job.method, trainer.server)
        if descriptors is not None:
            writer.table("descriptors", descriptors)
        remarks = [text for text in (remark, keeping.write(checkpoint, writer)) if text]
        writer.provenance = {
            "overrides": dict(job.overrides),
            **({"remark": "; ".join(remarks)} if remarks else {}),
            "train_seconds": sum(line["total_seconds"] for line in checkpoint.rounds),
            **how,
        }
    return store.open("run", job.spec.id)


def _described(method: Method, server: Server) -> tuple[pa.Table | None, str]:
    """The table of descriptors, if the method has any. A mistake in what only describes a trained run must not lose
    it: it is left out then, and the remark says why."""
    from fedbench.core import tables

    try:
        described = method.described(server)
        return (None if described is None else tables.descriptors(*described)), ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return None, f"the run has no descriptors: {mistake(error) or in_words(error)}"
