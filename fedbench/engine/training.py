"""From jobs to trainers with all their inputs, and from a trained trainer to the run's artifact."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench import machine, models
from fedbench.engine import keep as keeping
from fedbench.engine.job import Job
from fedbench.errors import FedbenchError
from fedbench.files import disk_errors
from fedbench.measure import stored
from fedbench.metrics.evaluate import MEASURES, check_measures
from fedbench.plugins import in_words, mistake
from fedbench.specs import PartitionSpec
from fedbench.store import Artifact, Store
from fedbench.store.provenance import LEAKAGE, MADE_FROM, fingerprint, origin
from fedbench.words import counted

if TYPE_CHECKING:
    import pyarrow as pa
    import torch
    from torch import nn

    from fedbench.core.federation import Federation
    from fedbench.core.server import Server
    from fedbench.core.state import State
    from fedbench.core.trainer import Trainer
    from fedbench.methods.base import Method
    from fedbench.store.claim import Hold


# Load images and partitions, or make them, and put them on the device as federations.


#: Cache of the last federations: successive runs of a table often use the same ones, which may be slow to make.
_last: dict[Hashable, list[Federation]] = {}


@dataclass(frozen=True)
class Data:
    """A partition and its images in host memory, as arguments of `Federation.of`. It can be sent to other processes,
    which may share the memory of the arrays and must not write to them."""

    digests: tuple[str, str]  #: of the artifacts of the images and the partition
    origins: Mapping[str, Any]  #: artifact id -> its entry in a run's provenance
    arrays: Mapping[str, Any]  #: keyword arguments of `Federation.of`


def artifacts(spec: PartitionSpec, store: Store, roots: list[Path], again: bool) -> tuple[Artifact, Artifact]:
    """The artifacts of images and partition; made if missing from the store, or if `again` and they are stale."""
    from fedbench.data.build import obtain as images_of
    from fedbench.partitions.builder import obtain as partition_of

    return images_of(spec.dataset, store, roots, again=again), partition_of(spec, store, roots, again=again)


def data_of(spec: PartitionSpec, store: Store, roots: list[Path], again: bool = False) -> Data:
    """Load a partition and its images, which are made if missing (see `artifacts`)."""
    images, partition = artifacts(spec, store, roots, again)
    (arrays,) = _arrays(images, [partition])
    origins = {one.id: origin(one) for one in (images, partition)}
    return Data((images.digest, partition.digest), origins, arrays)


def federations_of(
    jobs: Sequence[Job], store: Store, roots: list[Path], device: torch.device, data: Mapping[str, Data] | None = None
) -> tuple[list[Federation], dict[str, Any]]:
    """Return each job's federation and the origins of their inputs, by artifact id. All federations share one array of
    images, and jobs with the same partition share one federation. `data` maps partition ids to inputs in memory; by
    default they are loaded from the store."""
    specs = {job.spec.setting.partition.id: job.spec.setting.partition for job in jobs}
    again = any(job.replaces is not None for job in jobs)
    if data is None:
        both = {id: artifacts(spec, store, roots, again) for id, spec in specs.items()}
        inputs = {artifact.id: origin(artifact) for pair in both.values() for artifact in pair}
        (images, _), *_ = both.values()
        digests: list[str] = [images.digest, *(partition.digest for _, partition in both.values())]
    else:
        inputs = {id: told for one in specs for id, told in data[one].origins.items()}
        digests = [digest for one in specs for digest in data[one].digests]
    key = (store.home, device, *digests)
    if key not in _last:
        _last.clear()  # free the memory before loading the next ones
        if data is None:
            _last[key] = loaded(images, [partition for _, partition in both.values()], device)
        else:
            _last[key] = _joined((data[one].arrays for one in specs), device)
    federations = dict(zip(specs, _last[key], strict=True))
    return [federations[job.spec.setting.partition.id] for job in jobs], inputs


def loaded(images: Artifact, partitions: Iterable[Artifact], device: torch.device) -> list[Federation]:
    """The federation of each partition of one data set; they share its images."""
    return _joined(_arrays(images, partitions), device)


def _arrays(images: Artifact, partitions: Iterable[Artifact]) -> Iterable[Mapping[str, Any]]:
    """The keyword arguments of `Federation.of` for each partition."""
    import numpy as np

    from fedbench.data.dataset import from_artifact
    from fedbench.partitions.tables import read

    dataset = from_artifact(images)
    for p in map(read, partitions):
        distinct, image = p.distinct(dataset)
        # An index, not a copy of the images in the clients' order, which would double the memory.
        own = None if np.array_equal(image, np.arange(len(distinct))) else image
        yield {
            "images": distinct,
            "labels": p.label,
            "client": p.client,
            "sample": p.sample,
            "is_test": p.test,
            "classes": len(p.classes),
            "densities": p.densities,
            "validation": p.validation,
            "stage": p.phase,
            "groups": p.groups,
            "test_groups": p.test_groups,
            "image": own,
            "scaling": p.scaling(),
            "leaked": p.leaked if p.spec.scheme == "file" else 0,  # elsewhere an image is of one side alone
        }


def _joined(parts: Iterable[Mapping[str, Any]], device: torch.device) -> list[Federation]:
    from fedbench.core.federation import Federation

    with warnings.catch_warnings():  # shared memory is read-only, and no code writes to it
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return Federation.joined([Federation.of(**arrays, device=device) for arrays in parts])


# The cluster of each client after its data have drifted between training and test, if its distribution is known.


def known_association(
    assigned: Mapping[int, int], groups: Sequence[int], test_groups: Sequence[int]
) -> Mapping[int, int]:
    """Client -> cluster in test. `assigned`: the same after training; `groups`, `test_groups`: true distributions [M].

    Client i gets the cluster of most clients that last trained on its test distribution (ties: the smallest number;
    flux/protocol.md#drifting-data). If no client did, it keeps its cluster (the released code uses the nearest
    centroid, which not every method has)."""
    if not assigned or test_groups == groups:
        return assigned
    votes: dict[int, Counter[int]] = {}
    for i, m in sorted(assigned.items()):
        votes.setdefault(groups[i], Counter())[m] += 1
    cluster_of = {g: min(count, key=lambda m: (-count[m], m)) for g, count in votes.items()}
    return {**assigned, **{i: cluster_of[group] for i, group in enumerate(test_groups) if group in cluster_of}}


@dataclass(frozen=True)
class Prepared:
    """Trainers that share one executor."""

    trainers: list[Trainer]
    how: Mapping[str, Any]  #: common fields of their artifacts' provenance


def start_of(job: Job, federation: Federation) -> tuple[nn.Module, State]:
    """The initial network and the initial state of a job's run."""
    from fedbench.core.simulation import initialise

    setting = job.spec.setting
    return initialise(
        job.method, lambda: models.initial(setting, federation.shape, federation.classes), federation, setting
    )


