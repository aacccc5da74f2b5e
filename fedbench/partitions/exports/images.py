"""Clients' images in the folders of other tools: PFLlib's npz files and LEAF's JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.partitions import schemes
from fedbench.partitions.artifact import Partition
from fedbench.specs import require

if TYPE_CHECKING:
    from fedbench.data import Dataset

#: A JSON file ends behind so many users (as LEAF's own do) or numbers.
_USERS, _NUMBERS = 100, 20_000_000
SIDES = ("train", "test")
#: Name, images [n, H, W, C] and classes [n].
User = tuple[str, NDArray[np.uint8], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Images:
    """Clients' images as they see them, under the labels that they train on. Validation images are training images."""

    partition: Partition
    dataset: Dataset

    def __post_init__(self) -> None:
        p = self.partition
        require(p.phase is None, f"the training data of partition {p.id} drift, which no folder of clients can say")
        require(not p.multi_label, f"{p.spec.dataset.name} has several labels an image, and these folders one")

    def of(self, client: int, side: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """A client's images [n, H, W, C] and classes [n] of one side."""
        p, (images, index) = self.partition, self._seen
        rows = np.arange(*p.rows(client).indices(len(p.sample)))
        rows = rows[p.test[rows] == (side == "test")]
        return images[index[rows]], p.label[rows].astype(np.int64)

    @cached_property
    def _seen(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        return self.partition.distinct(self.dataset)


def write_pflib(folder: Path, content: Images) -> None:
    """train/N.npz and test/N.npz with the arrays x (float32 [n, C, H, W] in [-1, 1]) and y (int64 [n]), and config.json
    with PFLlib's keys, and the classes' names."""
    p, statistic = content.partition, []
    for side in SIDES:
        (folder / side).mkdir()
        for client in range(p.clients):
            images, labels = content.of(client, side)
            x = (images.transpose(0, 3, 1, 2).astype(np.float32) / 255 - 0.5) / 0.5
            np.savez_compressed(folder / side / f"{client}.npz", x=x, y=labels)
    for counts in p.class_counts().tolist():
        statistic.append([[k, count] for k, count in enumerate(counts) if count])
    config: dict[str, Any] = {
        "num_clients": p.clients, "num_classes": len(p.classes), "non_iid": p.spec.scheme != "iid", "balance": False,
        "partition": schemes.label(p.spec), "Size of samples for labels in clients": statistic,
        "alpha": p.spec.options.get("alpha"), "batch_size": 10, "classes": list(p.classes),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def write_leaf(folder: Path, content: Images) -> None:
    """train/ and test/ with files all_data_I.json: users, num_samples, and user_data of each user with x, rows of
    H * W * C grey levels in 0..1, and y."""
    levels = [f"{level / 255:.6g}" for level in range(256)]
    for side in SIDES:
        (folder / side).mkdir()
        for number, users in enumerate(_files(content, side)):
            with (folder / side / f"all_data_{number}.json").open("w") as f:
                sizes = [len(labels) for _, _, labels in users]
                names = [name for name, _, _ in users]
                f.write(f'{{"users": {json.dumps(names)}, "num_samples": {json.dumps(sizes)}, "user_data": {{')
                for place, (name, images, labels) in enumerate(users):
                    flat = images.reshape(len(images), -1).tolist()
                    rows = ", ".join(f"[{', '.join([levels[v] for v in row])}]" for row in flat)
                    f.write(f'{", " if place else ""}"{name}": {{"x": [{rows}], "y": {json.dumps(labels.tolist())}}}')
                f.write("}}")


def _files(content: Images, side: str) -> Iterator[list[User]]:
    """The users of each file, their names in the order of their numbers as texts too."""
    width, size = len(str(content.partition.clients - 1)), 0
    users: list[User] = []
    for client in range(content.partition.clients):
        images, labels = content.of(client, side)
        if users and (len(users) == _USERS or size + images.size > _NUMBERS):
            yield users
            size, users = 0, []
        users.append((f"f_{client:0{width}}", images, labels))
        size += images.size
    yield users
