"""PFLlib's servers and clients, handed fedbench's cohorts, batches and first weights."""

from __future__ import annotations

import contextlib
import importlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.core.state import State
from fedbench.methods.agreement import Difference
from fedbench.methods.parts.prototypes import MEAN
from tests.agreement import draws
from tests.agreement.cases import (
    BATCH,
    CASES,
    EPOCHS,
    EQUAL,
    PLAIN,
    ROUNDS,
    Batch,
    Case,
    Ours,
    Passes,
    Snapshot,
    network,
    ours,
    parameters,
)
from tests.agreement.compare import Against, OfBoth
from tests.agreement.foreign import importable

TITLE = "PFLlib"
REPOSITORY = "TsingZ0/PFLlib"
CHANGES = (
    "clients read fedbench's batches instead of their files, and servers take its cohorts",
    "servers neither evaluate nor write files; stubs replace h5py and ujson where they are missing",
)

ALIKE = "it counts clients alike whatever their sizes, as the paper does"


#: Quantity -> ours and theirs
Pairs = dict[str, tuple[State, State]]


@dataclass(frozen=True)
class Mend:
    """A change, of theirs in memory or of our options, that is to leave no difference, which proves a reason."""

    words: str
    patches: Callable[[Round], Sequence[Any]] = lambda clock: ()
    hyper: dict[str, Any] = field(default_factory=dict)  #: of ours, where others are needed
    arguments: dict[str, Any] = field(default_factory=dict)  #: theirs
    setting: dict[str, Any] = field(default_factory=dict)  #: ours


def averaged(after: Snapshot, server: Any, which: str = "") -> Pairs:
    """The model that servers average, or the head or backbone alone."""
    theirs = parameters(tuple(server.global_model.parameters()), which)
    return {"shared model": ({name: after.shared[name] for name in theirs}, theirs)}


@dataclass(frozen=True)
class Compared(OfBoth):
    """A method of both, and where the two differ."""

    setting: dict[str, Any] = field(default_factory=dict)  #: changes of ours
    shared: Callable[[Snapshot, Any], Pairs] = averaged
    kept: Callable[[State, Any], Pairs] = lambda held, client: {}  #: of our client's tensors and their client
    reasons: Callable[[Case], dict[str, str]] = lambda case: {}  #: by quantity
    mend: Mend | None = None


def part(name: str, which: str) -> Callable[[State, Any], Pairs]:
    """The half of the network that stays with the client."""

    def kept(held: State, client: Any) -> Pairs:
        half = client.model.head if which == "head" else client.model.base
        theirs = parameters(tuple(half.parameters()), which)
        return {name: ({n: held[n] for n in theirs}, theirs)}

    return kept


def second(name: str, prefix: str, values: Callable[[Any], Sequence[Tensor]], chosen: str = "") -> Any:
    """Tensors for each parameter beside the model: ours by this prefix, theirs in a list."""

    def kept(held: State, client: Any) -> Pairs:
        theirs = parameters(values(client), chosen)
        return {name: ({n: held[prefix + n.removeprefix(f"{chosen}." if chosen else "")] for n in theirs}, theirs)}

    return kept


def split(values: Tensor) -> list[Tensor]:
    """A vector of all parameters as a list of them."""
    like = [p for _, p in network().named_parameters()]
    return [v.view_as(p) for v, p in zip(values.split([p.numel() for p in like]), like, strict=True)]


def client_module(name: str) -> Any:
    return importlib.import_module(f"flcore.clients.{name}")


def alike(case: Case, *others: str) -> str:
    """The reason of rules that count clients alike, which nothing shows where they have one size."""
    return "; ".join([*others, *([] if case == EQUAL else [ALIKE])])


