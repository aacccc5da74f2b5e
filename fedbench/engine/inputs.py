"""What runs are trained on: images and partitions, loaded or made, as federations on the device."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.engine.job import Job
from fedbench.store import Artifact, Store
from fedbench.store.provenance import origin

if TYPE_CHECKING:
    import torch

    from fedbench.core.federation import Federation

#: The federations of the last runs: a table's runs often go on with the same ones, whose images may be costly to make.
_last: dict[Hashable, list[Federation]] = {}


def federations_of(
    jobs: Sequence[Job], store: Store, roots: list[Path], device: torch.device
) -> tuple[list[Federation], dict[str, Any]]:
    """Each job's federation, all on common images (jobs of one partition see the very same ones), and the origins of
    what they were loaded from."""
    from fedbench.data.build import obtain as images_of
    from fedbench.partitions.builder import obtain as partition_of

    specs = [job.spec.setting.partition for job in jobs]
    again = any(job.replaces is not None for job in jobs)
    images = images_of(specs[0].dataset, store, roots, again=again)
    partitions = {spec.id: partition_of(spec, store, roots, again=again) for spec in specs}
    key = (store.home, device, images.digest, *(partitions[spec.id].digest for spec in specs))
    if key not in _last:
        _last.clear()  # before the next ones take their memory
        _last[key] = loaded(images, partitions.values(), device)
    federations = dict(zip(partitions, _last[key], strict=True))
    inputs = {artifact.id: origin(artifact) for artifact in (images, *partitions.values())}
    return [federations[spec.id] for spec in specs], inputs


def loaded(images: Artifact, partitions: Iterable[Artifact], device: torch.device) -> list[Federation]:
    """The federation of each partition, on common images of one data set."""
    from fedbench.core.federation import Federation
    from fedbench.data.dataset import from_artifact
    from fedbench.partitions.tables import read

    dataset = from_artifact(images)
    parts = []
    for p in map(read, partitions):
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
            stage=p.phase,
            groups=p.groups,
            test_groups=p.test_groups,
            image=image if copies else None,
            scaling=p.scaling(),
        )
        parts.append(part)
    return Federation.joined(parts)
