"""A store with small but real artifacts, as if runs had been trained and evaluated."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from fedbench import methods, protocol
from fedbench.cli import context
from fedbench.cli.figure import figure
from fedbench.cli.parser import App
from fedbench.cli.report import claims, report
from fedbench.cli.tables import tables as tables_command
from fedbench.errors import FedbenchError
from fedbench.methods import declarations
from fedbench.metrics.definitions import METRICS
from fedbench.metrics.read import load, metrics_of, writing
from fedbench.planner import table as tables
from fedbench.planner.cells import Cells, find
from fedbench.planner.settings import sketch
from fedbench.planner.table.spec import Table
from fedbench.reports.layout.grid import Grid
from fedbench.results.frame import Frame
from fedbench.results.pack import Row, write
from fedbench.specs import DatasetSpec, RunSpec, Setting
from fedbench.store import Artifact, Store
from tests.support.cli_user import tables_once
from tests.support.figures_lab import build

#: A command in this process: its arguments -> what it answers.
Draws = Callable[..., Result]
DIR, SPC = "CIFAR-10/Dir-0.3", "CIFAR-10/5-SPC"  #: columns of feddrm/1
NONE: Mapping[Any, Any] = {}
MEASURED = ("value", "metrics", "clients", "images", "each", "whole", "views")  #: what `Lab.metrics` takes


@dataclass
class Lab:
    """Makes artifacts of runs that were never trained."""

    store: Store

    def dataset(self, name: str) -> None:
        """The data set's artifact (what it holds does not matter to a report)."""
        spec = DatasetSpec(name, "made for a test", "0")
        if not self.store.has(spec):
            with self.store.writing(spec) as writer:
                writer.table("images", pa.table({"label": [0]}))

    def cells(self, table: str | Table, budget: str = "small", **options: Any) -> Cells:
        return find(
            tables.load(table) if isinstance(table, str) else table,
            budget,
            options.pop("frame", None) or Frame(self.store),
            [],
            **options,
        )

    def grid(self, table: str | Table, budget: str = "small", **options: Any) -> Grid:
        return build(tables.load(table) if isinstance(table, str) else table, budget, self.store, **options)

    def setting(self, table: str | Table, column: str, budget: str = "small", **options: Any) -> Setting:
        return self.cells(table, budget, **options).settings[column][0]

    def made(self, spec: RunSpec, **provenance: Any) -> Artifact:
        """The artifact of a run of any spec."""
        with self.store.writing(spec) as writer:
            writer.table("rounds", pa.table({"round": [1]}))
            writer.provenance = provenance
        return self.store.open("run", spec.id)

    def run(
        self,
        setting: Setting,
        method: str,
        overrides: Mapping[str, Any] | None = None,
        *,
        measure: bool = True,
        version: int | None = None,
        rules: str = "feddrm",
        **more: Any,
    ) -> Artifact:
        """A run's artifact with its provenance, and (unless `measure` is False) what `metrics` makes of the rest."""
        dataset = setting.partition.dataset.name
        of = protocol.load(rules)
        budget = next((budget for budget in of.budgets if of.asks_for(setting, budget)), "small")
        chosen = {**of.method_params(method, budget, dataset), **(overrides or {})}
        own = declarations.built_in().get(method)
        spec = own.run(setting, chosen) if own else RunSpec(setting, method, chosen)
        spec = replace(spec, method_version=version or spec.method_version)
        measured = {name: more.pop(name) for name in MEASURED if name in more}
        run = self.made(spec, **{"overrides": chosen, "train_seconds": 60.0, "device": "cpu", **more})
        if measure:
            self.metrics(run, **measured)
        return run

    def metrics(
        self,
        run: Artifact,
        value: float = 0.5,
        metrics: Mapping[str, Callable[[int], float]] | None = None,
        clients: Mapping[int, float] = NONE,
        images: Mapping[int, int] = NONE,
        each: Mapping[int, Callable[[int], float]] = NONE,
        whole: Mapping[str, float] = NONE,
        views: tuple[str, ...] = ("crop", "plain"),
    ) -> None:
        """The metrics of a run.

        `metrics` maps a name to its value after a round (default: system and average accuracy are `value`);
        `clients` gives client accuracies after the last round, `images` the numbers of their test images (one unless
        given), `each` client accuracies by round, with their mean, minimum and maximum; `whole` values of the run.
        """
        by_round = metrics or {"system_accuracy": lambda t: value, "average_accuracy": lambda t: value}
        if each:
            of_all = {"mean": fmean, "min": min, "max": max}
            by_round = {f"client_accuracy_{k}": partial(_over, f, each) for k, f in of_all.items()}
        setting = run.spec.setting
        rows = [
            (name, view, t, -1, at(t))
            for name, at in by_round.items()
            for view in (views if name not in METRICS or METRICS[name].by_view else ("",))
            for t in setting.evaluated_rounds()
        ]
        rows += [("client_accuracy", view, setting.rounds, c, v) for view in views for c, v in clients.items()]
        rows += [
            ("client_accuracy", view, t, c, at(t))
            for view in views
            for t in setting.evaluated_rounds()
            for c, at in each.items()
        ]
        rows += [("test_images", "", 0, c, float(images.get(c, 1))) for c in clients or each]
        rows += [(name, "", 0, -1, v) for name, v in whole.items()]
        self.rows(run, rows)

    def rows(self, run: Artifact, rows: Iterable[tuple[str, str, int, int, float]]) -> None:
        """The metrics of a run: name, view, round, client (-1: the federation's), value."""
        columns = list(zip(*rows, strict=True))
        kinds = {"round": pa.int32(), "client": pa.int32(), "value": pa.float64()}
        names = ("metric", "view", "round", "client", "value")
        arrays = {n: pa.array(c, kinds.get(n, pa.string())) for n, c in zip(names, columns, strict=True)}
        for name in ("metric", "view"):
            arrays[name] = arrays[name].dictionary_encode()
        with writing(run, self.store) as writer:
            writer.table("metrics", pa.table(arrays))

    def pack(self, folder: Path, *failures: Any, gone: bool = False) -> Path:
        """A pack of all runs of the store, which then lacks them where they are to be gone."""
        runs = list(self.store.list("run"))
        write(path := folder / "pack.parquet", [self.packed(run) for run in runs], *failures)
        for run in runs if gone else ():
            self.store.remove("run", run.id)
        return path

    def packed(self, run: Artifact) -> Row:
        """A run as a pack of Ada's has it."""
        about = {"title": "FedAvg", "device": "cpu", "libraries": {"torch": "9.9"}, "measures": []}
        metrics = load(metrics_of(run, self.store))  # type: ignore[arg-type]
        return Row(run.spec, "0" * 64, "Ada", "2026-01-02T03:04:05Z", 7200.0, "Linux x86_64", about, metrics)


