"""Who holds how many samples of which class in a stored partition: only that, quickly, and without pandas."""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.specs import PartitionSpec
from fedbench.store import Artifact


def class_counts(artifact: Artifact) -> tuple[tuple[str, ...], NDArray[np.int64], bool]:
    """The names of the K classes, each client's samples in each of them [M, K], and whether an image has several
    labels. Raises FedbenchError if the artifact is no partition or its file is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    spec = artifact.spec
    if not isinstance(spec, PartitionSpec):
        raise FedbenchError(f"{artifact.kind} {artifact.id} is not a partition")
    path = artifact.file("samples.parquet")
    try:
        table = pq.ParquetFile(path).read(["client", "label"], use_threads=False)
        classes = tuple(json.loads(table.schema.metadata[b"classes"]))
        client, label = (table.column(name).combine_chunks() for name in ("client", "label"))
        several = pa.types.is_fixed_size_list(label.type)
        # By DLPack: pyarrow's own to_numpy imports pandas.
        of: NDArray[np.int64] = np.from_dlpack(client).astype(np.int64)
        labels: NDArray[np.int64] = np.from_dlpack(label.flatten() if several else label).astype(np.int64)
        counts = np.zeros((spec.all_clients, len(classes)), np.int64)
        if several:
            np.add.at(counts, of, labels.reshape(len(of), -1))
        else:
            np.add.at(counts, (of, labels), 1)
    except (OSError, KeyError, IndexError, ValueError, pa.ArrowException) as error:
        hint = f"remove it with 'fedbench remove {artifact.id}' and make it again"
        raise FedbenchError(f"cannot read {path} ({error})", hint) from error
    return classes, counts, several
