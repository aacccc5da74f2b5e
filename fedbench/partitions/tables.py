"""The partition artifact: one row per (client, sample), one per client, and one per true distribution.

    samples        client, sample, split, label (, colour) (, stage)   ordered by client; its training rows first,
                   then its validation and test rows; otherwise in the order of the draws
    clients        client, n_train, n_test, gamma, hue, saturation, posterize, group (, corruption, severity)
                   (, mean, std) (, newcomer) (, n_validation) (, distribution) (, stage_groups, test_group)
    distributions  group, description, definition   only if distributions were drawn (FLUX)
    densities      client, train, test              probability of each stratum; `samples` then has its number

`sample` is a row of the data set. `split` is train, validation or test. `label` is what the client trains on (coarse
for CIFAR-20, even if it was partitioned by other labels; binary in a colored partition; permuted under P(Y|X)); for
multi-label images it is a list of 0 and 1. `colour`, only in a colored partition, is 0 for red and 1 for green.
`stage`, only under drift, is the drift phase, counted from 0; test rows have -1. An unused step of a transform is null.
`group` is the number of the client's true group, under drift that of the last phase, and `distribution` describes it
in words. The columns in brackets exist only if some client needs them: those of corruptions if a client has one,
`newcomer` if there are unseen clients, and so on.

The densities are written only for a user's partitioner that knows them, so that training does not need its file.

Unseen clients are the last clients that hold samples. For each corruption of `unseen_as`, in this order, a copy of each
of them follows after all other clients: a client with the same samples and split that sees its images under this
corruption instead of its shift.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.data.part import as_array, as_column, values_of
from fedbench.errors import FedbenchError
from fedbench.partitions import schemes
from fedbench.partitions.artifact import Partition
from fedbench.partitions.distribution import Densities, Distribution, Drawn
from fedbench.partitions.names import NAMES
from fedbench.partitions.transforms import Transform
from fedbench.specs import PartitionSpec
from fedbench.store import Artifact, Writer

if TYPE_CHECKING:
    import pyarrow as pa

_SIDES, _ALL_SIDES = ["train", "test"], ["train", "validation", "test"]


def read(artifact: Artifact) -> Partition:
    """Read the partition of an artifact. Raises FedbenchError if a file is damaged or the tables disagree."""
    spec = artifact.spec
    if not isinstance(spec, PartitionSpec):
        raise FedbenchError(f"{artifact.kind} {artifact.id} is not a partition")
    samples, clients = artifact.table("samples"), artifact.table("clients")
    steps = clients.select([f.name for f in fields(Transform) if f.name in clients.column_names])
    split = samples["split"].cast("string").combine_chunks().dictionary_encode()
    code, side = {name: k for k, name in enumerate(split.dictionary.to_pylist())}, values_of(split.indices)
    back = side == code.get("validation", -1)
    partition = Partition(
        spec=spec,
        classes=tuple(json.loads(samples.schema.metadata[b"classes"])),
        client=values_of(samples["client"]),
        sample=values_of(samples["sample"]),
        test=side == code.get("test", -1),
        label=as_array(samples["label"]),
        transforms=_transforms(steps),
        groups=clients["group"].to_pylist(),
        colour=values_of(samples["colour"]) if "colour" in samples.column_names else None,
        validation=back if back.any() else None,
        phase=values_of(samples["stage"]) if "stage" in samples.column_names else None,
        drawn=_drawn(artifact, clients) if "distribution" in clients.column_names else None,
        names=tuple(artifact.provenance.get(NAMES, ())),
    )
    stated = [values_of(clients[name]) for name in ("n_train", "n_test")]
    counted = [partition.n_train, partition.n_test]
    unordered = np.any(np.diff(partition.client) < 0)
    if len(clients) != partition.clients or not np.array_equal(stated, counted) or unordered:
        raise FedbenchError(
            f"partition {artifact.id} is inconsistent: its tables 'samples' and 'clients' disagree",
            f"remove it with 'fedbench remove {artifact.id}' and make it again",
        )
    return replace(partition, declared=_declared(artifact, partition, samples))


def _transforms(steps: pa.Table) -> tuple[Transform, ...]:
    """[M] each client's transform, from a table with a column per step; equal transforms are one object."""
    columns = [[tuple(v) if isinstance(v, list) else v for v in column.to_pylist()] for column in steps.columns]

    @cache
    def transform(*values: Any) -> Transform:
        return Transform(**dict(zip(steps.column_names, values, strict=True)))

    return tuple(transform(*values) for values in zip(*columns, strict=True))


