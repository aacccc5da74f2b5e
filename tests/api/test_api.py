"""What Python offers: partitions, runs and tables as a user meets them."""

from __future__ import annotations

import copy
import dataclasses
import doctest
import importlib
import inspect
import json
import os
import pickle
import pkgutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

import fedbench as fb
from fedbench import api
from fedbench.api.shared import options_of
from fedbench.cli.new import new
from fedbench.core.trainer import Progress
from fedbench.engine.engines import Where
from fedbench.engine.grid import settable
from fedbench.errors import FedbenchError
from fedbench.methods.ditto import Ditto
from fedbench.observers import Training
from fedbench.partition_options import names
from fedbench.partitions.schemes.dirichlet import Dirichlet
from fedbench.reports.layout.tables import grids_of
from fedbench.results.importing import take_in
from fedbench.results.making import row_of
from fedbench.results.pack import write
from fedbench.specs import Setting
from fedbench.specs.fields import typed
from fedbench.store import Store
from tests.support.cli_user import good
from tests.support.frames import refused


class Session(NamedTuple):
    home: Path
    part: fb.api.Part  # type: ignore[name-defined]
    runs: list[fb.api.Run]  # type: ignore[name-defined]


QUICK = {"rounds": 2, "steps": 2, "executor": "sequential", "progress": False}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    home = tmp_path_factory.mktemp("python") / "home"
    part = fb.partition("digits", dir=0.3, clients=3, store=home)
    return Session(home, part, [fb.train(part, "fedavg", seed=seed, **QUICK) for seed in (0, 1)])


def test_importing_is_quick_and_names_are_there() -> None:
    heavy = ["torch", "pandas", "numpy", "rich", "typer", "matplotlib"]
    text = (
        f"import sys, fedbench; assert not set({heavy}) & set(sys.modules); assert 'fedbench.api' not in sys.modules;"
        "assert set(fedbench.__all__) <= set(dir(fedbench)); import fedbench.store, fedbench.partitions;"
        "assert all(callable(getattr(fedbench, name)) for name in fedbench.__all__)"
    )
    subprocess.run([sys.executable, "-c", text], check=True)
    with pytest.raises(AttributeError, match="module 'fedbench' has no attribute 'tarin'"):
        fb.tarin  # type: ignore[attr-defined]  # noqa: B018
    submodules = {module.name for module in pkgutil.iter_modules(fb.__path__)}
    assert submodules & set(fb.__all__) == {"methods", "metrics"}, "an imported submodule takes a function's place"
    assert set(dir(fb)) == {*fb.__all__, "__version__"}


@pytest.mark.parametrize(
    "before", ["", "import fedbench.methods, fedbench.metrics", "from fedbench.methods.base import Method"]
)
def test_the_packages_of_methods_and_metrics_are_called_whether_imported_or_not(before: str) -> None:
    text = (
        f"{before}\nimport fedbench as fb; assert {{'apfl', 'fedavg'}} <= set(fb.methods().index)\n"
        "assert fb.metrics().loc['average_accuracy', 'unit'] == 'fraction'\n"
        "import fedbench.methods, sys; from fedbench import methods\n"
        "assert fb.methods is fedbench.methods is methods is sys.modules['fedbench.methods']\n"
        "assert methods.load('fedavg') and len(methods()) == len(methods.names())"
    )
    subprocess.run([sys.executable, "-c", text], check=True)


def test_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path))
    names = {name: getattr(fb, name) for name in fb.__all__}
    modules = [
        importlib.import_module(f"fedbench.api.{name}")
        for name in ("parts", "training", "results", "reporting", "listings")
    ]
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for module in modules:
        for test in finder.find(module, globs=dict(names)):
            runner.run(test)
    assert runner.summarize().failed == 0
    assert runner.tries >= 10


def test_a_partition(session: Session) -> None:
    part, counts = session.part, session.part.counts
    assert repr(part) == f"<partition {part.id[:8]} of digits: Dir-0.3, 3 clients>"
    assert counts.shape == (3, 12)
    assert counts.iloc[:, :10].sum(axis=1).tolist() == (counts["train"] + counts["test"]).tolist()
    assert "3 clients" in part._repr_html_()
    assert str(counts["train"][0]) in part._repr_html_()


