"""A given partition: a file of client, sample and split."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedbench.errors import FedbenchError
from fedbench.options import option
from fedbench.partitions.rows import Rows, read
from fedbench.partitions.scheme import GIVEN, Assignment, Scheme
from fedbench.specs import PartitionSpec, require
from fedbench.words import path_of

if TYPE_CHECKING:
    from fedbench.data import Dataset


#: The files' rows that this process has read, by digest: a spec has the digest alone, and drawing needs the rows.
_at_hand: dict[str, Rows] = {}


@dataclass(frozen=True)
class File(Scheme):
    """Clients get the samples that the rows of a CSV or Parquet file say (`fedbench.partitions.rows`).

    The spec holds the rows' digest, so the file is not needed once the partition is stored.
    """

    short: ClassVar[Mapping[str, str]] = {"from": "rows"}
    modifiers: ClassVar[tuple[str, ...]] = GIVEN
    by_class: ClassVar[bool] = False

    rows: str = option(help="CSV or Parquet file of client,sample,split")  # in the spec: the rows' digest

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch("[0-9a-f]{64}", self.rows):
            content = read(path_of(self.rows, "--from"))
            object.__setattr__(self, "rows", content.digest)
            _at_hand[content.digest] = content

    @classmethod
    def count(cls, values: Mapping[str, Any]) -> int | None:
        return cls.create({"rows": values["rows"]})._content.clients if values.get("rows") else None

    @property
    def _content(self) -> Rows:
        if self.rows not in _at_hand:
            missing = f"the rows {self.rows[:12]} of this partition are a file that is not available"
            raise FedbenchError(missing, "give it with --from FILE")
        return _at_hand[self.rows]

    def label(self, spec: PartitionSpec) -> str:
        return f"from file {self.rows[:8]}"

    def draw(self, dataset: Dataset, spec: PartitionSpec) -> Assignment:
        """Raises FedbenchError for a sample that the data set does not have, and for another number of clients."""
        own, count, name = self._content, len(dataset.labels), dataset.spec.name
        require(
            own.clients == spec.clients,
            f"{own.where} has {own.clients} clients, not {spec.clients}",
            "leave --clients out",
        )
        outside = own.sample >= count
        if outside.any():
            at = int(outside.argmax())
            raise FedbenchError(
                f"{own.where}: client {own.client[at]} has sample {own.sample[at]}, and {name} has {count:,} images "
                f"(0 to {count - 1})",
                "training images come first, then test images",
            )
        held = own.split == 1
        require(
            spec.validation is None or not held.any(),
            f"{own.where} has validation samples of its own",
            "leave --validation out",
        )
        ends = np.bincount(own.client * 3 + own.split, minlength=3 * own.clients).cumsum()
        pieces = np.split(own.sample, ends[:-1])  # [3M] by client: training, validation and test samples
        train = [(np.concatenate(pieces[c : c + 2]),) for c in range(0, len(pieces), 3)]
        back = [len(piece) for piece in pieces[1::3]]
        return Assignment(train, pieces[2::3], held_back=back if held.any() else None)
