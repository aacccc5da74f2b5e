"""Flower's simulation of FedAvg (flwr and Ray, which pip installs), whose clients read fedbench's batches."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch.nn import functional as F

from fedbench.core.state import State
from fedbench.methods.agreement import Difference
from tests.agreement.cases import PLAIN, ROUNDS, UNEQUAL, Case, Ours, network, ours, parameters
from tests.agreement.compare import Against

TITLE = "Flower"
REPOSITORY = "adap/flower"
CHANGES = ("clients are plain torch loops over fedbench's batches; Flower simulates, samples and averages",)


def run_theirs(run: Ours) -> list[State]:
    """The shared model after each round."""
    from flwr.client import ClientApp, NumPyClient
    from flwr.common import ndarrays_to_parameters
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.simulation import run_simulation

    sizes, clients = run.case.sizes, range(len(run.case.sizes))
    batches = {(t, i): run.batches(i, t) for t in range(1, ROUNDS + 1) for i in clients}

    class Client(NumPyClient):
        def __init__(self, i: int) -> None:
            self.i = i

        def fit(self, values: Any, config: Any) -> Any:
            model = network()
            for p, value in zip(model.parameters(), values, strict=True):
                p.data = torch.tensor(value)
            steps = torch.optim.SGD(model.parameters(), PLAIN["lr"])
            for x, y in batches[int(config["round"]), self.i]:
                steps.zero_grad()
                F.cross_entropy(model(x), y).backward()
                steps.step()
            return [p.detach().numpy() for p in model.parameters()], sizes[self.i], {}

    after: list[State] = []

    def keep(t: int, values: Any, config: Any) -> None:
        if t:
            after.append(parameters([torch.tensor(value) for value in values]))

    def serve(context: Any) -> Any:
        first = ndarrays_to_parameters([p.detach().numpy() for p in network().parameters()])
        strategy = FedAvg(
            fraction_evaluate=0.0,
            min_fit_clients=len(clients),
            min_available_clients=len(clients),
            initial_parameters=first,
            evaluate_fn=keep,
            on_fit_config_fn=lambda t: {"round": t},
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS))

    client_app = ClientApp(client_fn=lambda context: Client(int(context.node_config["partition-id"])).to_client())
    run_simulation(ServerApp(server_fn=serve), client_app, len(clients))
    return after


def compare(case: Case) -> Iterator[Difference]:
    run = ours(case, "fedavg", {})
    found = Against("fedavg", "FedAvg", case.name)
    for mine, theirs in zip(run.rounds, run_theirs(run), strict=True):
        found.see("shared model", {n: mine.shared[n] for n in theirs}, theirs)
    yield from found.differences({})


def differences(installed: Any, chosen: Collection[str]) -> Iterator[Difference]:
    if "fedavg" in chosen:
        logging.getLogger("flwr").setLevel(logging.ERROR)
        yield from compare(UNEQUAL)  # a simulation takes minutes
