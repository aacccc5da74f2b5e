"""FedRC's code, in which FLUX's baselines were run (IFCA, FeSEM, FedEM, FedRC, CFL, APFL, what FLUX calls pFedMe, and
FedAvg): its whole loop over rounds, handed fedbench's cohorts, batches and first weights."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor, nn

from fedbench.core.state import State
from fedbench.methods.agreement import Difference
from fedbench.methods.fedrc import CLASS_SHARES, FLOOR
from fedbench.methods.parts.responsibilities import PI
from tests.agreement.cases import CASES, EPOCHS, PLAIN, ROUNDS, Case, Ours, Snapshot, network, ours
from tests.agreement.compare import Against
from tests.agreement.foreign import Settings, Stub, importable

TITLE = "FedRC's code"
REPOSITORY = "LINs-lab/FedRC"
CHANGES = (
    "loaders hand out fedbench's batches, the same to all models of a client; networks and cohorts are fedbench's",
    "its module learners.autoencoder, which its repository lacks, and cvxpy, where it is missing, are stubs",
    "AgglomerativeClustering gets what its code calls affinity under the name of today's scikit-learn, metric",
    "the pass over the data with which its StoCFL begins is left out",
    "nobody is evaluated, and files go to a temporary folder",
)
LIVES = "--momentum-lives"
OPTIONS = {
    **dict.fromkeys(("local", "fedavg", "fedem", "fedrc"), LIVES),
    "apfl_flux": f"--variant fedrc --separate {LIVES}",
    "ifca": f"--unchosen zero {LIVES}",
    "fesem": f"--unchosen zero --variant fedrc {LIVES}",
    "cfl": f"--largest entry --mean plain {LIVES}",
}
MODELS = 3
#: Its SGD, whose state stays with each model of each client.
SGD = {"momentum": 0.9, "weight_decay": 5e-4, "momentum_lives": True}
#: Its SGD with a proximal term.
PROXIMAL = {"weight_decay": 5e-4}


@dataclass(frozen=True)
class After:
    """Their federation after a round."""

    shared: list[State]  #: of the server's models
    held: list[list[State]]  #: of each client's models
    weights: list[Tensor]  #: of a client's models
    class_shares: list[Any]  #: of the server's models [M][K], where it has told them


#: Quantity -> ours and theirs
Pairs = dict[str, tuple[Mapping[str, Tensor], Mapping[str, Tensor]]]


def only(mine: State, theirs: State, prefix: str = "") -> tuple[State, State]:
    """Tensors of theirs, and ours by these names behind a prefix."""
    return {n: mine[prefix + n] for n in theirs}, theirs


def common(after: Snapshot, theirs: After) -> Pairs:
    return {"shared model": only(after.shared, theirs.shared[0])}


def alone(after: Snapshot, theirs: After) -> Pairs:
    return of_clients("models", "", 0, after, theirs)


def of_clients(what: str, prefix: str, number: int, after: Snapshot, theirs: After) -> Pairs:
    """A model of every client; ours behind a prefix, theirs by its number."""
    pairs = [only(mine, held[number], prefix) for mine, held in zip(after.clients, theirs.held, strict=True)]
    return {f"clients' {what}": together(pairs)}


def together(pairs: Sequence[tuple[State, State]]) -> tuple[State, State]:
    """Several pairs as one."""
    mine, theirs = (
        {f"{k}/{n}": t for k, one in enumerate(some) for n, t in one.items()} for some in zip(*pairs, strict=True)
    )
    return mine, theirs


def mixed(after: Snapshot, theirs: After) -> Pairs:
    """All models, which are shared, and each client's mixture weights."""
    models = [only(after.shared, one, f"{m}/") for m, one in enumerate(theirs.shared)]
    pi = {str(i): mine[PI] for i, mine in enumerate(after.clients)}
    return {"models": together(models), "mixture weights": (pi, dict(zip(pi, theirs.weights, strict=True)))}