def _declared(artifact: Artifact, p: Partition, samples: pa.Table) -> Densities | None:
    """Return the densities that a built-in partitioner knows, or that a user's partitioner has stored."""
    if not schemes.is_users(p.spec.scheme):
        return schemes.of(p.spec).densities(p)
    if "stratum" not in samples.column_names:
        return None
    of_clients = artifact.table("densities")
    train, test = (np.array(of_clients[side].to_pylist(), np.float64) for side in _SIDES)
    return Densities(values_of(samples["stratum"]), train, test)


def write(writer: Writer, p: Partition) -> None:
    """Write the tables to an artifact that is being written."""
    writer.table("samples", _samples_table(p))
    writer.table("clients", _clients_table(p))
    if p.drawn is not None:
        writer.table("distributions", _distributions_table(p))
    if p.declared is not None and schemes.is_users(p.spec.scheme):
        writer.table("densities", _densities_table(p.declared))


def _drawn(artifact: Artifact, clients: pa.Table) -> Drawn:
    """Read the distributions, and which of them each client has."""
    definitions = artifact.table("distributions")["definition"].to_pylist()
    phases = np.array(clients["stage_groups"].to_pylist(), np.int32).T
    of_phase = np.concatenate([phases, values_of(clients["test_group"])[None]])
    return Drawn(tuple(map(Distribution.from_json, definitions)), of_phase)


def _samples_table(p: Partition) -> pa.Table:
    import pyarrow as pa

    side, names = p.test.astype(np.int8), _SIDES
    if p.validation is not None:
        side, names = 2 * side + p.validation, _ALL_SIDES
    split = pa.DictionaryArray.from_arrays(pa.array(side), pa.array(names))
    columns = {"client": p.client, "sample": p.sample, "split": split, "label": as_column(p.label)}
    if p.colour is not None:
        columns["colour"] = p.colour
    if p.phase is not None:
        columns["stage"] = p.phase
    if p.declared is not None and schemes.is_users(p.spec.scheme):
        columns["stratum"] = p.declared.strata
    return pa.table(columns).replace_schema_metadata({b"classes": json.dumps(p.classes).encode()})


def _clients_table(p: Partition) -> pa.Table:
    import pyarrow as pa

    def steps(**kinds: pa.DataType) -> dict[str, pa.Array]:
        return {name: pa.array([getattr(one, name) for one in p.transforms], kind) for name, kind in kinds.items()}

    columns = {
        "client": pa.array(range(p.clients), pa.int32()),
        "n_train": pa.array(p.n_train, pa.int32()),
        "n_test": pa.array(p.n_test, pa.int32()),
        **steps(gamma=pa.float64(), hue=pa.float64(), saturation=pa.float64(), posterize=pa.int8()),
        "group": pa.array(p.groups, pa.int32()),
    }
    if any(s.corruption for s in p.transforms):
        columns |= steps(corruption=pa.string(), severity=pa.int8())
    if any(s.mean for s in p.transforms):
        columns |= steps(mean=pa.list_(pa.float64()), std=pa.list_(pa.float64()))
    if p.spec.unseen:
        columns["newcomer"] = pa.array(p.unseen)
    if p.validation is not None:
        columns["n_validation"] = pa.array(p.n_validation, pa.int32())
    if p.drawn is not None:
        described = [one.described(p.classes) for one in p.distributions]
        columns["distribution"] = pa.array([described[g] for g in p.groups], pa.string())
        columns["stage_groups"] = pa.array(list(zip(*p.phase_groups, strict=True)), pa.list_(pa.int32()))
        columns["test_group"] = pa.array(p.test_groups, pa.int32())
    return pa.table(columns)


def _distributions_table(p: Partition) -> pa.Table:
    import pyarrow as pa

    return pa.table(
        {
            "group": pa.array(range(len(p.distributions)), pa.int32()),
            "description": pa.array([one.described(p.classes) for one in p.distributions], pa.string()),
            "definition": pa.array([one.to_json() for one in p.distributions], pa.string()),
        }
    )


def _densities_table(d: Densities) -> pa.Table:
    import pyarrow as pa

    return pa.table({"client": list(range(len(d.train))), "train": d.train.tolist(), "test": d.test.tolist()})
