"""From jobs to trainers with all their inputs, and from a trained trainer to the run's artifact."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench import models
from fedbench.engine.choice import choose
from fedbench.provenance import fingerprint
from fedbench.spec import PartitionSpec, Setting
from fedbench.store import Artifact, Store

if TYPE_CHECKING:
    import torch

    from fedbench.core.federation import Federation
    from fedbench.core.trainer import Trainer
    from fedbench.engine.local import Job


@dataclass(frozen=True)
class Prepared:
    """Trainers that share one executor, and what the artifacts' provenance says of all of them."""

    trainers: list[Trainer]
    made_by: Mapping[str, Any]


@contextlib.contextmanager
def prepared(
    jobs: Sequence[Job], store: Store, roots: list[Path], device: torch.device, executor: str
) -> Iterator[Prepared]:
    """The trainers of jobs that differ in nothing but their seeds, each in its work folder; their inputs are loaded,
    or made if need be."""
    import torch

    from fedbench.core import executors
    from fedbench.core.checkpoint import Checkpoint
    from fedbench.core.plan import Plan
    from fedbench.core.trainer import Trainer, initialise, new_client

    job, setting = jobs[0], jobs[0].spec.setting
    # The code as it is now, not at the end.
    made_by: dict[str, Any] = {"fingerprint": fingerprint(*job.parts), "fingerprint_parts": job.parts}
    federations = _federations(jobs, store, roots, device)
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
            Trainer(j.spec.setting, job.method, f, *start, runner, plan, Checkpoint(store.work(j.spec.id), j.code))
            for j, f, start, plan in zip(jobs, federations, starts, plans, strict=True)
        ]
        made_by |= {
            "executor": chosen.name,
            "executor_choice": asdict(chosen),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "threads": torch.get_num_threads(),
        }
        if len(jobs) > 1:  # the seconds of the clients' local work are then this share of what all took
            made_by["together"] = len(jobs)
        yield Prepared(trainers, made_by)
    finally:
        runner.close()


#: The federations of the last runs: a table's runs often go on with the same ones, whose images may be costly to make.
_last: dict[Hashable, list[Federation]] = {}


def _federations(jobs: Sequence[Job], store: Store, roots: list[Path], device: torch.device) -> list[Federation]:
    """Each job's federation, all on common images; jobs of one partition see the very same ones."""
    specs = [job.spec.setting.partition for job in jobs]
    key = (store.home, device, *(spec.id for spec in specs))
    if key not in _last:
        _last.clear()  # before the next ones take their memory
        _last[key] = _load(specs, store, roots, device)
    return _last[key]


def _load(specs: Sequence[PartitionSpec], store: Store, roots: list[Path], device: torch.device) -> list[Federation]:
    from fedbench import data, partition
    from fedbench.core.federation import Federation

    partitions = {spec.id: partition.build(spec, store, roots) for spec in specs}
    dataset = data.load(specs[0].dataset, store, roots)
    parts = []
    for p in partitions.values():
        images, image = p.distinct(dataset)
        copies = len(images) < len(image)
        images = images if copies else images[image]
        part = Federation.of(
            images,
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
    found = dict(zip(partitions, Federation.joined(parts), strict=True))
    return [found[spec.id] for spec in specs]


def write(job: Job, store: Store, trainer: Trainer, made_by: Mapping[str, Any]) -> Artifact:
    """The artifact of a job whose trainer has come to the last round."""
    from fedbench.core import tables

    checkpoint = trainer.checkpoint
    predictions = checkpoint.read_predictions().combine_chunks()
    view = predictions.schema.get_field_index("view")
    predictions = predictions.set_column(view, "view", predictions.column("view").dictionary_encode().combine_chunks())
    predictions = predictions.replace_schema_metadata({"classes": str(trainer.federation.classes)})
    with store.writing(job.spec, {"partition": job.spec.setting.partition.id}) as writer:
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
            **made_by,
        }
    return store.open("run", job.spec.id)
