"""A user's method with mistakes, and with modules beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedbench.methods.fedavg import FedAvg
from fedbench.store import Store
from tests.support.cli_user import DIGITS, SMOKE, Said, fedbench, good

METHOD = """
from dataclasses import dataclass
import sys
from fedbench.core.client import Train
from fedbench.methods.base import Method, cross_entropy


@dataclass(frozen=True)
class Mine(Method):
    {hook}
"""
#: The line of the hook's body, counted by hand.
LINE = 11

pytestmark = pytest.mark.usefixtures("ready", "brief")


def mine(folder: Path, hook: str, body: str) -> str:
    (folder / "mine.py").write_text(METHOD.format(hook=f"{hook}\n        {body}"))
    return "./mine.py:Mine"


def train(*more: str) -> Said:
    return fedbench("train", "--method", "./mine.py:Mine", *SMOKE, "--executor", "sequential", *more)


@pytest.fixture(autouse=True)
def _beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def runs(home: Path) -> list[str]:
    return [run.id for run in Store(home).list("run") if run.manifest["spec"]["method"] == "Mine"]


def failures(home: Path) -> list[dict[str, str]]:
    return [json.loads(path.read_text()) for path in (home / "failed").glob("*.json")]


@pytest.mark.parametrize(
    ("hook", "body", "told"),
    [
        ("def local(self, client):", "yield 1 / 0", "in local: ZeroDivisionError: division by zero"),
        ("def local(self, client):", "sys.exit(0)", "in local: SystemExit: 0"),
        ("def aggregate(self, server, cohort, t):", "sys.exit()", "in aggregate: SystemExit"),
        (
            "def aggregate(self, server, cohort, t):",
            "server.round = 99",
            "in aggregate: AttributeError: server.round ",
        ),
        ("def personalise(self, client):", "return {}['key']", "in personalise: KeyError: 'key'"),
        ("def deviations(self=None):", "return 1 / 0", "in deviations: ZeroDivisionError: division by zero"),
        ("def variables(self, model, context, generator):", "raise GeneratorExit", "in variables: GeneratorExit"),
    ],
)
def test_a_mistake_in_a_hook_is_one_line_and_a_failure(
    home: Path, tmp_path: Path, hook: str, body: str, told: str
) -> None:
    mine(tmp_path, hook, body)
    said = train()
    assert said.code == 2
    assert said.line.startswith(f"fedbench: mine.py, line {LINE}, {told}")
    assert "Traceback" not in said.err
    assert runs(home) == []
    (failure,) = failures(home)
    assert said.line == f"fedbench: {failure['reason']}"
    assert "fedbench/engine/" in failure["log"], "the whole stack is in the log"
    assert "Traceback" in train("--debug").err


@pytest.mark.parametrize(
    ("hook", "body", "told"),
    [
        ("def check_setting(self, setting):", "return 1 / 0", "in check_setting: ZeroDivisionError"),
        ("def relative_compute(self, setting):", "sys.exit(0)", "in relative_compute: SystemExit: 0"),
        ("def __post_init__(self):", "sys.exit(0)", "in __post_init__: SystemExit: 0"),
    ],
)
def test_a_mistake_before_the_run_is_one_line(tmp_path: Path, hook: str, body: str, told: str) -> None:
    mine(tmp_path, hook, body)
    said = train()
    assert said.code == 2
    assert f"mine.py, line {LINE}, {told}" in said.line


@pytest.mark.parametrize(
    ("hook", "body", "told"),
    [
        (
            "def local(self, client):",
            "return Train(cross_entropy)",
            "Mine: local returns Train(...), and what is returned is not done; write `yield Train(...)`",
        ),
        (
            "def serve(self, server, client):",
            "return client.state",
            "Mine: serve returns a dict, and what is returned is lost; "
            "change the server or the client that it is handed, and return nothing",
        ),
        (
            "def broadcast(self, server, client):",
            "client.inbox = 'go'",
            "Mine: client.inbox is 'go', which no message can hold; "
            "use a dataclass of tensors, numbers, and dictionaries or lists of them",
        ),
        (
            "def aggregate(self, server, cohort, t):",
            "server.memory = {'m': server.shared['head.bias']}",
            "server.memory is a dict; make it a dataclass, with that as a field",
        ),
    ],
)
def test_what_breaks_the_contract_is_one_line(home: Path, tmp_path: Path, hook: str, body: str, told: str) -> None:
    mine(tmp_path, hook, body)
    said = train()
    assert (said.code, said.line) == (2, f"fedbench: {told}")
    assert runs(home) == []


def test_a_hyper_parameter_does_not_take_the_place_of_a_hook(tmp_path: Path) -> None:
    mine(tmp_path, "start: int = 2", "")
    said = train()
    line = (
        "fedbench: the hyper-parameter start of Mine takes the place of the hook start; "
        "call it start_; its option is --start all the same"
    )
    assert (said.code, said.line) == (2, line)
    mine(tmp_path, "start_: int = 2", "")
    assert train("--start", "3").code == 0


def test_what_a_method_says_of_itself_is_asked_before_it_trains(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine(tmp_path, "def deviations(self=None):", "return 'not a list'")
    monkeypatch.setattr("fedbench.core.trainer.train_together", lambda *given: pytest.fail("it trained"))
    said = train()
    assert (said.code, said.line) == (2, "fedbench: deviations() of Mine gives 'not a list', not a list of texts")
    assert runs(home) == []


@pytest.mark.parametrize("body", ["return 1 / 0", "return 5", "sys.exit(0)"])
def test_a_mistake_in_what_describes_a_trained_run_keeps_it(home: Path, tmp_path: Path, body: str) -> None:
    mine(tmp_path, "def described(self, server):", body)
    said = train()
    assert said.code == 0
    assert len(runs(home)) == 1
    assert "the run has no descriptors: " in said.err
    assert failures(home) == []


def test_a_sweep_lists_the_line_and_the_log(home: Path, tmp_path: Path) -> None:
    mine(tmp_path, "def local(self, client):", "sys.exit(0)")
    said = fedbench("train", "--table", "1", *DIGITS, "--column", "*Dir*", "--method", "./mine.py:Mine")
    assert said.code == 1
    (log,) = (home / "failed").glob("*.json")
    assert said.line.endswith(f"mine.py, line {LINE}, in local: SystemExit: 0 (log: {log})")
    assert "Traceback" not in said.err


def test_fedbenchs_own_mistake_stays_a_traceback(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "aggregate", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fedbench("train", "--method", "fedavg", *SMOKE, "--seed", "7")


def test_a_module_beside_it_is_part_of_the_run(home: Path, tmp_path: Path) -> None:
    mine(tmp_path, "def local(self, client):", "from helper import rate; yield Train(cross_entropy, lr=rate)")
    (tmp_path / "helper.py").write_text("rate = 0.1\n")
    first, again = train("--json"), train("--json")
    (tmp_path / "helper.py").write_text("rate = 0.2\n")
    second = train("--json")
    assert (first.code, again.code, second.code) == (0, 0, 0), first.err + second.err
    assert first.out == again.out
    assert len(runs(home)) == 2


def test_a_run_that_was_stopped_does_not_go_on_with_another_helper(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run made of two codes: its first rounds by the one, its last by the other."""
    body = "import helper; helper.at(client.round); yield Train(cross_entropy)"
    mine(tmp_path, "def local(self, client):", body)
    stop = "def at(round):\n    if round == 2:\n        raise KeyboardInterrupt\n"
    (tmp_path / "helper.py").write_text(stop)
    assert train().code == 130
    assert "goes on after round 1" in train().err
    (tmp_path / "helper.py").write_text("def at(round): ...\n")
    said = train()
    assert said.code == 0
    assert "goes on" not in said.err