class SquaredNorms:
    """torch, whose norm is the squared one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def norm(self, values: Tensor, order: int) -> Tensor:
        return values.square().sum()


def squared(_: Round) -> Sequence[Any]:
    return [mock.patch.object(client_module("clientdyn"), "torch", SquaredNorms())]


def heads_at_zero(_: Round) -> Sequence[Any]:
    kind = client_module("clientrod").clientROD
    begin = kind.__init__

    def zeroed(client: Any, *values: Any, **more: Any) -> None:
        begin(client, *values, **more)
        for p in client.head.parameters():
            p.data.zero_()

    return [mock.patch.object(kind, "__init__", zeroed)]


def theta_kept(_: Round) -> Sequence[Any]:
    kind = client_module("clientpFedMe").clientpFedMe
    update = kind.update_parameters

    def copying(client: Any, model: Any, values: Any) -> None:
        client.theta = [p.detach().clone() for p in client.personalized_params]
        update(client, model, values)

    return [mock.patch.object(kind, "update_parameters", copying)]


def alpha_fixed(_: Round) -> Sequence[Any]:
    return [mock.patch.object(client_module("clientapfl").clientAPFL, "alpha_update")]


def means_of_all(clock: Round) -> Sequence[Any]:
    """FedProto's means after training, of all images, pooled by numbers; a class that nobody has keeps its own."""
    kind = client_module("clientproto").clientProto
    server = importlib.import_module("flcore.servers.serverproto")
    train, last = kind.train, dict[int, Tensor]()

    def then_means(client: Any) -> None:
        train(client)
        x, y = clock.run.rows(client.id)
        with torch.no_grad():
            z = client.model.base(x)
        client.protos = {int(c): z[y == c] for c in y.unique()}

    def pooled(uploads: Sequence[dict[int, Tensor]]) -> Any:
        for c in {c for upload in uploads for c in upload}:
            last[c] = torch.cat([upload[c] for upload in uploads if c in upload]).mean(0)
        return defaultdict(list, last)

    return [mock.patch.object(kind, "train", then_means), mock.patch.object(server, "proto_aggregation", pooled)]


def prototypes(after: Snapshot, server: Any) -> Pairs:
    """Of the classes that both know."""
    theirs = {str(c): z for c, z in server.global_protos.items() if c in range(10) and len(z)}
    return {"prototypes": ({c: after.shared[MEAN][int(c)] for c in theirs}, theirs)}


def first_models(case: Case) -> dict[str, str]:
    it = "a client that first trains in a later round contrasts with the initial model, ours with the received one"
    return {"shared model": it} if case.cohort else {}


