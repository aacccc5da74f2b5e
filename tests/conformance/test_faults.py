"""Plug-ins with one fault each: the suite finds it, by the right check alone, and says what to do. Networks too, and
what two executors may differ by: tensor for tensor of the network, model for model of what stands beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from fedbench.conformance import agreement, learning
from fedbench.conformance.agreement import TOLERANCE, gaps
from fedbench.conformance.subject import Subject
from fedbench.conformance.suite import DECLARED, MODEL, RUNS, TRAINING, Check, CheckOutcome, checks, outcomes

GOOD = """
from __future__ import annotations

from dataclasses import dataclass

import torch
from fedbench.core.client import Loss, Train
from fedbench.measure import Measure
from fedbench.methods.base import Method, cross_entropy, hyperparameter

STEPS = []


@dataclass(frozen=True)
class Mine(Method):
    \"\"\"FedProx (Li et al., MLSys 2020, Eq. 2).{docstring}\"\"\"

    name = "mine"
    title = "Mine"

    mu: float = {hyperparameter}

    def local(self, client):
        {local}

    {more}


@dataclass(frozen=True)
class Kept:
    last: dict[int, torch.Tensor]


def by_image(model, batch):
    losses = torch.nn.functional.cross_entropy(model(batch.x), batch.y, reduction="none")
    return Loss((batch.extras["weight"][batch.position] * losses).mean())
"""
HYPERPARAMETER = 'hyperparameter(0.01, "weight of the proximal term", "mu", "Eq. 2")'
TRAINS = "yield Train(cross_entropy, prox=self.mu)"
SUM = """def aggregate(self, server, cohort, t):
        super().aggregate(server, cohort, t)
        {last}
"""
SEEN = """def variables(self, model, context, generator):
        return {"seen": torch.zeros(())}
"""
SPIES = "labels = client.work.federation.labels[client.work.test_rows]; client.state |= {'seen': labels.float().mean()}"
FORGETS = """def aggregate(self, server, cohort, t):
        super().aggregate(server, cohort, t)
        server.memory = Kept({c.index: c.state["head.bias"] for c in cohort})
"""
OWN = "torch.ones(client.n_train)"
PADDED = "torch.ones(max(client.context.n_train))"
WRONG = """def wrong(self, model, batch):
        return Loss(cross_entropy(model, batch._replace(y=(batch.y + 1) % 10)).total)
"""
TELLS = """def round_metrics(self, server):
        return {"drift": 1.0}
"""
NOTES = """def personalise(self, client):
        client.metrics["trust"] = 1.0
