"""Which classes are taken for which: counts over the test images of a run's clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.metrics.predictions import broken, groups_of, integers, read_clients, whole
from fedbench.metrics.scores import scored
from fedbench.specs import RunSpec
from fedbench.store import Artifact

#: What of predictions is read: not the votes, which are most of it.
_COLUMNS = ("round", "view", "client", "label", "own")


def confusion(run: Artifact, view: str = "plain", client: int | None = None) -> NDArray[np.int64]:
    """[K, K]: how many test images of a class (row) their owner's model takes for a class (column), after the last
    round; of the clients that train, or of one.

    Raises FedbenchError for images of several labels, a client or view that is not there, and damaged predictions.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if scored(run):
        raise FedbenchError(f"the images of run {run.id} have several labels each", "a confusion matrix is of one")
    assert isinstance(run.spec, RunSpec)
    clients = read_clients(run)
    if client is not None and not 0 <= client < len(clients):
        raise FedbenchError(f"run {run.id} has no client {client}", f"it has 0..{len(clients) - 1}")
    path = run.file("predictions.parquet")
    try:
        table = pq.ParquetFile(path, read_dictionary=["view"], memory_map=True).read(list(_COLUMNS))
    except (OSError, pa.ArrowException) as error:
        raise broken(run, f"cannot read {path} ({error})") from error
    number, views, group = groups_of(run, table, run.spec.setting.rounds)
    owner, label, own = (integers(run, table, "predictions", name) for name in ("client", "label", "own"))
    whole(run, clients, number, group, owner)
    if view not in views:
        raise FedbenchError(f"run {run.id} has no {view} test images", f"it has {', '.join(sorted(set(views)))}")
    last = max(g for g in range(len(number)) if views[g] == view)
    rows = (group == last) & ((owner == client) if client is not None else (owner < clients.trainees))
    declared = (table.schema.metadata or {}).get(b"classes", b"0")
    classes = max(int(declared), int(label.max()) + 1, int(own.max()) + 1)
    return np.bincount(label[rows] * classes + own[rows], minlength=classes**2).reshape(classes, classes)
