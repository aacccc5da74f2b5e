"""FedDrift: starts with one model per client; models with similar losses on each other's data are merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbench.core.client import UNLABELLED, Client, ClientUpdate, Train
from fedbench.core.server import Server
from fedbench.core.state import weighted_mean
from fedbench.methods.base import cross_entropy, hyperparameter
from fedbench.methods.parts.clustered import (
    Clustered,
    answer_at_random,
    average_by_cluster,
    choice_cost,
    count_of,
    each_model,
    expected_groups,
    right,
    side_by_side,
)
from fedbench.methods.parts.linkage import within
from fedbench.specs import Setting


def apart(accuracy: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return distances [M, M] of models from the accuracy [M, M] of each model (row) on each model's data (column)."""
    lost = accuracy.diagonal()[:, None] - accuracy
    return np.maximum(np.maximum(lost, lost.T), 0)


def groups(server: Server, cohort: Sequence[Client], count: int, delta: float) -> list[list[int]]:
    """Return groups of models to merge, among those of the first `count` that the cohort has compared; all other models
    form groups of one. A client's upload has the accuracy [M] of each model on its training images `so_far`."""
    holders: dict[int, list[Client]] = {}
    for client in cohort:
        if (m := server.assigned[client.index]) < count:
            holders.setdefault(m, []).append(client)
    clusters, compared = [[m] for m in range(len(server.models)) if m not in holders], sorted(holders)
    if compared:
        rows = [
            np.average([c.upload.so_far.numpy() for c in holders[m]], 0, [c.n_train for c in holders[m]])
            for m in compared
        ]
        labels = within(apart(np.stack(rows, 1)[compared]), delta)
        clusters += [[compared[k] for k in np.flatnonzero(labels == g)] for g in range(labels.max() + 1)]
    return sorted(clusters)


