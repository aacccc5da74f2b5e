"""FedDrift: a model a client to begin with; models that do as well on each other's data are merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbench.core.client import Batch, Box, Client, Train
from fedbench.core.server import Server
from fedbench.core.state import State, size_in_bytes
from fedbench.core.who import MEMBER, UNLABELLED, Who
from fedbench.methods.base import Method, check, cross_entropy, knob
from fedbench.methods.parts.clustered import (
    answer_by_ensemble,
    asking,
    average_by_cluster,
    each_model,
    ensemble,
    expected_groups,
    model_of,
    numbered,
)
from fedbench.methods.parts.merging import ACCURACY, groups, merge
from fedbench.spec import Setting

#: What a client is sent beside the models: [3] their number, its own one's (-1: none), its last best accuracy.
FACTS = "feddrift.facts"
#: What it sends back beside the accuracies of all: which model it went on with (as many as there are: a fresh copy).
CHOICE = "feddrift.choice"
#: What the server remembers: a line (client, its last best accuracy, its training images) each.
MET = "feddrift.met"


@dataclass(frozen=True)
class FedDrift(Method):
    """FedDrift (Jothimurugesan et al., AISTATS 2023), as FLUX compares it: a time step is a round.

    In the first round every client trains a model of its own. From then on a client is sent all models, finds their
    accuracies on its training data, trains the best (of equals its own, else the first) and sends its accuracies along.
    If the best is worse by more than delta than the best of the last time was, its data have drifted and it trains a
    fresh copy of that model, which is nobody else's. The server averages each model over those who trained it. With
    acc_ij the accuracy of model i on the data of the clients of model j, models are
    max(acc_ii - acc_ij, acc_jj - acc_ji, 0) apart; those that complete linkage cut at delta puts together become one,
    weighted by the training images of their clients. A model that no client holds any more is dropped. The client's
    model answers for it; a client without labels is answered by the ensemble of all models.

    deviates: FedDrift looks for clusters when new data arrive and then trains for many rounds. Here it does so in every
    round, and since all that the server learns of a round comes with its uploads, models are merged at its end, by the
    accuracies that they had at its start, rather than between choice and training. A fresh copy, which had none, is
    first compared in the next round.

    deviates: all first models have the same weights, so that their mean makes sense. The data of a model are those of
    the clients that hold it now, not of all who ever did; its accuracies are those that the round's clients found,
    weighted by training images, and a model that none of them holds is not compared.

    deviates: a client that was absent from the first round begins with the model that is best on its data, and one that
    never takes part holds that of most clients.
    """

    name = "feddrift"
    title = "FedDrift"
    serves = (MEMBER, UNLABELLED)

    delta: float = knob(0.1, "accuracy lost that tells a drift, and up to which models are merged", "δ", "code: MNIST")

    def __post_init__(self) -> None:
        check(self.delta >= 0, self.name, "delta", self.delta, "at least 0")

    def traffic(self, server: Server, t: int) -> tuple[int, int]:
        size, sent = size_in_bytes(server.shared), len(server.models)
        return size + 4 * sent, size * max(sent, 1)

    def effort(self, setting: Setting) -> float:
        return 1 + asking(expected_groups(setting), setting)

    def broadcast(self, server: Server, client: int, t: int) -> State:
        best, _ = met(server).get(client, (0.0, 0.0))
        facts = torch.tensor([len(server.models), server.assigned.get(client, -1), best], dtype=torch.float64)
        return {**server.view(client), **numbered(server.models), FACTS: facts}

    def local(self, client: Client) -> Box:
        count, own, before = client.state[FACTS].tolist()
        if count:
            right = yield from each_model(client, int(count), correct, "train")
            accuracy = right.double().mean(1).cpu()
            best = int(own) if own >= 0 and accuracy[int(own)] == accuracy.max() else int(accuracy.argmax())
            drifted = before - float(accuracy[best]) > self.delta
            client.state = {**client.state, **model_of(client.state, best)}
            client.upload = {ACCURACY: accuracy, CHOICE: torch.tensor(int(count) if drifted else best)}
        yield Train(cross_entropy)

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        count, known = len(server.models), met(server)
        for client in cohort:
            chosen = int(client.upload[CHOICE]) if client.upload else count
            if chosen == count:
                chosen = len(server.models)
                server.models.append(dict(server.shared))
            server.assigned[client.index] = chosen
            best = float(client.upload[ACCURACY].max()) if client.upload else 0.0
            known[client.index] = best, float(client.n_train)
        average_by_cluster(server, cohort)
        together = groups(server, [c for c in cohort if c.upload], count, self.delta)
        merge(server, together, {i: images for i, (_, images) in known.items()})
        server.memory = {**server.memory, MET: torch.tensor([(i, *f) for i, f in known.items()], dtype=torch.float64)}
        held = np.bincount(list(server.assigned.values()))
        server.shared = server.models[int(held.argmax())]

    def serve(self, server: Server, who: Who) -> State:
        return ensemble(server) if who.kind == UNLABELLED else server.view(who.index)

    def personalise(self, client: Client) -> Box:
        if client.kind == UNLABELLED:
            yield from answer_by_ensemble(client)


def correct(model: Any, batch: Batch) -> Tensor:
    """Whether the model is right, 0 or 1 [B]; of images of many labels the share that it is right about."""
    logits = model(batch.x)
    if batch.y.dim() > 1:
        share: Tensor = ((logits > 0) == (batch.y > 0)).float().mean(1)
        return share
    right: Tensor = logits.argmax(1) == batch.y
    return right.float()


def met(server: Server) -> dict[int, tuple[float, float]]:
    """(last best accuracy, training images) of each client that has taken part."""
    lines = server.memory[MET].tolist() if MET in server.memory else []
    return {int(i): (best, images) for i, best, images in lines}
