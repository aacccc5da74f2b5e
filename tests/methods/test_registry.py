"""Methods by name and from a user's file; hyper-parameters from text; what methods cannot work with is refused in one
line; what they declare: kept of fedbench's own, imported of a user's file."""

from __future__ import annotations

import hashlib
import json
import math
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fedbench import methods
from fedbench.declaration import HyperParameter, of_class
from fedbench.engine.job import Job
from fedbench.errors import FedbenchError
from fedbench.imports import code
from fedbench.methods import declarations
from fedbench.methods.base import Method, hyperparameter
from fedbench.methods.declarations import FILE, built_in, of
from fedbench.plugins.source import read
from fedbench.specs import RunSpec
from tests.support.frames import refused
from tests.support.lab import federation, method, setting, train


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
        ({"count": "7"}, "count", 7),
        ({"count": 7}, "count", 7),
        ({"rate": "1e-3"}, "rate", 1e-3),
        ({"rate": 2}, "rate", 2.0),
        ({"on": "True"}, "on", True),
        ({"on": "false"}, "on", False),
        ({"on": True}, "on", True),
        ({"way": "right"}, "way", "right"),
        ({"lambda": "0.25"}, "lambda_", 0.25),
    ],
)
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
    refused(f"^{re.escape(line)}$", Hyperparameters.create, given)


def test_params_and_deviations() -> None:
    assert Hyperparameters().params == {"count": 3, "rate": 0.5, "on": False, "way": "left", "lambda": 1.0}
    assert Hyperparameters.deviations() == ["one thing, said on two lines.", "another."]
    for text in ("nan", "inf"):  # a number that is none never becomes a run
        with pytest.raises(FedbenchError, match=f"hyper-parameter rate must be a finite number, not {text}"):
            RunSpec(setting(), "hyperparameters", Hyperparameters.create({"rate": text}).params)


def test_what_methods_are_there() -> None:
    assert {"fedavg", "fedavgft", "feddrm", "local", "pfedfda"} <= set(methods.names())
    assert set(methods.names()).isdisjoint({"base", "parts", "__init__"})
    titles: dict[str, list[str]] = {}
    for name in methods.names():
        titles.setdefault(methods.load(name)[0].title.casefold(), []).append(name)
    assert all(titles)
    assert {title: names for title, names in titles.items() if len(names) > 1} == {}
    refused("unknown method 'fedavgg'; did you mean 'fedavg'", methods.load, "fedavgg")
    assert "select" not in setting().to_dict(), "a setting without it keeps its id"
    refused("select", replace, setting(), select="worst")


HEAD = """
import abc
from dataclasses import dataclass, field
from fedbench.methods.base import Method, hyperparameter
from fedbench.methods.fedavg import FedAvg

"""
FROZEN = "@dataclass(frozen=True)\nclass Mine(Method):\n    "
MINE = HEAD + FROZEN + '"""My method."""\n    strength: float = hyperparameter(2.0, "how strong")\n'


def test_a_users_file(tmp_path: Path) -> None:
    """What it imports of fedbench counts."""
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    for suffix in ("", ":Mine"):
        cls, source = methods.load(f"{file}{suffix}")
        assert (cls.name, cls.title) == ("Mine", "Mine")
        assert source == hashlib.sha256(code(file.read_bytes())).hexdigest()
        how = cls.create({"strength": "3"})
        assert how.params == {"strength": 3.0}
    assert train(how, federation((30, 30)), tmp_path / "run", setting(rounds=1, window=1)).accuracy >= 0
    job = Job.of(setting(), f"{file}:Mine", {})
    assert {"methods/base.py", "methods/fedavg.py", "core/executors.py"} <= set(job.parts)
    assert not any(part.startswith("methods/flux") for part in job.parts)