UNIFORM = {"weighting": "uniform"}
METHODS = (
    Compared("fedavg", "FedAvg", "serveravg.FedAvg"),
    Compared("fedprox", "FedProx", "serverprox.FedProx", {"mu": 0.3}, {"mu": 0.3}),
    Compared(
        "fedper",
        "FedPer",
        "serverper.FedPer",
        shared=partial(averaged, which="backbone"),
        kept=part("clients' heads", "head"),
    ),
    Compared(
        "lg_fedavg",
        "LG-FedAvg",
        "serverlg.LG_FedAvg",
        shared=partial(averaged, which="head"),
        kept=part("clients' bodies", "backbone"),
    ),
    Compared("perfedavg", "PerAvg", "serverperavg.PerAvg", {"alpha": PLAIN["lr"]}),
    Compared(
        "fedrod",
        "FedROD",
        "serverrod.FedROD",
        kept=second("personal heads", "personal_head.", lambda client: tuple(client.head.parameters()), "head"),
        reasons=lambda case: {"personal heads": "its personal heads start as copies of the generic head, ours at zero"},
        mend=Mend("if theirs start at zero:", heads_at_zero),
    ),
    Compared(
        "moon",
        "MOON",
        "servermoon.MOON",
        {"mu": 2.0, "temperature": 0.4},
        {"mu": 2.0, "tau": 0.4},
        reasons=first_models,
    ),
    Compared(
        "scaffold",
        "SCAFFOLD",
        "serverscaffold.SCAFFOLD",
        {"server_lr": 0.8},
        {"server_learning_rate": 0.8},
        kept=second("clients' control variates", "own_control/", lambda client: client.client_c),
        reasons=lambda case: dict.fromkeys(("shared model", "clients' control variates"), alike(case)),
        mend=Mend("ours with --weighting uniform:", setting=UNIFORM),
    ),
    Compared(
        "feddyn",
        "FedDyn",
        "serverdyn.FedDyn",
        {"alpha": 0.1},
        {"alpha": 0.1},
        kept=second("clients' gradients", "own_gradient/", lambda client: split(client.old_grad)),
        reasons=lambda case: dict.fromkeys(
            ("shared model", "clients' gradients"), alike(case, "it adds the norm of the distance, not its square")
        ),
        mend=Mend("with the square, and ours with --weighting uniform:", squared, setting=UNIFORM),
    ),
    Compared(
        "pfedme",
        "pFedMe",
        "serverpFedMe.pFedMe",
        {"lambda": 5.0, "inner_steps": 3, "inner_lr": 0.03, "beta": 0.7},
        {"lamda": 5.0, "K": 3, "p_learning_rate": 0.03, "beta": 0.7},
        {"weight_decay": 0.001},  # built into its optimiser
        kept=second("personal models", "own/", lambda client: getattr(client, "theta", client.personalized_params)),
        reasons=lambda case: {"personal models": "it overwrites θ by w at the end of training"},
        mend=Mend("θ before it is overwritten:", theta_kept),
    ),
    Compared(
        "apfl",
        "APFL",
        "serverapfl.APFL",
        {"alpha": 0.5},
        {"alpha": 0.5},
        kept=second("own models", "own/", lambda client: tuple(client.model_per.parameters())),
        reasons=lambda case: {"own models": "it mixes only once, after training, and learns α"},
        mend=Mend("if α is 1 and not learned:", alpha_fixed, {"alpha": 1.0}, {"alpha": 1.0}),
    ),
    Compared(
        "fedproto",
        "FedProto",
        "serverproto.FedProto",
        {"lambda": 2.0},
        {"lamda": 2.0},
        shared=prototypes,
        kept=second("clients' models", "", lambda client: tuple(client.model.parameters())),
        reasons=lambda case: dict.fromkeys(
            ("prototypes", "clients' models"),
            "its class means run along with training, and its server counts clients alike",
        ),
        mend=Mend("with means of all images after training:", means_of_all),
    ),
)


def joined(pairs: Sequence[Sequence[Batch]]) -> list[Batch]:
    """Batches one after another in one: what Per-FedAvg cuts in two."""
    return [(torch.cat([x for x, _ in some]), torch.cat([y for _, y in some])) for some in pairs]


class Round:
    """Which round it is, and what a client reads in it."""

    def __init__(self, run: Ours, how: Compared) -> None:
        self.run, self.how, self.t = run, how, 0
        self.calls: dict[int, int] = {}  #: of a client in this round

    def begin(self) -> list[int]:
        self.t += 1
        self.calls = {}
        return self.run.cohort(self.t)

    def loader(self, client: int) -> Passes:
        """Of the round; before the first, when FedRoD counts classes, of all images in one batch."""
        if not self.t:
            return Passes([self.run.rows(client)], 1)
        each = self.run.plan.batches_a_pass(client)
        if self.how.ours != "perfedavg":
            return Passes(self.run.batches(client, self.t), each)
        # Each of its steps takes two batches, ours of two requests; it trains twice a round, an epoch each.
        call = self.calls[client] = self.calls.get(client, 0) + 1
        steps = range((call - 1) * each, call * each)
        requests = [[next(iter(self.run.batches(client, self.t, 2 * k + i, steps=1))) for i in (1, 2)] for k in steps]
        return Passes(joined(requests), each)


def base_and_head(folder_module: Any) -> nn.Module:
    """Our network in their halves."""
    it = network()
    both: nn.Module = folder_module.BaseHeadSplit(nn.Sequential(it.backbone, it.projection), it.head)
    return both


