"""The federation's images on the device: once, as 8-bit pixels, each seen through its client's shift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedbench.partition.density import Densities, realised


@dataclass(frozen=True)
class Federation:
    """All clients' data. Rows stand client by client; a client's training rows come before its test rows.

    images [R, H, W, C] uint8, labels [R] int64 on the device; client, sample [R] and is_test [R] on the host;
    train[i] and test[i] are the row indices of client i. Federations that were joined have their rows one federation
    after another; each knows the rows of its own clients only.
    """

    images: Tensor
    labels: Tensor
    client: np.ndarray
    sample: np.ndarray
    is_test: np.ndarray
    classes: int
    train: Sequence[Tensor]
    test: Sequence[Tensor]
    class_counts: Tensor  #: [M, K] float32: training images of each class a client
    densities: Densities  #: what is known of the clients' training and test distributions

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
    ) -> Federation:
        """Build from host arrays in partition order (see the class)."""
        clients = int(client.max()) + 1
        train = [torch.from_numpy(np.flatnonzero((client == i) & ~is_test)).to(device) for i in range(clients)]
        test = [torch.from_numpy(np.flatnonzero((client == i) & is_test)).to(device) for i in range(clients)]
        counts = np.zeros((clients, classes), np.float32)
        np.add.at(counts, (client[~is_test], labels[~is_test]), 1)
        return cls(
            images=torch.from_numpy(np.ascontiguousarray(images)).to(device),
            labels=torch.from_numpy(labels.astype(np.int64)).to(device),
            client=client,
            sample=sample,
            is_test=is_test,
            classes=classes,
            train=train,
            test=test,
            class_counts=torch.from_numpy(counts).to(device),
            densities=densities or realised(labels, client, clients, classes),
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
        return [
            replace(
                whole,
                train=[rows + at for rows in p.train],
                test=[rows + at for rows in p.test],
                class_counts=p.class_counts,
                densities=replace(p.densities, strata=strata),
            )
            for p, at in zip(parts, starts, strict=True)
        ]

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
        return [len(rows) for rows in self.train]

    @property
    def n_test(self) -> list[int]:
        return [len(rows) for rows in self.test]
