"""Plug-ins: what belongs to the source of one, how it runs apart, with the modules of its own folder, from the text
that was hashed; and whose mistake it is, in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedbench import methods
from fedbench.errors import FedbenchError
from fedbench.plugins import PluginError, mistake, reported
from fedbench.plugins.load import load, statements
from fedbench.plugins.source import read
from tests.support.lab import federation, finish, setting, trainer


def write(folder: Path, **texts: str) -> Path:
    """Files by module path ('a__b' is a/b.py, 'a____init__' a/__init__.py); returns mine.py."""
    for name, text in texts.items():
        module = name.removesuffix("____init__")
        file = folder / (module.replace("__", "/") + "/__init__" * (module != name) + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder / "mine.py"


KIT = {"kit____init__": "", "kit__tool": "from . import base\nx = base.x", "kit__base": "x = 7", "kit__unused": ""}
OF_KIT = {"mine", "kit", "kit.tool", "kit.base"}


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        *(
            (statement, {"mine", "helper"})
            for statement in (
                "import helper\nx = helper.x",
                "import helper as h\nx = h.x",
                "from helper import x",
                "from helper import *",
                "from . import helper\nx = helper.x",
                "from .helper import x",
                "import importlib, helper\nx = helper.x",
                "class A:\n    def late(self):\n        from helper import x\n        return x\nx = A().late()",
                "import typing\nif typing.TYPE_CHECKING:\n    import numpy\nelse:\n    import helper\nx = helper.x",
                "try:\n    import helper\nexcept ImportError: pass\nx = helper.x",
            )
        ),
        *(
            (statement, OF_KIT)
            for statement in (
                "import kit.tool\nx = kit.tool.x",
                "import kit.tool as t\nx = t.x",
                "from kit import tool\nx = tool.x",
                "from kit.tool import x",
            )
        ),
        ("from plain.part import x", {"mine", "plain", "plain.part", "helper"}),
        ("import math\nimport numpy as np\nfrom fedbench.core import client\nx = 7", {"mine"}),
    ],
)
def test_every_form_of_import(tmp_path: Path, statement: str, expected: set[str]) -> None:
    texts = {"helper": "x = 7", "plain__part": "import helper\nx = helper.x", **KIT}
    file = write(tmp_path, mine=statement, **texts)
    before = read(file)
    assert set(before.modules) == expected
    assert load(file)[0].x == 7
    assert "helper" not in sys.modules
    assert str(tmp_path) not in sys.path
    write(tmp_path, helper="x = 8", kit__base="x = 8")
    assert (read(file).digest == before.digest) == (expected == {"mine"})


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (
            {"mine": "import one", "one": "from two import x", "two": "import three", "three": "", "four": ""},
            {"mine", "one", "two", "three"},
        ),
        (
            {
                "mine": "from kit.deep import tool",
                "kit____init__": "",
                "kit__deep____init__": "",
                "kit__base": "",
                "kit__deep__tool": "from .. import base\nfrom ...outside import x",
            },
            {"mine", "kit", "kit.deep", "kit.deep.tool", "kit.base"},
        ),
        ({"mine": "import helper", "helper": "import mine"}, {"mine", "helper"}),
        ({"mine": "import sys, fedbench.core.client", "sys": "", "fedbench____init__": ""}, {"mine"}),
        ({"mine": "import numpy, nowhere", "numpy__part": ""}, {"mine"}),
        ({"mine": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import helper\n", "helper": ""}, {"mine"}),
    ],
    ids=["of a helper", "packages", "a circle", "built in", "installed before a mere folder", "for type checkers"],
)
def test_what_belongs_to_the_source(tmp_path: Path, texts: dict[str, str], expected: set[str]) -> None:
    assert set(read(write(tmp_path, **texts)).modules) == expected


MINE = 'import helper\nclass Mine:\n    """Mine."""\n    x: float = 1.0\n    def f(self): return "a b"\n'
HELPER = "def f():\n    return 1\n"


@pytest.mark.parametrize(
    ("file", "old", "new", "same"),
    [
        ("mine", "1.0", "1.0  # a comment", True),
        ("mine", "import", "# a comment\n\nimport", True),
        ("mine", '"""Mine."""', '"""deviates: not at all."""', True),
        ("mine", "1.0", "1.00", True),
        ("mine", "1.0", "1", False),
        ("mine", "a b", "a  b", False),
        ("helper", "def f():", 'def f():\n    """One."""', True),
        ("helper", "return 1", "return (1)", True),
        ("helper", "return 1", "return 2", False),
    ],
)
def test_the_source_is_the_code_not_its_text(tmp_path: Path, file: str, old: str, new: str, same: bool) -> None:
    texts = {"mine": MINE, "helper": HELPER}
    before = read(write(tmp_path, **texts)).digest
    after = read(write(tmp_path, **{**texts, file: texts[file].replace(old, new)})).digest
    assert (before == after) is same


def test_names_and_places_count(tmp_path: Path) -> None:
    texts = [{"a": "x = 1", "b": "x = 2"}, {"a": "x = 2", "b": "x = 1"}, {"a____init__": "x = 1", "b": "x = 2"}]
    files = [write(tmp_path / str(i), mine="import a, b", **more) for i, more in enumerate([*texts, texts[0]])]
    first, *others, again = (read(file).digest for file in files)
    assert first == again
    assert first not in others


def test_each_plugin_has_its_own_helpers_as_they_were_when_it_was_hashed(tmp_path: Path) -> None:
    """Also one that is first imported in a hook; in a folder and a file of whatever name."""
    text = "import helper\nx = helper.x\ndef late():\n    import other\n    return x + other.x\n"
    folders = tmp_path / "one", tmp_path / "a:b c" / "~x"
    one = load(write(folders[0], mine=text, helper="x = 1", other="x = 10"))
    write(folders[1], mine=text, helper="x = 2", other="x = 20")
    two = load((folders[1] / "mine.py").rename(folders[1] / "my-own.v2.py"))
    again = load(write(folders[0], other="x = 30"))
    assert [module.late() for module, _ in (one, two, again)] == [11, 22, 31]
    assert one[1].digest != again[1].digest


def test_a_module_is_there_once(tmp_path: Path) -> None:
    """The plug-in that its own helper imports is the plug-in itself; and what did not change does not run again."""
    file = write(tmp_path, mine="x = object()\nimport helper\n", helper="import mine\n")
    module, _ = load(file)
    assert module.helper.mine is module
    assert load(file)[0] is module
    module, _ = load(
        write(tmp_path, mine="from helper import Thing", helper="from fedbench import rng\nclass Thing: pass")
    )
    assert any(one.module == "fedbench" and one.names == ("rng",) for one in statements(module.Thing))
    assert statements(dict) == ()


FAILS = "def f():\n    x = 0\n    return 1 / x\nf()\n"


@pytest.mark.parametrize(
    ("text", "helper", "line"),
    [
        ("import sys\nsys.exit(0)", "", r"mine\.py, line 2: SystemExit: 0"),
        ("raise SystemExit", "", r"mine\.py, line 1: SystemExit"),
        ("import helper", FAILS, r"helper\.py, line 3, in f: ZeroDivisionError: division by zero"),
        ("import no_such_module", "", r"mine\.py, line 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise RuntimeError('one\\ntwo')", "", r"mine\.py, line 1: RuntimeError: one"),
        ("class Own(BaseException): pass\nraise Own", "", r"mine\.py, line 2: Own"),
        ("from .. import above", "", r"mine\.py, line 1: ImportError: attempted relative import beyond top-level"),
        ("from helper import x", "from mine import y", r"helper\.py, line 1: ImportError: cannot import name 'y'"),
        ("def f(:\n", "", r"mine\.py, line 1: SyntaxError: invalid syntax"),
        ("import helper", "x = 1\n  y = 2\n", r"helper\.py, line 2: IndentationError: unexpected indent"),
        (f"x = {'-' * 5000}1", "", r"mine\.py: RecursionError"),
    ],
)
def test_a_mistake_at_import_is_one_line(tmp_path: Path, text: str, helper: str, line: str) -> None:
    file = write(tmp_path, mine=text, helper=helper)
    for _ in range(2):  # nothing of it stays
        with pytest.raises(PluginError, match=f"cannot load .*{line}") as caught:
            load(file)
        assert "\n" not in str(caught.value)
    with pytest.raises(KeyboardInterrupt):  # which stays one
        load(write(tmp_path, mine="raise KeyboardInterrupt"))


def test_a_module_past_the_import_statements_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the folder is on Python's path importlib finds it; what it does then no digest would tell."""
    monkeypatch.syspath_prepend(tmp_path)
    file = write(tmp_path, mine="import importlib\nimportlib.import_module('hidden_helper')", hidden_helper="x = 1")
    with pytest.raises(FedbenchError, match=r"mine\.py loads .*hidden_helper\.py without an import statement"):
        load(file)
    sys.modules.pop("hidden_helper")


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