def test_a_partitioner_of_ones_own(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new("partitioner", "bright", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    own: Any = importlib.import_module("bright")
    options: dict[str, Any] = {"clients": 3, "store": session.home}
    part = fb.partition("digits", scheme=own.Bright(bands=3), **options)
    assert part.counts.shape[0] == 3
    for scheme in (own.Bright, f"{tmp_path / 'bright.py'}:Bright"):
        assert fb.partition("digits", scheme=scheme, bands=3, **options).id == part.id
    assert fb.partition("digits", scheme=own.Bright(), **options).id != part.id
    built_in = importlib.import_module("fedbench.partitions.schemes.iid")
    (kind,) = (one for one in vars(built_in).values() if getattr(one, "__module__", "") == built_in.__name__)
    assert fb.partition("digits", scheme=kind, **options).id == fb.partition("digits", iid=True, **options).id
    sys.modules.pop("bright")


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (
            "__main__",
            r"Mine is a class of __main__ \(a notebook's cell, a script\), .*; write it into a file "
            r"\(in a notebook: %%writefile mine.py\), and give mine.py:Mine or import it from there",
        ),
        (__name__, f"Mine is no name in a file of {__name__}, from which"),
    ],
)
def test_a_class_that_no_file_gives_again(session: Session, module: str, line: str) -> None:
    mine = type("Mine", (Ditto,), {"__module__": module})
    for attempt in (
        lambda: fb.train(session.part, mine, **QUICK),
        lambda: fb.sweep("digits", [mine()], store=session.home),
        lambda: fb.check(mine),
    ):
        with pytest.raises(FedbenchError, match=line):
            attempt()


def test_a_run(session: Session) -> None:
    run, again = session.runs[0], fb.train(session.part.id, "fedavg", seed=0, **QUICK, store=session.home)
    assert again.id == run.id
    assert fb.run(run.id[:8], store=session.home).accuracies.tolist() == run.accuracies.tolist()
    own = run.predictions.query("round == 2 and view == 'plain'")
    right = (own["label"] == own["own"]).groupby(own["client"]).mean()
    assert run.accuracies.tolist() == pytest.approx(right.tolist())
    weights = run.clients["n_train"]
    assert run.accuracy == pytest.approx((right * weights).sum() / weights.sum())
    assert repr(run) == f"<run {run.id[:8]}: FedAvg on digits Dir-0.3, accuracy {run.accuracy:.1%}>"
    for text in (run.id, f"{run.accuracy:.2%}", "digits", run.provenance["started"]):
        assert text in run._repr_html_()
    words = ("--partition", session.part.id, "--rounds", "2", "--steps", "2", "--seed", "0", "--method", "fedavg")
    protocol = ("--protocol", session.part.protocol)
    (said,) = json.loads(good("--home", session.home, "train", *words, *protocol, "--json").out)
    assert (said["run"], said["headline"]["plain"]["average_accuracy"]) == (run.id, run.accuracy)


def test_runs_and_curves_are_data_frames(session: Session) -> None:
    ids = [run.id for run in session.runs]
    table = fb.runs(*ids, store=session.home)
    assert table.index.tolist() == ids
    assert table["seed"].tolist() == [0, 1]
    assert table["average_accuracy"].tolist() == [run.accuracy for run in session.runs]
    curves = fb.curves(*session.runs, metric=["train_loss", "average_accuracy"])
    assert curves.equals(fb.curves(*ids, metric=["train_loss", "average_accuracy"], store=session.home))
    losses = curves.query("metric == 'train_loss'")
    assert losses["value"].tolist() == [loss for run in session.runs for loss in run.rounds["loss"]]
    assert losses["round"].tolist() == [1, 2] * 2
    assert set(curves["label"]) == {"FedAvg"}, "seeds of one run have one label"


def test_filters_name_shipped_runs_too(session: Session, tmp_path: Path) -> None:
    pack, home = tmp_path / "theirs.parquet", tmp_path / "fresh"
    write(pack, [row_of(one.artifact, one.store, "Ada") for one in session.runs])
    take_in(pack, Store(home))
    theirs = ("method=fedavg", "shipped=yes")
    named = fb.runs(*theirs, store=home)
    assert named["shipped"].tolist() == [True, True]
    assert sorted(named["average_accuracy"]) == sorted(one.accuracy for one in session.runs)
    assert fb.run(session.runs[0].id, store=home).accuracy == session.runs[0].accuracy
    assert set(fb.curves(*theirs, store=home)["run"]) == {one.id for one in session.runs}
    assert len(fb.compare(*theirs, store=home).frame)
    assert not fb.runs("method=fedavg", store=session.home)["shipped"].any(), "those of the store come first"
    for attempt in (fb.runs, fb.curves, fb.compare):
        with pytest.raises(FedbenchError, match="there is no run"):
            attempt(*theirs, store=home, shipped=False)
        for words in ((), ("method=fedavg",)):
            with pytest.raises(FedbenchError, match=r"there is no run.*shipped=yes"):
                attempt(*words, store=home)


