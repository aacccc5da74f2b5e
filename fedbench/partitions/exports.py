"""Export a partition: its rows as a file, or clients' images in PFLlib's folders."""

from __future__ import annotations

import dataclasses
import io
import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError, check_known
from fedbench.files import whole_folder, write_whole
from fedbench.partitions import modifiers, rows, schemes
from fedbench.partitions.artifact import Partition
from fedbench.partitions.distribution import Distribution
from fedbench.partitions.transforms import SHIFTS, of_clients
from fedbench.specs import require

if TYPE_CHECKING:
    from fedbench.data import Dataset


SIDES = ("train", "test")
#: Formats that hold client, sample and split, with their file suffixes; and that of clients' images, in a folder.
FILES = {"csv": (".csv",), "parquet": (".parquet", ".pq")}
PFLLIB = "pflib"
FORMATS = (*FILES, PFLLIB)


@dataclass(frozen=True, eq=False)
class ClientImages:
    """Images as the clients see them, with the partition's labels. Validation images count as training images."""

    partition: Partition
    dataset: Dataset

    def __post_init__(self) -> None:
        p = self.partition
        require(p.phase is None, f"the training data of partition {p.id} drift, which no folder of clients can say")
        require(not p.spec.dataset.vectors, f"{p.spec.dataset.name} holds vectors, and these folders images")
        require(not p.multi_label, f"{p.spec.dataset.name} has several labels an image, and these folders one")

    def of(self, client: int, side: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return a client's images [n, H, W, C] and classes [n] of one side."""
        p, (images, index) = self.partition, self._seen
        rows = np.arange(*p.rows(client).indices(len(p.sample)))
        rows = rows[p.test[rows] == (side == "test")]
        return images[index[rows]], p.label[rows].astype(np.int64)

    @cached_property
    def _seen(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        return self.partition.distinct(self.dataset)


def write_pflib(folder: Path, content: ClientImages) -> None:
    """Write train/N.npz and test/N.npz with arrays x (float32 [n, C, H, W] in [-1, 1]) and y (int64 [n]), and
    config.json with PFLlib's keys and the class names."""
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
        "num_clients": p.clients,
        "num_classes": len(p.classes),
        "non_iid": p.spec.scheme != "iid",
        "balance": False,
        "partition": schemes.label(p.spec),
        "Size of samples for labels in clients": statistic,
        "alpha": p.spec.options.get("alpha"),
        "batch_size": 10,
        "classes": list(p.classes),
    }
    (folder / "config.json").write_text(json.dumps(config))


def format_of(output: Path, given: str | None) -> str:
    """Return the given format, or that of the output's suffix. Raises FedbenchError for an unknown one."""
    if given is not None:
        check_known("format of a partition", given, FORMATS)
        return given
    for name, endings in FILES.items():
        if output.suffix in endings:
            return name
    raise FedbenchError(f"{output} does not say in which format", f"give --format, one of {', '.join(FORMATS)}")


def write(partition: Partition, format: str, output: Path, images: Callable[[], Dataset]) -> list[str]:
    """Write a partition in one of FORMATS; `images` loads its data set if the format holds images.

    Returns messages for the user, one line each. Raises FedbenchError if the format cannot represent the partition.
    """
    if format == PFLLIB:
        return _write_folder(partition, output, images)
    _check(partition, format)
    own = rows.of(partition)
    if format == "csv":
        write_whole(output, own.text)
    else:
        import pyarrow.parquet as pq

        sink = io.BytesIO()
        pq.write_table(own.table(), sink, compression="zstd")
        write_whole(output, sink.getvalue())
    name, place = partition.spec.dataset.name, shlex.quote(str(output))
    return [f"read it again with: fedbench partition {name} --from {place}{_beside(partition)}"]


def _write_folder(p: Partition, output: Path, images: Callable[[], Dataset]) -> list[str]:
    """Write PFLlib's folder atomically."""
    taken = output.exists() and (not output.is_dir() or any(output.iterdir()))
    require(not taken, f"{output} exists already, and {PFLLIB} is a new folder", "choose another --output")
    content = ClientImages(p, images())
    with whole_folder(output, f"exporting partition {p.id}", "--output") as part:
        write_pflib(part, content)
    remarks = ["validation images are among the training images"] if p.validation is not None else []
    if p.scaling() is not None:
        remarks.append("the clients' own means and standard deviations are not in it")
    remarks.append("PFLlib reads it with dict(np.load(f)) in place of np.load(f, allow_pickle=True)['data'].tolist()")
    unseen = f" --unseen {p.spec.outsiders}" if p.spec.unseen else ""
    place = shlex.quote(str(output))
    return [*remarks, f"read it again with: fedbench partition --from {place}{unseen}"]


def _check(p: Partition, format: str) -> None:
    """Raise FedbenchError unless client, sample and split, with the modifiers, describe the whole partition."""
    shifted = of_clients(_shift(p), p.spec.clients) + [transform for _, transform in modifiers.again(p.spec)]
    same = all(own in (one, one.on_grey()) for own, one in zip(p.transforms, shifted, strict=True))
    bare = [dataclasses.replace(one, number=None, name=None, classes=None) for one in p.distributions]
    plain = p.colour is None and p.phase is None and same and all(one == Distribution() for one in bare)
    require(
        plain,
        f"partition {p.id} is more than who holds which sample ({schemes.label(p.spec)}: images or labels of its own, "
        f"or drift), and {format} says no more than that",
    )


def _shift(p: Partition) -> str:
    """Return the shift if any partitioner supports it, else none; FLUX's shifts belong to one partitioner."""
    return p.spec.shift if p.spec.shift in SHIFTS else "none"


def _beside(p: Partition) -> str:
    """Return the command-line options for what the rows do not contain."""
    options = {
        "shift": None if _shift(p) == "none" else _shift(p),
        "duplicates": p.spec.duplicates,
        "unseen": p.spec.unseen,
        "unseen-as": ",".join(p.spec.unseen_as or ()) or None,
    }
    return "".join(f" --{name} {value}" for name, value in options.items() if value is not None)