def mixed_by_class(after: Snapshot, theirs: After) -> Pairs:
    shares = {"all": torch.tensor(theirs.class_shares)}
    return {**mixed(after, theirs), "class shares": ({"all": after.shared[CLASS_SHARES]}, shares)}


def clustered(after: Snapshot, theirs: After) -> Pairs:
    """All models, and which one each client that has taken part has."""
    models = [only(mine, one) for mine, one in zip(after.models, theirs.shared, strict=True)]
    chosen = {str(i): torch.tensor(m) for i, m in after.assigned.items()}
    weights = {str(i): theirs.weights[i].argmax() for i in after.assigned}
    return {"models": together(models), "clients' clusters": (chosen, weights)}


def own_beside(after: Snapshot, theirs: After) -> Pairs:
    return {**common(after, theirs), **of_clients("own models", "own/", 1, after, theirs)}


def own_alone(after: Snapshot, theirs: After) -> Pairs:
    return {**common(after, theirs), **of_clients("own models", "own/", 0, after, theirs)}


@dataclass(frozen=True)
class Compared:
    """A method of both, and their hyper-parameters."""

    ours: str
    theirs: str
    seen: Callable[[Snapshot, After], Pairs] = common
    hyper: dict[str, Any] = field(default_factory=dict)  #: ours
    arguments: dict[str, Any] = field(default_factory=dict)  #: theirs
    setting: dict[str, Any] = field(default_factory=lambda: SGD)  #: ours
    models: int = 1
    one_request: bool = False  #: whether ours trains all models of a client on the same batches
    attributes: dict[str, Any] = field(default_factory=dict)  #: of their server, which no argument sets
    cases: Sequence[Case] = CASES
    reasons: Callable[[Case], dict[str, str]] = lambda case: {}  #: by quantity
    mend: str = ""  #: a change of the counts of classes (`mend_counts`), where that leaves no difference


COUNTS = (
    "absent clients' counts of classes count as well, those of clients who never took part as 1/K; a class that no "
    "client of the round has counts as 1e-8 of an image, in ours as 1e-8 of all"
)
ABSENT_AVERAGE = "its server averages over all clients, of whom the absent ones hold the received model"
ZERO = {"clusters": MODELS, "unchosen": "zero"}


def counts(case: Case) -> dict[str, str]:
    return dict.fromkeys(("models", "mixture weights", "class shares"), COUNTS) if case.cohort else {}


def absent_average(case: Case) -> dict[str, str]:
    return dict.fromkeys(("shared model", "clients' own models"), ABSENT_AVERAGE) if case.cohort else {}


METHODS = (
    Compared("local", "local", alone),
    Compared("fedavg", "FedAvg"),
    Compared("fedprox", "FedProx", common, {"mu": 0.3}, {"optimizer": "prox_sgd", "mu": 0.3}, PROXIMAL),
    Compared("mr_mtl", "pFedMe", own_alone, {"pull": 0.3}, {"optimizer": "prox_sgd", "mu": 0.3}, PROXIMAL),
    Compared(
        "apfl_flux",
        "APFL",
        own_beside,
        {"variant": "fedrc", "separate": True},
        models=2,
        reasons=absent_average,
    ),
    Compared("fedem", "FedEM", mixed, {"clusters": MODELS}, models=MODELS, one_request=True),
    Compared(
        "fedrc",
        "fedrc",
        mixed_by_class,
        {"clusters": MODELS},
        models=MODELS,
        one_request=True,
        reasons=counts,
        mend="with our counts of classes:",
    ),
    Compared("ifca", "IFCA", clustered, ZERO, models=MODELS),
    Compared("fesem", "FeSEM", clustered, {**ZERO, "variant": "fedrc"}, models=MODELS),
    Compared(
        "cfl",
        "clustered",
        alone,
        {"largest": "entry", "mean": "plain", "eps1": 0.5, "eps2": 0.02},
        attributes={"tol_1": 0.5, "tol_2": 0.02},
        cases=[case for case in CASES if not case.cohort],  # it insists on all clients
    ),
)


