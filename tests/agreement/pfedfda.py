"""pFedFDA's own code (FedAvg, and pFedFDA with local statistics, one beta and two), handed fedbench's cohorts, batches,
first weights and first class means; round by round, and the scores with which clients answer in the end."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.core.client import Client, ClientUpdate
from fedbench.core.state import State
from fedbench.methods.agreement import Difference
from fedbench.methods.pfedfda import PFedFDA
from fedbench.methods.pfedfda.gaussian import unpacked
from tests.agreement import draws
from tests.agreement.cases import (
    BATCH,
    CASES,
    EPOCHS,
    PLAIN,
    ROUNDS,
    Case,
    Ours,
    Passes,
    copied,
    network,
    ours,
    parameters,
)
from tests.agreement.compare import Against, OfBoth
from tests.agreement.foreign import importable

TITLE = "pFedFDA's code"
REPOSITORY = "cj-mclaughlin/pFedFDA"
CHANGES = (
    "clients read fedbench's batches instead of its files, and cohorts are fedbench's",
    "moving a tensor to a GPU leaves it where it is; of the evaluation, the test images' scores are kept",
    "a stub replaces ujson where it is missing",
)
#: Of the paper's setting.
SETTING = {"momentum": 0.5, "weight_decay": 5e-4}
NEEDS = "torchmin", "statsmodels"


@dataclass(frozen=True)
class Compared(OfBoth):
    """A method of both, and where the two differ."""

    suffix: str = ""  #: of quantities


METHODS = (
    Compared("fedavg", "FedAvg", "server_fedavg.ServerFedAvg"),
    Compared("pfedfda", "pFedFDA", "server_fedfda.ServerFedFDA", {"betas": 0}, {"local_beta": True}, " of NB"),
    Compared("pfedfda", "pFedFDA", "server_fedfda.ServerFedFDA", {"betas": 1}, {"single_beta": True}, " of SB"),
    Compared("pfedfda", "pFedFDA", "server_fedfda.ServerFedFDA", {"betas": 2}, {}, " of MB"),
)
#: Its script draws again until each client has more than 62.5 samples.
LEAST = 63
REASON = "its solver for beta is unbounded and clipped, and ends elsewhere than ours within [0, 1]"
SAME_BETA = "at the same beta:"


class Network(nn.Module):
    """Ours, by their names."""

    def __init__(self) -> None:
        super().__init__()
        it = network()
        self.base, self.fc, self.D = nn.Sequential(it.backbone, it.projection), it.head, it.head.in_features

    def forward(self, x: Tensor, return_feat: bool = False) -> Any:
        z = self.base(x)
        return (z, self.fc(z)) if return_feat else self.fc(z)


#: The round, as it were, in which clients adapt themselves for the last time, to answer.
FINAL = ROUNDS + 1
#: Betas [1 or 2] by round and client
Betas = dict[tuple[int, int], Tensor]


@contextlib.contextmanager
def remembered() -> Iterator[tuple[list[State], Betas]]:
    """The states by which our clients answer in the end, and the betas to which these are due."""
    states: dict[int, State] = {}
    betas: Betas = {}
    personalise = PFedFDA.personalise

    def keep(how: PFedFDA, client: Client) -> ClientUpdate:
        yield from personalise(how, client)
        states[client.index] = copied(client.state)
        found = [value for name, value in sorted(client.metrics.items()) if name.startswith("beta")]
        betas[FINAL, client.index] = torch.tensor(found)

    in_order: list[State] = []
    with mock.patch.object(PFedFDA, "personalise", keep):
        yield in_order, betas
    in_order += [states[i] for i in sorted(states)]


def scores(run: Ours, state: State, i: int) -> Tensor:
    """Of a client's test images by our network [n, 10]."""
    model = network()
    model.load_state_dict({n: state[n] for n in model.state_dict()})
    with torch.no_grad():
        return model.eval()(run.tests(i)[0])