def test_the_plugins_last_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module, _ = load(write(tmp_path, mine=HOOKS, helper="def divide(x):\n    return 1 / x\n"))
    for hook, line in (
        (module.own, "mine.py, line 6, in own: KeyError: 'key'"),
        (module.helpers, "helper.py, line 2, in divide: ZeroDivisionError: division by zero"),
        (module.torchs, "mine.py, line 10, in torchs: RuntimeError: The size of tensor a (2) must match"),
        (module.ends, "mine.py, line 12, in ends: SystemExit: 0"),
        (module.box, "mine.py, line 15, in box: ValueError: one"),
    ):
        with pytest.raises(PluginError) as caught, reported():
            list(hook() or ())
        assert str(caught.value).startswith(line)
        assert "\n" not in str(caught.value)
        assert caught.value.__cause__ is not None


def test_what_is_one_line_already_an_interrupt_and_fedbenchs_own_mistakes_stay(tmp_path: Path) -> None:
    module, _ = load(write(tmp_path, mine=HOOKS, helper="def divide(x): ..."))
    for hook, error in (
        (module.refused, FedbenchError),
        (module.interrupted, KeyboardInterrupt),
        (lambda: 1 / 0, ZeroDivisionError),
    ):
        with pytest.raises(error) as caught, reported():
            hook()
        assert type(caught.value) is error
    assert mistake(caught.value) is None
    with pytest.raises(PluginError, match="cannot do it: ZeroDivisionError: division"), reported("cannot do it"):
        hook()
    with pytest.raises(KeyboardInterrupt), reported("cannot do it"):
        module.interrupted()


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
    (SLIP.replace("self.slip", "alone"), "None", "mine.py, line 7: alone returns 3, not a Loss;"),
]


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize(("body", "returned", "line"), RETURNED)
def test_a_function_that_gives_what_it_should_not_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str, body: str, returned: str, line: str
) -> None:
    """A function outside the class by its line."""
    said = _said(tmp_path, monkeypatch, LOCAL, body, returned, executor)
    assert said.startswith(line if "alone" in body else f"Mine: slip {line}")


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
NO_MESSAGE = "which no message can hold; use a dataclass of tensors, numbers, and dictionaries or lists of them"
#: What hooks leave or return: the hook, its body, and what is said.
LEFT = [
    (LOCAL, f"client.state = {{}}; {TRAIN}", f"local leaves client.state {WITHOUT}"),
    (LOCAL, f"{TRAIN}; {OTHER}", f"local leaves client.state[{FORM}"),
    (LOCAL, f"{TRAIN}; {DOUBLE.format('client.state')}", f"local leaves client.state[{LONG}"),
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


@pytest.mark.parametrize(
    ("hook", "body", "line"),
    [
        *((hook, body, f"Mine: {line}") for hook, body, line in LEFT),
        *((hook, body, f"mine.py, line 14, in {line}") for hook, body, line in ASSIGNED),
        *((LOCAL, f"yield {request}", f"mine.py, line 14, in local: TypeError: {line}") for request, line in WRONG),
        *((LOCAL, f"yield {words}", f"Mine: local asks for {line}") for words, line in ASKED),
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
