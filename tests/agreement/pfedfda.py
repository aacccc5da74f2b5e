"""pFedFDA's own code (FedAvg, and pFedFDA with local statistics, one beta and two), handed fedbench's cohorts, batches,
first weights and first class means."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from fedbench.core.state import State
from fedbench.methods.agreement import Difference
from fedbench.methods.pfedfda.gaussian import unpacked
from tests.agreement.cases import BATCH, CASES, EPOCHS, PLAIN, ROUNDS, Case, Ours, Passes, network, ours, parameters
from tests.agreement.compare import Against, OfBoth
from tests.agreement.foreign import importable

TITLE = "pFedFDA's code"
REPOSITORY = "cj-mclaughlin/pFedFDA"
CHANGES = (
    "clients read fedbench's batches instead of its files, and cohorts are fedbench's",
    "moving a tensor to a GPU leaves it where it is; nobody is evaluated",
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


def run_theirs(how: Compared, run: Ours, betas: Mapping[tuple[int, int], Tensor] | None) -> Iterator[Any]:
    """Yield their server after each round, with these betas [1 or 2] of a client in a round if they are given."""
    module, _, name = how.server.partition(".")
    base = importlib.import_module("clients.client_base").Client
    fda = importlib.import_module("clients.client_fedfda").ClientFedFDA
    sizes, t = run.case.sizes, 0

    def counted(client: Any, args: Any) -> None:
        client.num_train = sizes[client.client_idx]
        client.num_test = 1

    def read(client: Any, batch_size: Any = None, drop_last: bool = True) -> Passes:
        i = client.client_idx
        if not drop_last:
            return Passes([run.rows(i)], 1)
        return Passes(run.batches(i, t), run.plan.batches_a_pass(i))

    def given(client: Any, feats: Tensor, labels: Any, seed: int = 0) -> None:
        assert betas is not None
        beta = betas[t, client.client_idx]
        client.means_beta = torch.ones(client.num_classes) * beta[0]
        client.cov_beta = beta[-1:]

    patches = [
        mock.patch.object(base, "setup_dataset", counted),
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
            yield server


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
    run = ours(case, how.ours, how.hyper, **SETTING)
    yield from one_run(how, run)
    if how.hyper.get("betas"):
        held = {
            (t, i): run.rounds[t - 1].clients[i]["gaussian.beta"] for t in range(1, ROUNDS + 1) for i in run.cohort(t)
        }
        yield from one_run(how, run, held, SAME_BETA)


def one_run(
    how: Compared, run: Ours, betas: Mapping[tuple[int, int], Tensor] | None = None, condition: str = ""
) -> Iterator[Difference]:
    found = Against(how.ours, how.theirs, run.case.name, condition)
    for t, server in enumerate(run_theirs(how, run, betas), 1):
        for quantity, (mine, theirs) in compared(how, run.rounds[t - 1].shared, server).items():
            found.see(quantity + how.suffix, mine, theirs)
    yield from found.differences({} if condition or not how.hyper.get("betas") else dict.fromkeys(found.found, REASON))


def differences(folder: Path, chosen: Collection[str]) -> Iterator[Difference]:
    with importable(folder, uses=NEEDS), mock.patch.dict(os.environ, DATA_PATH=""):
        for how in (one for one in METHODS if one.ours in chosen):
            for case in CASES:
                yield from compare(how, case)
