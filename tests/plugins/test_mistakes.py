"""Whose mistake it is, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbench import methods
from fedbench.errors import FedbenchError
from fedbench.plugins.load import load
from fedbench.plugins.mistakes import PluginError, mistake, reported
from tests.support.lab import federation, finish, setting, trainer
from tests.support.plugin_files import write

HOOKS = """
import sys
import torch
from helper import divide
def own():
    return {}["key"]
def helpers():
    return divide(0)
def torchs():
    return torch.zeros(2) + torch.zeros(3)
def ends():
    sys.exit(0)
def box():
    yield 1
    raise ValueError("one\\nline")
def refused():
    from fedbench.errors import FedbenchError
    raise FedbenchError("--mu of mine must be positive")
def interrupted():
    raise KeyboardInterrupt
"""


@pytest.mark.parametrize(
    ("hook", "line"),
    [
        ("own", "mine.py, line 6, in own: KeyError: 'key'"),
        ("helpers", "helper.py, line 2, in divide: ZeroDivisionError: division by zero"),
        ("torchs", "mine.py, line 10, in torchs: RuntimeError: The size of tensor a (2) must match"),
        ("ends", "mine.py, line 12, in ends: SystemExit: 0"),
        ("box", "mine.py, line 15, in box: ValueError: one"),
    ],
)
def test_the_plugins_last_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str, line: str) -> None:
    monkeypatch.chdir(tmp_path)
    module, _ = load(write(tmp_path, mine=HOOKS, helper="def divide(x):\n    return 1 / x\n"))
    with pytest.raises(PluginError) as caught, reported():
        list(getattr(module, hook)() or ())
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(("hook", "error"), [("refused", FedbenchError), ("interrupted", KeyboardInterrupt)])
def test_what_is_one_line_already_and_an_interrupt_stay(tmp_path: Path, hook: str, error: type[BaseException]) -> None:
    module, _ = load(write(tmp_path, mine=HOOKS, helper="def divide(x): ..."))
    with pytest.raises(error) as caught, reported():
        getattr(module, hook)()
    assert type(caught.value) is error


def test_fedbenchs_own_mistakes_stay_tracebacks() -> None:
    with pytest.raises(ZeroDivisionError) as caught, reported():
        _ = 1 / 0
    assert mistake(caught.value) is None


METHOD = """
from dataclasses import dataclass
import torch
from torch.nn import functional as F
from fedbench.core.client import Collect, Gradient, Loss, Train
from fedbench.methods.base import Method, cross_entropy
def alone(model, batch): return 3
def alike(model, batch): return batch.x.flatten(1)
@dataclass(frozen=True)
class Mine(Method):
    def slip(self, model, batch):
        return {returned}
    def {hook}:
        {body}
