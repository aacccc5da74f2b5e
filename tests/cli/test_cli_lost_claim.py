"""A process that slept so long that another took its run over must not touch what is now the other's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedbench.core import trainer
from fedbench.store.claim import FILE
from tests.support.cli_user import SMOKE, fedbench, good

RUN = ("train", "--method", "local", *SMOKE, "--steps", "1")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, None])
def test_its_checkpoint_stays_the_others(ready: Path, monkeypatch: pytest.MonkeyPatch, stop: type | None) -> None:
    """Whether it is interrupted then, or comes to its next checkpoint."""
    if stop is None:
        monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", 0.0)
    theirs = {"round": 3, "by": "the new holder"}

    def taken_over(progress: trainer.Progress) -> None:
        if progress.round == 2:
            (folder,) = ready.glob("work/[!.]*")
            claim = json.loads((folder / FILE).read_text())
            (folder / FILE).write_text(json.dumps({**claim, "token": "another's"}))
            (folder / "checkpoint.json").write_text(json.dumps(theirs))
            if stop is not None:
                raise stop

    with monkeypatch.context() as patch:
        patch.setattr("fedbench.observers.bars._lines", lambda *_: taken_over)
        said = fedbench(*RUN)
    assert said.code == 2
    assert said.line == "fedbench: another process has taken this run over; let that one finish"
    (folder,) = ready.glob("work/[!.]*")
    assert json.loads((folder / "checkpoint.json").read_text()) == theirs
    assert json.loads((folder / FILE).read_text())["token"] == "another's"
    assert not (ready / "failed").exists()


def test_a_run_finished_after_all_leaves_the_others_folder(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both make the same bytes, so whoever is first has made the run; the other one finds that out by himself."""
    from fedbench.engine import run

    write = run.write

    def taken_over(*arguments):  # type: ignore[no-untyped-def]
        artifact = write(*arguments)
        (folder,) = ready.glob("work/[!.]*")
        claim = json.loads((folder / FILE).read_text())
        (folder / FILE).write_text(json.dumps({**claim, "token": "another's"}))
        return artifact

    monkeypatch.setattr(run, "write", taken_over)
    good(*RUN)
    (folder,) = ready.glob("work/[!.]*")
    assert (folder / FILE).exists()