def run_theirs(how: Compared, run: Ours, clock: Round) -> Iterator[Any]:
    """Yield their server after each round."""
    clientbase = importlib.import_module("flcore.clients.clientbase")
    serverbase = importlib.import_module("flcore.servers.serverbase")
    module, _, name = how.server.partition(".")
    kind = getattr(importlib.import_module(f"flcore.servers.{module}"), name)
    case = run.case
    model = base_and_head(importlib.import_module("flcore.trainmodel.models"))
    serverbase.read_client_data = lambda dataset, i, **_: range(case.sizes[i] if _["is_train"] else 1)
    clientbase.Client.load_train_data = lambda client, batch_size=None: clock.loader(client.id)
    arguments = {
        "model": model,
        "device": "cpu",
        "dataset": "",
        "algorithm": how.theirs,
        "num_classes": 10,
        "global_rounds": 0,  # one round a call of train
        "local_epochs": 1 if how.ours == "perfedavg" else EPOCHS,
        "batch_size": BATCH,
        "local_learning_rate": PLAIN["lr"],
        "learning_rate_decay": False,
        "learning_rate_decay_gamma": 1.0,
        "num_clients": len(case.sizes),
        "join_ratio": (case.cohort or len(case.sizes)) / len(case.sizes),
        "random_join_ratio": False,
        "few_shot": 0,
        "time_select": False,
        "goal": "",
        "time_threthold": 1e9,
        "save_folder_name": "",
        "top_cnt": 1,
        "auto_break": False,
        "eval_gap": 1,
        "client_drop_rate": 0.0,
        "train_slow_rate": 0.0,
        "send_slow_rate": 0.0,
        "dlg_eval": False,
        "dlg_gap": 1,
        "batch_num_per_client": 1,
        "num_new_clients": 0,
        "fine_tuning_epoch_new": 0,
    }
    server = kind(SimpleNamespace(**{**arguments, **how.arguments}), 0)
    server.select_clients = lambda: [server.clients[i] for i in clock.begin()]
    for silent in ("evaluate", "evaluate_one_step", "evaluate_personalized", "save_results", "save_global_model"):
        setattr(server, silent, lambda *_: None)
    server.rs_test_acc = server.rs_test_acc_per = [0.0]
    for _ in range(ROUNDS):
        server.Budget = [0.0]  # of the round 0 that its own loop leaves out of the mean
        server.train()
        yield server


def compare(how: Compared, case: Case) -> Iterator[Difference]:
    """As theirs is; and where it differs for a known reason, once more without that."""
    yield from one_run(how, case, how.reasons(case))
    if mend := how.mend:
        changes = {name: getattr(how, name) | getattr(mend, name) for name in ("hyper", "arguments", "setting")}
        yield from one_run(replace(how, **changes), case, {}, mend)


def one_run(how: Compared, case: Case, reasons: Mapping[str, str], mend: Mend | None = None) -> Iterator[Difference]:
    run = ours(case, how.ours, how.hyper, **how.setting)
    found = Against(how.ours, how.theirs, case.name, mend.words if mend else "")
    clock = Round(run, how)
    with contextlib.ExitStack() as patched:
        for patch in mend.patches(clock) if mend else ():
            patched.enter_context(patch)
        for t, server in enumerate(run_theirs(how, run, clock), 1):
            after = run.rounds[t - 1]
            for quantity, (mine, theirs) in how.shared(after, server).items():
                found.see(quantity, mine, theirs)
            for i in run.cohort(t):
                for quantity, (mine, theirs) in how.kept(after.clients[i], server.clients[i]).items():
                    found.see(quantity, mine, theirs)
    yield from found.differences(reasons)


def drawn(labels: np.ndarray, clients: int, alpha: float) -> list[np.ndarray]:
    """The rows of each client by the module with which its scripts generate folders."""
    module = importlib.import_module("utils.dataset_utils")
    with mock.patch.object(module, "alpha", alpha):
        return list(module.separate_data((np.arange(len(labels)), labels), clients, 10, niid=True, partition="dir")[0])


def least(samples: int, clients: int) -> int:
    """It draws again until each client has as many samples."""
    return int(min(10 / 0.25, samples / clients / 2))


def differences(folder: Path, chosen: Collection[str]) -> Iterator[Difference]:
    with importable(folder / "system", ("h5py",)):
        for how in (one for one in METHODS if one.ours in chosen):
            for case in CASES:
                yield from compare(how, case)
    if "dirichlet" in chosen:
        with importable(folder / "dataset", ("ujson",)):
            yield from draws.differences("dir", drawn, least)
