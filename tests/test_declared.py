"""What methods declare, read from their source without importing them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedbench import methods
from fedbench.declaration import of_class
from fedbench.declared import built_in, of
from fedbench.errors import FedbenchError
from fedbench.measure import Measure
from fedbench.plugins.load import forget

GOOD = """
from dataclasses import dataclass
from typing import ClassVar

import beside
from beside import TWO
from fedbench.measure import Measure
from fedbench.core.client import MEMBER
from fedbench.methods.base import HEAD, Method, hyperparameter
from fedbench.methods.ifca import IFCA
from fedbench.methods.parts import importance
from fedbench.methods.parts.clustered import CLUSTERS, clusters_hyperparameter

DRIFT = Measure("drift", "how far " "it went", unit="distance")


class Mine(Method):
    measures = (DRIFT, CLUSTERS, *importance.MEASURES, Measure("trust", "t", "x", of="client", least=0))


class Derived(Mine):
    pass


class Other(IFCA):
    pass


class None_(Method):
    pass


class IFCA(IFCA):
    pass


class Beside(Method):
    name = "aside"
    measures = (beside.ONE, *TWO)


HALF, OWN = 1 / 2, "own"


def max_of(value):
    larger = value
    return larger


@dataclass(frozen=True)
class Options:
    '''No method, but what two of them share.'''

    lambda_: float = hyperparameter(HALF, "weight", "λ", "Eq. 1", least=0)
    turns: int = 3


@dataclass(frozen=True)
class More(Options, Method):
    '''Derives its hyper-parameters.

    deviates: it is none.
    '''

    version = 2
    personal = HEAD + (f"{OWN}/",)
    serves = (MEMBER,)
    kind: ClassVar[str] = "none"

    last: int = hyperparameter(max_of(2), "of them", choices=(2, 3))
    server: str = f"half-{OWN}"
    clusters: int = clusters_hyperparameter()


class Plain(Options, Method):
    inner: int = 7
"""
BESIDE = """
from fedbench.measure import Measure

ONE = Measure("one", "o", "x")
TWO = (Measure("two", "t", "x"),)
"""


def test_it_is_what_running_the_file_would_tell(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(GOOD)
    (tmp_path / "beside.py").write_text(BESIDE)
    for name in ("Mine", "Derived", "Other", "None_", "IFCA", "Beside", "More", "Plain"):
        method, source = methods.load(f"{file}:{name}")
        assert of(f"{file}:{name}") == of_class(method, source)
        forget(method)  # as a new process would
    mine, more = of(f"{file}:Mine"), of(f"{file}:More")
    assert [m.name for m in mine.measures][:3] == ["drift", "clusters", "ratio_bound"]
    assert mine.measures[0] == Measure("drift", "how far it went", "distance")
    assert (mine.name, mine.title, of(f"{file}:Beside").name) == ("Mine", "Mine", "aside")
    assert more.defaults == {"lambda": 0.5, "turns": 3, "last": 2, "server": "half-own", "clusters": 0}
    assert (more.version, more.personal, more.serves) == (2, ("head.", "own/"), ("member",))
    assert more.hyper_parameters["last"].choices == (2, 3)
    assert list(of(f"{file}:Plain").hyper_parameters) == ["lambda", "turns"], "the class is no dataclass"


@pytest.mark.parametrize("name", methods.names())
def test_so_for_every_built_in_method(name: str) -> None:
    assert of(name) == built_in()[name] == of_class(methods.load(name)[0])


def test_the_methods_are_those_that_can_be_loaded_and_a_name_means_the_same_in_all() -> None:
    assert list(built_in()) == methods.names()
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


@pytest.mark.parametrize(
    "value",
    [
        "tuple(one for one in ())",
        "[Measure('a', 'b', 'c')]",
        "ELSEWHERE",
        "('a',)",
        "(Measure(str(1), 'b', 'c'),)",
        "(Measure('a'),)",
    ],
)
def test_what_only_running_it_would_tell_is_told_by_its_line(value: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"class Mine:\n    measures = {value}\n")
    with pytest.raises(FedbenchError, match=r"mine\.py, line 2: nobody can tell 'measures' without running it"):
        of(f"{tmp_path / 'mine.py'}:Mine")


def test_nothing_is_imported_to_find_out() -> None:
    code = "import sys; from fedbench.metrics import definitions as d; d.all_metrics(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
