"""A partition for others: who holds which sample as a file, or clients' images in the folders of other tools."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.errors import FedbenchError, unknown
from fedbench.files import write_whole
from fedbench.partitions import modifiers, rows, schemes
from fedbench.partitions.artifact import Partition
from fedbench.partitions.distribution import Distribution
from fedbench.partitions.transforms import SHIFTS, of_clients
from fedbench.specs import require

if TYPE_CHECKING:
    from fedbench.data import Dataset

#: Formats that say who holds which sample, by the endings of their files.
FILES = {"csv": (".csv",), "parquet": (".parquet", ".pq")}
FORMATS = tuple(FILES)


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
