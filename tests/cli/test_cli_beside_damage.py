"""One damaged file of the store stops no command that can do without it, and is told of."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from fedbench.store import Store
from tests.support.cli_user import DIGITS, SMOKE, artifact, cells, complete, edit_manifest, fedbench, good

COMMANDS = (
    ("list",),
    ("list", "--json"),
    ("report", "--table", "1", *DIGITS),
    ("tables",),
    ("tables", "1"),
    ("train", "--table", "1", *DIGITS, "--column", "Dir-0.3", "-m", "local"),
)


NOTES = ("{", "[]", "\x00", "", '{"run": 3, "spec": 4}', '{"run": {}, "spec": {"setting": 1}}')


@pytest.mark.parametrize("place", ["failed/{}.json", "work/{}/spec.json"])
def test_damaged_notes_of_runs(ready: Path, place: str) -> None:
    """Each of a run that some process has claimed."""
    with contextlib.ExitStack() as claims:
        for number, text in enumerate(NOTES):
            id = f"{number:012x}"
            path = ready / place.format(id)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            claims.enter_context(Store(ready).claim(id))
        for command in COMMANDS[:5]:
            good(*command)


@pytest.mark.parametrize("kind", ["run", "metrics", "partition", "dataset"])
def test_a_damaged_manifest(ready: Path, kind: str) -> None:
    path = artifact(ready, kind)
    (path / "artifact.json").write_text("{")
    for command in COMMANDS:
        said = good(*command) if kind in ("run", "metrics") else fedbench(*command)
        assert said.code in (0, 1)
        assert "Traceback" not in said.err
    assert f"{kind} {path.name} is damaged" in good("list").err
    said = fedbench("evaluate", "--all")
    assert said.code == (2 if kind in ("run", "metrics") else 0)
    good("remove", path.name, "--yes")
    assert good("list").err == ""


def test_a_report_tells_of_a_damaged_run(ready: Path) -> None:
    """Whose cell it would fill nobody knows, so every report says that it is there."""
    id = artifact(ready, "run").name
    (ready / "run" / id / "artifact.json").write_text("{")
    said = good("report", "--table", "1", *DIGITS, "--format", "json")
    assert cells(said)["FedAvg"]["Dir-0.3"]["state"] == "missing"
    (problem,) = json.loads(said.out)[0]["problems"]
    assert problem.startswith(f"run {id} is damaged")


def test_another_runs_spec_in_a_manifest(ready: Path) -> None:
    """One flipped bit of a seed or a method would show a number as another run's."""
    path = artifact(ready, "run")
    edit_manifest(path, lambda m: m["spec"].update(method="local"))
    said = good("report", "--table", "1", *DIGITS, "--format", "json")
    assert {cells(said)[row]["Dir-0.3"]["state"] for row in ("FedAvg", "Local")} == {"missing"}
    assert f"the spec in {path / 'artifact.json'} is that of run " in json.loads(said.out)[0]["problems"][0]


def test_deleting_the_damaged_manifest_costs_no_training(ready: Path) -> None:
    path = artifact(ready, "run")
    (path / "artifact.json").unlink()
    assert f"run {path.name} is damaged: it has no manifest" in good("list").err
    good("train", "--method", "fedavg", *SMOKE)
    assert artifact(ready, "run") == path
    assert [name for name in complete(ready) if "/." in name] == []


def test_an_altered_checkpoint_is_not_gone_on_with(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedbench.core import trainer

    run = ("train", "--method", "local", *SMOKE, "--steps", "1")

    def stop(progress: trainer.Progress) -> None:
        if progress.round == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedbench.observers.bars._lines", lambda *_: stop)
        assert fedbench(*run).code == 130
    (path,) = ready.glob("work/*/checkpoint.json")
    entry = json.loads(path.read_text())
    entry["rounds"][0]["loss"] += 1
    path.write_text(json.dumps(entry))
    said = fedbench(*run)
    assert said.code == 2
    assert said.line == (
        f"fedbench: {path} was altered after it was written; delete the folder {path.parent} to begin this run again"
    )
