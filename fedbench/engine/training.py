"""From jobs to trainers with all their inputs, and from a trained trainer to the run's artifact."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench import models
from fedbench.engine.choice import choose
from fedbench.provenance import MADE_FROM, made_by, origin
from fedbench.spec import Setting
from fedbench.store import Artifact, Store

if TYPE_CHECKING:
    import torch

    from fedbench.claim import Claim
    from fedbench.core.federation import Federation
    from fedbench.core.trainer import Trainer
    from fedbench.engine.local import Job


@dataclass(frozen=True)
class Prepared:
    """Trainers that share one executor, and what the artifacts' provenance says of all of them."""

    trainers: list[Trainer]
    how: Mapping[str, Any]


@contextlib.contextmanager
def prepared(
    jobs: Sequence[Job],
    claims: Sequence[Claim],
    store: Store,
    roots: list[Path],
    device: torch.device,
    executor: str,
) -> Iterator[Prepared]:
    """The trainers of jobs that differ in nothing but their seeds, each in its work folder under its claim; their
    inputs are loaded, or made if need be."""
    import torch

    from fedbench.core import executors
    from fedbench.core.checkpoint import Checkpoint
    from fedbench.core.plan import Plan
    from fedbench.core.trainer import Trainer, initialise, new_client

    job, setting = jobs[0], jobs[0].spec.setting
    # The code as it is now, not at the end.
    how: dict[str, Any] = made_by(job.parts)
    federations, inputs = _federations(jobs, store, roots, device)
    how[MADE_FROM] = inputs
    plans = [Plan(j.spec.setting, f.n_train, f.shape[:2]) for j, f in zip(jobs, federations, strict=True)]
    starts = []
    for j, f in zip(jobs, federations, strict=True):

        def build(s: Setting = j.spec.setting, f: Federation = f) -> Any:
            return models.initial(s, f.shape, f.classes)

        starts.append(initialise(job.method, build, f, j.spec.setting.initial_seed))
    model = starts[0][0]
    cohort = [
        new_client(i, 1, start[1], setting, f, plan)
        for f, start, plan in zip(federations, starts, plans, strict=True)
        for i in plan.cohort(1) or range(plan.trainees)
    ]
    chosen = choose(setting.executor or executor, model, federations[0], setting, cohort, store)
    runner = executors.make(chosen.name, model, federations[0], setting)
    try:
        trainers = [
            # The first job's method does for all: it is the same, and stacks are made by the method object.
            Trainer(
                *(j.spec.setting, job.method, f, *start, runner, plan),
                Checkpoint(store.work(j.spec.id), j.code, guard=claim.beat),
            )
            for j, f, start, plan, claim in zip(jobs, federations, starts, plans, claims, strict=True)
        ]
        how |= {
            "executor": chosen.name,
            "executor_choice": asdict(chosen),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "threads": torch.get_num_threads(),
        }
        if len(jobs) > 1:  # the seconds of the clients' local work are then this share of what all took
            how["together"] = len(jobs)
        yield Prepared(trainers, how)
    finally:
        runner.close()


#: The federations of the last runs: a table's runs often go on with the same ones, whose images may be costly to make.
_last: dict[Hashable, list[Federation]] = {}


def _federations(
    jobs: Sequence[Job], store: Store, roots: list[Path], device: torch.device
) -> tuple[list[Federation], dict[str, Any]]:
    """Each job's federation, all on common images (jobs of one partition see the very same ones), and the origins of
    what they were loaded from."""
    from fedbench import data, partition

    specs = [job.spec.setting.partition for job in jobs]
    again = any(job.replaces is not None for job in jobs)
    images = data.obtain(specs[0].dataset, store, roots, again=again)
    drawn = {spec.id: partition.obtain(spec, store, roots, again=again) for spec in specs}
    key = (store.home, device, images.digest, *(drawn[spec.id].digest for spec in specs))
    if key not in _last:
        _last.clear()  # before the next ones take their memory
        _last[key] = _load(images, drawn.values(), device)
    federations = dict(zip(drawn, _last[key], strict=True))
    inputs = {artifact.id: origin(artifact.digest, artifact.provenance) for artifact in (images, *drawn.values())}
    return [federations[spec.id] for spec in specs], inputs


def _load(images: Artifact, drawn: Iterable[Artifact], device: torch.device) -> list[Federation]:
    """The federation of each partition, on common images of one data set."""
    from fedbench import data, partition
    from fedbench.core.federation import Federation

    dataset = data.from_artifact(images)
    parts = []
    for p in map(partition.read, drawn):
        distinct, image = p.distinct(dataset)
        copies = len(distinct) < len(image)
        part = Federation.of(
            distinct if copies else distinct[image],
            p.label,
            p.client,
            p.sample,
            p.test,
            len(p.classes),
            device,
            p.densities,
            validation=p.validation,
            stage=p.stage,
            groups=p.groups,
            test_groups=p.test_groups,
            image=image if copies else None,
        )
        parts.append(part)
    return Federation.joined(parts)


def write(job: Job, store: Store, trainer: Trainer, how: Mapping[str, Any]) -> Artifact:
    """The artifact of a job whose trainer has come to the last round."""
    from fedbench.core import tables

    checkpoint = trainer.checkpoint
    predictions = checkpoint.read_predictions().combine_chunks()
    view = predictions.schema.get_field_index("view")
    predictions = predictions.set_column(view, "view", predictions.column("view").dictionary_encode().combine_chunks())
    predictions = predictions.replace_schema_metadata({"classes": str(trainer.federation.classes)})
    with store.writing(job.spec, {"partition": job.spec.setting.partition.id}, job.replaces) as writer:
        writer.table("predictions", predictions)
        writer.table("rounds", tables.rounds(checkpoint.rounds))
        writer.table("clients", trainer.clients_table())
        if (told := job.method.described(trainer.server)) is not None:
            writer.table("descriptors", tables.descriptors(*told))
        writer.provenance = {
            "title": job.method.title,
            "overrides": dict(job.overrides),
            "defaults": type(job.method)().params,
            "deviations": job.method.deviations(),
            "train_seconds": sum(line["total_seconds"] for line in checkpoint.rounds),
            **how,
        }
    return store.open("run", job.spec.id)
