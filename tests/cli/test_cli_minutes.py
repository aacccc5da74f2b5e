"""`train --table --minutes N --export FILE`: what does not fit is left for the next time, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedbench.cli import cost, live, making
from fedbench.results.pack import Pack
from fedbench.words import size
from tests.support.cli_user import DIGITS, fedbench, good

TABLE = ("train", "--table", "1", *DIGITS, "-m", "fedavgft", "-m", "ditto")


class Clock:
    """Seconds that pass by themselves never; and the alarm that is set."""

    def __init__(self) -> None:
        self.now, self.alarm = 0.0, lambda: None

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(home: Path, brief: None, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Each run takes a minute and is estimated to take one."""
    it, run = Clock(), live.run

    def timer(seconds: float, stop: Callable[[], None]) -> Any:
        it.alarm = stop
        return SimpleNamespace(start=lambda: None, cancel=lambda: None, daemon=True)

    def timed(*given: Any) -> Any:
        made = run(*given)
        it.now += 60
        return made

    monkeypatch.setattr(live, "time", it)
    monkeypatch.setattr(live, "threading", SimpleNamespace(Timer=timer))
    monkeypatch.setattr(cost, "of", lambda runs, device: {one.spec.id: 60.0 for one in runs})
    monkeypatch.setattr(making, "run", timed)
    return it


def test_what_would_not_end_in_time_is_not_begun(clock: Clock, tmp_path: Path) -> None:
    pack = tmp_path / "pack.parquet"
    said = good(*TABLE, "--minutes", "2.5", "--export", pack)
    assert "2 of 4 runs made\n" in said.err
    assert "left for another time, as 2.5 minutes are over or too few are left:\n  (3/4) " in said.err
    assert said.line == f"2 runs in {pack}, {size(pack.stat().st_size)}"
    assert len(list(Pack(pack).rows())) == 2
    # At the pace of the runs before: half of it.
    clock.now = 0
    made = json.loads(good(*TABLE, "--minutes", "1.5", "--export", pack, "--json").out)
    assert (len(made["made"]), len(made["left"])) == (1, 1)
    assert good(*TABLE, "--minutes", "9", "--export", pack).line.startswith("4 runs in ")
    assert good(*TABLE, "--minutes", "9").line == "nothing to run: no cell of the table is missing"


def test_a_slow_machine_is_noticed(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "of", lambda runs, device: {one.spec.id: 20.0 for one in runs})
    assert "2 of 4 runs made\n" in good(*TABLE, "--minutes", "2.5").err


def test_what_is_under_way_at_the_end_is_saved_and_goes_on(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = making.run

    def interrupted(*given: Any) -> Any:
        clock.now += 600
        clock.alarm()  # another thread's, in the middle of the run
        return run(*given)

    monkeypatch.setattr(making, "run", interrupted)
    said = good(*TABLE, "--minutes", "5")
    assert "0 of 4 runs made\n" in said.err
    assert "round 1 of 2 is saved\n" in said.err
    assert said.line == "The same command goes on from there."
    monkeypatch.setattr(making, "run", run)
    assert good(*TABLE, "--minutes", "9").line == "4 of 4 runs made"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--minutes", "0"), "--minutes must be above 0, not 0"),
        (("--minutes", "nan"), "--minutes must be above 0, not nan"),
        (("--export", "x.csv"), "a result pack is a Parquet file, and x.csv does not end so; --export NAME.parquet"),
    ],
)
def test_bad_input(home: Path, options: tuple[str, ...], line: str) -> None:
    said = fedbench(*TABLE, *options)
    assert (said.code, said.line) == (2, f"fedbench: {line}")


@pytest.mark.parametrize("option", ["--minutes=2", "--export=x.parquet"])
def test_with_a_table_alone(home: Path, option: str) -> None:
    said = fedbench("train", "-m", "fedavg", option)
    assert (said.code, said.line) == (2, f"fedbench: {option.partition('=')[0]} goes with --table only; leave it out")
