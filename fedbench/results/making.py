"""Runs of a store as rows of a pack."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError
from fedbench.metrics.evaluate import evaluate
from fedbench.metrics.read import load
from fedbench.results.own_code import NONE, Code, parts
from fedbench.results.pack import ABOUT, Failure, Row
from fedbench.specs import RunSpec
from fedbench.store import Artifact, Store
from fedbench.store.provenance import other_code
from fedbench.store.unfinished import unfinished
from fedbench.words import counted

if TYPE_CHECKING:
    import pyarrow as pa


def predictions(run: Artifact) -> str:
    """SHA-256 of a run's predictions, column by column, sorted by name.

    Of the values, not of the Parquet file, which also records library versions.
    """
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


def row_of(run: Artifact, store: Store, by: str = "", code: Code = NONE) -> Row:
    """A run as a row of a pack; computes its metrics if missing.

    Raises FedbenchError for a run of a user's code that is not in `code`, that of the paper whose pack it is: nobody
    else could repeat it.
    """
    spec = run.spec
    assert isinstance(spec, RunSpec)
    if why := code.lacks(spec):
        other = {
            "method": f"method!={spec.method}",
            "network": f"model!={spec.setting.model}",
            "partitioner": f"scheme!={spec.setting.partition.scheme}",
        }[next(parts(spec)).what]
        raise FedbenchError(
            f"run {run.id} cannot be repeated by others: {why}",
            f"write the pack into the folder of a paper that has the file, -o PAPER/results/NAME.parquet, or leave it "
            f"out, for example with {other}",
        )
    provenance = run.provenance
    return Row(
        spec,
        predictions(run),
        by,
        str(provenance["started"]),
        float(provenance["train_seconds"]),
        machine(provenance),
        {name: provenance[name] for name in ABOUT if provenance.get(name) is not None},
        load(evaluate(run, store)),
    )


def refuse_other_code(runs: Collection[Artifact]) -> None:
    """Raise FedbenchError if other code than today's made any of the runs."""
    if changed := [run.id for run in runs if other_code(run.provenance)]:
        raise FedbenchError(
            f"{counted(len(changed), 'run')} of {len(runs):,} {'was' if len(changed) == 1 else 'were'} made by other "
            f"code than today's: {', '.join([*changed[:3], *(['...'] if len(changed) > 3 else [])])}",
            "make them again (train --again), or export them as they are: --other-code",
        )


def diverged(store: Store, ids: Collection[str] | None = None, code: Code = NONE) -> list[Failure]:
    """A store's diverged runs (with `ids`: only these), without runs of users' code that is not in `code`."""
    return [
        Failure(run.spec, run.reason)
        for run in unfinished(store)
        if run.diverged and (ids is None or run.id in ids) and not code.lacks(run.spec)
    ]


def machine(provenance: Mapping[str, Any]) -> str:
    """The kind of machine, on which the last bits of a run depend, such as 'Linux x86_64 AVX512'; not its name."""
    if provenance.get("device", "cpu") != "cpu":
        return str(provenance["device"])
    platform = str(provenance.get("platform", ""))
    kind = re.search(r"x86_64|AMD64|aarch64|arm64", platform)
    words = (platform.partition("-")[0], kind[0] if kind else "", str(provenance.get("cpu", "")))
    return " ".join(word for word in words if word) or "unknown"
