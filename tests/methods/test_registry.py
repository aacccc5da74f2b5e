"""Methods by name and from a user's file; hyper-parameters from text."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedbench import declared, methods
from fedbench.errors import FedbenchError
from fedbench.imports import code
from fedbench.methods.base import Method, hyperparameter
from tests.support.lab import federation, setting, train


@dataclass(frozen=True)
class Hyperparameters(Method):
    """A method with a hyper-parameter of each type.

    deviates: one thing,
    said on two lines.

    Not a deviation.

    deviates: another.
    """

    name = "hyperparameters"
    count: int = hyperparameter(3, "how many")
    rate: float = hyperparameter(0.5, "how fast")
    on: bool = hyperparameter(False, "whether")
    way: str = hyperparameter("left", "which way", choices=("left", "right"))
    lambda_: float = hyperparameter(1.0, "a name that Python reserves")


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"count": "7"}, "count", 7), ({"count": 7}, "count", 7), ({"rate": "1e-3"}, "rate", 1e-3),
        ({"rate": 2}, "rate", 2.0), ({"on": "True"}, "on", True), ({"on": "false"}, "on", False),
        ({"on": True}, "on", True), ({"way": "right"}, "way", "right"), ({"lambda": "0.25"}, "lambda_", 0.25),
    ],
)  # fmt: skip
def test_values_and_their_text(given: dict[str, Any], field: str, value: object) -> None:
    made = getattr(Hyperparameters.create(given), field)
    assert made == value
    assert type(made) is type(value)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"count": "many"}, "--count of hyperparameters takes a whole number, not 'many'"),
        ({"count": "2.5"}, "--count of hyperparameters takes a whole number, not '2.5'"),
        ({"count": 2.5}, "--count of hyperparameters takes a whole number, not 2.5"),
        ({"rate": "fast"}, "--rate of hyperparameters takes a number, not 'fast'"),
        ({"on": "perhaps"}, "--on of hyperparameters takes true or false, not 'perhaps'"),
        ({"way": "rihgt"}, "unknown value of --way 'rihgt'; did you mean 'right'?"),
        ({"lamda": 1}, "unknown option of hyperparameters 'lamda'; did you mean 'lambda'?"),
        ({"lambda_": 1}, "unknown option of hyperparameters 'lambda_'; did you mean 'lambda'?"),
    ],
)
def test_wrong_ones_are_one_clear_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(FedbenchError) as caught:
        Hyperparameters.create(given)
    assert str(caught.value) == line


@pytest.mark.parametrize("text", ["nan", "inf"])
def test_numbers_that_are_none_never_become_a_run(text: str) -> None:
    from fedbench.specs import RunSpec

    with pytest.raises(FedbenchError, match=f"hyper-parameter rate must be a finite number, not {text}"):
        RunSpec(setting(), "hyperparameters", Hyperparameters.create({"rate": text}).params)


def test_params_and_deviations() -> None:
    assert Hyperparameters().params == {"count": 3, "rate": 0.5, "on": False, "way": "left", "lambda": 1.0}
    assert Hyperparameters.deviations() == ["one thing, said on two lines.", "another."]


def test_the_five_methods_of_the_first_tables_are_there() -> None:
    assert {"fedavg", "fedavgft", "feddrm", "local", "pfedfda"} <= set(methods.names())
    assert set(methods.names()).isdisjoint({"base", "parts", "__init__"})


def test_no_two_methods_have_one_title() -> None:
    titles: dict[str, list[str]] = {}
    for name in methods.names():
        titles.setdefault(methods.load(name)[0].title.casefold(), []).append(name)
    assert all(titles)
    assert {title: names for title, names in titles.items() if len(names) > 1} == {}


def test_names_cost_no_torch() -> None:
    code = "import sys; from fedbench import methods; methods.names(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(FedbenchError, match="unknown method 'fedavgg'; did you mean 'fedavg'"):
        methods.load("fedavgg")


MINE = '''
from dataclasses import dataclass
from fedbench.methods.base import Method, hyperparameter
from fedbench.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Mine(Method):
    """My method."""
    strength: float = hyperparameter(2.0, "how strong")
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


@pytest.mark.parametrize("suffix", ["", ":Mine"])
def test_a_users_file(file: Path, suffix: str, tmp_path: Path) -> None:
    cls, source = methods.load(f"{file}{suffix}")
    assert (cls.name, cls.title) == ("Mine", "Mine")
    assert source == hashlib.sha256(code(file.read_bytes())).hexdigest()
    how = cls.create({"strength": "3"})
    assert how.params == {"strength": 3.0}
    assert train(how, federation((30, 30)), tmp_path / "run", setting(rounds=1, window=1)).accuracy >= 0


@pytest.mark.parametrize(
    ("content", "suffix", "line"),
    [
        (None, "", "no file .*mine.py to take the method from"),
        (MINE, ":Mien", "unknown method class in .* 'Mien'"),
        ("x = 1", "", "defines 0 methods; name one"),
        (MINE + MINE.replace("class Mine", "class Second"), "", "defines 2 methods; name one"),
        ("def", "", "cannot load .*mine.py, line 1: SyntaxError"),
        ("import no_such_module_anywhere", "", "cannot load .*mine.py, line 1: ModuleNotFoundError"),
        ("1 / 0", ":Mine", "cannot load .*mine.py, line 1: ZeroDivisionError"),
    ],
)
def test_a_users_file_with_a_fault(tmp_path: Path, content: str | None, suffix: str, line: str) -> None:
    path = tmp_path / "mine.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(FedbenchError, match=line) as caught:
        methods.load(f"{path}{suffix}")
    assert "\n" not in str(caught.value)


HEAD = """
import abc
from dataclasses import dataclass, field
from fedbench.methods.base import Method, hyperparameter