def _over(how: Callable[[list[float]], float], each: Mapping[int, Callable[[int], float]], t: int) -> float:
    return how([at(t) for at in each.values()])


def written(folder: Path, text: str) -> Table:
    (folder / "mine.toml").write_text(text)
    return tables.load(str(folder / "mine.toml"))


def settings(name: str, budget: str = "paper") -> dict[str, Setting]:
    """Column's key -> its setting under a budget, for the measured columns of a table."""
    table = tables.load(name)
    return {c.key: sketch(table, c, budget) for c in table.measured}


def of_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture(autouse=True, scope="module")
def _once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        tables_once(patch)
        yield


SIX = ["fedala", "fedavg", "fedavgft", "feddrm", "local", "pfedfda"]


@pytest.fixture
def five(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "names", lambda: SIX)


FLUX = [
    "fedavg",
    "ifca",
    "fedrc",
    "fedem",
    "fesem",
    "feddrift",
    "cfl",
    "mr_mtl",
    "apfl_flux",
    "atp",
    "flux",
    "descriptor_bounds",
]


@pytest.fixture
def lab(store: Store, five: None) -> Lab:
    """A laboratory with CIFAR-10 in its store."""
    made = Lab(store)
    made.dataset("cifar10")
    return made


@pytest.fixture
def here(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """The laboratory with FLUX's methods and MNIST."""
    monkeypatch.setattr(methods, "names", lambda: FLUX)
    lab.dataset("mnist")
    return lab


APP = App()
for command in (claims, figure, report, tables_command):
    APP.command(command.__name__)(command)


def answer(home: Path, *arguments: str) -> Result:
    """What `fedbench figure`, `report`, `claims` or `tables` answers, without real images; an error is raised."""
    context.configure(home, "", False)
    result = CliRunner().invoke(APP, list(arguments))
    if isinstance(result.exception, FedbenchError):
        raise result.exception
    return result


@pytest.fixture
def call(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Draws:
    monkeypatch.chdir(tmp_path)
    for name in ("COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return partial(answer, store.home)


@pytest.fixture
def draws(call: Draws) -> Draws:
    return partial(call, "figure")


def words_of(grid: Grid) -> tuple[str, ...]:
    """All that stands around a table in words: the line below its title, the brief notes and the others."""
    return (grid.basis, *grid.about, *grid.notes)
