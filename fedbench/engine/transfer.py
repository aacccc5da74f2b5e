"""Evaluate the stored models of a run on another partition."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedbench import methods, models
from fedbench.engine import keep as keeping
from fedbench.engine.run import choose_device
from fedbench.engine.training import artifacts, loaded
from fedbench.errors import FedbenchError
from fedbench.metrics.accuracy import accuracies, areas, measured, scored
from fedbench.metrics.predictions import Clients, Predictions
from fedbench.plugins import reported
from fedbench.specs import PartitionSpec, RunSpec
from fedbench.store import Artifact, Store

if TYPE_CHECKING:
    from fedbench.core.answers import Answers
    from fedbench.core.federation import Federation
    from fedbench.core.tables import Models
    from fedbench.methods.base import Method
    from fedbench.models.base import FLModel
    from fedbench.partitions import Partition


@dataclass(frozen=True)
class Transfer:
    """Metrics of a run's models on another partition, on whole (uncropped) test images."""

    partition: PartitionSpec
    by: str  #: "client": client i's model answers client i's images; "server": the global model answers all
    federation: dict[str, float]  #: metric -> value, named as in a run's metrics
    clients: dict[str, list[float]]  #: metric -> [M]; NaN if a client has no value
    images: int  #: number of distinct test images
    trained_on: int  #: ... and how many of them the run's clients trained on, which inflates accuracy


def evaluate(
    run: Artifact, other: Artifact, store: Store, roots: list[Path], *, method: str | None = None, device: str = "auto"
) -> Transfer:
    """Evaluate a run's stored models on the test images of another partition.

    If both partitions have the same number of clients, client i's model predicts client i's images; else the server's
    model predicts all. `method`: FILE.py:Class of a user's method, needed only if it defines how clients predict.

    Raises FedbenchError if the run has no stored models, they do not fit the images or classes, or no model applies.
    """
    from fedbench.core.evaluation import answers, who_answers
    from fedbench.core.precision import arithmetic
    from fedbench.data.build import obtain as images_of
    from fedbench.partitions.tables import read

    spec, place = run.spec, choose_device(device)
    assert isinstance(spec, RunSpec)
    assert isinstance(other.spec, PartitionSpec)
    kept, theirs = keeping.models_of(run), read(other)
    by = who_answers(kept, other.spec.all_clients)
    _check_classes(run, theirs, store)
    # Vectors are normalised by the moments of the run's own training samples, as its network expects.
    like = artifacts(spec.setting.partition, store, roots, False) if other.spec.dataset.vectors else None
    (federation,) = loaded(images_of(other.spec.dataset, store, roots), [other], place, like)
    if scored(run) != federation.multi_label:
        raise FedbenchError(f"only one of run {run.id} and partition {other.id} is multi-label")
    with reported(), arithmetic(spec.setting.precision, place):
        network = network_of(kept, spec, federation.shape, federation.classes)
        result = answers(kept, network, lambda: method_of(spec, method), federation, spec.setting)
    sizes = Clients(np.array(federation.n_train), np.array(federation.n_test), theirs.spec.trainees)
    known = _trained_on(run, theirs, store, roots)
    return Transfer(other.spec, by, *_measured(result, federation, sizes), *known)


def _trained_on(run: Artifact, theirs: Partition, store: Store, roots: list[Path]) -> tuple[int, int]:
    """(distinct test images of the other partition, how many of these are training images of the run)."""
    from fedbench.partitions.tables import read

    assert isinstance(run.spec, RunSpec)
    own, tested = run.spec.setting.partition, np.unique(theirs.sample[theirs.test])
    if own.dataset != theirs.spec.dataset:
        return len(tested), 0
    ours = read(artifacts(own, store, roots, False)[1])
    return len(tested), len(np.intersect1d(tested, ours.sample[~ours.test]))


def network_of(kept: Models, spec: RunSpec, shape: tuple[int, int, int], classes: int) -> FLModel:
    """Build the run's network for images of (height, width, channels). Raises FedbenchError if the stored models do not
    fit it."""
    network = models.initial(spec.setting, shape, classes)
    sizes = "x".join(map(str, shape))
    anyone = next(iter(kept.clients)).models[0]
    state = kept.state(0)
    for name, tensor in network.state_dict().items():
        there = state.get(f"{anyone}/{name}" if anyone else name)
        if there is None:
            raise FedbenchError(f"the run's method trained another network than its model {spec.setting.model}")
        if there.shape != tensor.shape:
            raise FedbenchError(
                f"the run's network does not take images of {sizes} with {classes} classes: its {name} is "
                f"{list(there.shape)}, not {list(tensor.shape)}",
                "choose a partition of images of the same shape and classes",
            )
    return network


def method_of(spec: RunSpec, reference: str | None) -> Method:
    """The run's method; `reference`: FILE.py:Class of a user's. Raises FedbenchError if that is another one."""
    if spec.source is None:
        return methods.load(spec.method)[0].create(spec.params)
    hint = f"give --method FILE.py:{spec.method} (source {spec.source[:12]})"
    if reference is None:
        raise FedbenchError(f"the run's clients answer by a function of {spec.method}, a user's file", hint)
    kind, source = methods.load(reference)
    if source != spec.source:
        raise FedbenchError(f"{reference} is not the method of the run, or was changed since", hint)
    return kind.create(spec.params)


def _check_classes(run: Artifact, theirs: Partition, store: Store) -> None:
    """Raise FedbenchError if the run's partition is in the store and its class names differ."""
    from fedbench.partitions.tables import read

    assert isinstance(run.spec, RunSpec)
    if (own := store.whole(run.spec.setting.partition)) is None:
        return
    classes = read(own).classes
    for a, b in zip(classes, theirs.classes, strict=False):
        if a != b:
            raise FedbenchError(f"partition {theirs.id} has other classes than the run: '{b}' where that has '{a}'")
    if len(classes) != len(theirs.classes):
        raise FedbenchError(f"partition {theirs.id} has {len(theirs.classes)} classes and the run {len(classes)}")


def _measured(
    answers: Answers, federation: Federation, clients: Clients
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Metric -> value of the federation, and metric -> values of the clients [M]."""
    client, label = federation.client[answers.rows].astype(np.int64), federation.labels.cpu().numpy()[answers.rows]
    one, group = np.array([1]), np.zeros(len(client), np.int64)
    if federation.multi_label:
        values = areas(Predictions(one, ["plain"], label.shape[1], group, client, label, answers.own), clients)
    else:
        own = answers.own.astype(np.int64)
        values = accuracies(Predictions(one, ["plain"], federation.classes, group, client, label, own), clients)
    whole = {name: float(v[0]) for name, arrays in values.items() for v in arrays if v.ndim == 1}
    each = {name: v[0].tolist() for name, arrays in values.items() for v in arrays if v.ndim == 2}
    if answers.logits is not None:
        of_logits = measured(answers.logits.astype(np.float32), label, answers.own, client, clients)
        whole |= {name: float(v[0]) for name, v in of_logits.items()}
        each |= {name: v[1:].tolist() for name, v in of_logits.items()}
    return whole, each