"""


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("class Mine: ...", "is no method; derive it from fedbench.methods.base.Method"),
        ("class Mine(Method):\n    mu: float = hyperparameter(1.0, 'm')", "mu of Mine in .* is no hyper-parameter"),
        (
            "@dataclass(frozen=True)\nclass Mine(Method, abc.ABC):\n    @abc.abstractmethod\n    def f(self): ...",
            "cannot make Mine in .*: TypeError: Can't instantiate abstract class",
        ),
        ("@dataclass(frozen=True)\nclass Mine(Method):\n    mu: float", "the default of mu of Mine in .* is none"),
        (
            "@dataclass(frozen=True)\nclass Mine(Method):\n    mu: tuple = hyperparameter((1, 2), 'm')",
            r"the default of mu of Mine in .* is \(1, 2\); it must be true or false, a whole number, a number, a word",
        ),
        (
            "@dataclass(frozen=True)\nclass Mine(Method):\n    def __post_init__(self):\n        1 / 0",
            "cannot make Mine in .*: .*mine.py, line 9, in __post_init__: ZeroDivisionError",
        ),
        *(
            (
                f"@dataclass(frozen=True)\nclass Mine(Method):\n    {name}: int = 1",
                f"the hyper-parameter {name.rstrip('_')} of Mine in .* goes by the name of fedbench's own option "
                f"{option}; call it another, such as own_{name.rstrip('_')}",
            )
            for name, option in (
                ("lr", "--lr"),
                ("rounds_", "--rounds"),
                ("batch_size", "--batch-size"),
                ("clients", "--clients"),
                ("dir_", "--dir"),
                ("jobs", "--jobs"),
            )
        ),
        ("class Mine(Method):\n    name = '[/x]'", r"the name of Mine in .* is '\[/x\]'"),
        ("class Mine(Method):\n    name = 'a b'", "the name of Mine in .* is 'a b'"),
        ("class Mine(Method):\n    name = 3", "the name of Mine in .* is 3"),
        ("class Mine(Method):\n    title = 'a\\nb'", "the title of Mine in"),
        ("class Mine(Method):\n    title = property(lambda self: 1 / 0)", "the title of Mine in .* is <property"),
        ("class Mine(Method):\n    version = '1'", "the version of Mine in .* is '1'"),
        ("@dataclass\nclass Mine(Method): ...", "cannot load .*mine.py, line 6: TypeError: cannot inherit non-frozen"),
    ],
)
def test_a_users_class_that_no_run_can_be_made_with(tmp_path: Path, content: str, line: str) -> None:
    (tmp_path / "mine.py").write_text(HEAD + content)
    with pytest.raises(FedbenchError, match=line) as caught:
        methods.load(f"{tmp_path / 'mine.py'}:Mine")
    assert "\n" not in str(caught.value)


def test_no_option_of_a_command_that_trains_can_be_a_hyper_parameter() -> None:
    from fedbench.cli import hyperparameters
    from fedbench.cli.check import check
    from fedbench.cli.partition import partition
    from fedbench.cli.sweep import sweep
    from fedbench.cli.train import train

    commands = (train, sweep, check, partition)
    names = {name.replace("-", "_") for one in commands for name in hyperparameters._options(one)}
    assert {"lr", "clients", "dir", "jobs", "partition_seed"} <= names <= methods.taken()
    assert not any(methods.taken() & one.hyper_parameters.keys() for one in declared.built_in().values())


def test_what_a_users_file_imports_of_fedbench_counts(file: Path) -> None:
    from fedbench.engine.job import Job

    job = Job.of(setting(), f"{file}:Mine", {})
    assert {"methods/base.py", "methods/fedavg.py", "core/executors.py"} <= set(job.parts)
    assert not any(part.startswith("methods/flux") for part in job.parts)