#: Classes of a file, and what is wrong with them.
CLASSES = [
    ("class Mine: ...", "is no method; derive it from fedbench.methods.base.Method"),
    ("class Mine(Method):\n    mu: float = hyperparameter(1.0, 'm')", "mu of Mine in .* is no hyper-parameter"),
    (
        FROZEN.replace("Method)", "Method, abc.ABC)") + "@abc.abstractmethod\n    def f(self): ...",
        "cannot make Mine in .*: TypeError: Can't instantiate abstract class",
    ),
    (FROZEN + "mu: float", "the default of mu of Mine in .* is none"),
    (
        FROZEN + "mu: tuple = hyperparameter((1, 2), 'm')",
        r"the default of mu of Mine in .* is \(1, 2\); it must be true or false, a whole number, a number, a word",
    ),
    (
        FROZEN + "def __post_init__(self):\n        1 / 0",
        "cannot make Mine in .*: .*mine.py, line 10, in __post_init__: ZeroDivisionError",
    ),
    ("class Mine(Method):\n    name = '[/x]'", r"the name of Mine in .* is '\[/x\]'"),
    ("class Mine(Method):\n    name = 'a b'", "the name of Mine in .* is 'a b'"),
    ("class Mine(Method):\n    name = 3", "the name of Mine in .* is 3"),
    ("class Mine(Method):\n    title = 'a\\nb'", "the title of Mine in"),
    ("class Mine(Method):\n    title = property(lambda self: 1 / 0)", "the title of Mine in .* is <property"),
    ("class Mine(Method):\n    version = '1'", "the version of Mine in .* is '1'"),
    ("@dataclass\nclass Mine(Method): ...", "cannot load .*mine.py, line 7: TypeError: cannot inherit non-frozen"),
]
OPTIONS = {
    "rounds_": "rounds",
    "batch_size": "batch-size",
    "dir_": "dir",
    **{n: n for n in ("lr", "clients", "jobs", "home")},
}
CLASSES += [
    (
        f"{FROZEN}{name}: int = 1",
        f"the hyper-parameter {name.rstrip('_')} of Mine in .* goes by the name of fedbench's own option --{option}; "
        f"call it another, such as own_{name.rstrip('_')}",
    )
    for name, option in OPTIONS.items()
]


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
        *((HEAD + content, ":Mine", line) for content, line in CLASSES),
    ],
)
def test_a_users_file_with_a_fault(tmp_path: Path, content: str | None, suffix: str, line: str) -> None:
    if content is not None:
        (tmp_path / "mine.py").write_text(content)
    refused(line, methods.load, f"{tmp_path / 'mine.py'}{suffix}")


def test_no_option_of_a_command_that_trains_can_be_a_hyper_parameter() -> None:
    from fedbench.cli.check import check
    from fedbench.cli.options import declared
    from fedbench.cli.partition import partition
    from fedbench.cli.sweep import sweep
    from fedbench.cli.train import train

    commands = (train, sweep, check, partition)
    names = {name.replace("-", "_") for one in commands for name in declared(one)}
    assert {"lr", "clients", "dir", "jobs", "partition_seed"} <= names <= methods.reserved()
    assert not any(methods.reserved() & one.hyper_parameters.keys() for one in declarations.built_in().values())