class Loader:
    """Stands for a DataLoader of a client's training images: a further pass of fedbench's batches at each iteration.
    An iterator that nobody advances, such as clients make at first, is none."""

    def __init__(self, run: Ours, how: Compared, client: int, clock: Callable[[], int]) -> None:
        self.run, self.how, self.client, self.clock = run, how, client, clock
        self.passed: dict[int, int] = {}  #: by round
        _, y = run.rows(client)
        self.dataset = Labels(y.tolist())

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        t = self.clock()
        k = self.passed[t] = self.passed.get(t, -1) + 1
        request, number = (1 if self.how.one_request else k // EPOCHS + 1), k % EPOCHS
        each = self.run.plan.batches_a_pass(self.client)
        positions = list(self.run.positions(self.client, t, request, epochs=EPOCHS))[number * each :][:each]
        for at in positions:
            yield *self.run.rows(self.client, at), torch.from_numpy(at)


class Whole:
    """Stands for a DataLoader of all a client's training images in one batch."""

    def __init__(self, run: Ours, client: int) -> None:
        self.batch = run.rows(client)
        self.dataset = Labels(self.batch[1].tolist())

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        return iter([(*self.batch, torch.arange(len(self.dataset)))])


class Labels:
    """Its data set, of which clients only look up labels."""

    def __init__(self, targets: list[int]) -> None:
        self.targets = targets

    def __len__(self) -> int:
        return len(self.targets)


def run_theirs(how: Compared, run: Ours, mended: bool) -> list[After]:
    """Their federation after each round; mended, with our counts of classes."""
    case, context = run.case, run.server.context
    loop, tools = importlib.import_module("run_experiment"), importlib.import_module("utils.utils")
    aggregator_module = importlib.import_module("aggregator")
    initial = [{n: t for n, t in run.server.initial.items() if n in network().state_dict()}]
    initial += [context.fresh(k) for k in range(1, how.models)]
    after: list[After] = []
    servers: list[Any] = []

    def learner(seed: int, **given: Any) -> Any:
        model = network()
        model.load_state_dict(initial[seed])
        optimizer = tools.get_optimizer(given["optimizer_name"], model, given["initial_lr"], given["mu"])
        loss = nn.CrossEntropyLoss(reduction="none")
        it = tools.Learner(model, loss, tools.accuracy, "cpu", optimizer)
        it.phi_model = None
        return it

    def loaders(test: bool = False, **_: Any) -> tuple[list[Any], ...]:
        clients = range(0 if test else len(case.sizes))
        whole = [Whole(run, i) for i in clients]
        trained = [Loader(run, how, i, lambda: len(after) + 1) for i in clients]
        return trained, whole, whole, [0] * len(trained), [[0] * case.sizes[i] for i in clients]

    def served(**given: Any) -> Any:
        server = get_server(**given)
        for name, value in how.attributes.items():
            setattr(server, name, value)
        server.sample_clients = lambda: sampled(server)
        mix = server.mix
        if mended:
            server.mix = lambda **how: (mix(**how), mend_counts(server))
        servers.append(server)
        return server

    def sampled(server: Any) -> list[int]:
        cohort = run.cohort(len(after) + 1)
        server.sampled_clients = [server.clients[i] for i in cohort]
        return cohort

    def keep(_: int) -> None:
        ensembles = [client.learners_ensemble for client in servers[0].clients]
        shared = [copied(one) for one in servers[0].global_learners_ensemble]
        held = [[copied(one) for one in ensemble] for ensemble in ensembles]
        shares = [one.labels_weights for one in ensembles[0].learners]
        after.append(After(shared, held, [ensemble.learners_weights for ensemble in ensembles], shares))

    settings = Settings(
        experiment="cifar10-c",  # names the loaders above
        method=how.theirs,
        n_learners=how.models,
        n_rounds=ROUNDS - 1,  # it trains one more
        bz=1,
        local_steps=EPOCHS,
        optimizer="sgd",
        lr=PLAIN["lr"],
        lr_scheduler="constant",
        mu=0.0,
        seed=0,
        device="cpu",
        logs_dir="logs",
        log_freq=1,
        verbose=0,
        sampling_rate=1.0,
        suffix="",
        gamma=0.0,
        em_step=1,
        **dict.fromkeys(("lr_lambda", "q", "communication_probability"), 0.0),
        **dict.fromkeys(("input_dimension", "output_dimension", "embedding_dimension", "n_gmm")),
        **dict.fromkeys(("split", "domain_disc", "hard_cluster", "binary", "validation"), False),
        **dict.fromkeys(("locally_tune_clients", "decentralized", "phi_model"), False),
    )
    settings.update(how.arguments)
    get_server = loop.get_aggregator
    agglomerative = mock.Mock(side_effect=lambda affinity, **kw: AgglomerativeClustering(metric=affinity, **kw))
    with contextlib.ExitStack() as patched:
        for of, name, value in (
            (loop, "args", settings),  # which one of its functions reads instead of its argument
            (loop, "get_cifar10C_loaders", loaders),
            (loop, "get_aggregator", served),
            (loop, "SummaryWriter", mock.MagicMock()),
            (loop, "tqdm", lambda some=None, **_: SimpleNamespace(update=keep) if some is None else some),
            (tools, "get_learner", learner),
            (aggregator_module.Aggregator, "write_logs", lambda server: None),
            (aggregator_module, "AgglomerativeClustering", agglomerative),
        ):
            patched.enter_context(mock.patch.object(of, name, value, create=name == "args"))
        patched.enter_context(contextlib.chdir(patched.enter_context(tempfile.TemporaryDirectory())))
        os.makedirs("logs/cifar10-c")
        loop.run_experiment(settings)
    return after


def mend_counts(server: Any) -> None:
    """Absent clients send no counts of classes; the first one of the round adds the least that a class counts in
    ours."""
    for client in server.clients:
        if client not in server.sampled_clients:
            client.labels_learner_weights = torch.zeros_like(client.labels_learner_weights)
    counts = torch.stack([client.labels_learner_weights for client in server.sampled_clients]).sum(0)
    least = FLOOR * counts.sum(1, keepdim=True)
    server.sampled_clients[0].labels_learner_weights += (least - counts).clamp(min=0)


def copied(learner: Any) -> State:
    return {n: t.detach().clone() for n, t in learner.model.state_dict().items()}


def compare(how: Compared, case: Case) -> Iterator[Difference]:
    """As it is; then without the reason of a difference."""
    yield from one_run(how, case)
    if how.mend and case.cohort:
        yield from one_run(how, case, how.mend)


def one_run(how: Compared, case: Case, condition: str = "") -> Iterator[Difference]:
    run = ours(case, how.ours, how.hyper, **how.setting)
    assert how.ours != "cfl" or len(run.rounds[-1].models) > 1, "no cluster was split"
    found = Against(how.ours, how.theirs, case.name, condition)
    for mine, theirs in zip(run.rounds, run_theirs(how, run, bool(condition)), strict=True):
        for quantity, (a, b) in how.seen(mine, theirs).items():
            found.see(quantity, a, b)
    yield from found.differences({} if condition else how.reasons(case))


def differences(folder: Path, chosen: Collection[str]) -> Iterator[Difference]:
    lacked = {"learners.autoencoder": Stub("learners.autoencoder")}
    with importable(folder, ("cvxpy",), uses=("networkx", "tensorboard")), mock.patch.dict(sys.modules, lacked):
        for how in (one for one in METHODS if one.ours in chosen):
            for case in how.cases:
                yield from compare(how, case)
