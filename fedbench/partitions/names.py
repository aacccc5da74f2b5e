"""Names of clients that are natural groups: a hospital, a writer, an area.

A partition counts its clients from 0. Where it goes by a natural column, a client's name is that of its group. It is no
part of the partition's spec or tables: it comes from the data set's own column, and is kept in the manifest, so that it
can be read without the data set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedbench.data.dataset import group_column, group_names
from fedbench.data.part import values_of
from fedbench.errors import FedbenchError
from fedbench.partitions.modifiers import again
from fedbench.specs import PartitionSpec
from fedbench.store import Store

if TYPE_CHECKING:
    from fedbench.data import Dataset

#: Key of the names in a partition's provenance.
NAMES = "client_names"


def column_of(spec: PartitionSpec) -> str:
    """The natural column by which a partition goes; "" if by none."""
    by = spec.options.get("by")
    return by if isinstance(by, str) else ""


def of(spec: PartitionSpec, store: Store) -> tuple[str, ...]:
    """The name of each of the M clients, each another one; () if they have none, or the store lacks the partition.

    A partition of an older version has none in its manifest: they are looked up in its data set, if the store has it.
    """
    by, artifact = column_of(spec), store.whole(spec)
    if not by or artifact is None:
        return ()
    if NAMES in artifact.provenance:
        return tuple(artifact.provenance[NAMES])
    dataset = store.whole(spec.dataset)
    try:
        if dataset is None or by not in dataset.schema("data").names:
            return ()
        samples = artifact.table("samples", ["client", "sample"])
        values = group_column(dataset, by)
    except FedbenchError:  # said where the data are used
        return ()
    return _named(spec, values, values_of(samples["client"]), values_of(samples["sample"]))


def drawn(
    spec: PartitionSpec, dataset: Dataset, client: NDArray[np.integer], sample: NDArray[np.integer]
) -> tuple[str, ...]:
    """The names of a new partition's clients; () if they have none. `client` and `sample`: [R], as in `Partition`."""
    column = dataset.columns.get(column_of(spec))
    return () if column is None else _named(spec, column, client, sample)


def _named(
    spec: PartitionSpec, values: NDArray[np.generic], client: NDArray[np.integer], sample: NDArray[np.integer]
) -> tuple[str, ...]:
    """The names, from the group of each of the data set's N samples; () if a client has samples of several groups."""
    own = values[sample]
    first = own[np.searchsorted(client, np.arange(spec.all_clients))]
    if not (first[client] == own).all():
        return ()
    names = group_names(spec.dataset, column_of(spec), first.tolist())
    if names == [f"{column_of(spec)} {client}" for client in range(spec.all_clients)]:  # its number says it already
        return ()
    for place, (original, seen) in enumerate(again(spec), spec.clients):
        names[place] = f"{names[original]}, {str(seen.corruption).replace('_', ' ')} {seen.severity}"
    held = Counter(names)  # a group may be shared out among several clients
    return tuple(name if held[name] == 1 else f"{name} ({c})" for c, name in enumerate(names))


def called(names: Sequence[str], client: int) -> str:
    """A client in words: client 3, or client 3 (Graz)."""
    return f"client {client} ({names[client]})" if names else f"client {client}"
