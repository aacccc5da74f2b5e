"""What methods declare: kept of fedbench's own, imported of a user's file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedbench import methods
from fedbench.declaration import HyperParameter, of_class
from fedbench.errors import FedbenchError
from fedbench.methods.declarations import FILE, built_in, of
from fedbench.plugins.source import read

MINE = """
from dataclasses import dataclass

from beside import TWO
from fedbench.measure import Measure
from fedbench.methods.base import HEAD, Method, hyperparameter
from fedbench.methods.parts.clustered import CLUSTERS


@dataclass(frozen=True)
class Options:
    '''No method, but what two of them share.'''

    lambda_: float = hyperparameter(1 / 2, "weight", "λ", "Eq. 1", least=0)


@dataclass(frozen=True)
class Mine(Options, Method):
    '''Derives its hyper-parameters.

    deviates: it is none.
    '''

    version = 2
    personal = (*HEAD, "own/")
    measures = tuple(one for one in (*TWO, CLUSTERS))

    last: int = hyperparameter(max(2, 1), "of them", choices=(2, 3))
    clusters: int = hyperparameter(0, "models", least=0)


class Plain(Options, Method):
    name = "aside"
"""
BESIDE = """
from fedbench.measure import Measure

TWO = (Measure("two", "t", "x"),)
"""


def test_a_users_file_declares_what_its_class_is(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    (tmp_path / "beside.py").write_text(BESIDE)
    mine, plain = of(f"{file}:Mine"), of(f"{file}:Plain")
    assert [m.name for m in mine.measures] == ["two", "clusters"]
    assert (mine.name, mine.title, plain.name, plain.title) == ("Mine", "Mine", "aside", "aside")
    assert (mine.version, mine.personal, mine.deviations) == (2, ("head.", "own/"), ["it is none."])
    assert mine.defaults == {"lambda": 0.5, "last": 2, "clusters": 0}
    assert mine.hyper_parameters["lambda"] == HyperParameter(0.5, "weight", "λ", "Eq. 1")
    assert mine.hyper_parameters["last"].choices == (2, 3)
    assert list(plain.hyper_parameters) == ["lambda"]
    assert mine.source == plain.source == read(file).digest


@pytest.mark.parametrize("name", methods.names())
def test_what_is_kept_of_a_built_in_method_is_what_its_class_declares(name: str) -> None:
    again = f"'python -m fedbench.methods.declarations' writes {FILE.name} anew"
    assert of(name) == built_in()[name] == of_class(methods.load(name)[0]), again


def test_the_methods_are_those_that_can_be_loaded_and_a_name_means_the_same_in_all() -> None:
    assert list(built_in()) == methods.names() == list(json.loads(FILE.read_text()))
    every = [m for method in built_in().values() for m in method.measures]
    assert len({m.name for m in every}) == len(set(every))


def test_a_run_is_what_training_makes_of_text_values_and_defaults() -> None:
    from fedbench.conformance.lab import setting

    ditto, at = of("ditto"), setting()
    assert ditto.run(at, {}).params == methods.load("ditto")[0]().params
    assert ditto.run(at, {"mu": "2"}).id == ditto.run(at, {"mu": 2}).id == ditto.run(at, {"mu": 2.0}).id
    assert ditto.differing(ditto.run(at, {"mu": 2, "personal_epochs": ditto.defaults["personal_epochs"]}).params) == {
        "mu": 2.0
    }
    with pytest.raises(FedbenchError, match="unknown option of ditto 'mi'; known: mu"):
        ditto.run(at, {"mi": 2})

    apfl, at = of("apfl"), setting()
    assert apfl.run(at, {}).params == {"alpha": 0.25}, "as before there was a score"
    assert apfl.run(at, {"score": "after_aggregate"}).id == apfl.run(at, {}).id
    other = apfl.run(at, {"score": "after_local"})
    assert other.params == {"alpha": 0.25, "score": "after_local"}
    assert apfl.differing(other.params) == {"score": "after_local"}


def test_nothing_is_imported_to_find_out() -> None:
    code = "import sys; from fedbench.metrics import definitions as d; d.all_metrics(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
