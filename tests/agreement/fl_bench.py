"""FL-bench's servers and clients, handed fedbench's cohorts, batches and first weights."""

from __future__ import annotations

import contextlib
import importlib
import json
import pickle
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from fedbench.core.state import State
from fedbench.methods.agreement import Difference
from tests.agreement.cases import BATCH, CASES, EPOCHS, PLAIN, ROUNDS, Case, Ours, Passes, Snapshot, network, ours
from tests.agreement.compare import Against, OfBoth
from tests.agreement.foreign import Settings, importable

TITLE = "FL-bench"
REPOSITORY = "KarhouTam/FL-bench"
CHANGES = (
    "clients read fedbench's batches instead of its data set, and cohorts are fedbench's",
    "the settings are a dictionary instead of Hydra's, its partition file lies in a temporary folder",
    "nobody is evaluated; stubs replace hydra, omegaconf, pynvml, statsmodels and torchmin where they are missing",
)
NEEDS = ("hydra.core.hydra_config", "omegaconf", "pynvml", "statsmodels.stats.correlation_tools", "torchmin")

#: Quantity -> ours and theirs
Pairs = dict[str, tuple[State, State]]


def renamed(theirs: Mapping[str, Tensor]) -> State:
    """Tensors by fedbench's names."""
    return {n.replace("base.0.", "backbone.").replace("classifier.", "head."): t.detach() for n, t in theirs.items()}


def common(after: Snapshot, server: Any) -> Pairs:
    """The model that the server averages; of it, what ours shares."""
    theirs = {n: t for n, t in renamed(server.public_model_params).items() if n in after.shared}
    return {"shared model": ({n: after.shared[n] for n in theirs}, theirs)}


def heads(held: State, server: Any, i: int) -> Pairs:
    theirs = renamed(server.clients_personal_model_params[i])
    return {"clients' heads": ({n: held[n] for n in theirs}, theirs)}


def personal(held: State, server: Any, i: int) -> Pairs:
    theirs = renamed(server.clients_personalized_model_params[i])
    return {"personal models": ({n: held[f"own/{n}"] for n in theirs}, theirs)}


def gaussians(after: Snapshot, server: Any) -> Pairs:
    theirs = {"mean": server.global_means.float()}
    return {**common(after, server), "class means": ({"mean": after.shared["gaussian.mean"]}, theirs)}


@dataclass(frozen=True)
class Compared(OfBoth):
    """A method of both, and where the two differ."""

    epochs: int = EPOCHS  #: theirs: of a client's first loop over its data
    requests: tuple[tuple[int, int], ...] = ((1, EPOCHS),)  #: ours that these read: number and epochs
    shared: Callable[[Snapshot, Any], Pairs] = common
    kept: Callable[[State, Any, int], Pairs] = lambda held, server, i: {}
    reason: str = ""  #: of all that differs
    instead: str = ""  #: a method of ours that theirs is then equal to
    mend: str = ""  #: that its server averages no heads, where that leaves no difference


METHODS = (
    Compared("fedavg", "FedAvg", "fedavg.FedAvgServer"),
    Compared(
        "fedrep",
        "FedRep",
        "fedrep.FedRepServer",
        {"head_epochs": 1},
        {"fedrep": {"train_body_epoch": EPOCHS}},
        epochs=1 + EPOCHS,
        requests=((1, 1), (2, EPOCHS)),
        kept=heads,
        reason="a client that first trains in a later round starts from the mean of the others' heads",
        mend="if its server leaves heads out:",
    ),
    Compared("fedbabu", "FedBabu", "fedbabu.FedBabuServer"),
    Compared(
        "ditto",
        "Ditto",
        "ditto.DittoServer",
        {"mu": 0.7, "personal_epochs": 1},
        {"ditto": {"pers_epoch": 1, "lamda": 0.7}},
        requests=((1, EPOCHS), (2, 1)),
        kept=personal,
    ),
    Compared(
        "pfedfda",
        "pFedFDA",
        "pfedfda.pFedFDAServer",
        {},
        {"pfedfda": {"eps": 1e-4, "single_beta": True, "local_beta": False, "num_cv_folds": 2}},
        shared=gaussians,
        reason="its clients train as FedAvg's do, with the linear head, and estimate no Gaussian in training",
        instead="fedavg",
    ),
)


def arguments(how: Compared, case: Case) -> Settings:
    """What its configuration file says."""
    client = Settings(train=False, val=False, test=False, interval=0, finetune_epoch=1, funetune_epoch=0)
    server = Settings(train=False, val=False, test=False, interval=0, model_in_train_mode=False)
    settings = Settings(
        mode="serial",
        dataset=Settings(name="mnist", split="sample"),
        model=Settings(name="ours", use_torchvision_pretrained_weights=False, external_model_weights_path=None),
        optimizer=Settings(name="sgd", lr=PLAIN["lr"], momentum=0.0, weight_decay=0.0),
        common=Settings(
            seed=0,
            join_ratio=1.0,
            global_epoch=ROUNDS,
            local_epoch=how.epochs,
            batch_size=BATCH,
            reset_optimizer_on_global_epoch=True,
            straggler_ratio=0,
            buffers="global",
            client_side_evaluation=False,
            test=Settings(client=client, server=server),
            verbose_gap=10**9,
            monitor=None,
            use_cuda=False,
            save_log=False,
            save_learning_curve_plot=False,
            save_metrics=False,
        ),
    )
    settings.update({name: Settings(values) for name, values in how.arguments.items()})
    return settings


