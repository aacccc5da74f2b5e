"""The folder of a run under way: killed when the run is complete, it holds all of a checkpoint or none."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedbench.engine import work
from fedbench.files import write_json
from fedbench.store import CHECKPOINT, Store


def planted(store: Store, id: str) -> Path:
    """A work folder with a checkpoint."""
    folder = store.work(id)
    folder.mkdir(parents=True)
    (folder / "state-000003.safetensors").write_bytes(b"state")
    write_json(folder / CHECKPOINT, {"round": 3})
    return folder


def test_the_index_of_a_checkpoint_goes_before_what_it_lists(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = planted(store, "abc")

    def killed(*_: Any, **__: Any) -> None:
        (folder / "state-000003.safetensors").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(work.shutil, "rmtree", killed)
    job: Any = SimpleNamespace(spec=SimpleNamespace(id="abc"), done=lambda _: "the run")
    with pytest.raises(KeyboardInterrupt):
        work.leave(job, store)
    assert not (folder / CHECKPOINT).exists(), "a restart would take it for a damaged checkpoint"


@pytest.mark.parametrize(("seconds", "kept"), [(-10, True), (10, False)])
def test_clean_takes_the_checkpoint_of_a_run_that_is_complete(store: Store, seconds: float, kept: bool) -> None:
    """One that is younger than the run is of a making anew (`--again`) that was interrupted."""
    folder = planted(store, "abc")
    manifest = store.path("run", "abc") / "artifact.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    saved = (folder / CHECKPOINT).stat().st_mtime
    os.utime(manifest, (saved + seconds,) * 2)
    store.clean()
    assert folder.exists() is kept
