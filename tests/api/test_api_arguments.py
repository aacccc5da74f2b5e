"""What Python's users may give by mistake: every argument of every public function, and every option, with values that
it cannot be, ends in one line; NumPy's values are Python's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import fedbench as fb
from fedbench.api.training import SETTING
from fedbench.engine.grid import settable
from fedbench.methods.ditto import Ditto
from fedbench.partition_options import names
from fedbench.partitions.schemes.dirichlet import Dirichlet

HOSTILE: list[Any] = [
    None, True, -1, 2**70, float("nan"), float("inf"), "", "2", "x" * 999, "\0", b"x", [], [None], [[]], {"a": 1}, {1},
    Path("x"), object(), len, int, 1j, range(3), np.float32(0.3), np.int64(2), np.array([1.0, 2.0]), np.array([]),
    np.datetime64("2020"),
]  # fmt: skip


class Call(NamedTuple):
    """A function, arguments that are right, and names of options that it takes besides."""

    function: Callable[..., Any]
    right: dict[str, Any]
    options: tuple[str, ...] = ()

    def names(self) -> Iterator[str]:
        """Of the arguments and options."""
        kinds = {name: one.kind for name, one in inspect.signature(self.function).parameters.items()}
        yield from (name for name, kind in kinds.items() if kind is not inspect.Parameter.VAR_KEYWORD)
        yield from self.options

    def __call__(self, **changed: Any) -> Any:
        signature, given = inspect.signature(self.function), self.right | changed
        bound = signature.bind_partial()
        for name, one in signature.parameters.items():
            if one.kind is one.VAR_KEYWORD:
                bound.arguments[name] = {k: v for k, v in given.items() if k not in signature.parameters}
            elif name in given:
                bound.arguments[name] = (given[name],) if one.kind is one.VAR_POSITIONAL else given[name]
        return self.function(*bound.args, **bound.kwargs)


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> fb.api.Part:  # type: ignore[name-defined]
    return fb.partition("digits", dir=0.3, clients=3, store=tmp_path_factory.mktemp("arguments"))


@pytest.fixture
def calls(part: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Call]:
    """Nothing is trained or dealt out, and no process begins."""

    def made(*_: Any, **__: Any) -> Any:
        raise fb.FedbenchError("as far as this")

    for place in ("observers.watch.make", "engine.engines.Where._in_processes", "conformance.suite.outcomes"):
        monkeypatch.setattr(f"fedbench.{place}", made)
    monkeypatch.setattr("fedbench.engine.sweep.sweep", lambda *_, **__: [])
    monkeypatch.setattr("fedbench.partitions.obtain", made)
    monkeypatch.chdir(tmp_path)
    store, quiet = {"store": part.store}, {"progress": False}
    tables = fb.report("5", dataset="digits", budget="smoke", **store)
    return {
        "partition": Call(fb.partition, {"dataset": "digits", **store}, tuple(names())),
        "train": Call(fb.train, {"part": part, "method": "ditto", **quiet}, (*SETTING, "mu")),
        "sweep": Call(fb.sweep, {"dataset": "digits", "methods": "ditto", "dir": 0.3, **store, **quiet},
                      (*settable(), "mu", "clients", "min_size")),
        "run": Call(fb.run, {"id": "x", **store}),
        "runs": Call(fb.runs, store),
        "curves": Call(fb.curves, store),
        "compare": Call(fb.compare, store),
        "report": Call(fb.report, {"tables": "5", "dataset": "digits", "budget": "smoke", **store}),
        "check": Call(fb.check, {"what": "ditto", **store}, ("mu",)),
        "Store": Call(fb.Store, {}),
        "text": Call(tables.text, {}),
        "save": Call(tables.save, {"path": tmp_path / "table.csv"}),
    }  # fmt: skip


def test_what_an_argument_cannot_be_is_one_line(calls: dict[str, Call]) -> None:
    wrong, refused = [], 0
    for called, call in calls.items():
        for name in call.names():
            for value in HOSTILE:
                try:
                    call(**{name: value})
                except fb.FedbenchError as error:
                    refused += "as far as this" not in str(error)
                    wrong += [f"{called}({name}={value!r}): {error}"] if "\n" in str(error) else []
                except Exception as error:
                    wrong.append(f"{called}({name}={value!r}): {type(error).__name__}: {error}")
    assert not wrong, "\n".join([f"{len(wrong)} calls", *wrong[:20]])
    assert refused > 2000, "it reaches them"


@pytest.mark.parametrize(
    ("called", "given", "line"),
    [
        ("sweep", {"seeds": 3}, "sweep: seeds must be a list, each a whole number, not 3; such as [3]"),
        ("sweep", {"jobs": "two"}, "sweep: jobs must be a whole number, not 'two'"),
        ("sweep", {"lr": []}, "sweep: lr has no value; leave lr out, or give some"),
        ("sweep", {"lr": [object]}, "sweep: lr takes texts, numbers, true or false, not <class 'object'>"),
        ("train", {"method": 3}, "3 is no method; give a name, FILE.py:Class, or a class derived from "
                                 "fedbench.methods.base.Method"),
        ("train", {"rounds": "two"}, "--rounds of train takes a whole number, not 'two'"),
        ("train", {"progress": None}, "train: progress must be true or false, not None"),
        ("train", {"observers": fb.Observer()}, "train: observers must be a list, each an Observer or text, not"),
        ("run", {"id": None}, "run: id must be text, not None"),
        ("report", {"tables": 1.5}, "report: tables must be text or a whole number, not 1.5"),
        ("compare", {"filters": 1}, "compare: filters must be text or a Run, not 1"),
        ("text", {"format": 1}, "Tables.text: format must be text, not 1"),
        ("Store", {"home": 3}, "Store: home must be a Path or text, not 3"),
    ],
)  # fmt: skip
def test_the_line_names_function_argument_type_and_value(
    calls: dict[str, Call], called: str, given: dict[str, Any], line: str
) -> None:
    with pytest.raises(fb.FedbenchError) as error:
        calls[called](**given)
    assert str(error.value).startswith(line)


def test_what_is_meant_plainly_is_taken(calls: dict[str, Call], part: Any) -> None:
    """Texts of numbers, as options have them; a table's number; NumPy's scalars and arrays; objects of methods."""
    assert calls["report"](tables=np.int64(5)).text() == calls["report"](tables="5").text()
    plain = calls["sweep"](seeds=[0, 1], lr=[0.05, 0.1], mu=0.3, dir=[0.3], rounds=2)
    ids = [run.spec.id for point in plain.points for run in point.runs]
    numpy = {"seeds": np.arange(2), "lr": np.array([0.05, 0.1], np.float32), "rounds": "2", "dir": np.float32(0.3)}
    for mu in ({"mu": np.float32(0.3)}, {"methods": Ditto(mu=np.float32(0.3))}):
        points = calls["sweep"](**numpy, **mu).points
        assert [run.spec.id for point in points for run in point.runs] == ids
    assert Ditto(mu="0.3") == Ditto(mu=0.3)  # type: ignore[arg-type]
    assert Dirichlet(alpha=np.float32(0.3)) == Dirichlet(alpha=0.3)
    with pytest.raises(fb.FedbenchError, match="--mu of ditto takes a number, not 'much'"):
        Ditto(mu="much")  # type: ignore[arg-type]


def test_an_unknown_argument_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match=r"runs\(\) got an unexpected keyword argument 'colums'"):
        fb.runs(colums=1)  # type: ignore[call-arg]