#: What a hyper-parameter must be -> values that are not, and METHOD.NAME of those that must.
BOUNDS: dict[str, tuple[tuple[float, ...], str]] = {
    "at least 0": (
        (-1,),
        "atp.eta atp.rate_rounds cfl.eps1 cfl.eps2 confree.alpha confree.head_epochs confree.head_steps ditto.mu "
        "ditto.personal_epochs fedala.rate fedala.weight_steps fedas.align_epochs fedas.align_steps feddc.alpha "
        "fedbabu.finetune_epochs feddrift.delta fedem.clusters fednova.mu fedpac.lambda fedpac.head_epochs "
        "fedpac.newcomer_epochs fedproto.lambda fedprox.mu fedprox.finetune_rounds fedrc.clusters fedrep.head_epochs "
        "fedsam.rho fedsam.finetune_rounds fesem.clusters flux.start flux.epsilon flux.reach ifca.clusters moon.mu "
        "mr_mtl.pull perfedavg.alpha perfedavg.adapt_steps pfedfda.cov_offset qfedavg.q",
    ),
    "above 0": (
        (0,),
        "fedas.align_lr feddyn.alpha fedopt.server_lr fedopt.tau fedpac.head_lr flux.scale moon.temperature "
        "perfedavg.delta pfedme.lambda pfedme.inner_lr pfedme.beta scaffold.server_lr",
    ),
    "at least 1": (
        (0,),
        "fedala.top pfedme.inner_steps ftw_erm.n_te ftw_erm.clusters ftw_erm.restarts ftw_erm.matching_epochs "
        "fitw_erm.n_te fitw_erm.clusters fitw_erm.restarts fitw_erm.matching_epochs",
    ),
    "at least 2": ((1,), "haccs.min_samples"),
    "at least 1.18e-38 (float32)": ((0, -1), "pfedfda.cov_ridge"),
    "in [0, 1]": ((-0.1, 1.1), "apfl.alpha apfl_flux.alpha"),
    "in (0, 1]": ((0, -0.1, 1.01, math.nan), "fedala.share feddrm.lambda fedsam.beta"),
    "in [0, 1)": ((-0.1, 1), "fedopt.beta1 fedopt.beta2"),
    "in [1, 199]": ((0,), "flux.components"),
    "in [1, 256]": ((0,), "haccs.bins"),
    "0, 1 or 2": ((3, -1), "pfedfda.betas"),
}
CHOICES = (
    "confree.rule fedala.score fedas.weigh_by fedbabu.newcomers fedopt.server fedpac.newcomers fedpac.score "
    "fedproto.answers fedrep.score fedrod.score lg_fedavg.score"
)
WRONG: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    (name, {option: value}, {}, f"--{option.replace('_', '-')} of {name} must be {rule}, not")
    for rule, (values, those) in BOUNDS.items()
    for name, option in (one.split(".") for one in those.split())
    for value in values
]
WRONG += [
    (name, {option: "other"}, {}, f"unknown value of --{option.replace('_', '-')} 'other'")
    for name, option in (one.split(".") for one in CHOICES.split())
]
WRONG += [("ftw_erm", {"case": "cs_both", "ratios": "hdrm"}, {}, "--case of ftw_erm must be all with --ratios hdrm")]
OWN_RULE = "has its own update rule and does not use adamw"
ALONE = {"separate": True, "adaptive": True}
ADAMW = {"optimizer": "adamw", "momentum": 0.0}
ONE = {"steps": 1, "passes": "endless", "momentum": 0.0}


@pytest.mark.parametrize(
    ("name", "chosen", "changes", "line"),
    [
        *WRONG,
        ("fedprox", {"finetune_rounds": 3}, {}, "--finetune-rounds of fedprox must be below the number of rounds, 3"),
        ("fedsam", {"finetune_rounds": 3}, {}, "--finetune-rounds of fedsam must be below the number of rounds, 3"),
        ("fedbabu", {"finetune_rounds": 3}, {}, "--finetune-rounds of fedbabu must be below the number of rounds, 3"),
        *((name, {}, ADAMW, f"{name} {OWN_RULE}") for name in ("scaffold", "feddc", "fednova", "perfedavg", "pfedme")),
        *((name, {}, {**ONE, **ADAMW}, f"{name} {OWN_RULE}") for name in ("fedsgd", "fedbn", "ftw_erm")),
        ("fedsam", {"beta": 0.1}, ADAMW, f"fedsam {OWN_RULE}"),
        ("fednova", {"mu": 21}, {}, "--mu of fednova must be at most 1/lr, 20 at a learning rate"),
        ("pfedme", {"lambda": 20.5}, {}, "--lambda of pfedme must be at most 1/lr, 20 at "),
        ("apfl_flux", ALONE, {}, "--separate of apfl_flux must be False with --adaptive"),
        ("perfedavg", {"variant": "hf"}, {"precision": "bf16"}, "takes differences of gradients, which bf16"),
        *(("confree", {"head_steps": 5}, c, "--head-steps of confree") for c in ({}, {"steps": 5})),
        *(("fedala", {"weight_steps": 5}, c, "--weight-steps of fedala") for c in ({}, {"steps": 5})),
        *(("fedas", {"align_steps": 2}, c, "--align-steps of fedas") for c in ({}, {"steps": 2})),
        *(("fedrep", {"head_steps": 3}, c, "--head-steps of fedrep must be") for c in ({"epochs": 2}, {"steps": 3})),
        ("ditto", {"personal_steps": 2}, {"steps": 2}, "--personal-steps of ditto must be below 2 steps, not 2"),
        ("ftw_erm", {}, {**ONE, "momentum": 0.9}, "takes no momentum"),
        *(
            (name, {}, changes, "one local step")
            for name in ("fedsgd", "ftw_erm", "fitw_erm", "fedbn", "grayscale")
            for changes in ({**ONE, "steps": 2}, {"momentum": 0.0})
        ),
    ],
    ids=str,
)
def test_values_out_of_range_and_settings_that_do_not_go_with_it(
    name: str, chosen: dict[str, Any], changes: dict[str, Any], line: str
) -> None:
    refused(re.escape(line), lambda: method(name, **chosen).check_setting(setting(**changes)))


