"""The algorithms of FedDRM's code, handed fedbench's batches and first weights. All clients join every round."""

from __future__ import annotations

import contextlib
import importlib
import io
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from fedbench.core.state import State
from fedbench.methods.agreement import Difference
from tests.agreement.cases import EQUAL, ONE_BATCH, PLAIN, ROUNDS, UNEQUAL, Batch, Case, Ours, network, ours
from tests.agreement.compare import Against
from tests.agreement.foreign import Settings, importable

TITLE = "FedDRM's code"
REPOSITORY = "zijianwang0510/FedDRM"
CHANGES = (
    "loaders hand out fedbench's batches, and the network is ours by its names for the parts",
    "models are saved in a temporary folder, and nobody is evaluated",
)
OPTIONS = {
    "fedas": "--align-steps 2 --weigh-by size",
    "fedala": "--weight-steps 5 --rate 0",
    "confree": "--rule pairs --head-steps 5",
}
STEPS = 10
#: Of the paper's setting: steps, momentum, decay, and a cosine over rounds.
SETTING = {"epochs": None, "steps": STEPS, "momentum": 0.9, "weight_decay": 5e-4, "schedule": "cosine"}
FINETUNE = {"finetune_rounds": 2}


@dataclass(frozen=True)
class Compared:
    """A method of both, and their hyper-parameters."""

    ours: str
    theirs: str
    hyper: dict[str, Any] = field(default_factory=dict)  #: ours
    arguments: dict[str, Any] = field(default_factory=dict)  #: theirs
    #: ours that its loops over a client's data read: the number of the request, and its steps
    requests: tuple[tuple[int, int], ...] = ((1, STEPS),)
    own: str | None = ""  #: prefix of ours for the model that theirs keeps for a client; None: not compared


