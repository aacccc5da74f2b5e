"""Reads and checks a run's tables: the models' answers, and the sizes of the clients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from fedbench.data.part import filled, values_of
from fedbench.errors import FedbenchError
from fedbench.specs import RunSpec
from fedbench.store import Artifact

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: Most counters (images x classes) in memory.
_CELLS = 1 << 22


def majority(votes: np.ndarray, classes: int) -> np.ndarray:
    """The label with most votes: votes [n, voters] -> [n]. Ties go to the smallest class index.

    This is the tie rule of FedDRM's code (the mode of the labels). With few, strongly personalised voters ties are
    frequent, so the rule is part of the protocol.
    """
    winner = votes[:, 0].copy()
    disputed = np.flatnonzero((votes != votes[:, :1]).any(axis=1))
    step = max(1, _CELLS // classes)
    for start in range(0, len(disputed), step):
        rows = disputed[start : start + step]
        cells = np.arange(len(rows))[:, None] * classes + votes[rows]
        counts = np.bincount(cells.ravel(), minlength=len(rows) * classes).reshape(len(rows), classes)
        winner[rows] = counts.argmax(axis=1)  # argmax returns the first maximum
    return winner


_BATCH = 1 << 15  # rows of votes in memory, for 8 clients
_ROUTE = "route_"
TEST_PHASE = "test_phase"


@dataclass(frozen=True)
class ClientSizes:
    """Sizes of the clients 0..M-1: n_train [M], n_test [M] images. The first `trainees` of them train; the others are
    unseen clients, which metrics of the whole federation exclude."""

    n_train: np.ndarray
    n_test: np.ndarray
    trainees: int

    def __len__(self) -> int:
        return len(self.n_train)


@dataclass(frozen=True)
class Predictions:
    """Answers for N test images, each in one of G groups; a group is a (round, view).

    For multi-label images `classes` is the number U of labels, `label` is 0 or 1 and answers are scores, each [N, U].
    """

    rounds: np.ndarray  #: [G]
    views: Sequence[str]  #: [G]
    classes: int
    group: np.ndarray  #: [N] index of the image's group
    client: np.ndarray  #: [N] owner of the image
    label: np.ndarray  #: [N]
    own: np.ndarray  #: [N] answer of the owner's model
    vote: np.ndarray | None = None  #: [N] majority of all clients' models
    route: Mapping[str, np.ndarray] = field(default_factory=dict)  #: rule -> [N] client chosen
    routed: Mapping[str, np.ndarray] = field(default_factory=dict)  #: rule -> [N] answer of the chosen client's model
    #: [N] answer for the owner as a client without labels; -1 (scores: NaN) in groups without a test phase.
    test_phase: np.ndarray | None = None
    #: [G, T] number of correct answers of each training client's model on the test images of all T training clients.
    single: np.ndarray | None = None


def broken(run: Artifact, what: str) -> FedbenchError:
    """The error for a run with damaged or contradictory tables."""
    return FedbenchError(f"run {run.id}: {what}", f"remove it with 'fedbench remove {run.id}' and train again")


@contextlib.contextmanager
def opened(run: Artifact) -> Iterator[pq.ParquetFile]:
    """The `predictions` table of a run, views as a dictionary. Raises FedbenchError if it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = run.file("predictions.parquet")
    try:
        if "view" not in pq.read_schema(path).names:
            raise broken(run, "table predictions has no column 'view'")
        yield pq.ParquetFile(path, read_dictionary=["view"], memory_map=True)
    except (OSError, pa.ArrowException) as error:
        raise broken(run, f"cannot read {path} ({error})") from error


def column_of(run: Artifact, table: pa.Table, file: str, name: str) -> pa.ChunkedArray:
    """A column. Raises FedbenchError if it is missing."""
    if name not in table.column_names:
        raise broken(run, f"table {file} has no column '{name}'")
    return table.column(name)


def integers(run: Artifact, table: pa.Table, file: str, name: str) -> np.ndarray:
    """A column of whole numbers as int64. Raises FedbenchError if it is missing, has nulls or another type."""
    import pyarrow as pa

    column = column_of(run, table, file, name)
    if not pa.types.is_integer(column.type) or column.null_count:
        raise broken(run, f"column '{name}' of table {file} must hold whole numbers without gaps")
    return values_of(column).astype(np.int64)


def numbers(run: Artifact, table: pa.Table, file: str, name: str) -> np.ndarray:
    """A column of numbers as float64, nulls as NaN. Raises FedbenchError if it is missing or has another type."""
    import pyarrow as pa

    column = column_of(run, table, file, name)
    if not pa.types.is_integer(column.type) and not pa.types.is_floating(column.type):
        raise broken(run, f"column '{name}' of table {file} must hold numbers, not {column.type}")
    return filled(column, np.nan)


def read_clients(run: Artifact) -> ClientSizes:
    """The `clients` table of a run. Raises FedbenchError if it is damaged or a client has no images."""
    table = run.table("clients")
    client, train, test = (integers(run, table, "clients", name) for name in ("client", "n_train", "n_test"))
    if not len(client) or not np.array_equal(client, np.arange(len(client))):
        raise broken(run, "table clients must list the clients 0, 1, 2, ... in order")
    for what, sizes in (("training", train), ("test", test)):
        if (sizes < 1).any():
            raise broken(run, f"client {int(np.argmax(sizes < 1))} has no {what} images")
    assert isinstance(run.spec, RunSpec)
    return ClientSizes(train, test, len(client) - run.spec.setting.partition.outsiders)


