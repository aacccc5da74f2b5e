"""FedDrift's code, in which FLUX's FedDrift and CFL were run: its servers, whose clients are plain torch loops over
fedbench's batches. As FLUX ran it, a time step is a round. All clients join.

CFL is compared over whole runs. FedDrift merges models before they are trained and fedbench after it, so that only the
decisions of a round can be equal: which model suits a client, and which are merged.
"""

from __future__ import annotations

import contextlib
import importlib
import pickle
import tempfile
from collections.abc import Collection, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor
from torch.nn import functional as F

from fedbench.conformance.lab import digits
from fedbench.core.federation import Federation
from fedbench.core.images import to_input
from fedbench.core.state import State
from fedbench.methods.agreement import Difference
from fedbench.methods.feddrift import FedDrift
from tests.agreement.cases import EQUAL, ONE_BATCH, UNEQUAL, Batch, Case, copied, network, ours
from tests.agreement.compare import Against, sharing
from tests.agreement.foreign import Settings, importable

TITLE = "FedDrift's code"
REPOSITORY = "microsoft/FedDrift"
CHANGES = (
    "clients are plain torch loops over fedbench's batches instead of batches drawn at random; its servers are its own",
    "a cluster that is split begins with the run's first weights, where its code draws others for one half",
    "AgglomerativeClustering gets what its code calls affinity under the name of today's scikit-learn, metric",
    "of FedDrift only a round's decisions are compared: it merges models before they are trained, fedbench after it",
    "a stub replaces wandb where it is missing; nobody is evaluated, and its state file is in a temporary folder",
)
OPTIONS = {"cfl": "--variant feddrift"}
#: FedAvg on these clients ends where their updates cancel out, so that CFL splits them.
OPPOSED = {"rounds": 82, "lr": 0.8, "batch_size": 64}
#: Rounds in which rounding stays what it is; from then on to the split, and not after it, it grows.
STABLE = 40
LATE = f", round {STABLE + 1} to the split"
GROWING = "rounding, which grows in these rounds at the rate 0.8; after the split it is below 1e-6 again"
#: With this delta some models of the first round are merged in the second, and some are not.
DELTA = 0.6
#: So each model is the best for the client that trained it.
LEARNED = {"epochs": 6, "lr": 0.2}


@cache
def opposed() -> Federation:
    """Clients with the same digits, the labels of every other one shifted by five."""
    images, labels = digits()
    each, clients = EQUAL.sizes[0] + 20, len(EQUAL.sizes)
    rows = np.tile(np.random.default_rng(5).permutation(len(labels))[:each], clients)
    client = np.repeat(np.arange(clients), each)
    is_test = np.tile(np.arange(each) >= EQUAL.sizes[0], clients)
    return Federation.of(images[rows], (labels[rows] + 5 * (client % 2)) % 10, client, rows, is_test, 10)


def agglomerative(affinity: str, **how: Any) -> AgglomerativeClustering:
    return AgglomerativeClustering(metric=affinity, **how)


def descended(state: State, batches: list[Batch], lr: float) -> State:
    """A client's model after SGD on these batches."""
    model = network()
    model.load_state_dict(state)
    steps = torch.optim.SGD(model.parameters(), lr)
    for x, y in batches:
        steps.zero_grad()
        F.cross_entropy(model(x), y).backward()
        steps.step()
    return copied(model.state_dict())


def read(data: Federation, i: int) -> Batch:
    """A client's training images and labels."""
    return to_input(data.images[data.train[i]]), data.labels[data.train[i]]


class Server:
    """Their server, which is made anew from its state file in every time step, with the clients' images of all steps so
    far."""

    def __init__(self, how: str, state: Any, models: list[Any], images: list[Batch]) -> None:
        self.how, self.state, self.models, self.images = how, state, models, images

    def begin(self, t: int) -> Any:
        """Of time step t, from 1."""
        module = importlib.import_module("fedml_api.distributed.fedavg_ens.FedAvgEnsAggregatorSoftCluster")
        count = len(self.images)
        settings = Settings(
            concept_drift_algo="softcluster",
            concept_drift_algo_arg=self.how,
            client_num_in_total=count,
            curr_train_iteration=t - 1,
            is_mobile=0,
        )
        every = [[[one]] * t for one in self.images]
        Path("sc_state.pkl").write_bytes(pickle.dumps(self.state))
        server = module.FedAvgEnsAggregatorSoftCluster(*[None] * 6, every, count, "cpu", self.models, 10, settings)
        self.state = server.sc_state
        return server

    def model(self, t: int, i: int) -> int:
        """The number of client i's model in time step t."""
        return int(self.state.get_test_model_idx(t - 1, i))