def test_a_table(session: Session, tmp_path: Path) -> None:
    tables = fb.report("1", dataset="digits", budget="smoke", store=session.home)
    assert tables.frame["state"].eq("missing").any()
    assert isinstance(tables.frame, pd.DataFrame)
    assert "FedAvg" in repr(tables)
    assert tables._repr_html_().startswith("<style>.fedbench {")
    assert "body {" not in tables._repr_html_(), "the rest of a notebook stays as it is"
    tables.save(tmp_path / "table.tex")
    assert (tmp_path / "table.tex").read_text() == tables.text("latex")
    with pytest.raises(FedbenchError, match="cannot tell the format"):
        tables.save(tmp_path / "table.doc")


def test_lists_are_data_frames(session: Session) -> None:
    datasets, tables = fb.datasets(store=session.home), fb.tables(shipped=False, store=session.home)
    assert datasets.loc["digits"].to_dict() | {"title": "", "licence": ""} == {
        "title": "",
        "shape": (8, 8, 1),
        "classes": 10,
        "columns": (),
        "samples": 1797,
        "licence": "",
        "at_hand": True,
    }
    assert tables.loc["feddrm/1", "number"] == 1
    assert pd.isna(tables.loc["flux/1", "number"])
    assert tables.loc["feddrm/1", "cells"] > tables.loc["feddrm/1", "done"] == 0


def test_samples_are_a_data_frame(session: Session) -> None:
    samples, p = session.part.samples, session.part.data
    assert samples.columns.tolist() == ["sample", "client", "split", "label", "group"]
    counts = samples.pivot_table(index="client", columns="label", values="sample", aggfunc="count", observed=False)
    assert counts.to_numpy().tolist() == session.part.counts[list(p.classes)].to_numpy().tolist()
    assert (samples["split"] == "test").tolist() == p.test.tolist()
    assert samples["group"].tolist() == [p.groups[client] for client in p.client]
    held = fb.partition("digits", iid=True, clients=2, validation=0.5, store=session.home).samples
    assert {"train", "validation", "test"} == set(held["split"])


def test_figures_are_matplotlibs(session: Session) -> None:
    from matplotlib.figure import Figure

    three = {**QUICK, "rounds": 3, "every": 1}  # two points are no figure
    seeds = fb.train(session.part, "fedavg", seeds=[0, 1], **three)
    run = seeds[0]
    for drawn in (run.plot(metric="train_loss"), seeds.plot(), fb.figure("partition", session.part)):
        assert isinstance(drawn, Figure)
        assert drawn._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    assert run.plot(metric="train_loss").axes[0].lines[0].get_ydata().tolist() == run.rounds["loss"].tolist()  # type: ignore[union-attr]
    for attempt, line in (
        (lambda: fb.figure("curvess", run), "unknown figure 'curvess'; did you mean 'curves'"),
        (lambda: run.plot(metrik="x"), "unknown option of figure 'metrik'; did you mean 'metric'"),
        (lambda: fb.figure("partition", session.part, run), "figure: a partition is drawn alone"),
    ):
        refused(line, attempt)


def test_several_seeds(session: Session) -> None:
    both = fb.train(session.part, "fedavg", seeds=[0, 1], **QUICK)
    assert [run.id for run in both] == [run.id for run in session.runs], "they are there"
    assert both.table.frame.equals(fb.compare(*session.runs).frame)
    assert "over 2 seeds" in repr(both)
    assert "<table" in both._repr_html_()
    new = fb.train(session.part, "fedavg", seeds=range(3, 5), **{**QUICK, "executor": "auto"})
    assert [run.spec.setting.seed for run in new] == [3, 4]
    for seeds in ([], [0, 0]):
        refused("train: seeds are different ones", fb.train, session.part, "fedavg", seeds=seeds, **QUICK)
    refused("train: seeds are different ones", fb.train, session.part, "fedavg", seeds=[0], seed=1, **QUICK)