def read_predictions(run: Artifact, clients: ClientSizes, rounds: int) -> Predictions:
    """The `predictions` table of a run of `rounds` rounds; reads votes in batches.

    Raises FedbenchError for missing columns, labels outside the classes, unknown clients, votes of another width
    than the federation's, and groups that do not hold every client's test images.
    """
    with opened(run) as file:
        names = file.schema_arrow.names
        table = file.read([n for n in names if n != "votes"])
        number, views, group = groups_of(run, table, rounds)
        client, label, own = (integers(run, table, "predictions", n) for n in ("client", "label", "own"))
        route = {n.removeprefix(_ROUTE): integers(run, table, "predictions", n) for n in names if n.startswith(_ROUTE)}
        for rule, clients_of in route.items():
            _check_range(run, _ROUTE + rule, clients_of, len(clients))
        whole(run, clients, number, group, client)
        classes = _classes(run, table, label, own)
        _check_range(run, "label", label, classes)
        _check_range(run, "own", own, classes)
        test_phase = filled(table.column(TEST_PHASE), -1) if TEST_PHASE in names else None
        if test_phase is not None:
            _check_range(run, TEST_PHASE, np.maximum(test_phase, 0), classes)
        p = Predictions(number, views, classes, group, client, label, own, None, route, {}, test_phase)
        return _with_votes(run, file, clients, p) if "votes" in names else p


def whole(run: Artifact, clients: ClientSizes, number: np.ndarray, group: np.ndarray, client: np.ndarray) -> None:
    """Raise FedbenchError for unknown clients, and if a group lacks test images of a client."""
    _check_range(run, "client", client, len(clients))
    expected = np.tile(clients.n_test, len(number))
    if not np.array_equal(np.bincount(group * len(clients) + client, minlength=len(expected)), expected):
        raise broken(run, "table predictions does not hold every client's test images in every round and view")


def groups_of(run: Artifact, table: pa.Table, rounds: int) -> tuple[np.ndarray, list[str], np.ndarray]:
    """(round [G], view [G], group of each row [N]); groups are sorted by round, then view."""
    import pyarrow as pa

    if not len(table):
        raise broken(run, "table predictions is empty")
    view = table.column("view")
    if not pa.types.is_dictionary(view.type) or view.null_count:
        raise broken(run, "column 'view' of table predictions must hold names without gaps")
    view = view.unify_dictionaries().combine_chunks()
    names = [str(n) for n in view.dictionary.to_pylist()]
    number = integers(run, table, "predictions", "round")
    if number.min() < 1 or number.max() > rounds:
        raise broken(run, f"table predictions holds rounds {number.min()} to {number.max()}, the run had 1 to {rounds}")
    key = number * len(names) + values_of(view.indices)
    present = np.bincount(key) > 0
    groups = np.flatnonzero(present)
    return groups // len(names), [names[i] for i in groups % len(names)], (np.cumsum(present) - 1)[key]


def _classes(run: Artifact, table: pa.Table, label: np.ndarray, own: np.ndarray) -> int:
    """The number of classes in the table's metadata, else the largest label or answer plus 1."""
    declared = (table.schema.metadata or {}).get(b"classes", b"")
    if declared:
        if not declared.isdigit() or int(declared) < 1:
            raise broken(run, f"table predictions declares {declared!r} classes")
        return int(declared)
    return int(max(label.max(), own.max())) + 1


def _check_range(run: Artifact, name: str, values: np.ndarray, size: int) -> None:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= size:
        raise broken(
            run, f"column '{name}' of table predictions holds {low if low < 0 else high}, outside 0..{size - 1}"
        )


def _with_votes(run: Artifact, file: pq.ParquetFile, sizes: ClientSizes, p: Predictions) -> Predictions:
    """Adds the metrics of votes to `p`: the majority of the training clients, the answer of the client that each
    routing rule chose, and the number of correct answers of each training client."""
    import pyarrow as pa

    clients, trainees = len(sizes), sizes.trainees
    kind = file.schema_arrow.field("votes").type
    if not pa.types.is_fixed_size_list(kind) or not pa.types.is_integer(kind.value_type) or kind.list_size != clients:
        raise broken(run, f"column 'votes' of table predictions must hold {clients} answers a row, not {kind}")
    rows = file.metadata.num_rows
    vote = np.empty(rows, np.int64)
    routed = {rule: np.empty(rows, np.int64) for rule in p.route}
    single = np.zeros((len(p.rounds), trainees), np.int64)
    start = 0
    for batch in file.iter_batches(max(1, _BATCH * 8 // clients), columns=["votes"]):
        part = slice(start, start + len(batch))
        flat = batch.column(0).flatten()
        if flat.null_count or len(flat) != len(batch) * clients:
            raise broken(run, "column 'votes' of table predictions has gaps")
        votes = values_of(flat).reshape(len(batch), clients)
        _check_range(run, "votes", votes, p.classes)
        vote[part] = majority(votes[:, :trainees], p.classes)
        for rule, answers in routed.items():
            answers[part] = votes[np.arange(len(batch)), p.route[rule][part]]
        right = (votes[:, :trainees] == p.label[part, None]) & (p.client[part, None] < trainees)
        for group in np.unique(p.group[part]):
            single[group] += right[p.group[part] == group].sum(axis=0)
        start = part.stop
    return replace(p, vote=vote, routed=routed, single=single)
