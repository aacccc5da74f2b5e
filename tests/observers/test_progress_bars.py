"""Progress bars on a terminal of 80 columns: of a run's rounds, and of all runs of a sweep with the time left."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from fedbench.core.trainer import Progress
from fedbench.observers import Training
from fedbench.observers.bars import Bars
from fedbench.screen import Screen

TITLE = "(3/12) fedavg clusters=5 cifar10 Dir-0.3, of clients with a very long name, seeds 1, 2, 3"


def terminal() -> Screen:
    return Screen(file=io.StringIO(), force_terminal=True, color_system=None, width=80, legacy_windows=False)


def lines(bars: Bars) -> list[str]:
    """The bars as they stand, printed to 80 columns."""
    console = Console(file=io.StringIO(), width=80, color_system=None)
    with console.capture() as text:
        console.print(bars.progress.get_renderable())
    return text.get().splitlines()


def training(title: str, rounds: int, *ids: str) -> Training:
    return Training(ids, title, rounds, {})


def test_a_run_and_the_sweep_fit_80_columns() -> None:
    now = [0.0]
    bars = Bars(terminal(), {"a": 100.0, "b": 300.0})
    bars.progress.get_time = lambda: now[0]  # type: ignore[method-assign]
    with bars:
        bars.on_start(training(TITLE, 15_000, "a"))
        for t in range(1, 5_001, 1_000):
            now[0] += 10.0
            bars.on_round(Progress(t, 15_000, 2.345678, 0.4321))
        sweep, run = lines(bars)
        assert all(len(line) <= 80 for line in (sweep, run))
        assert run.startswith("(3/12) fedavg clusters=5")
        assert "…" in run, "the title is cut"
        for part in ("4001/15000", "loss 2.346", "43.2%", "01:50"):  # 10,999 rounds at 100 a second
            assert part in run
        assert "all 2 runs" in sweep
        assert "0/2" in sweep
        assert "09:20" in sweep  # 26.7 of 400 units in 40 s
        bars.on_round(Progress(15_000, 15_000, 2.0, 0.5))
        bars.on_end({})
        bars.end(100.0)
        (sweep,) = lines(bars)
        assert "1/2" in sweep
    assert TITLE in bars.console.file.getvalue().replace("\n", ""), "what a run came to stays above the bars"  # type: ignore[attr-defined]


def test_what_goes_on_before_the_first_round_stands_in_the_title() -> None:
    with Bars(terminal()) as bars:
        bars.on_start(training("flux", 3, "a"))
        bars.on_round(Progress(0, 3, 0.0, None, doing="clients look"))
        (line,) = lines(bars)
        assert line.startswith("flux, clients look")
        bars.on_round(Progress(1, 3, 0.5, None))
        (line,) = lines(bars)
        assert line.startswith("flux ")
        assert "1/3" in line


def test_a_file_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    console = Screen(file=io.StringIO(), width=80)
    with Bars(console, {"a": 1.0, "b": 1.0}) as bars:
        bars.on_start(training("fedavg", 2, "a"))
        bars.on_round(Progress(1, 2, 0.5, 0.25))
        bars.on_round(Progress(2, 2, 0.25, 0.5))
        bars.on_end({})
        bars.end(1.0)
    assert console.file.getvalue() == "fedavg: round 2 of 2, loss 0.250, accuracy 50.0%\n"  # type: ignore[attr-defined]


def test_a_run_that_fails_leaves_the_bar_of_the_sweep() -> None:
    with Bars(terminal(), {"a": 1.0, "b": 1.0}) as bars:
        bars.on_start(training("fedavg", 2, "a"))
        bars.on_round(Progress(1, 2, 0.5, 0.25))
        bars.on_end(None)
        bars.end(1.0)
        (sweep,) = lines(bars)
    assert "1/2" in sweep
    assert "fedavg: " not in bars.console.file.getvalue()  # type: ignore[attr-defined]