def test_runs_side_by_side(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    side = fb.compare(*session.runs, metrics="average_accuracy")
    (row,) = side.frame.query("metric == 'average_accuracy'").to_dict("records")
    accuracies = [run.accuracy for run in session.runs]
    factor = row["value"] / statistics.mean(accuracies)
    assert factor == pytest.approx(100)
    assert row["std"] == pytest.approx(factor * statistics.stdev(accuracies))
    words = [run.id for run in session.runs]
    for twice in (words, [*session.runs, *words]):  # a run that is named twice is no second seed
        assert fb.compare(*twice, metrics="average_accuracy", store=session.home).frame.equals(side.frame)
    assert "<table>" in side._repr_html_()
    # In a notebook: rich would take the lines of a text for outputs of the cell, so that a table stood there twice.
    outputs: list[object] = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *shown: outputs.append(shown))
    assert "Average accuracy" in repr(side)
    assert "3 clients" in session.part._repr_html_()
    assert not outputs


class Failing(fb.Observer):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_start(self, training: Training) -> None:
        self.heard.append(training.title)

    def on_round(self, now: Progress) -> None:
        self.heard.append(str(now.round))
        raise ZeroDivisionError("nothing\nto see")


def test_an_observer_that_fails_does_not_end_the_run(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    failing, log = Failing(), session.home.parent / "log.jsonl"
    run = fb.train(session.part, "local", seed=0, observers=[failing, f"jsonl:{log}"], **QUICK)
    assert failing.heard == ["Local", "1"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("Failing failed in on_round and watches no more: ZeroDivisionError: nothing")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [one["event"] for one in events] == ["start", "round", "round", "end"]
    assert events[-1]["results"] == run.results


class Stopping(fb.Observer):
    def on_round(self, now: Progress) -> None:
        if now.round == 1:
            raise KeyboardInterrupt


def test_an_interrupted_run_goes_on(session: Session) -> None:
    with pytest.raises(KeyboardInterrupt, match="round 1 of 2 is saved; the same call continues there"):
        fb.train(session.part, "fedavg", seed=7, observers=[Stopping()], **QUICK)
    log = session.home.parent / "on.jsonl"
    fb.train(session.part, "fedavg", seed=7, observers=[f"jsonl:{log}"], **QUICK)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [one.get("round") for one in events] == [None, 2, None]


def test_checks_of_a_partitioner_and_of_what_is_none(session: Session) -> None:
    checks = fb.check("iid")
    assert checks
    assert repr(checks).startswith("iid: holds\n✓ ")
    assert "iid holds" in checks._repr_html_()
    for attempt, line in (
        (lambda: fb.check("fedavgg"), "unknown method or model 'fedavgg'"),
        (lambda: fb.check("digits_cnn", mu=1), "unexpected option 'mu'; a model has no options"),
        (lambda: fb.train(session.part, "fedavg", observers=["tensorbord"]), "unknown observer 'tensorbord'"),
    ):
        with pytest.raises(FedbenchError, match=line):
            attempt()


def test_the_first_pages_example_ends_with_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.test_pages import ROOT, blocks

    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path))
    (code,) = (code for code in blocks(ROOT / "README.md", "python") if "fb.partition" in code)
    *lines, last = code.replace("rounds=20", "rounds=1").strip().splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    assert eval(last, names).frame["value"].notna().any()


@pytest.mark.slow
def test_the_notebook_goes_from_data_to_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(Path(api.__file__).with_name("from_data_to_a_table.ipynb"), as_version=4)
    nbformat.validate(notebook)
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(fb.__file__).parents[1])]))
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (last,) = (out["data"]["text/html"] for out in notebook.cells[-1].outputs if "data" in out)
    assert all(f">{title}<" in last for title in ("FedAvg", "Ditto", "Prox"))
    assert "\\begin{tabular}" in (tmp_path / "table.tex").read_text()


@pytest.mark.slow
def test_the_session_of_the_page_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    from tests.test_pages import blocks

    cells = blocks(Path(api.__file__).with_name("README.md"), "python")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(fb.__file__).parents[1])]))
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [
        "".join(out["data"].get("text/html", out["data"]["text/plain"]) for out in cell.outputs if "data" in out)
        for cell in notebook.cells
    ]
    expected = ("Dir-0.3", "FedAvg", "", "accuracy", "Prox", "Prox", "Prox", "0.19")
    for text, part in zip(shown, expected, strict=True):
        assert part in text


SMALL = {"clients": 3, "rounds": 2, "steps": 2, "executor": "cores", "progress": False}