HALVES = ((1, STEPS // 2), (2, STEPS // 2))
METHODS = (
    Compared("feddrm", "FedDRM", {"lambda": 0.8}, {"feddrm_ratio": 0.8}),
    Compared("fedavgft", "FedAvgFT", FINETUNE, {"ft_round": 2}),
    Compared("fedprox", "FedProxFT", {"mu": 0.3, **FINETUNE}, {"fedprox_mu": 0.3, "ft_round": 2}),
    Compared("fedsam", "FedSAMFT", {"rho": 0.05, **FINETUNE}, {"fedsam_rho": 0.05, "ft_round": 2}),
    Compared("fedrep", "FedRep", {"head_steps": STEPS // 2}, requests=HALVES),
    Compared("fedrep", "FedPAC", {"head_steps": STEPS // 2, "mu": 0.3}, {"fedpac_mu": 0.3}, HALVES),
    Compared("ditto", "Ditto", {"mu": 0.7, "personal_steps": STEPS // 2}, {"ditto_lambda": 0.7}, HALVES, own="own/"),
    Compared("fedbabu", "FedBABU", {"finetune_rounds": 2, "finetune_epochs": 0}, {"ft_round": 2}),
    Compared("fedas", "FedAS", {"align_steps": 2, "weigh_by": "size"}, requests=((1, 2), (2, STEPS - 2))),
    # Its first loop, over weights that it detaches from the loss, has none of ours.
    Compared("fedala", "FedALA", {"weight_steps": STEPS // 2, "rate": 0.0}, requests=((1, STEPS // 2),) * 2, own=None),
    Compared("confree", "ConFREE", {"rule": "pairs", "head_steps": STEPS // 2}, requests=HALVES),
)


class Network(nn.Module):
    """Ours, by their names."""

    def __init__(self, initial: State) -> None:
        super().__init__()
        it = network()
        self.backbone, self.image_classifier = nn.Sequential(it.backbone, it.projection), it.head
        start = "client_branch."
        if branch := {n.removeprefix(start): t for n, t in initial.items() if n.startswith(start)}:
            self.client_branch = it.branch(len(list(branch.values())[-1]), 0)
            self.client_branch.load_state_dict(branch)

    def forward(self, x: Tensor, FEATURE_ONLY: bool = False) -> Any:  # its name for it
        z = self.backbone(x)
        if FEATURE_ONLY:
            return z
        scores = self.image_classifier(z)
        return (scores, self.client_branch(z)) if hasattr(self, "client_branch") else scores


def renamed(theirs: State) -> State:
    """Tensors by fedbench's names."""
    return {n.replace("backbone.0.", "backbone.").replace("image_classifier.", "head."): t for n, t in theirs.items()}


class Loader:
    """Hands out the batches of the next request of ours, with their clients, at each iteration."""

    def __init__(self, read: Callable[[int], list[Batch]], client: int) -> None:
        self.read, self.client, self.asked = read, client, 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        batches = self.read(self.asked)
        self.asked += 1
        return ((x, y, torch.full_like(y, self.client)) for x, y in batches)


def run_theirs(how: Compared, run: Ours, folder: Path) -> Iterator[tuple[State, list[State]]]:
    """Yield, after each round, what is shared and what each client holds."""
    module = importlib.import_module(f"algorithms.{how.theirs.lower()}")
    kind = getattr(module, how.theirs)
    clients = range(len(run.case.sizes))
    after: list[tuple[State, list[State]]] = []

    def loader(i: int) -> Loader:
        def read(asked: int) -> list[Batch]:
            request, steps = how.requests[asked % len(how.requests)]
            return run.batches(i, len(after) + 1, request, steps=steps, epochs=None)

        return Loader(read, i)

    def keep(it: Any) -> float:
        paths = getattr(it, "personalized_model_path", it.local_model_path)
        after.append((torch.load(it.global_model_path), [torch.load(path) for path in paths]))
        return 0.0

    names = (
        "select_model",
        "get_log_path",
        "get_record_path",
        "get_global_model_path",
        "get_local_model_path",
        "get_personalized_model_path",
        "get_prev_local_model_path",
        "SummaryWriter",
    )
    instead: dict[str, Any] = dict.fromkeys(names, lambda cfg, i=0: folder / "record.npy")
    instead |= {n: lambda cfg, i=0, n=n: folder / f"{n}_{i}.pth" for n in names if n.endswith("model_path")}
    instead |= {"select_model": lambda cfg: Network(run.server.initial), "SummaryWriter": mock.MagicMock()}
    settings = Settings(
        algo=how.theirs.lower(),
        num_clients=len(clients),
        commu_round=ROUNDS,
        local_steps=STEPS,
        lr=PLAIN["lr"],
        momentum=SETTING["momentum"],
        weight_decay=SETTING["weight_decay"],
        device="cpu",
        **how.arguments,
    )
    with contextlib.ExitStack() as patched:
        for name, value in instead.items():
            if hasattr(module, name):
                patched.enter_context(mock.patch.object(module, name, value))
        measured = (0.0,) * (4 if how.ours == "feddrm" else 2)
        patched.enter_context(mock.patch.object(kind, "test_averaged_performance", return_value=measured))
        patched.enter_context(mock.patch.object(kind, "test_system_performance", keep))
        kind(settings, [loader(i) for i in clients], [], list(run.case.sizes), io.StringIO()).train()
    yield from after


def compare(how: Compared, case: Case) -> Iterator[Difference]:
    run = ours(case, how.ours, how.hyper, **SETTING)
    found = Against(how.ours, how.theirs, case.name)
    with tempfile.TemporaryDirectory() as folder:
        for after, (shared, held) in zip(run.rounds, run_theirs(how, run, Path(folder)), strict=True):
            theirs = {n: t for n, t in renamed(shared).items() if n in after.shared}
            found.see("shared model", {n: after.shared[n] for n in theirs}, theirs)
            for mine, client in zip(after.clients, map(renamed, held), strict=True):
                if how.own is not None:
                    found.see("clients' models", {n: mine[how.own + n] for n in client}, client)
    yield from found.differences({})


def differences(folder: Path, chosen: Collection[str]) -> Iterator[Difference]:
    with importable(folder, ("omegaconf", "tensorboard")):
        for how in (one for one in METHODS if one.ours in chosen):
            for case in (EQUAL, UNEQUAL, ONE_BATCH):
                yield from compare(how, case)