@pytest.mark.parametrize(
    ("name", "chosen", "changes"),
    [
        ("fedsam", {}, ADAMW),
        ("perfedavg", {}, {"precision": "bf16"}),
        ("pfedme", {"lambda": 20.0}, {}),
        ("fedsgd", {}, ONE),
        ("ftw_erm", {}, ONE),
        ("fitw_erm", {}, ONE),
        ("fedbn", {}, ONE),
        ("grayscale", {}, ONE),
    ],
)
def test_what_is_near_that_is_taken(name: str, chosen: dict[str, Any], changes: dict[str, Any]) -> None:
    method(name, **chosen).check_setting(setting(**changes))


DERIVED = """
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
    file.write_text(DERIVED)
    (tmp_path / "beside.py").write_text(BESIDE)
    mine, plain = of(f"{file}:Mine"), of(f"{file}:Plain")
    assert [m.name for m in mine.measures] == ["two", "clusters"]
    assert (mine.name, mine.title, plain.name, plain.title) == ("Mine", "Mine", "aside", "aside")
    assert (mine.version, mine.personal, mine.deviations) == (2, ("head.", "own/"), ["it is none."])
    assert mine.defaults == {"lambda": 0.5, "last": 2, "clusters": 0}
    assert mine.hyper_parameters["lambda"] == HyperParameter(0.5, "weight", "λ", "Eq. 1")
    assert mine.hyper_parameters["last"].choices == (2, 3)
    with pytest.raises(FedbenchError, match="unknown value of --last '4'; known: 2, 3"):
        methods.load(f"{file}:Mine")[0].create({"last": 4})
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
    ditto, at = of("ditto"), setting()
    assert ditto.run(at, {}).params == methods.load("ditto")[0]().params
    assert ditto.run(at, {"mu": "2"}).id == ditto.run(at, {"mu": 2}).id == ditto.run(at, {"mu": 2.0}).id
    chosen = {"mu": 2, "personal_epochs": ditto.defaults["personal_epochs"]}
    assert ditto.differing(ditto.run(at, chosen).params) == {"mu": 2.0}
    refused("unknown option of ditto 'mi'; known: mu", ditto.run, at, {"mi": 2})

    apfl, at = of("apfl"), setting()
    assert apfl.run(at, {}).params == {"alpha": 0.25}, "as before there was a score"
    assert apfl.run(at, {"score": "after_aggregate"}).id == apfl.run(at, {}).id
    other = apfl.run(at, {"score": "after_local"})
    assert other.params == {"alpha": 0.25, "score": "after_local"}
    assert apfl.differing(other.params) == {"score": "after_local"}


def test_nothing_is_imported_to_find_out() -> None:
    code = "import sys; from fedbench import methods; from fedbench.metrics import definitions as d; "
    code += "methods.names(); d.all_metrics(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
