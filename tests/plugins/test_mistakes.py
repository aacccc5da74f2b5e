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
ROWS = "not a tensor with a row for each image"


@pytest.mark.parametrize(
    ("executor", "body", "returned", "line"),
    [
        *(
            (executor, *row)
            for executor in ("sequential", "stacked")
            for row in (
                (
                    SLIP,
                    "F.cross_entropy(model(batch.x), batch.y)",
                    "returns a tensor [], not a Loss; return Loss(total)",
                ),
                (SLIP, "'entropy'", "returns 'entropy', not a Loss; return Loss(total)"),
                (SLIP, "None", "returns None, not a Loss; return Loss(total)"),
                (SLIP, "Loss('entropy')", TOTAL.format("'entropy'")),
                (SLIP, f"Loss({EACH})", TOTAL.format("a tensor [16]")),
                (SLIP.replace("Train", "Gradient"), "1.0", "returns 1.0, not a Loss; return Loss(total)"),
                (COLLECT, "'x'", f"returns 'x', {ROWS}"),
                (COLLECT, "batch.x.sum()", f"returns a tensor [], {ROWS}"),
                (COLLECT, "batch.x[:1]", f"returns a tensor [1, 1, 8, 8], {ROWS}"),
            )
        ),
        ("sequential", SLIP.replace("self.slip", "alone"), "", "mine.py, line 7: alone returns 3, not a Loss;"),
    ],
)
def test_a_function_that_gives_what_it_should_not_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str, body: str, returned: str, line: str
) -> None:
    line = line if "mine.py" in line else f"Mine: slip {line}"
    assert _said(tmp_path, monkeypatch, LOCAL, body, returned or "None", executor).startswith(line)


@pytest.mark.parametrize(
    ("hook", "body", "line"),
    [
        (LOCAL, f"client.state = {{}}; {TRAIN}", f"Mine: local leaves client.state {WITHOUT}"),
        (LOCAL, f"{TRAIN}; {OTHER}", f"Mine: local leaves client.state[{FORM}"),
        (LOCAL, f"{TRAIN}; {DOUBLE.format('client.state')}", f"Mine: local leaves client.state[{LONG}"),
        (
            LOCAL,
            f"client.state = None; {TRAIN}",
            "local: TypeError: client.state is to be a dictionary of tensors, not None",
        ),
        *(
            (LOCAL, f"yield {request}", f"local: TypeError: {line}")
            for request, line in (
                ("Train('entropy')", "loss of Train is a function of model and batch, not 'entropy'"),
                (
                    "Train(cross_entropy, trains='head.')",
                    "trains of Train is a tuple of names, such as (\"head.\",), not 'head.'",
                ),
                ("Train(cross_entropy, epochs='2')", "epochs of Train is a whole number, not '2'"),
                ("Train(cross_entropy, steps=-1)", "steps of Train is a whole number, not -1"),
                ("Train(cross_entropy, repeat=0)", "repeat of Train is a whole number from 1 on, not 0"),
                ("Train(cross_entropy, lr='x')", "lr of Train is a number, not 'x'"),
                ("Train(cross_entropy, rules=(3,))", "rules of Train is a tuple of rules, not (3,)"),
                ("Train(cross_entropy, extras={'w': 3})", "extras of Train is a dictionary of tensors, not {'w': 3}"),
                (
                    "Collect(self.slip, split='tests')",
                    "split of Collect is one of train, validation, test, not 'tests'",
                ),
                ("Collect(self.slip, part=3)", "part of Collect is two positions, not 3"),
            )
        ),
        *(
            (LOCAL, f"yield {request}", f"Mine: local asks for {line}")
            for request, line in (
                (
                    "Train(cross_entropy, model='own')",
                    "the model 'own', which no client holds; name it in personal_models",
                ),
                ("Train(cross_entropy, trains=('no.',))", "gradients of ('no.',), and no tensor's name begins so"),
                (
                    "Gradient(cross_entropy, part=(0, 99))",
                    "a gradient on images 0 to 99 of 63 (train); give part=(first, end)",
                ),
                (
                    "Gradient(cross_entropy, split='validation')",
                    "a gradient on images 0 to 0 of 0 (validation); give part=(first, end)",
                ),
            )
        ),
        (
            LOCAL,
            "return Train(cross_entropy)",
            "Mine: local returns Train(...), and what is returned is not done; write `yield Train(...)`",
        ),
        (
            SERVE,
            "return client.state",
            "Mine: serve returns a dict, and what is returned is lost; "
            "change the server or the client that it is handed, and return nothing",
        ),
        (
            BROADCAST,
            "client.inbox = 'go'",
            "Mine: client.inbox is 'go', which no message can hold; "
            "use a dataclass of tensors, numbers, and dictionaries or lists of them",
        ),
        (
            SHARED,
            "server.memory = {'m': server.shared['head.bias']}",
            "server.memory is a dict; make it a dataclass, with that as a field",
        ),
        ("communicates(self, t, rounds)", "pass", "Mine: communicates returns None, not True or False"),
        ("round_metrics(self, server)", "pass", "Mine: round_metrics returns None, not a dictionary of numbers"),
        (
            "personalise(self, client)",
            "client.answers_by = Collect(alike)",
            "a client answers an image by scores [64], not [10]; let client.answers_by put out a score for each class",
        ),
        (BROADCAST, OTHER, f"Mine: broadcast leaves client.state[{FORM}"),
        (BROADCAST, "client.state = {}", f"Mine: broadcast leaves client.state {WITHOUT}"),
        (SERVE, f"client.state['{BIAS}'] = 3", f"Mine: serve leaves client.state['{BIAS}'] as 3, not a tensor"),
        (
            "personalise(self, client)",
            "client.answers_by = 'scores'",
            "personalise: TypeError: client.answers_by is to be a Collect request, not 'scores'",
        ),
        (SHARED, "server.shared = None", "aggregate: TypeError: server.shared is to be a dictionary, not None"),
        (SHARED, "server.shared = {}", f"Mine: aggregate leaves server.shared {WITHOUT}"),
        (SHARED, f"server.shared['{BIAS}'] = torch.ones(3)", f"Mine: aggregate leaves server.shared[{FORM}"),
        (SHARED, "server.models = None", "aggregate: TypeError: server.models is to be a list, not None"),
        (SHARED, "server.models = [{}]", "Mine: aggregate leaves server.models[0] without a tensor"),
        (
            SHARED,
            f"server.models = [server.shared, {{'{BIAS}': server.shared['{BIAS}']}}]",
            f"Mine: aggregate leaves server.models[1] {WITHOUT}",
        ),
        (STEP, DOUBLE.format("server.shared"), f"Mine: step leaves server.shared[{LONG}"),
        ("start(self, server)", f"server.shared['{BIAS}'] = torch.ones(3)", f"Mine: start leaves server.shared[{FORM}"),
        (
            "build(self, model, context)",
            "model.train()",
            "Mine: build returns None, not a network; return the nn.Module",
        ),
        (
            "variables(self, model, context, generator)",
            "pass",
            "Mine: variables returns its tensors as None, not a dictionary of tensors",
        ),
    ],
)
def test_a_slip_in_a_hook_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str, body: str, line: str
) -> None:
    line = line if line.startswith(("Mine", "a client", "server")) else f"mine.py, line 14, in {line}"
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