def in_parts(rows: Tensor, t: int, rounds: int) -> Tensor:
    """Return means [2, M] of values [n, M] of a client's images: over part t (from 1) of as many equal parts as there
    are rounds, and over all parts so far; both contain at least one image."""
    begin, end = (k * len(rows) // rounds for k in (t - 1, t))
    begin = min(begin, len(rows) - 1)
    end = max(end, begin + 1)
    return torch.stack([rows[begin:end].mean(0), rows[:end].mean(0)])


def merge(server: Server, groups: Sequence[Sequence[int]], images: Mapping[int, float]) -> None:
    """Merge each group into one model, weighted by the training images of the clients that hold its models. Groups that
    no client holds are dropped, and the others are renumbered."""
    weight: dict[int, float] = {}
    for i, m in server.assigned.items():
        weight[m] = weight.get(m, 0.0) + images[i]
    old, server.models, new = server.models, [], dict[int, int]()
    for group in groups:
        in_use = [m for m in group if m in weight]
        if in_use:
            new.update(dict.fromkeys(in_use, len(server.models)))
            states, first = [old[m] for m in in_use], old[in_use[0]]
            server.models.append(
                first if len(in_use) == 1 else weighted_mean(states, [weight[m] for m in in_use], first)
            )
    server.assigned = {i: new[m] for i, m in server.assigned.items()}


@dataclass(frozen=True)
class LastChoice:
    """Message to a client, sent with the models: the number of its model (-1: none), and its last best accuracy."""

    own: int
    best: float


@dataclass(frozen=True)
class Compared:
    """Reply of a client: the accuracy of each model on its training images [M] float64, or on those of this round and
    on those so far [2, M]; and the number of the model that it trains (M: a new copy)."""

    accuracy: Tensor
    model: int

    @property
    def now(self) -> Tensor:
        return self.accuracy if self.accuracy.dim() == 1 else self.accuracy[0]

    @property
    def so_far(self) -> Tensor:
        return self.accuracy if self.accuracy.dim() == 1 else self.accuracy[1]


@dataclass
class FedDriftMemory:
    """For each client that has participated: its last best accuracy, and its number of training images."""

    best: dict[int, float] = field(default_factory=dict)
    images: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FedDrift(Clustered):
    """FedDrift (Jothimurugesan et al., AISTATS 2023), as FLUX compares it: a time step is a round.

    In the first round every client trains its first model. After that a client receives all models, computes their
    accuracies on its training data, trains the best one (of equal ones its current model, else the first) and sends the
    accuracies along. If the best accuracy is lower by more than delta than the last time, its data have drifted, and it
    trains a new copy of that model, which only it holds. The server averages each model over the clients that trained
    it. With acc_ij the accuracy of model i on the data of the clients of model j, the distance of two models is
    max(acc_ii - acc_ij, acc_jj - acc_ji, 0). Complete linkage, cut at delta, merges models, weighted by their clients'
    training images. A model without clients is dropped. A client predicts with its model; a client without labels with
    the ensemble of all models (`assignment` ensemble).

    deviates: FedDrift looks for clusters when new data arrive and then trains for many rounds. Here it does so in every
    round, and since all that the server learns of a round comes with its uploads, models are merged at its end, by the
    accuracies that they had at its start, rather than between choice and training. A fresh copy, which had none, is
    first compared in the next round.

    deviates: all first models have the same weights, so that their mean makes sense. The data of a model are those of
    the clients that hold it now, not of all who ever did; its accuracies are those that the round's clients found,
    weighted by training images, and a model that none of them holds is not compared.

    deviates: FLUX's text has the ensemble in its test phase, but its numbers are the mean of the models' accuracies,
    each model counted once (`assignment` random, which FLUX's protocol sets): under P(Y) at levels 6 to 8 the classes
    that the groups of the paper's own clients share give them, mean and spread, without any training.

    deviates: FLUX's own was run in FedDrift's code with delta 0.06 and all images in every round's training, but a
    round's accuracies were on that round's part of them, the t-th of as many equal parts as there are rounds, and
    merging went by all parts so far (`judged_on` part). That code draws at most 21 batches of 32 for it from all
    clients that ever held a model; here it is all images of those that hold it now.

    deviates: a client that was absent from the first round begins with the model that is best on its data, and one that
    never takes part holds that of most clients.
    """

    name = "feddrift"
    title = "FedDrift"
    clusters_by = "losses"

    delta: float = hyperparameter(
        0.1, "accuracy lost that tells a drift, and up to which models are merged", "δ", "code: MNIST", least=0
    )
    assignment: str = hyperparameter(
        "ensemble",
        "models that answer a client without labels: all, or one drawn for each image",
        source="FLUX, App. F; its numbers: random",
        choices=("ensemble", "random"),
        later=True,
    )
    judged_on: str = hyperparameter(
        "all",
        "training images that a round's accuracies are on",
        source="FedDrift's code in FLUX's hands: part",
        choices=("all", "part"),
        later=True,
    )

    def start(self, server: Server) -> None:
        server.memory = FedDriftMemory()

    def relative_compute(self, setting: Setting) -> float:
        return 1 + choice_cost(expected_groups(setting), setting)

    def broadcast(self, server: Server, client: Client) -> None:
        if server.models:
            client.put(server.models[server.assigned.get(client.index, 0)])
            client.state = {**client.state, **side_by_side(server.models)}
            client.inbox = LastChoice(server.assigned.get(client.index, -1), server.memory.best.get(client.index, 0.0))

    def local(self, client: Client) -> ClientUpdate:
        if client.inbox:
            own, before, count = client.inbox.own, client.inbox.best, count_of(client.state)
            each = yield from each_model(client, count, right, "train")
            rows, part = each.rows.double(), self.judged_on == "part"
            found = in_parts(rows, client.round, client.setting.rounds) if part else rows.mean(0)
            compared = Compared(found.cpu(), count)
            accuracy = compared.now
            best = own if own >= 0 and accuracy[own] == accuracy.max() else int(accuracy.argmax())
            drifted = before - float(accuracy[best]) > self.delta
            client.put(client.model(str(best)))
            client.upload = compared if drifted else replace(compared, model=best)
        yield Train(cross_entropy)

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        count = len(server.models)
        best, images = dict(server.memory.best), dict(server.memory.images)
        for client in cohort:
            number = client.upload.model if client.upload else count
            if number == count:
                number = len(server.models)
                server.models.append(dict(server.shared))
            server.assigned[client.index] = number
            best[client.index] = float(client.upload.now.max()) if client.upload else 0.0
            images[client.index] = float(client.n_train)
        average_by_cluster(server, cohort)
        merged = groups(server, [c for c in cohort if c.upload], count, self.delta)
        merge(server, merged, images)
        server.memory = FedDriftMemory(best, images)
        holders = np.bincount(list(server.assigned.values()))
        server.shared = server.models[int(holders.argmax())]

    def personalise(self, client: Client) -> ClientUpdate | None:
        if client.kind == UNLABELLED and client.inbox and self.assignment == "random":
            return answer_at_random(client)
        return super().personalise(client)