def run_theirs(how: Compared, run: Ours, betas: Betas | None) -> Iterator[tuple[Any, list[Tensor]]]:
    """Yield their server after each round, and once more with the scores [n, 10] of each client's test images; with
    these betas if they are given."""
    module, _, name = how.server.partition(".")
    base = importlib.import_module("clients.client_base").Client
    fda = importlib.import_module("clients.client_fedfda").ClientFedFDA
    sizes, t = run.case.sizes, 0

    def counted(client: Any, args: Any) -> None:
        client.num_train = sizes[client.client_idx]
        client.num_test = 1

    def read(client: Any, batch_size: Any = None, drop_last: bool = True) -> Passes:
        i = client.client_idx
        if not drop_last or t == FINAL:
            return Passes([run.rows(i)], 1)
        return Passes(run.batches(i, t), run.plan.batches_a_pass(i))

    def given(client: Any, feats: Tensor, labels: Any, seed: int = 0) -> None:
        assert betas is not None
        beta = betas[t, client.client_idx]
        client.means_beta = torch.ones(client.num_classes) * beta[0]
        client.cov_beta = beta[-1:]

    answers: list[Tensor] = []

    def evaluate(client: Any) -> tuple[Tensor, Tensor]:
        answers.append(client.model(run.tests(client.client_idx)[0]))
        return torch.zeros(()), torch.zeros(())

    patches = [
        mock.patch.object(base, "setup_dataset", counted),
        mock.patch.object(base, "evaluate", evaluate),
        mock.patch.object(base, "load_train_data", read),
        mock.patch.object(torch.Tensor, "cuda", lambda tensor: tensor),
        *([] if betas is None else [mock.patch.object(fda, "solve_beta", given)]),
    ]
    arguments = {
        "model": Network(),
        "num_clients": len(sizes),
        "global_rounds": ROUNDS,
        "num_classes": 10,
        "device": "cpu",
        "sampling_prob": 1.0,
        "eval_gap": ROUNDS,
        "exp_name": "",
        "partition_path": "",
        "batch_size": BATCH,
        "local_epochs": EPOCHS,
        "lr": PLAIN["lr"],
        "model_name": "",
        "momentum": SETTING["momentum"],
        "wd": SETTING["weight_decay"],
        "train_prop": 1.0,
        "single_beta": False,
        "local_beta": False,
    }
    with contextlib.ExitStack() as patched:
        for patch in patches:
            patched.enter_context(patch)
        kind = getattr(importlib.import_module(f"servers.{module}"), name)
        server = kind(SimpleNamespace(**{**arguments, **how.arguments}))
        if how.ours == "pfedfda":
            server.global_means = run.server.initial["gaussian.mean"].clone()
        for t in range(1, ROUNDS + 1):
            server.r = t
            server.active_clients = [server.clients[i] for i in run.cohort(t)]
            server.send_models()
            server.train_clients()
            server.aggregate_models()
            yield server, []
        if how.ours == "pfedfda":
            t = FINAL
            server.evaluate_personalized()
            yield server, answers


def compared(how: Compared, shared: State, server: Any) -> dict[str, tuple[State, State]]:
    """Quantity -> ours and theirs."""
    if how.ours == "fedavg":
        theirs = parameters(tuple(server.model.parameters()))
        return {"shared model": ({n: shared[n] for n in theirs}, theirs)}
    body = parameters(tuple(server.model.base.parameters()), "backbone")
    mean, covariance = server.global_means, server.global_covariance
    return {
        "body": ({n: shared[n] for n in body}, body),
        "class means": ({"mean": shared["gaussian.mean"]}, {"mean": mean}),
        "covariance": ({"all": unpacked(shared["gaussian.covariance"])}, {"all": covariance}),
    }


def compare(how: Compared, case: Case) -> Iterator[Difference]:
    with remembered() as (answering, betas):
        run = ours(case, how.ours, how.hyper, **SETTING)
    answers = {str(i): scores(run, state, i) for i, state in enumerate(answering)}
    yield from one_run(how, run, answers)
    if how.hyper.get("betas"):
        for t in range(1, ROUNDS + 1):
            betas |= {(t, i): run.rounds[t - 1].clients[i]["gaussian.beta"] for i in run.cohort(t)}
        yield from one_run(how, run, answers, betas, SAME_BETA)


def one_run(
    how: Compared, run: Ours, answers: State, betas: Betas | None = None, condition: str = ""
) -> Iterator[Difference]:
    found = Against(how.ours, how.theirs, run.case.name, condition)
    for t, (server, scored) in enumerate(run_theirs(how, run, betas), 1):
        if t == FINAL:
            found.see("final scores" + how.suffix, answers, dict(zip(answers, scored, strict=True)))
            continue
        for quantity, (mine, theirs) in compared(how, run.rounds[t - 1].shared, server).items():
            found.see(quantity + how.suffix, mine, theirs)
    yield from found.differences({} if condition or not how.hyper.get("betas") else dict.fromkeys(found.found, REASON))


def drawn(labels: np.ndarray, clients: int, alpha: float) -> list[np.ndarray]:
    """The rows of each client by its script that divides data."""
    module = importlib.import_module("data.utils.partition")
    given = SimpleNamespace(num_clients=clients, dirichlet_alpha=alpha, num_shards=0)
    return list(module.separate_data((np.arange(len(labels)), labels), 10, "dirichlet", given)[0])


def differences(folder: Path, chosen: Collection[str]) -> Iterator[Difference]:
    with importable(folder, ("ujson",), uses=NEEDS), mock.patch.dict(os.environ, DATA_PATH=""):
        for how in (one for one in METHODS if one.ours in chosen):
            for case in CASES:
                yield from compare(how, case)
        if "dirichlet" in chosen:
            importlib.import_module("data.utils.partition")  # which seeds NumPy's generator
            yield from draws.differences("dirichlet", drawn, lambda samples, clients: LEAST)
