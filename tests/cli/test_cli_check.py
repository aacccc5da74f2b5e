"""`fedbench check`: a line a check, an exit code, and bad input in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli_user import fedbench, good

PROX = """
from dataclasses import dataclass
from fedbench.core.client import Train
from fedbench.methods.base import Method, cross_entropy, hyperparameter


@dataclass(frozen=True)
class Prox(Method):
    '''FedProx (Li et al., MLSys 2020, Eq. 2).'''

    name = "prox"
    title = "FedProx"
    mu: float = {hyperparameter}

    def local(self, client):
        yield Train(cross_entropy, prox=self.mu)
"""


def prox(folder: Path, hyperparameter: str = "hyperparameter(0.01, 'weight of the proximal term')") -> str:
    (folder / "prox.py").write_text(PROX.format(hyperparameter=hyperparameter))
    return str(folder / "prox.py")


def test_a_good_method_passes_and_nothing_is_stored(home: Path, tmp_path: Path) -> None:
    said = good("check", prox(tmp_path), "--mu", "0.1")
    lines = said.out.splitlines()
    assert sum(line.startswith("✓ ") for line in lines) == 20
    assert not any(line.startswith(("✗", "-")) for line in lines)
    assert lines[-1].endswith("20 hold")
    assert not home.exists()


def test_a_fault_is_a_cross_and_exit_code_1(tmp_path: Path) -> None:
    said = fedbench("check", prox(tmp_path, "0.01"), "--json")
    assert said.code == 1
    told = json.loads(said.out)
    assert told["holds"] is False
    (failed,) = [line for line in told["checks"] if line["holds"] is False]
    assert failed["check"] == "hyper parameters"
    assert failed["why"].startswith("--mu does not say in one line what it is; write mu = hyperparameter(")
    assert "says what it is" in failed["proves"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("fedavgg",), "unknown method or model 'fedavgg'; did you mean 'fedavg'?"),
        (("./nowhere.py:Mine",), "no file ./nowhere.py to take the method, model or partitioner from"),
        (("fedavg", "--mu", "1"), "unknown option of check fedavg '--mu'"),
        (("digits_cnn", "--mu", "1"), "unexpected argument '--mu'; a model has no options"),
        (("feddrm", "--lambda", "much"), "--lambda of feddrm takes a number, not 'much'"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], line: str) -> None:
    said = fedbench("check", *arguments)
    assert said.code == 2
    assert said.out == ""
    assert said.line.startswith(f"fedbench: {line}")


def test_a_file_without_a_class_to_check(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("class Other: ...\n")
    said = fedbench("check", tmp_path / "other.py")
    assert (said.code, "defines 0 methods and models; name one: FILE.py:Class" in said.line) == (2, True)
    said = fedbench("check", f"{tmp_path / 'other.py'}:Other")
    assert (said.code, "is neither a method nor a model; derive it from" in said.line) == (2, True)