def test_a_grid_its_means_its_best_and_its_failures(tmp_path: Path) -> None:
    more: dict[str, Any] = {"validation": 0.2, "store": Store(tmp_path), **SMALL}
    grid = fb.sweep("digits", ["local", Ditto(mu=0.5, personal_steps=1)], lr=[0.05, 0.1], seeds=[0, 1], **more)
    assert not grid.failures
    values = [(run.spec.method, run.spec.setting.lr, run.spec.setting.seed) for run in grid.runs]
    assert values == [(m, lr, s) for lr in (0.05, 0.1) for m in ("local", "ditto") for s in (0, 1)]
    assert {run.spec.params.get("mu") for run in grid.runs} == {None, 0.5}
    assert [(one["method"], one["validation"]) for one in grid.best] == [("local", 0.2), ("ditto", 0.2)]
    assert "Ditto" in repr(grid)
    assert "<table" in grid._repr_html_()
    again = fb.sweep("digits", "local", lr=0.05, seeds=[0], **more)
    assert [run.id for run in again.runs] == [grid.runs[0].id], "it is there"
    grid = fb.sweep("digits", ["fedavg"], lr=[0.05, 1e30], seeds=[0], store=Store(tmp_path), **SMALL)
    assert len(grid.runs) == len(grid.failures) == 1, "one that fails stops no other"
    assert "diverged" in str(next(iter(grid.failures.values())))


HOSTILE: list[Any] = [
    None,
    True,
    -1,
    2**70,
    float("nan"),
    float("inf"),
    "",
    "2",
    "x" * 999,
    "\0",
    b"x",
    [],
    [None],
    [[]],
    {"a": 1},
    {1},
    Path("x"),
    object(),
    len,
    int,
    1j,
    range(3),
    np.float32(0.3),
    np.int64(2),
    np.array([1.0, 2.0]),
    np.array([]),
    np.datetime64("2020"),
]


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


@pytest.fixture
def calls(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Call]:
    """Nothing is trained or dealt out, and no process begins."""

    def made(*_: Any, **__: Any) -> Any:
        raise FedbenchError("as far as this")

    for place in ("observers.make", "engine.engines.Where._in_processes", "conformance.suite.outcomes"):
        monkeypatch.setattr(f"fedbench.{place}", made)
    monkeypatch.setattr("fedbench.engine.sweep.sweep", lambda *_, **__: [])
    monkeypatch.setattr("fedbench.partitions.obtain", made)
    monkeypatch.chdir(tmp_path)
    store, quiet = {"store": session.home}, {"progress": False}
    tables = fb.report("5", dataset="digits", budget="smoke", **store)
    return {
        "partition": Call(fb.partition, {"dataset": "digits", **store}, tuple(names())),
        "train": Call(fb.train, {"part": session.part, "method": "ditto", **quiet}, (*typed(Setting), "mu")),
        "sweep": Call(
            fb.sweep,
            {"dataset": "digits", "methods": "ditto", "dir": 0.3, **store, **quiet},
            (*settable(), "mu", "clients", "min_size"),
        ),
        "run": Call(fb.run, {"id": "x", **store}),
        "runs": Call(fb.runs, store),
        "curves": Call(fb.curves, store),
        "compare": Call(fb.compare, store),
        "report": Call(fb.report, {"tables": "5", "dataset": "digits", "budget": "smoke", **store}),
        "check": Call(fb.check, {"what": "ditto"}, ("mu",)),
        "Store": Call(fb.Store, {}),
        "text": Call(tables.text, {}),
        "save": Call(tables.save, {"path": tmp_path / "table.csv"}),
    }


def test_keywords_have_the_names_and_defaults_of_the_options() -> None:
    """They are written out, for an editor to offer them; what they say again is the same."""
    train, sweep, report, tables = (
        {k: one.default for k, one in inspect.signature(function).parameters.items() if one.default is not one.empty}
        for function in (fb.train, fb.sweep, fb.report, grids_of)
    )
    where = {one.name: one.default for one in dataclasses.fields(Where)}
    assert where.items() <= sweep.items()
    assert {"device", "executor"} == where.keys() & train.keys()
    assert all(where[name] == train[name] for name in ("device", "executor"))
    assert report == {k: v for k, v in tables.items() if k != "appendix"} | {"store": None}


def test_what_an_argument_cannot_be_is_one_line(calls: dict[str, Call]) -> None:
    wrong, refused = [], 0
    for called, call in calls.items():
        for name in call.names():
            for value in HOSTILE:
                try:
                    call(**{name: value})
                except FedbenchError as error:
                    refused += "as far as this" not in str(error)
                    wrong += [f"{called}({name}={value!r}): {error}"] if "\n" in str(error) else []
                except Exception as error:
                    wrong.append(f"{called}({name}={value!r}): {type(error).__name__}: {error}")
    assert not wrong, "\n".join([f"{len(wrong)} calls", *wrong[:20]])
    assert refused > 2000, "it reaches them"


