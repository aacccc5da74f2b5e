"""What runs are trained on: images and partitions, loaded or made, as federations on the device."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.engine.job import Job
from fedbench.specs import PartitionSpec
from fedbench.store import Artifact, Store
from fedbench.store.provenance import origin

if TYPE_CHECKING:
    import torch

    from fedbench.core.federation import Federation

#: The federations of the last runs: a table's runs often go on with the same ones, whose images may be costly to make.
_last: dict[Hashable, list[Federation]] = {}


@dataclass(frozen=True)
class Data:
    """A partition and its images in memory: what `Federation.of` takes, as arrays on the host. It can be sent to other
    processes, which may share the arrays and never write to them."""

    digests: tuple[str, str]  #: of the images and of the partition, as artifacts
    origins: Mapping[str, Any]  #: what a run's provenance says of both
    arrays: Mapping[str, Any]


def artifacts(spec: PartitionSpec, store: Store, roots: list[Path], again: bool) -> tuple[Artifact, Artifact]:
    """The images and the partition, made if the store lacks them, or (`again`) where they are stale."""
    from fedbench.data.build import obtain as images_of
    from fedbench.partitions.builder import obtain as partition_of

    return images_of(spec.dataset, store, roots, again=again), partition_of(spec, store, roots, again=again)


def data_of(spec: PartitionSpec, store: Store, roots: list[Path], again: bool = False) -> Data:
    """A partition and its images, loaded."""
    images, partition = artifacts(spec, store, roots, again)
    (arrays,) = _arrays(images, [partition])
    origins = {one.id: origin(one) for one in (images, partition)}
    return Data((images.digest, partition.digest), origins, arrays)


def federations_of(
    jobs: Sequence[Job], store: Store, roots: list[Path], device: torch.device, data: Mapping[str, Data] | None = None
) -> tuple[list[Federation], dict[str, Any]]:
    """Each job's federation, all on common images (jobs of one partition see the very same ones), and the origins of
    what they were loaded from: from `data` by the ids of their partitions, else from the store."""
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
        _last.clear()  # before the next ones take their memory
        if data is None:
            _last[key] = loaded(images, [partition for _, partition in both.values()], device)
        else:
            _last[key] = _joined((data[one].arrays for one in specs), device)
    federations = dict(zip(specs, _last[key], strict=True))
    return [federations[job.spec.setting.partition.id] for job in jobs], inputs


def loaded(
    images: Artifact,
    partitions: Iterable[Artifact],
    device: torch.device,
    like: tuple[Artifact, Artifact] | None = None,
) -> list[Federation]:
    """The federation of each partition, on common images of one data set; vectors are normalised by their own training
    samples, or as those of the images and the partition `like`."""
    return _joined(_arrays(images, partitions, like), device)


def _arrays(
    images: Artifact, partitions: Iterable[Artifact], like: tuple[Artifact, Artifact] | None = None
) -> Iterable[Mapping[str, Any]]:
    """What `Federation.of` takes, of each partition."""
    import numpy as np

    from fedbench.data.dataset import from_artifact
    from fedbench.partitions.tables import read

    dataset = from_artifact(images)
    moments = None if like is None else read(like[1]).moments(from_artifact(like[0]))
    for p in map(read, partitions):
        distinct, image = p.distinct(dataset, moments)
        # Not laid out in the clients' order: that would take the memory of all images once more.
        own = None if np.array_equal(image, np.arange(len(distinct))) else image
        yield {
            "images": distinct, "labels": p.label, "client": p.client, "sample": p.sample, "is_test": p.test,
            "classes": len(p.classes), "densities": p.densities, "validation": p.validation, "stage": p.phase,
            "groups": p.groups, "test_groups": p.test_groups, "image": own, "scaling": p.scaling(),
        }  # fmt: skip


def _joined(parts: Iterable[Mapping[str, Any]], device: torch.device) -> list[Federation]:
    from fedbench.core.federation import Federation

    with warnings.catch_warnings():  # shared memory cannot be written to; nobody does
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return Federation.joined([Federation.of(**arrays, device=device) for arrays in parts])
