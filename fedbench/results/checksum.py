"""The checksum of a run's predictions: of their values, not of the Parquet file around them, which also tells of
library versions."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from fedbench.store import Artifact

if TYPE_CHECKING:
    import pyarrow as pa


def predictions(run: Artifact) -> str:
    """SHA-256 of a run's predictions, column by column in the order of their names."""
    table = run.table("predictions")
    digest = hashlib.sha256()
    for name in sorted(table.column_names):
        _add(digest, name, table.column(name).combine_chunks())
    return digest.hexdigest()


def _add(digest: hashlib._Hash, name: str, values: pa.Array) -> None:
    import pyarrow as pa

    digest.update(f"{name} {len(values)}\n".encode())
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if values.null_count:
        digest.update(values.is_null().to_numpy(zero_copy_only=False).tobytes())
    if pa.types.is_fixed_size_list(values.type) or pa.types.is_list(values.type):
        lengths = values.value_lengths().fill_null(0)
        _add(digest, f"{name} lengths", lengths)
        _add(digest, f"{name} values", values.flatten())
    elif pa.types.is_string(values.type):
        texts = values.fill_null("").dictionary_encode()
        words = texts.dictionary.to_pylist()
        order = sorted(words)
        places = pa.array([order.index(word) for word in words], pa.int64())
        digest.update("\0".join(order).encode())
        _add(digest, f"{name} places", places.take(texts.indices))
    else:
        kind = "<f8" if pa.types.is_floating(values.type) else "<i8"
        digest.update(values.fill_null(0).to_numpy(zero_copy_only=False).astype(kind).tobytes())
