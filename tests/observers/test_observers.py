"""Observers of real runs and of trainings that are told to them: what they write, and that they never end a run; and
progress bars on a terminal of 80 columns."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import MagicMock, call

import pytest
from rich.console import Console

from fedbench import observers
from fedbench.core.trainer import Progress
from fedbench.observers import Observer, Training, Watch
from fedbench.observers.bars import Bars
from fedbench.screen import Screen
from fedbench.store import Store
from tests.support.cli_user import fedbench, good
from tests.support.frames import refused

TRAINING = Training(("0123456789ab",), "FedAvg", 2, {"method": "fedavg", "lr": 0.1, "seed": 0})
ROUNDS = (
    Progress(0, 2, 0.0, None, doing="clients describe their data"),
    Progress(1, 2, 1.5, None),
    Progress(2, 2, 0.5, 0.75),
)


def tell(observer: Observer, results: Mapping[str, float] | None) -> None:
    """A training of two rounds, the second one evaluated."""
    observer.on_start(TRAINING)
    for now in ROUNDS:
        observer.on_round(now)
    observer.on_end(results)


def test_a_run_at_the_command_line(tmp_path: Path) -> None:
    """JSON lines and TensorBoard's event files of one run; a run that is there is not watched again."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    home, log, board = tmp_path / "home", tmp_path / "log.jsonl", tmp_path / "board"
    good("--home", home, "partition", "digits", "--dir", "0.3", "--clients", "3")
    train = ("--home", home, "train", "--method", "fedavg", "--budget", "smoke", "--every", "1", "--log", log)
    good(*train, "--observe", f"tensorboard:{board}")
    (run,) = Store(home).list("run")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    start, *rounds, end = events
    assert all(event["runs"] == [run.id] for event in events)
    assert (start["event"], start["title"], start["values"]["method"]) == ("start", "FedAvg", "fedavg")
    assert [one["round"] for one in rounds] == list(range(1, start["rounds"] + 1))
    assert [one["loss"] for one in rounds] == run.table("rounds").column("loss").to_pylist()
    assert end["complete"] is True
    assert end["results"]["average_accuracy"] == pytest.approx(rounds[-1]["accuracy"])
    (folder,) = board.iterdir()
    assert folder.name == f"fedavg-{run.id}"
    written = EventAccumulator(str(folder)).Reload()
    losses = [(one.step, one.value) for one in written.Scalars("loss")]
    assert losses == [(one["round"], pytest.approx(one["loss"], rel=1e-5)) for one in rounds]
    (last,) = written.Scalars("end/average_accuracy")
    assert last.value == pytest.approx(end["results"]["average_accuracy"], rel=1e-5)
    good(*train)
    assert len(log.read_text().splitlines()) == len(events)


def test_json_lines_of_a_training_that_was_stopped(tmp_path: Path) -> None:
    observer = observers.of(f"jsonl:{tmp_path / 'log.jsonl'}")
    tell(observer, None)
    tell(observer, {"average_accuracy": 0.75})
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [one["event"] for one in events] == ["start", "round", "round", "end"] * 2
    assert [one.get("accuracy") for one in events[1:3]] == [None, 0.75]
    assert [one["complete"] for one in events if one["event"] == "end"] == [False, True]


def test_wandb_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", fake := MagicMock())
    tell(observers.of("wandb:mine"), {"average_accuracy": 0.7})
    assert fake.init.call_args.kwargs["project"] == "mine"
    assert fake.init.call_args.kwargs["config"] == {**TRAINING.values, "fedbench_runs": "0123456789ab"}
    run = fake.init.return_value
    logged = [(one.args[0], one.kwargs["step"]) for one in run.log.call_args_list]
    assert logged == [({"loss": 1.5}, 1), ({"loss": 0.5, "accuracy": 0.75}, 2)]
    run.summary.update.assert_called_once_with({"average_accuracy": 0.7})
    run.finish.assert_called_once_with(exit_code=0)


