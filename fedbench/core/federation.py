"""A federation on the device: images, labels, and the rows of each client."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import overload

import numpy as np
import torch
from torch import Tensor

from fedbench.core.task import Task, task_of
from fedbench.partitions.distribution import Densities, counted, realised


class ByClient(Sequence[Tensor]):
    """[M] int64 rows of each client, sliced on access: a hundred thousand tensors would take seconds to create, and
    much more memory than their contents."""

    def __init__(self, rows: Tensor, ends: np.ndarray) -> None:
        self.rows = rows  #: [n] rows of all clients, sorted by client
        self.ends = ends  #: [M + 1] the rows of client i are rows[ends[i]:ends[i + 1]]

    @classmethod
    def of(cls, chosen: np.ndarray, client: np.ndarray, clients: int, device: torch.device | str) -> ByClient:
        """From a mask of rows [R] and the client of each row [R], in ascending order."""
        rows = np.flatnonzero(chosen)
        ends = np.searchsorted(client[rows], np.arange(clients + 1))
        return cls(torch.from_numpy(rows).to(device), ends)

    def moved(self, by: int) -> ByClient:
        """The same clients, with `by` added to every row."""
        return ByClient(self.rows + by, self.ends)

    @cached_property
    def sizes(self) -> list[int]:
        """[M] number of rows per client."""
        of_each: list[int] = np.diff(self.ends).tolist()
        return of_each

    def __len__(self) -> int:
        return len(self.ends) - 1

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | list[Tensor]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        i = range(len(self))[index]
        return self.rows[self.ends[i] : self.ends[i + 1]]


@dataclass(frozen=True)
class Federation:
    """All clients' data. Rows are sorted by client; a client's training rows precede its test rows.

    images [U, H, W, C] uint8 (vectors: [U, 1, 1, D] float32) and labels [R] int64 (multi-label: 0 or 1, [R, K] float32,
    as the loss needs them) are on the device; client, sample [R] and is_test [R] on the host. train[i], validation[i]
    and test[i] are the row indices of client i. The image of row r is `images[image[r]]`, or `images[r]` if `image` is
    None; so copies of an image take no memory. After `joined`, federations share these arrays, in which their rows
    follow each other; each knows the rows of its own clients only.
    """

    images: Tensor
    labels: Tensor
    client: np.ndarray
    sample: np.ndarray
    is_test: np.ndarray
    classes: int
    test: ByClient
    class_counts: Tensor  #: [M, K] float32: training images per client and class (or label)
    densities: Densities  #: training and test distributions of the clients, declared or counted
    groups: Sequence[int]  #: [M] true group of each client; with drift, in the last stage
    test_groups: Sequence[int]  #: [M] the same for its test images
    #: [S][M] training and validation rows of each drift stage; `train` and `validation` are those of the first stage.
    stages: Sequence[tuple[ByClient, ByClient]]
    image: Tensor | None = None  #: [R] int64
    #: [R, 2, C] float32: factor and offset per channel from the default range [-1, 1] to the client's normalisation.
    scaling: Tensor | None = None
    leaked: int = 0  #: number of test rows whose image is a training image of another client

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
        leaked: int = 0,
    ) -> Federation:
        """Build from host arrays in partition order (see the class).

        Without `groups`, all clients are one group. With drift, `stage` [R] is the stage of each training row.
        """
        clients = int(client.max()) + 1
        held_back = np.zeros(len(client), bool) if validation is None else validation

        def rows(mask: np.ndarray) -> ByClient:
            return ByClient.of(mask, client, clients, device)

        stage = np.zeros(len(client), int) if stage is None else stage
        trains, drifts = ~is_test & ~held_back, range(int(stage.max()) + 1)
        mask = trains & (stage == 0)
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
            test=rows(is_test),
            class_counts=torch.from_numpy(counts).to(device),
            densities=densities or realised(labels, client, clients, classes),
            groups=groups,
            test_groups=test_groups or groups,
            image=None if image is None else torch.from_numpy(image.astype(np.int64)).to(device),
            stages=[(rows(trains & (stage == s)), rows(held_back & (stage == s))) for s in drifts],
            scaling=None if scaling is None else torch.from_numpy(scaling).to(device),
            leaked=leaked,
        )

    @classmethod
    def joined(cls, parts: Sequence[Federation]) -> list[Federation]:
        """The same federations on shared images and labels, so that one executor can serve all their clients."""
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
            every = (p.image_at(torch.arange(len(p.labels), device=p.images.device)) for p in parts)
            image = torch.cat([images + at for images, at in zip(every, image_starts, strict=True)])
            whole = replace(whole, image=image)
        if any(p.scaling is not None for p in parts):
            whole = replace(whole, scaling=torch.cat([p.scaling_of_rows for p in parts]))
        return [
            replace(
                whole,
                test=p.test.moved(at),
                stages=[(train.moved(at), held.moved(at)) for train, held in p.stages],
                class_counts=p.class_counts,
                groups=p.groups,
                test_groups=p.test_groups,
                leaked=p.leaked,
                densities=replace(p.densities, strata=strata),
            )
            for p, at in zip(parts, starts, strict=True)
        ]

    @property
    def train(self) -> ByClient:
        """[M] training rows of each client, in the first stage."""
        return self.stages[0][0]

    @property
    def validation(self) -> ByClient:
        """[M] validation rows of each client, in the first stage."""
        return self.stages[0][1]

    @cached_property
    def first_alike(self) -> list[int]:
        """[M] lowest index of a client with identical training images (may be the client itself). Reads all images."""
        first: dict[bytes, int] = {}
        images = (self.images[self.image_at(rows)] for rows in self.train)
        digests = (hashlib.blake2b(mine.cpu().numpy().tobytes()).digest() for mine in images)
        return [first.setdefault(digest, i) for i, digest in enumerate(digests)]

    def image_at(self, rows: Tensor) -> Tensor:
        """[n] int64: index into `images` of these rows [n]."""
        return rows if self.image is None else self.image[rows]

    @property
    def scaling_of_rows(self) -> Tensor:
        """[R, 2, C]: `scaling`, or the identity."""
        if self.scaling is not None:
            return self.scaling
        nothing = torch.tensor([[1.0], [0.0]], device=self.images.device)
        return nothing.expand(len(self.labels), 2, self.shape[-1])

    @property
    def multi_label(self) -> bool:
        """Whether an image has several labels, 0 or 1 each, instead of one class."""
        return self.task.multi_label

    @property
    def vectors(self) -> bool:
        """Whether the data are vectors, not images."""
        return self.images.dtype == torch.float32

    @property
    def task(self) -> Task:
        return task_of(self.labels)

    def counts(self, rows: Tensor) -> Tensor:
        """[K] float32: number of images per class or label among these rows."""
        return self.task.counts(self.labels[rows], self.classes)

    @property
    def clients(self) -> int:
        return len(self.train)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C) of an image."""
        h, w, c = self.images.shape[1:]
        return h, w, c

    @property
    def n_train(self) -> list[int]:
        return self.train.sizes

    @property
    def n_test(self) -> list[int]:
        return self.test.sizes