def test_the_line_names_function_argument_type_and_value(calls: dict[str, Call]) -> None:
    for called, given, line in (
        ("sweep", {"seeds": 3}, "sweep: seeds must be a list, each a whole number, not 3; such as [3]"),
        ("sweep", {"jobs": "two"}, "sweep: jobs must be a whole number, not 'two'"),
        ("sweep", {"lr": []}, "sweep: lr has no value; leave lr out, or give some"),
        ("sweep", {"methods": [Ditto(mu=0.1), "ditto"]}, "sweep: methods has ditto twice, with different values"),
        ("sweep", {"methods": Ditto(mu=0.1), "mu": [0.5]}, "sweep: mu is given twice: as an option, and by the object"),
        ("sweep", {"lr": [object]}, "--lr of sweep takes a number, not <class 'object'>"),
        ("train", {"round": 3}, "unknown option of ditto 'round'; did you mean 'rounds'"),
        (
            "train",
            {"method": 3},
            "3 is no method; give a name, FILE.py:Class, or a class derived from fedbench.methods.base.Method",
        ),
        ("train", {"progress": None}, "train: progress must be true or false, not None"),
        ("train", {"observers": fb.Observer()}, "train: observers must be a list, each an Observer or text, not"),
        ("train", {"store": "elsewhere"}, "train: the partition is in the store "),
        ("report", {"tables": 1.5}, "report: tables must be text or a whole number, not 1.5"),
        ("compare", {"filters": 1}, "compare: filters must be text or a Run, not 1"),
        ("text", {"format": 1}, "Tables.text: format must be text, not 1"),
    ):
        assert refused("", lambda called=called, given=given: calls[called](**given)).startswith(line)


def test_a_value_of_an_object_holds_even_if_it_is_the_default(calls: dict[str, Call]) -> None:
    """FedDRM's protocol has five personal steps of Ditto, the class none."""
    assert Ditto().personal_steps == 0
    each = ((Ditto(), 5), (Ditto(personal_steps=0), 0), (Ditto(personal_steps=3), 3), (Ditto, 5))
    for how, steps in each:
        points = calls["sweep"](methods=how, protocol="feddrm", rounds=2).points
        assert {run.spec.params["personal_steps"] for point in points for run in point.runs} == {steps}
    none = Ditto(personal_steps=0)
    for one in (pickle.loads(pickle.dumps(none)), copy.copy(none), replace(Ditto(), personal_steps=0)):
        assert options_of(one)["personal_steps"] == 0
    assert options_of(Dirichlet(0.3)) == options_of(Dirichlet(alpha=0.3)) == {"alpha": 0.3}
    assert (repr(none), none) == (repr(Ditto()), Ditto())


def test_what_is_meant_plainly_is_taken(calls: dict[str, Call]) -> None:
    """Texts of numbers, as options have them; a table's number; NumPy's scalars and arrays; objects of methods."""
    assert calls["report"](tables=np.int64(5)).text() == calls["report"](tables="5").text()
    plain = calls["sweep"](seeds=[0, 1], lr=[0.05, 0.1], mu=0.3, dir=[0.3], rounds=2)
    ids = [run.spec.id for point in plain.points for run in point.runs]
    numpy = {"seeds": np.arange(2), "lr": np.array([0.05, 0.1], np.float32), "rounds": "2", "dir": np.float32(0.3)}
    for mu in ({"mu": np.float32(0.3)}, {"methods": Ditto(mu=np.float32(0.3))}):
        points = calls["sweep"](**numpy, **mu).points
        assert [run.spec.id for point in points for run in point.runs] == ids
        assert {type(point.partition["dir"]) for point in points} == {float}, "Python's numbers, not NumPy's"
    given = calls["sweep"](methods="feddrm", lambda_=0.5, rounds=2).points[0].runs[0].spec.params
    assert given["lambda"] == 0.5
    assert Ditto(mu="0.3") == Ditto(mu=0.3)  # type: ignore[arg-type]
    assert Dirichlet(alpha=np.float32(0.3)) == Dirichlet(alpha=0.3)
    with pytest.raises(FedbenchError, match="--mu of ditto takes a number, not 'much'"):
        Ditto(mu="much")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"runs\(\) got an unexpected keyword argument 'colums'"):  # Python's own
        fb.runs(colums=1)  # type: ignore[call-arg]
