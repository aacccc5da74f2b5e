"""Cells that need no run: parameters of a network, a round's costs, what a preset of clients says of their data, what
clients draw at a level (`levels`), and which method has which property (`properties`)."""

from __future__ import annotations

from fedbench import protocol
from fedbench.errors import FedbenchError
from fedbench.models.counts import counts
from fedbench.reports.numbers import levels, properties
from fedbench.reports.numbers.measured import Value
from fedbench.reports.table import cost
from fedbench.reports.table.spec import UNITS, Column, Row, Table
from fedbench.specs import DatasetSpec, PartitionSpec


def counted(table: Table, row: Row, column: Column) -> Value:
    """A cell of a table that needs no run. Raises FedbenchError if a preset or a partition has no such number."""
    if table.statistic == "levels":
        return levels.number(table, row, column)
    if table.statistic == "properties":
        return properties.number(row, column)
    if table.statistic == "preset":
        number = _of_preset(table, row, column)
    else:
        number = _costs(table, row, column) if row.method else _parameters(row, column)
    return Value(number * UNITS[str(column.unit)][0])


def _parameters(row: Row, column: Column) -> float:
    height, width, channels = row.shape
    network = counts(row.model, (height, width, channels), row.classes)
    gaussian = row.classes * network.features + network.features * (network.features + 1) // 2
    own = {"gaussian": gaussian, "overhead": (gaussian - network.head) / network.total}
    return own[metric] if (metric := str(column.metric)) in own else float(getattr(network, metric))


def _costs(table: Table, row: Row, column: Column) -> float:
    """Of a round of the row's method, for what the column says."""
    if column.costs is None:
        raise FedbenchError(f"{table.path}, column {column.key} does not say what costs are counted for")
    return float(getattr(cost.cost(row.method, column.costs), str(column.metric)))


def _of_preset(table: Table, row: Row, column: Column) -> float:
    """Of one client on one side of its split; class counts follow from the data set's smallest classes."""
    from fedbench.partitions import schemes
    from fedbench.partitions.density import normalised
    from fedbench.partitions.schemes.colored import Colored
    from fedbench.partitions.schemes.mixture import Mixture, counts, kept

    spec, side = _preset(table), ("train", "test").index(row.side)
    scheme = schemes.of(spec)
    if row.client > spec.clients:
        raise FedbenchError(f"{table.path}, row {row.label}: preset {table.preset} has {spec.clients} clients")
    if column.metric == "flip_probability":
        if not isinstance(scheme, Colored):
            raise FedbenchError(f"{table.path}: preset {table.preset} is no colored one, so nothing is flipped")
        return scheme.flips[row.client - 1][side]
    if not isinstance(scheme, Mixture):
        raise FedbenchError(f"{table.path}: preset {table.preset} is no mixture, so it has no class weights")
    mix = (scheme.train_mix, scheme.test_mix)[side]
    group, label = (row.client - 1) * len(mix) // spec.clients, column.category or 0
    if label >= len(mix[0]):
        raise FedbenchError(f"{table.path}, column {column.key}: preset {table.preset} has {len(mix[0])} classes")
    if column.metric == "class_probability":
        return float(normalised(mix)[group, label])
    whole = counts(mix, [table.smallest[row.side]] * len(mix[0]))
    return float((whole if side else kept(whole, scheme.keep))[group, label])


def _preset(table: Table) -> PartitionSpec:
    """The preset that the table is about, on no data set in particular."""
    return protocol.load(table.protocol).partition_spec(DatasetSpec("", "", ""), 1, preset=table.preset, seed=0)