def splits() -> Iterator[Difference]:
    """CFL: each client's model after each round."""
    loader = importlib.import_module("fedml_api.distributed.fedavg_ens.FedAvgEnsDataLoader")
    case, data = EQUAL, opposed()
    run = ours(case, "cfl", {"variant": "feddrift"}, data=data, **OPPOSED)
    clients, models = range(len(case.sizes)), [network() for _ in range(3)]
    first = copied(models[0].state_dict())
    images = [read(data, i) for i in clients]
    theirs = Server("cfl_0.1_win-1", loader.SoftClusterState(len(clients), len(models), "cfl"), models, images)
    found, numbers = Against("cfl", "CFL", "equal clients, opposed labels"), set[int]()
    with mock.patch.object(loader, "reinitialize", lambda model: model.load_state_dict(first)):
        for t, mine in enumerate(run.rounds, 1):
            server = theirs.begin(t)
            for i in clients:
                x, y = images[i]
                batches = [(x[at], y[at]) for at in map(torch.from_numpy, run.positions(i, t))]
                m = theirs.model(t, i)
                end = descended(models[m].state_dict(), batches, run.setting.lr)
                sent = [(copied(end), case.sizes[i] if k == m else 0) for k in range(len(models))]
                server.add_local_trained_result(i, sent)
            server.aggregate(0)
            numbers |= {theirs.model(t, i) for i in clients}
            held = {f"{i}/{n}": p for i in clients for n, p in models[theirs.model(t, i)].state_dict().items()}
            ours_held = {f"{i}/{n}": mine.clients[i][n] for i in clients for n in first}
            growing = len(numbers) == 1 and t > STABLE
            found.see("clients' models" + (LATE if growing else ""), ours_held, held)
    assert len(numbers) > 1, "no cluster was split"
    yield from found.differences({"clients' models" + LATE: GROWING})


def merges(case: Case) -> Iterator[Difference]:
    """FedDrift: the accuracy of each model on each client's images in the second round, and who shares a model then."""
    loader = importlib.import_module("fedml_api.distributed.fedavg_ens.FedAvgEnsDataLoader")
    aggregate, clients = FedDrift.aggregate, range(len(case.sizes))
    before: list[State] = []
    accuracies: list[Tensor] = []

    def watched(how: FedDrift, server: Any, cohort: Any, t: int) -> None:
        if t == 2:
            before.extend(server.models)
            accuracies.extend(client.upload.now for client in cohort)
        aggregate(how, server, cohort, t)

    with mock.patch.object(FedDrift, "aggregate", watched):
        run = ours(case, "feddrift", {"delta": DELTA}, rounds=2, **LEARNED)
    models = [network() for _ in clients]
    state = loader.SoftClusterState(len(clients), len(models), "H", h_delta=DELTA, h_deltap=DELTA, h_cluster="F")
    theirs = Server("H", state, models, [run.rows(i) for i in clients])
    theirs.begin(1)
    for model, one in zip(models, before, strict=True):
        model.load_state_dict({n: one[n] for n in model.state_dict()})
    matrix, found = loader.SoftClusterState.train_acc_matrix, Against("feddrift", "FedDrift", case.name)
    seen: list[np.ndarray] = []

    def kept(*of: Any) -> np.ndarray:
        seen.append(matrix(*of))
        return seen[-1]

    with mock.patch.object(loader.SoftClusterState, "train_acc_matrix", kept):
        theirs.begin(2)
    found.see("accuracies", {"all": torch.stack(accuracies).T}, {"all": torch.from_numpy(seen[0])})
    mine, other = (sharing([of(i) for i in clients]) for of in (run.server.assigned.get, partial(theirs.model, 2)))
    assert 1 < len(run.server.models) < len(clients), "all models are merged, or none"
    found.see("who shares a model", mine, other)
    yield from found.differences({})


def differences(folder: Path, chosen: Collection[str]) -> Iterator[Difference]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(importable(folder, ("wandb",)))
        loader = importlib.import_module("fedml_api.distributed.fedavg_ens.FedAvgEnsDataLoader")
        stack.enter_context(mock.patch.object(loader, "AgglomerativeClustering", agglomerative))
        stack.enter_context(contextlib.chdir(stack.enter_context(tempfile.TemporaryDirectory())))
        if "cfl" in chosen:
            yield from splits()
        if "feddrift" in chosen:
            for case in (EQUAL, UNEQUAL, ONE_BATCH):
                yield from merges(case)