"""
TRUST = 'Measure("trust", "a client\'s trust in itself", "fraction", of="client")'
MOMENTUM = """n = self.__dict__.setdefault("rounds", [0])
        n[0] += 1
        server.shared["head.bias"] = server.shared["head.bias"] + 0.001 * n[0]"""
MODULE = """STEPS.append(t)
        server.shared["head.bias"] = server.shared["head.bias"] + 0.001 * len(STEPS)"""


def checked(given: str, folder: Path, among: Sequence[Check] = ()) -> list[CheckOutcome]:
    """Every check's outcome (or those `among` them), in the suite's order; runs are made in the folder."""
    subject = Subject.of(given, folder / "runs")
    return list(outcomes(subject, among or checks(subject), lambda check: None))


def plugin(
    folder: Path, hyperparameter: str = HYPERPARAMETER, local: str = TRAINS, more: str = "", docstring: str = ""
) -> str:
    """The file of a method, which is good but for what is changed."""
    text = GOOD.format(hyperparameter=hyperparameter, local=local, more=more, docstring=docstring)
    (folder / "mine.py").write_text(text)
    return f"{folder / 'mine.py'}:Mine"


def test_a_good_plugin_passes_every_check(tmp_path: Path) -> None:
    found = checked(plugin(tmp_path), tmp_path)
    assert [(o.check.name, o.why) for o in found if not o.holds] == []
    assert all(o.check.text for o in found)


#: Of each check what fails it, by what is changed in the good plug-in, and what it says of that.
FAULTS: dict[str, list[tuple[dict[str, str], str]]] = {
    "same seed same bits": [
        (
            {"local": f"{TRAINS}; client.state |= {{'head.bias': client.state['head.bias'] + 1e-4 * torch.randn(10)}}"},
            "draw from the generator of variables()",
        )
    ],
    "stop and resume": [
        ({"more": SUM.format(last=MOMENTUM)}, "what lies on the method itself"),
        ({"more": SUM.format(last=MODULE)}, "or in its module is lost at a stop"),
    ],
    "test labels change nothing": [
        ({"local": f"{TRAINS}; {SPIES}", "more": SEEN}, "client.work is the executor's alone")
    ],
    "extras have one shape": [
        (
            {"local": f"yield Train(by_image, prox=self.mu, extras={{'weight': {OWN}}})"},
            "so that they cannot be stacked; give it the length of the largest client, max(client.context.n_train)",
        )
    ],
    "trains and answers": [
        (
            {"local": "return Train(cross_entropy, prox=self.mu)"},
            "mine: local returns Train(...), and what is returned is not done; write `yield Train(...)`",
        ),
        (
            {"more": FORGETS},
            "server.memory is a Kept after a round and was nothing after `start`, so that it would not survive a "
            "resume; let `start` make the first one, of the same dataclass",
        ),
    ],
    "requests can be stacked": [
        (
            {"local": "yield Train(lambda model, batch: cross_entropy(model, batch), prox=self.mu)"},
            "mine.py, line 24) is new for every client, so none can be stacked; define it at the top of the file",
        )
    ],
    "no tensor is overwritten": [
        (
            {"local": f"{TRAINS}; client.received['head.bias'].mul_(0.9)"},
            "'head.bias', as the server held it before the first round, was changed in place later; make a new tensor",
        )
    ],
    "hyper parameters": [({"hyperparameter": "0.01"}, "--mu does not say in one line what it is; write mu = ")],
    "learns": [({"local": "yield Train(self.wrong, prox=self.mu)", "more": WRONG}, "of the answers are right")],
    "vectors of numbers": [
        (
            {"local": f"assert client.context.shape[0] > 1, 'no picture'; {TRAINS}"},
            "mine.py, line 24, in local: AssertionError: no picture",
        ),
        (
            {"local": "yield Train(cross_entropy, lr=0.05 if client.context.shape[0] > 1 else 0.0)"},
            "on vectors nothing of the network is trained",
        ),
    ],
    "signatures": [({"more": "def personalise(self, client, rows): ..."}, "write def personalise(self, client):")],
    "declarations": [
        ({"more": 'personal = ("head.")'}, "personal is 'head.', not a tuple; write such as personal"),
        (
            {"more": "def answers_after_local(self): return False"},
            "answers_after_local is a function, not a property; write @property above it",
        ),
        ({"more": "def routes(self): return False"}, "not a bool; write such as routes = True"),
        ({"more": "aggregate = None"}, "aggregate is a NoneType, not a hook; write def aggregate("),
    ],
    "metrics are declared": [
        ({"more": TELLS}, "it reports 'drift' of each round, which it does not declare; write"),
        (
            {"more": NOTES},
            "it reports 'trust' of each client, which it does not declare; write measures = (Measure(\"trust\", ",
        ),
    ],
    "measures": [({"more": f"measures = ({TRUST.replace('trust', 'bytes_up')},)"}, "Mine measures 'bytes_up'")],
    "deviations": [({"docstring": " deviates: a lot."}, "begin a paragraph of its own")],
}


@pytest.mark.parametrize(
    ("changes", "check", "told"),
    [(changes, check, told) for check, faults in FAULTS.items() for changes, told in faults],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) and len(value) < 40 else "",
)
def test_one_fault_fails_one_check(
    changes: dict[str, str], check: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the checks that train, only those are asked that may find it; two rounds are tried to learn."""
    monkeypatch.setattr(learning, "TRIES", ((2, 0.05),))
    trained = RUNS if check not in {c.name for c in DECLARED} else ()
    among = (*DECLARED, *trained, *(c for c in TRAINING if c.name == check))
    failed = [o for o in checked(plugin(tmp_path, **changes), tmp_path, among) if o.holds is False]
    assert [(o.check.name, told in o.why) for o in failed] == [(check, True)], [o.why for o in failed]


def test_what_the_checks_ask_for_is_enough(tmp_path: Path) -> None:
    """Extras of one length, a memory that `start` makes, messages that are dataclasses and figures that are declared
    pass."""
    start = """def start(self, server):
        server.memory = Kept({})
"""
    local = f"yield Train(by_image, prox=self.mu, extras={{'weight': {PADDED}}}); client.upload = Kept({{}})"
    figures = f'{TELLS}\n    {NOTES}\n    measures = ({TRUST}, Measure("drift", "d", "distance"))'
    given = plugin(tmp_path, local=local, more=f"{start}\n    {FORGETS}\n    {figures}")
    found = checked(given, tmp_path, (*DECLARED, *RUNS, *(c for c in TRAINING if c.name == "stop and resume")))
    assert [(o.check.name, o.why) for o in found if not o.holds] == []


