"""Partitions written in a format."""

from __future__ import annotations

import dataclasses
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.errors import FedbenchError, unknown
from fedbench.files import disk_errors, scratch, write_whole
from fedbench.partitions import modifiers, rows, schemes
from fedbench.partitions.artifact import Partition
from fedbench.partitions.distribution import Distribution
from fedbench.partitions.exports.images import Images, write_leaf, write_pflib
from fedbench.partitions.transforms import SHIFTS, of_clients
from fedbench.specs import require

if TYPE_CHECKING:
    from fedbench.data import Dataset

#: Formats that say who holds which sample, by the endings of their files.
FILES = {"csv": (".csv",), "parquet": (".parquet", ".pq")}
#: Formats that hold clients' images, in folders.
FOLDERS = {"pflib": write_pflib, "leaf": write_leaf}
FORMATS = (*FILES, *FOLDERS)


def format_of(output: Path, given: str | None) -> str:
    """The format that is given, or that the output's ending says. Raises FedbenchError for an unknown one."""
    if given is not None:
        if given not in FORMATS:
            raise unknown("format of a partition", given, FORMATS)
        return given
    for name, endings in FILES.items():
        if output.suffix in endings:
            return name
    raise FedbenchError(f"{output} does not say in which format", f"give --format, one of {', '.join(FORMATS)}")


def write(partition: Partition, format: str, output: Path, images: Callable[[], Dataset]) -> list[str]:
    """Write a partition in one of FORMATS; `images` gives its data set where the format holds images.

    Returns what the reader should know, a line each. Raises FedbenchError for what the format cannot say.
    """
    if format in FOLDERS:
        return _write_folder(partition, format, output, images)
    _check(partition, format)
    own = rows.of(partition)
    if format == "csv":
        write_whole(output, own.text)
    else:
        import pyarrow.parquet as pq

        sink = io.BytesIO()
        pq.write_table(own.table(), sink, compression="zstd")
        write_whole(output, sink.getvalue())
    return [f"read it again with: fedbench partition {partition.spec.dataset.name} --from {output}{_beside(partition)}"]


def _write_folder(p: Partition, format: str, output: Path, images: Callable[[], Dataset]) -> list[str]:
    """Write a folder, whole or not at all."""
    taken = output.exists() and (not output.is_dir() or any(output.iterdir()))
    require(not taken, f"{output} is there already, and {format} is a new folder", "choose another --output")
    content = Images(p, images())
    part = scratch(output.absolute())
    with disk_errors(f"exporting partition {p.id}", output.absolute().parent):
        part.mkdir(parents=True)
        try:
            FOLDERS[format](part, content)
            part.rename(output)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    remarks = ["validation images are among the training images"] if p.validation is not None else []
    if p.scaling() is not None:
        remarks.append("the clients' own means and standard deviations are not in it")
    if format == "pflib":
        remarks.append(
            "PFLlib reads it with dict(np.load(f)) in place of np.load(f, allow_pickle=True)['data'].tolist()"
        )
    unseen = f" --unseen {p.spec.outsiders}" if p.spec.unseen else ""
    return [*remarks, f"read it again with: fedbench partition --from {output}{unseen}"]


def _check(p: Partition, format: str) -> None:
    """Raise FedbenchError unless rows of client, sample and split say all of the partition but its modifiers."""
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
    """The shift that any partitioner may have; FLUX's are of one only."""
    return p.spec.shift if p.spec.shift in SHIFTS else "none"


def _beside(p: Partition) -> str:
    """The options that say what the rows do not."""
    options = {
        "shift": None if _shift(p) == "none" else _shift(p),
        "duplicates": p.spec.duplicates,
        "unseen": p.spec.unseen,
        "unseen-as": ",".join(p.spec.unseen_as or ()) or None,
    }
    return "".join(f" --{name} {value}" for name, value in options.items() if value is not None)