class Labels:
    """Its data set, of which clients only look up labels."""

    def __init__(self, run: Ours) -> None:
        self.rows = [(torch.zeros(1), y) for i in range(len(run.case.sizes)) for y in run.rows(i)[1]]

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        return self.rows[at]

    def __len__(self) -> int:
        return len(self.rows)

    def train(self) -> None:
        """Its two states, which are the same here."""

    eval = train


def decoupled() -> nn.Module:
    """Our network in their halves."""
    it, both = network(), importlib.import_module("src.utils.models").DecoupledModel()
    both.base, both.classifier = nn.Sequential(it.backbone, it.projection), it.head
    return both


def run_theirs(how: Compared, run: Ours, folder: Path, mended: bool) -> Iterator[Any]:
    """Yield their server after each round; `folder`: an empty one for its partition; mended, it averages no heads."""
    sizes = run.case.sizes
    starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    indices = [{"train": list(range(a, b)), "val": [], "test": []} for a, b in pairwise(starts)]
    everybody = list(range(len(sizes)))
    separation = {"train": everybody, "val": [], "test": [], "total": len(sizes)}
    (folder / "data" / "mnist").mkdir(parents=True)
    (folder / "data" / "mnist" / "args.json").write_text(json.dumps({}))
    content = pickle.dumps({"separation": separation, "data_indices": indices})
    (folder / "data" / "mnist" / "partition.pkl").write_bytes(content)

    base, clients = (importlib.import_module(f"src.{side}.fedavg") for side in ("server", "client"))
    module, _, name = how.server.partition(".")
    kind = getattr(importlib.import_module(f"src.server.{module}"), name)
    t = 0

    def read(client: Any) -> None:
        i = client.client_id
        batches = [b for request, epochs in how.requests for b in run.batches(i, t, request, epochs=epochs)]
        client.trainloader = Passes(batches, run.plan.batches_a_pass(i))
        client.trainset = range(sizes[i])

    hydra = SimpleNamespace(get=lambda: SimpleNamespace(runtime=SimpleNamespace(output_dir=folder)))
    with contextlib.ExitStack() as patched:
        for of, what, value in (
            (base, "FLBENCH_ROOT", folder),
            (base, "HydraConfig", hydra),
            (base, "MODELS", {"ours": lambda **_: decoupled()}),
            (base.FedAvgServer, "get_dataset", lambda server: Labels(run)),
            (clients.FedAvgClient, "load_data_indices", read),
        ):
            patched.enter_context(mock.patch.object(of, what, value))
        server = kind(arguments(how, run.case))
        if how.ours == "pfedfda":
            server.global_means = run.server.initial.get("gaussian.mean", server.global_means)
        for t in range(1, ROUNDS + 1):
            server.selected_clients = run.cohort(t)
            server.train_one_round()
            if mended:
                head = network().head.state_dict().items()
                server.public_model_params.update({f"classifier.{n}": t.clone() for n, t in head})
            yield server


def compare(how: Compared, case: Case) -> Iterator[Difference]:
    """As it is; then without the reason of a difference, or against the method of ours that it is instead."""
    yield from one_run(how, case)
    if how.mend and case.cohort:
        yield from one_run(how, case, how.mend)
    if how.instead:
        yield from one_run(how, case, f"held against fedbench's {how.instead}:")


def one_run(how: Compared, case: Case, condition: str = "") -> Iterator[Difference]:
    instead = how.instead if condition else ""
    found = Against(how.ours, how.theirs, case.name, condition)
    run = ours(case, instead or how.ours, {} if instead else how.hyper)
    with tempfile.TemporaryDirectory() as folder:
        for t, server in enumerate(run_theirs(how, run, Path(folder), bool(how.mend and condition)), 1):
            after = run.rounds[t - 1]
            pairs = [(common if instead else how.shared)(after, server)]
            pairs += [how.kept(after.clients[i], server, i) for i in run.cohort(t)]
            for quantity, (mine, theirs) in (item for one in pairs for item in one.items()):
                found.see(quantity, mine, theirs)
    yield from found.differences(dict.fromkeys(found.found, how.reason))


def differences(folder: Path, chosen: Collection[str]) -> Iterator[Difference]:
    with importable(folder, NEEDS):
        for how in (one for one in METHODS if one.ours in chosen):
            for case in CASES:
                yield from compare(how, case)