def test_a_mistake_is_told_by_its_line_once(tmp_path: Path) -> None:
    found = checked(plugin(tmp_path, local="yield 1 / 0"), tmp_path)
    failed = [o for o in found if o.holds is False]
    assert [o.check.name for o in failed] == ["trains and answers"]
    assert "mine.py, line 24, in local: ZeroDivisionError: division by zero" in failed[0].why
    assert any(o.holds is None and o.why == "not run, as 'trains and answers' does not hold" for o in found)


NET = """
import torch
from torch import nn
from fedbench.models.base import FLModel, flat_size


class Noise(nn.Module):
    def forward(self, x):
        return x + 0.01 * torch.randn(x.shape) if self.training else x


class Count(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum().item() > 0 else x


class Net(FLModel):
    def __init__(self, shape, classes):
        body = nn.Sequential(nn.Conv2d(shape[2], 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), {layer}, nn.Flatten())
        size = flat_size(body, "net", shape)
        super().__init__(body, nn.Identity(), nn.Linear(size, classes), backbone_size=size)
"""


def net(folder: Path, layer: str = "nn.Identity()") -> str:
    (folder / "net.py").write_text(NET.format(layer=layer))
    return f"{folder / 'net.py'}:Net"


@pytest.mark.parametrize("name", ["", "digits_cnn", pytest.param("cifar_cnn_bn", marks=pytest.mark.slow)])
def test_a_good_network_passes(name: str, tmp_path: Path) -> None:
    """A plug-in, and built-in ones of small and of larger images."""
    found = checked(name or net(tmp_path), tmp_path)
    assert [(o.check.name, o.why) for o in found if not o.holds] == []


@pytest.mark.parametrize("name", ["lenet5_flux", "resnet9"])
def test_a_step_of_fluxs_networks_is_the_same_by_each_executor(name: str, tmp_path: Path) -> None:
    steps = [check for check in MODEL if check.proves is agreement.executors_agree_on_a_step]
    (found,) = checked(name, tmp_path, steps)
    assert found.holds, found.why


@pytest.mark.parametrize(
    ("layer", "check", "told"),
    [
        ("nn.Dropout(0.1)", "form", "draws from torch's own generator; leave it out"),
        ("Noise()", "same seed same bits", "the same run made twice is not the same"),
        ("Count()", "executors agree on a step", "item"),
    ],
)
def test_one_fault_of_a_network_fails_one_check(layer: str, check: str, told: str, tmp_path: Path) -> None:
    failed = [o for o in checked(net(tmp_path, layer), tmp_path) if o.holds is False]
    assert [(o.check.name, told in o.why) for o in failed] == [(check, True)]


SMALL, ROUNDING = 5e-5, 2e-7


@pytest.mark.parametrize(
    ("place", "agree"),
    [
        ("shared", False),
        ("memory", False),
        ("personal/3", False),
        ("model/0", False),
        ("shared/control", True),
        ("memory/h", True),
        ("personal/3/own", True),
        ("model/0/control", True),
    ],
)
def test_rounding_of_a_small_tensor_counts_by_its_model(place: str, agree: bool) -> None:
    large, small = f"{place}/head.weight", f"{place}/backbone.conv.bias"
    reference = {large: torch.tensor([0.5, -2.0]), small: torch.tensor([SMALL])}
    ours = {**reference, small: reference[small] + ROUNDING}
    assert (gaps(ours, reference)[small] <= TOLERANCE) is agree
    assert gaps({**reference, small: reference[small] + 1e-3}, reference)[small] > TOLERANCE
    assert gaps({**reference, large: reference[large] + 1e-3}, reference)[large] > TOLERANCE
    counter = f"{place}/norm.num_batches_tracked"  # which makes no tensor beside it large, and may not differ
    reference = {counter: torch.tensor(5000), small: torch.tensor([SMALL])}
    assert gaps({**reference, small: reference[small] + ROUNDING}, reference)[small] > TOLERANCE
    assert gaps({**reference, counter: torch.tensor(5001)}, reference)[counter] > TOLERANCE
