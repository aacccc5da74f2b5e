"""The notes of a run under way: cheap, about the last round heard of, and never in its way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedbench.core.trainer import Progress
from fedbench.engine import progress
from fedbench.engine.progress import Notes
from fedbench.store.folder import PROGRESS

HOW = {"device": "cpu", "executor": "stacked"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "time", lambda: now[0])
    return now


def note(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / PROGRESS).read_text())
    return value


def test_what_is_noted(tmp_path: Path, clock: list[float]) -> None:
    notes = Notes([tmp_path], HOW)
    clock[0] = 1010.0
    notes.hear(Progress(1, 9, 2.5, 0.25))
    assert note(tmp_path) == {
        "device": "cpu", "executor": "stacked", "accuracy": 0.25, "round": 1, "rounds": 9, "loss": 2.5, "doing": "",
        "time": 1010.0, "round_seconds": 10.0, "gpu": None,
    }  # fmt: skip
    clock[0] = 1014.0
    notes.hear(Progress(3, 9, 1.5, None))
    assert (note(tmp_path)["accuracy"], note(tmp_path)["round_seconds"]) == (0.25, 2.0), "the first round is warm-up"


def test_at_most_once_a_second_and_the_last_round(tmp_path: Path, clock: list[float]) -> None:
    notes = Notes([tmp_path], HOW)
    rounds = []
    for t in range(1, 101):
        clock[0] += 0.1
        notes.hear(Progress(t, 100, 1.0, None))
        rounds.append(note(tmp_path)["round"])
    assert len(set(rounds)) <= 12
    assert rounds[-1] == 100
    assert list(tmp_path.iterdir()) == [tmp_path / PROGRESS]


def test_before_the_first_round(tmp_path: Path, clock: list[float]) -> None:
    notes = Notes([tmp_path], HOW)
    notes.hear(Progress(0, 9, 0.0, None, "clients describe their data"))
    assert (note(tmp_path)["doing"], note(tmp_path)["round_seconds"]) == ("clients describe their data", None)


def test_runs_made_together_are_noted_each(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    Notes(folders, HOW).hear(Progress(2, 9, 1.0, None))
    assert [note(folder)["round"] for folder in folders] == [2, 2]


def test_a_note_that_cannot_be_written_is_left_out(tmp_path: Path) -> None:
    Notes([tmp_path / "gone"], HOW).hear(Progress(2, 9, 1.0, None))
    assert list(tmp_path.iterdir()) == []
