"""The federation's images on the device: once, as 8-bit pixels, each seen through its client's shift."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedbench.core.by_client import ByClient, moved, sizes
from fedbench.core.task import Task, task_of
from fedbench.partitions.density import Densities, counted, realised


@dataclass(frozen=True)
class Federation:
    """All clients' data. Rows stand client by client; a client's training rows come before its test rows.

    images [U, H, W, C] uint8, labels [R] int64 on the device (with multi-label images, 0 or 1 for each [R, K]
    float32, as their loss takes them); client, sample [R] and is_test [R] on the host;
    train[i], validation[i] and test[i] are the row indices of client i. Row r's image is `images[image[r]]`, or
    `images[r]` where `image` is None: copies of an image need no memory of their own. Federations that were joined have
    their rows one federation after another; each knows the rows of its own clients only.
    """

    images: Tensor
    labels: Tensor
    client: np.ndarray
    sample: np.ndarray
    is_test: np.ndarray
    classes: int
    train: Sequence[Tensor]
    test: Sequence[Tensor]
    class_counts: Tensor  #: [M, K] float32: training images of each class (or label) a client
    densities: Densities  #: what is known of the clients' training and test distributions
    validation: Sequence[Tensor]
    groups: Sequence[int]  #: [M] the true group of each client, where its data drift: of its last stage
    test_groups: Sequence[int]  #: [M] the same of its test images
    image: Tensor | None = None  #: [R] int64
    #: [S][M] training and validation rows of each stage where the data drift; `train`, `validation` are the first's.
    stages: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]] = ()
    #: [R, 2, C] float32: by what factor and offset of each channel a client's own normalisation differs from [-1, 1].
    scaling: Tensor | None = None

    @classmethod
    def of(
        cls,
        images: np.ndarray,
        labels: np.ndarray,
        client: np.ndarray,
        sample: np.ndarray,
        is_test: np.ndarray,
        classes: int,
        device: torch.device | str = "cpu",
        densities: Densities | None = None,
        *,
        validation: np.ndarray | None = None,
        stage: np.ndarray | None = None,
        groups: Sequence[int] = (),
        test_groups: Sequence[int] = (),
        image: np.ndarray | None = None,
        scaling: np.ndarray | None = None,
    ) -> Federation:
        """Build from host arrays in partition order (see the class).

        Without groups all clients are one. Where the data drift, `stage` [R] counts the stages of training rows.
        """
        clients = int(client.max()) + 1
        held_back = np.zeros(len(client), bool) if validation is None else validation

        def rows(mask: np.ndarray) -> ByClient:
            return ByClient.of(mask, client, clients, device)

        trains, drifts = ~is_test & ~held_back, range(0 if stage is None else int(stage.max()) + 1)
        stages = [(rows(trains & (stage == s)), rows(held_back & (stage == s))) for s in drifts]
        first = np.ones(len(client), bool) if stage is None else stage == 0
        mask = trains & first
        if labels.ndim > 1:
            counts = np.zeros((clients, classes), np.float32)
            np.add.at(counts, client[mask], labels[mask])
        else:
            counts = counted(client[mask], labels[mask], clients, classes).astype(np.float32)
        groups = groups or [0] * clients
        return cls(
            images=torch.from_numpy(np.ascontiguousarray(images)).to(device),
            labels=torch.from_numpy(labels.astype(np.float32 if labels.ndim > 1 else np.int64)).to(device),
            client=client,
            sample=sample,
            is_test=is_test,
            classes=classes,
            train=rows(mask),
            test=rows(is_test),
            class_counts=torch.from_numpy(counts).to(device),
            densities=densities or realised(labels, client, clients, classes),
            validation=rows(held_back & first),
            groups=groups,
            test_groups=test_groups or groups,
            image=None if image is None else torch.from_numpy(image.astype(np.int64)).to(device),
            stages=stages,
            scaling=None if scaling is None else torch.from_numpy(scaling).to(device),
        )

    @classmethod
    def joined(cls, parts: Sequence[Federation]) -> list[Federation]:
        """The same federations on common images and labels, so that one executor can serve the clients of all."""
        if len(parts) == 1:
            return list(parts)
        whole = replace(
            parts[0],
            images=torch.cat([p.images for p in parts]),
            labels=torch.cat([p.labels for p in parts]),
            client=np.concatenate([p.client for p in parts]),
            sample=np.concatenate([p.sample for p in parts]),
            is_test=np.concatenate([p.is_test for p in parts]),
        )
        strata = np.concatenate([p.densities.strata for p in parts])
        starts = np.cumsum([0, *(len(p.labels) for p in parts[:-1])]).tolist()
        if any(p.image is not None for p in parts):
            image_starts = np.cumsum([0, *(len(p.images) for p in parts[:-1])]).tolist()
            image = torch.cat([p.image_of_rows + at for p, at in zip(parts, image_starts, strict=True)])
            whole = replace(whole, image=image)
        if any(p.scaling is not None for p in parts):
            whole = replace(whole, scaling=torch.cat([p.scaling_of_rows for p in parts]))
        return [
            replace(
                whole,
                train=moved(p.train, at),
                test=moved(p.test, at),
                validation=moved(p.validation, at),
                stages=[(moved(train, at), moved(held, at)) for train, held in p.stages],
                class_counts=p.class_counts,
                groups=p.groups,
                test_groups=p.test_groups,
                densities=replace(p.densities, strata=strata),
            )
            for p, at in zip(parts, starts, strict=True)
        ]

    def at(self, stage: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """[M] training and [M] validation rows of each client at a stage of its data (from 0)."""
        return self.stages[stage] if self.stages else (self.train, self.validation)

    @cached_property
    def first_alike(self) -> list[int]:
        """[M] the first client with the very same training images as each, itself counted. All are read for it."""
        first: dict[bytes, int] = {}
        images = (self.images[rows if self.image is None else self.image[rows]] for rows in self.train)
        digests = (hashlib.blake2b(mine.cpu().numpy().tobytes()).digest() for mine in images)
        return [first.setdefault(digest, i) for i, digest in enumerate(digests)]

    @property
    def image_of_rows(self) -> Tensor:
        """[R] int64: which of the images each row is."""
        return torch.arange(len(self.labels), device=self.images.device) if self.image is None else self.image

    @property
    def scaling_of_rows(self) -> Tensor:
        """[R, 2, C]: `scaling`, or that which changes nothing."""
        if self.scaling is not None:
            return self.scaling
        nothing = torch.tensor([[1.0], [0.0]], device=self.images.device)
        return nothing.expand(len(self.labels), 2, self.shape[-1])

    @property
    def multi_label(self) -> bool:
        """Whether an image has several labels, 0 or 1 each, instead of one class."""
        return self.task.multi_label

    @property
    def task(self) -> Task:
        """What the network's outputs mean."""
        return task_of(self.labels)

    def counts(self, rows: Tensor) -> Tensor:
        """[K] float32: images of each class (or label) among the rows."""
        return self.task.counts(self.labels[rows], self.classes)

    @property
    def clients(self) -> int:
        return len(self.train)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C) of an image."""
        h, w, c = self.images.shape[1:]
        return h, w, c

    @cached_property
    def n_train(self) -> list[int]:
        return sizes(self.train)

    @cached_property
    def n_test(self) -> list[int]:
        return sizes(self.test)
