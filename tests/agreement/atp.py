"""ATP's code: its rates and its answers, learned on fedbench's last model. All clients join."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fedbench.core.client import Client, ClientUpdate
from fedbench.core.state import State
from fedbench.methods.agreement import Difference
from fedbench.methods.atp import ATP, adapted
from tests.agreement.cases import BATCH, EQUAL, ONE_BATCH, ROUNDS, UNEQUAL, Case, Ours, network, ours
from tests.agreement.compare import Against
from tests.agreement.foreign import Settings, importable

TITLE = "ATP's code"
REPOSITORY = "baowenxuan/ATP"
CHANGES = (
    "data are fedbench's, and the network is ours with its batch norm, whose statistics have gradients",
    "of the evaluation, the class probabilities are kept",
)
ETA = 0.1


@contextlib.contextmanager
def remembered() -> Iterator[dict[str, Tensor]]:
    """The class probabilities [n, 10] with which our clients answer in the end."""
    answers: dict[str, Tensor] = {}
    personalise = ATP.personalise

    def keep(how: ATP, client: Client) -> ClientUpdate:
        yield from personalise(how, client)
        if client.final:
            answers[str(client.index)] = client.answer.clone()

    with mock.patch.object(ATP, "personalise", keep):
        yield answers


def model_of(state: State) -> nn.Module:
    """Our network in this state, as one of its models: with its batch norm."""
    base = importlib.import_module("model.Model").Model
    norm_of = importlib.import_module("model.MyBatchNorm2d").MyBatchNorm2d

    class Network(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.it = network(norm=True)
            self.it.load_state_dict({n: state[n] for n in self.it.state_dict()})

        def forward(self, x: Tensor) -> Any:
            return self.it(x)

        def change_bn(self, mode: str) -> None:
            self.it.backbone.norm = norm_of(self.it.backbone.norm)

        def set_running_stat_grads(self) -> None:
            self.it.backbone.norm.set_running_stat_grads()

        def clip_bn_running_vars(self) -> None:
            self.it.backbone.norm.clip_running_var()

    return Network()


def run_theirs(run: Ours) -> tuple[State, State]:
    """The rate of each tensor, and the class probabilities of each client's test images."""
    module = importlib.import_module("algorithm.ATP")
    clients = range(len(run.case.sizes))
    train, test = ({i: {"test": TensorDataset(*read(i))} for i in clients} for read in (run.rows, run.tests))
    scored: list[Tensor] = []
    loss = module.create_loss

    def kept(name: str) -> Callable[[Tensor, Tensor], Tensor]:
        def of(scores: Tensor, y: Tensor) -> Tensor:
            if name == "ce":
                scored.append(scores.detach().softmax(1))
            value: Tensor = loss(name)(scores, y)
            return value

        return of

    settings = Settings(
        gm_rounds=ROUNDS,
        part_rate=1.0,
        batch_size=BATCH,
        num_workers=0,
        device="cpu",
        lm_lr=ETA,
        grad_norm="sqrt_numel",
        verbose=False,
    )
    with (
        mock.patch.object(module, "create_model", return_value=model_of(run.rounds[-1].shared)),
        mock.patch.object(module, "create_loss", kept),
    ):
        server = module.ATPServer(train, test, settings)
        for _ in range(ROUNDS):
            server.learn_to_adapt(settings)
        scored.clear()
        server.adapt_and_eval(settings)
    names = [name.removeprefix("it.") for name, _ in server.model.named_parameters()]
    each = torch.cat(scored).split([len(run.tests(i)[0]) for i in clients])
    return dict(zip(names, server.adapt_lrs, strict=True)), {str(i): p for i, p in enumerate(each)}


def compare(case: Case) -> Iterator[Difference]:
    found = Against("atp", "ATP", case.name)
    with remembered() as answers:
        run = ours(case, "atp", {"eta": ETA}, norm=True)
    rates = dict(zip(adapted(run.server.shared), run.server.memory.rates, strict=True))
    theirs = run_theirs(run)
    assert max(map(abs, theirs[0].values())) > 1e-3, "no rate was learned"
    found.see("rates", rates, theirs[0])
    found.see("class probabilities", answers, theirs[1])
    yield from found.differences({})


def differences(folder: Path, chosen: Collection[str]) -> Iterator[Difference]:
    with importable(folder / "src"):
        if "atp" in chosen:
            for case in (EQUAL, UNEQUAL, ONE_BATCH):
                yield from compare(case)