def test_two_plugins_whose_helpers_have_one_name(home: Path, tmp_path: Path) -> None:
    for folder, rate in (("one", 0.1), ("two", 0.2)):
        (tmp_path / folder).mkdir()
        body = f"import helper; assert helper.rate == {rate}; yield Train(cross_entropy)"
        mine(tmp_path / folder, "def local(self, client):", body)
        (tmp_path / folder / "helper.py").write_text(f"rate = {rate}\n")
    methods = ("--method", "one/mine.py:Mine", "--method", "two/mine.py:Mine")
    good("train", "--table", "1", *DIGITS, "--column", "*Dir*", *methods)
    assert len(runs(home)) == 2


@pytest.mark.parametrize("folder", ["a:b", "a.py:b", "with space", "~strange"])
def test_odd_folders(home: Path, tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    mine(tmp_path / folder, "def local(self, client):", "yield Train(cross_entropy)")
    good("train", "--method", f"./{folder}/mine.py:Mine", *SMOKE)
    assert len(runs(home)) == 1
    assert '"name": "Mine"' in good("methods", f"./{folder}/mine.py", "--json").out


def test_a_home_folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    mine(tmp_path, "def local(self, client):", "yield Train(cross_entropy)")
    good("methods", "~/mine.py:Mine")
    said = fedbench("methods", "~no_such_user/mine.py:Mine")
    assert (said.code, said.line) == (2, "fedbench: no file ~no_such_user/mine.py to take the method from")
    assert fedbench("methods", f"./{'x' * 5000}.py:Mine").code == 2