def test_what_is_no_observer_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused("unknown observer 'tensorbord'; did you mean 'tensorboard'", observers.of, "tensorbord:x")
    for said, line in (
        ("jsonl", "names no FILE; such as jsonl:log.jsonl"),
        ("tensorboard", "names no DIR; such as tensorboard:board"),
        ("tensorboard:", "names no DIR; such as tensorboard:board"),
        ("wandb:", "names no PROJECT; such as wandb:PROJECT"),
    ):
        refused(f"^--observe {said} {line}$", observers.of, said)
    refused("cannot write", observers.JsonLines, tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)  # as where it is not installed
    refused(r"pip install 'fedbench-fl\[wandb\]'", observers.of, "wandb")
    said = fedbench("--home", tmp_path, "train", "--table", "1", "--observe", "wandb")
    assert (said.code, "fedbench-fl[wandb]" in said.line) == (2, True)


def test_several_runs_that_cannot_be_trained_together_are_not_watched() -> None:
    """Whether they can shows when their first round ends: until then nobody is told."""
    observer = MagicMock(spec=Observer, notify=MagicMock())
    both = Training(("0123456789ab", "ba9876543210"), "FedAvg, seeds 0, 1", 2, TRAINING.values)
    with Watch(both, [observer], observer.notify):
        pass
    assert observer.method_calls == []
    with Watch(both, [observer], observer.notify) as watching:
        watching.on_round(ROUNDS[1])
    assert observer.method_calls == [call.on_start(both), call.on_round(ROUNDS[1]), call.on_end(None)]


# -- progress bars: of a run's rounds, and of all runs of a sweep with the time left ---------------------------


TITLE = "(3/12) fedavg clusters=5 cifar10 Dir-0.3, of clients with a very long name, seeds 1, 2, 3"


def terminal() -> Screen:
    return Screen(file=io.StringIO(), force_terminal=True, color_system=None, width=80, legacy_windows=False)


def lines(bars: Bars) -> list[str]:
    """The bars as they stand, printed to 80 columns."""
    console = Console(file=io.StringIO(), width=80, color_system=None)
    with console.capture() as text:
        console.print(bars.progress.get_renderable())
    return text.get().splitlines()


def test_a_run_and_the_sweep_fit_80_columns() -> None:
    now = [0.0]
    bars = Bars(terminal(), {"a": 100.0, "b": 300.0})
    bars.progress.get_time = lambda: now[0]
    with bars:
        bars.on_start(Training(("a",), TITLE, 15_000, {}))
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
    assert TITLE in bars.console.file.getvalue().replace("\n", ""), "what a run came to stays above the bars"


def test_what_goes_on_before_the_first_round_stands_in_the_title() -> None:
    with Bars(terminal()) as bars:
        bars.on_start(Training(("a",), "flux", 3, {}))
        bars.on_round(Progress(0, 3, 0.0, None, doing="clients look"))
        (line,) = lines(bars)
        assert line.startswith("flux, clients look")
        bars.on_round(Progress(1, 3, None, None))
        assert "no client took part" in lines(bars)[0]
        bars.on_round(Progress(1, 3, 0.5, None))
        (line,) = lines(bars)
        assert line.startswith("flux ")
        assert "1/3" in line


def test_a_file_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    console = Screen(file=io.StringIO(), width=80)
    with Bars(console, {"a": 1.0, "b": 1.0}) as bars:
        bars.on_start(Training(("a",), "fedavg", 2, {}))
        bars.on_round(Progress(1, 2, 0.5, 0.25))
        bars.on_round(Progress(2, 2, 0.25, 0.5))
        bars.on_end({})
        bars.end(1.0)
    assert console.file.getvalue() == "fedavg: round 2 of 2, loss 0.250, accuracy 50.0%\n"


def test_a_run_that_fails_leaves_the_bar_of_the_sweep() -> None:
    with Bars(terminal(), {"a": 1.0, "b": 1.0}) as bars:
        bars.on_start(Training(("a",), "fedavg", 2, {}))
        bars.on_round(Progress(1, 2, 0.5, 0.25))
        bars.on_end(None)
        bars.end(1.0)
        (sweep,) = lines(bars)
    assert "1/2" in sweep
    assert "fedavg: " not in bars.console.file.getvalue()
