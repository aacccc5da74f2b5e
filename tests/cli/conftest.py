"""A user at the command line: an own store for every test, and a prepared one to go on from or to damage."""

from __future__ import annotations

import dataclasses
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from fedbench import protocol
from fedbench.planner import settings
from tests.support.cli_user import SMOKE, good, interrupted, tables_once

_command = cache(typer.main.get_command)


@pytest.fixture(autouse=True, scope="module")
def _once() -> Iterator[None]:
    """What every process of a user's does once, all tests of this room do once: build the commands and read fedbench's
    own tables. How fast the machine is they do not ask (tests/core/test_trainer.py does)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", _command)
        tables_once(patch)
        patch.setattr("fedbench.engine.cost.images_per_second", lambda *_: 1000.0)
        yield


@pytest.fixture(autouse=True)
def _as_a_user(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No data folder, no terminal's width; and the process's signals as they were."""
    for name in ("FEDBENCH_DATA", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def _smaller(monkeypatch: pytest.MonkeyPatch, budget: str = "smoke", **less: Any) -> None:
    """A budget with at most six small steps a round (or one epoch) in this process, and `less`."""
    load = protocol.load

    def smaller(name: str) -> protocol.Protocol:
        rules = load(name)
        declared = rules.budgets[budget]
        steps = {**rules.train, **declared}.get("steps")
        work = {"epochs": 1} if steps is None else {"steps": min(steps, 6), "batch_size": 16}
        return dataclasses.replace(rules, budgets={**rules.budgets, budget: {**declared, **work, **less}})

    monkeypatch.setattr(protocol, "load", smaller)
    # What has been made of the protocols as they are.
    monkeypatch.setattr(protocol, "_BUDGETS", {})
    monkeypatch.setattr(settings, "_SKETCHES", {})


@pytest.fixture(autouse=True)
def _small_steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are of which runs are made, not of what they learn; `full_smoke` marks those that mean the budget."""
    if request.node.get_closest_marker("full_smoke") is None:
        _smaller(monkeypatch)


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch, _small_steps: None) -> None:
    """Budget smoke at two rounds of such steps."""
    _smaller(monkeypatch, rounds=2)


@pytest.fixture
def brief_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budget small, the default, at two rounds of such steps."""
    _smaller(monkeypatch, "small", rounds=2)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture(scope="session")
def prepared_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Stores of small steps (whatever the test means by the budget), which nobody changes: `one` after `partition
    digits --dir 0.3` and `train --method fedavg`, `both` after `train --method local` too, `stopped` after Ctrl-C
    behind the third of four rounds of `train --method ditto`."""

    @cache
    def made(state: str) -> Path:
        folder = tmp_path_factory.mktemp(state) / "store"
        with pytest.MonkeyPatch.context() as patch:
            _smaller(patch)
            if state == "one":
                good("partition", "digits", "--dir", "0.3", "--protocol", "feddrm", "--home", folder)
                good("train", "--method", "fedavg", *SMOKE, "--home", folder)
                return folder
            shutil.copytree(made("one"), folder)
            if state == "both":
                good("train", "--method", "local", *SMOKE, "--home", folder)
            else:
                interrupted("train", "--method", "ditto", *SMOKE, "--home", folder, after=3)
        return folder

    return made


@pytest.fixture(scope="session")
def prepared(prepared_store: Callable[[str], Path]) -> Path:
    return prepared_store("one")


@pytest.fixture
def ready(prepared: Path, home: Path) -> Path:
    return shutil.copytree(prepared, home)


@pytest.fixture
def both(prepared_store: Callable[[str], Path], home: Path) -> Path:
    """The user's store with runs of FedAvg and Local in one partition."""
    return shutil.copytree(prepared_store("both"), home)


@pytest.fixture
def stopped(prepared_store: Callable[[str], Path], home: Path) -> Path:
    """The folder of a run of Ditto that was interrupted, in a copy of the prepared store."""
    shutil.copytree(prepared_store("stopped"), home)
    (work,) = home.glob("work/[!.]*")
    return work