#: How a CACHEDIR.TAG begins (https://bford.info/cachedir/): tools that copy or back up leave such a folder out.
CACHE = "Signature: 8a477f597d28d172789f06886806bc55\n"


def keep_compiled(home: Path) -> None:
    """Let torch keep compiled code in the store's folder `compiled`: later runs reuse it, and torch's default folder is
    shared by all users. It is marked as a cache, which is no part of a copy, since whoever uses it runs it."""
    folder = Path(os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(home / "compiled")))
    if folder.name == "compiled":  # else the user has chosen a folder
        with disk_errors("keeping compiled code", home):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "CACHEDIR.TAG").write_text(f"{CACHE}# Code that torch has compiled for this machine.\n")


@contextlib.contextmanager
def prepared(
    ours: Sequence[tuple[Job, Hold]],
    store: Store,
    roots: list[Path],
    device: torch.device,
    executor: str,
    data: Mapping[str, Data] | None = None,
) -> Iterator[Prepared]:
    """Create the trainers of claimed jobs that differ only in their seeds, each with a checkpoint in its work folder.
    `data` maps partition ids to inputs in memory; by default they are loaded, or made if missing."""
    import torch

    from fedbench.core import executors
    from fedbench.core.checkpoint import Checkpoint
    from fedbench.core.plan import Plan
    from fedbench.core.trainer import Trainer

    jobs = [job for job, _ in ours]
    job, setting = jobs[0], jobs[0].spec.setting
    # The code before training, as files may change meanwhile. `_said` finds errors now, which would lose a trained run.
    how: dict[str, Any] = {
        "fingerprint": fingerprint(*job.parts),
        "fingerprint_parts": job.parts,
        **_said(job.method),
    }
    federations, how[MADE_FROM] = federations_of(jobs, store, roots, device, data)
    plans = [Plan(j.spec.setting, f.n_train, f.shape[:2]) for j, f in zip(jobs, federations, strict=True)]
    starts = [start_of(j, f) for j, f in zip(jobs, federations, strict=True)]
    model = starts[0][0]
    name = setting.executor or executor
    if name == "auto":
        name = executors.suited(model, federations[0], setting, plans[0].trainees)
    if device.type == "cuda":
        keep_compiled(store.home)
    runner = executors.make(name, model, federations[0], setting)
    try:
        trainers = [
            # All use the first job's method object: the methods are equal, and executors stack clients of one object.
            Trainer(
                *(j.spec.setting, job.method, f, *start, runner, plan),
                Checkpoint(store.work(j.spec.id), j.code, guard=claim.beat, keep=j.keep),
                associate=partial(known_association, groups=f.groups, test_groups=f.test_groups),
                failure_file=store.failed_step(j.spec.id) if machine.debugging() else None,
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
        if len(jobs) > 1:  # a run's seconds of local work are then the total of all runs divided by this
            how["together"] = len(jobs)
        yield Prepared(trainers, how)
    finally:
        runner.close()


def _said(method: Method) -> dict[str, Any]:
    """What a method declares, for the provenance. Raises FedbenchError if it cannot be stored as JSON."""
    measures = method.measures
    check_measures(measures, method.name)
    said = {
        "title": method.title,
        "defaults": type(method)().params,
        "deviations": method.deviations(),
        MEASURES: stored(measures),
    }
    if not (isinstance(said["deviations"], list) and all(isinstance(line, str) for line in said["deviations"])):
        raise FedbenchError(f"deviations() of {method.name} gives {said['deviations']!r}, not a list of texts")
    return said


def write(job: Job, store: Store, trainer: Trainer, how: Mapping[str, Any]) -> Artifact:
    """Write the artifact of a job whose trainer has finished the last round."""
    from fedbench.core import tables
    from fedbench.partitions.artifact import leakage

    checkpoint, federation = trainer.checkpoint, trainer.federation
    about = {"classes": str(federation.classes)}
    tests, samples = int(federation.is_test.sum()), job.spec.setting.partition.dataset.samples
    leaked = leakage(federation.leaked, tests, samples)

    def few_words(part: pa.Table) -> pa.Table:
        """Store the column `view` dictionary-encoded, which is smaller."""
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
        remarks = [text for text in (remark, _of_empty(checkpoint.rounds), keeping.write(checkpoint, writer)) if text]
        writer.provenance = {
            "overrides": dict(job.overrides),
            **({"remark": "; ".join(remarks)} if remarks else {}),
            **({LEAKAGE: leaked} if leaked else {}),
            "train_seconds": sum(line["total_seconds"] for line in checkpoint.rounds),
            **how,
        }
    return store.open("run", job.spec.id)


def _of_empty(rounds: Sequence[Mapping[str, Any]]) -> str:
    """A remark on the rounds in which no client took part, or ""."""
    empty = sum(line["participants"] == 0 for line in rounds)
    return f"no client took part in {empty:,} of {counted(len(rounds), 'round')}" if empty else ""


def _described(method: Method, server: Server) -> tuple[pa.Table | None, str]:
    """The table of descriptors, or None, and a remark, or "". An error in a user's method here must not lose a trained
    run: the table is then None and the remark names the error."""
    from fedbench.core import tables

    try:
        described = method.described(server)
        return (None if described is None else tables.descriptors(*described)), ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return None, f"the run has no descriptors: {mistake(error) or in_words(error)}"