"""
LOCAL, BROADCAST, SERVE = "local(self, client)", "broadcast(self, server, client)", "serve(self, server, client)"
SHARED, STEP = "aggregate(self, server, cohort, t)", "step(self, server, before, share)"
TRAIN, SLIP, COLLECT = "yield Train(cross_entropy)", "yield Train(self.slip)", "yield Collect(self.slip)"
EACH = "F.cross_entropy(model(batch.x), batch.y, reduction='none')"
BIAS, FIRST = "head.bias", "backbone.0.weight"
OTHER = f"client.state = {{**client.state, '{BIAS}': torch.zeros(3)}}"
DOUBLE = "{0} = {{n: t.double() for n, t in {0}.items()}}"
WITHOUT = f"without {FIRST}; change some in a copy of the dictionary, and leave the rest"
FORM = f"'{BIAS}'] as float32 [3], not float32 [10]; keep its shape and type"
LONG = f"'{FIRST}'] as float64 [16, 1, 3, 3], not float32 [16, 1, 3, 3]; keep its shape and type"
TOTAL = "returns a Loss whose total is {}, not a single number's tensor; take the mean over the batch"
ANSWERS, VARIABLES = "personalise(self, client)", "variables(self, model, context, generator)"
BY = "personalise: TypeError: client.answers_by"
PART = f"{{'{BIAS}': server.shared['{BIAS}']}}"
ROWS = "not a tensor with a row for each image"


#: What a function given in a request returns, and what is said of it.
RETURNED = [
    (SLIP, "F.cross_entropy(model(batch.x), batch.y)", "returns a tensor [], not a Loss; return Loss(total)"),
    (SLIP, "'entropy'", "returns 'entropy', not a Loss; return Loss(total)"),
    (SLIP, "None", "returns None, not a Loss; return Loss(total)"),
    (SLIP, "Loss('entropy')", TOTAL.format("'entropy'")),
    (SLIP, f"Loss({EACH})", TOTAL.format("a tensor [16]")),
    (SLIP.replace("Train", "Gradient"), "1.0", "returns 1.0, not a Loss; return Loss(total)"),
    (COLLECT, "'x'", f"returns 'x', {ROWS}"),
    (COLLECT, "batch.x.sum()", f"returns a tensor [], {ROWS}"),
    (COLLECT, "batch.x[:1]", f"returns a tensor [1, 1, 8, 8], {ROWS}"),
]


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize(("body", "returned", "line"), RETURNED)
def test_a_function_that_gives_what_it_should_not_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str, body: str, returned: str, line: str
) -> None:
    assert _said(tmp_path, monkeypatch, LOCAL, body, returned, executor).startswith(f"Mine: slip {line}")


def test_a_function_outside_the_class_is_named_by_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = _said(tmp_path, monkeypatch, LOCAL, SLIP.replace("self.slip", "alone"))
    assert said.startswith("mine.py, line 7: alone returns 3, not a Loss;")


#: Requests that cannot be, as their own constructors say, and as a round does.
WRONG = [
    ("Train('entropy')", "loss of Train is a function of model and batch, not 'entropy'"),
    ("Train(cross_entropy, trains='head.')", "trains of Train is a tuple of names, such as (\"head.\",), not 'head.'"),
    ("Train(cross_entropy, epochs='2')", "epochs of Train is a whole number, not '2'"),
    ("Train(cross_entropy, steps=-1)", "steps of Train is a whole number, not -1"),
    ("Train(cross_entropy, repeat=0)", "repeat of Train is a whole number from 1 on, not 0"),
    ("Train(cross_entropy, lr='x')", "lr of Train is a number, not 'x'"),
    ("Train(cross_entropy, rules=(3,))", "rules of Train is a tuple of rules, not (3,)"),
    ("Train(cross_entropy, extras={'w': 3})", "extras of Train is a dictionary of tensors, not {'w': 3}"),
    ("Collect(self.slip, split='tests')", "split of Collect is one of train, validation, test, not 'tests'"),
    ("Collect(self.slip, part=3)", "part of Collect is two positions, not 3"),
]
GIVE = "give part=(first, end)"
ASKED = [
    ("Train(cross_entropy, model='own')", "the model 'own', which no client holds; name it in personal_models"),
    ("Train(cross_entropy, trains=('no.',))", "gradients of ('no.',), and no tensor's name begins so"),
    ("Gradient(cross_entropy, part=(0, 99))", f"a gradient on images 0 to 99 of 63 (train); {GIVE}"),
    ("Gradient(cross_entropy, split='validation')", f"a gradient on images 0 to 0 of 0 (validation); {GIVE}"),
]
DO_NOT = "and what is returned is"
SERVES = f"returns a dict, {DO_NOT} lost; change the server or the client that it is handed, and return nothing"
NO_MESSAGE = "which no message can hold; use a dataclass of tensors, numbers, and dictionaries or lists of them"
#: What hooks leave or return: the hook, its body, and what is said.
LEFT = [
    (LOCAL, f"client.state = {{}}; {TRAIN}", f"local leaves client.state {WITHOUT}"),
    (LOCAL, f"{TRAIN}; {OTHER}", f"local leaves client.state[{FORM}"),
    (LOCAL, f"{TRAIN}; {DOUBLE.format('client.state')}", f"local leaves client.state[{LONG}"),
    (LOCAL, "return Train(cross_entropy)", f"local returns Train(...), {DO_NOT} not done; write `yield Train(...)`"),
    (SERVE, "return client.state", f"serve {SERVES}"),
    (SERVE, f"client.state['{BIAS}'] = 3", f"serve leaves client.state['{BIAS}'] as 3, not a tensor"),
    (BROADCAST, "client.inbox = 'go'", f"client.inbox is 'go', {NO_MESSAGE}"),
    (BROADCAST, OTHER, f"broadcast leaves client.state[{FORM}"),
    (BROADCAST, "client.state = {}", f"broadcast leaves client.state {WITHOUT}"),
    ("communicates(self, t, rounds)", "pass", "communicates returns None, not True or False"),
    ("round_metrics(self, server)", "pass", "round_metrics returns None, not a dictionary of numbers"),
    (SHARED, "server.shared = {}", f"aggregate leaves server.shared {WITHOUT}"),
    (SHARED, f"server.shared['{BIAS}'] = torch.ones(3)", f"aggregate leaves server.shared[{FORM}"),
    (SHARED, "server.models = [{}]", "aggregate leaves server.models[0] without a tensor"),
    (SHARED, f"server.models = [server.shared, {PART}]", f"aggregate leaves server.models[1] {WITHOUT}"),
    (STEP, DOUBLE.format("server.shared"), f"step leaves server.shared[{LONG}"),
    ("start(self, server)", f"server.shared['{BIAS}'] = torch.ones(3)", f"start leaves server.shared[{FORM}"),
    ("build(self, model, context)", "model.train()", "build returns None, not a network; return the nn.Module"),
    (VARIABLES, "pass", "variables returns its tensors as None, not a dictionary of tensors"),
]
#: What is refused at once, at the line of the assignment.
ASSIGNED = [
    (
        LOCAL,
        f"client.state = None; {TRAIN}",
        "local: TypeError: client.state is to be a dictionary of tensors, not None",
    ),
    (ANSWERS, "client.answers_by = 'scores'", f"{BY} is to be a Collect request, not 'scores'"),
    (SHARED, "server.shared = None", "aggregate: TypeError: server.shared is to be a dictionary, not None"),
    (SHARED, "server.models = None", "aggregate: TypeError: server.models is to be a list, not None"),
]
FEW = "a client answers an image by scores [64], not [10]; let client.answers_by put out a score for each class"
MEMORY = "server.memory is a dict; make it a dataclass, with that as a field"


@pytest.mark.parametrize(
    ("hook", "body", "line"),
    [
        *((hook, body, f"Mine: {line}") for hook, body, line in LEFT),
        *((hook, body, f"mine.py, line 14, in {line}") for hook, body, line in ASSIGNED),
        *((LOCAL, f"yield {request}", f"mine.py, line 14, in local: TypeError: {line}") for request, line in WRONG),
        *((LOCAL, f"yield {words}", f"Mine: local asks for {line}") for words, line in ASKED),
        (SHARED, "server.memory = {'m': server.shared['head.bias']}", MEMORY),
        (ANSWERS, "client.answers_by = Collect(alike)", FEW),
    ],
)
def test_a_slip_in_a_hook_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str, body: str, line: str
) -> None:
    assert _said(tmp_path, monkeypatch, hook, body) == line


def _said(
    folder: Path, at: pytest.MonkeyPatch, hook: str, body: str, returned: str = "None", executor: str = "sequential"
) -> str:
    """What is said of a method with this hook, when it trains a round."""
    at.chdir(folder)
    write(folder, mine=METHOD.format(returned=returned, hook=hook, body=body))
    kind, _ = methods.load("./mine.py:Mine")
    with pytest.raises(FedbenchError) as caught, reported():
        finish(trainer(kind(), federation(), folder / "run", setting(rounds=1, window=1), executor=executor))
    assert "\n" not in str(caught.value)
    return str(caught.value)
