"""`--again`: what other code made is made anew, from its images on, and stays until its successor is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fedbench.core.trainer import Trainer
from fedbench.store import Store
from tests.support.cli_user import DIGITS, SMOKE, artifact, cells, edit_manifest, fedbench, good

TRAIN = ("train", "--method", "fedavg", *SMOKE)
TABLE = ("train", "--table", "1", *DIGITS, "--column", "Dir-0.3", "-m", "fedavg")


def row(*options: str) -> dict[str, Any]:
    return cells(good("report", "--table", "2", "--format", "json", *DIGITS, *options))["FedAvg"]["Dir-0.3"]


def age(home: Path, *kinds: str) -> None:
    """Let other code have made the artifacts of these kinds."""
    for kind in kinds:
        edit_manifest(artifact(home, kind), lambda m: m["provenance"].update(fingerprint="0" * 12))


def otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that answers class 0 to everything: another number for the same run."""
    from fedbench.core import tables

    predictions = tables.predictions

    def zero(t: int, answers: Any, federation: Any) -> Any:
        for table in predictions(t, answers, federation):
            at = table.schema.get_field_index("own")
            yield table.set_column(at, "own", pa.array([0] * len(table), table.schema.field("own").type))

    monkeypatch.setattr(tables, "predictions", zero)


@pytest.mark.parametrize("command", [TRAIN, TABLE])
def test_the_number_is_the_new_runs(ready: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    """Metrics of the former run have the same id, and must not be taken for those of the new one."""
    before = row()["value"]
    age(ready, "run")
    otherwise(monkeypatch)
    good(*command, "--again")
    assert row()["state"] == "done"
    assert row()["value"] != before
    evaluated = good("evaluate", artifact(ready, "run").name, "--again", "--json").out
    assert json.loads(evaluated)[0]["headline"]["crop"]["average_accuracy"] < 0.3


def test_metrics_of_another_making_count_as_missing(ready: Path) -> None:
    """Wherever the run came from: copied over from a colleague's store, say."""
    assert "there already" in good("evaluate").err
    run = artifact(ready, "run")
    (run / "rounds.parquet").write_bytes((run / "clients.parquet").read_bytes())
    edit_manifest(run, lambda m: m["files"].update({"rounds.parquet": m["files"]["clients.parquet"]}))
    assert fedbench("evaluate").code == 2, "those rounds tell no times, and nothing older is shown in their place"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ZeroDivisionError])
def test_the_old_run_stays_until_the_new_one_is_there(
    ready: Path, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    age(ready, "run")
    before, answers = row(), (artifact(ready, "run") / "predictions.parquet").read_bytes()
    commit = Trainer.commit

    def fail(self: Trainer, round: Any) -> None:
        commit(self, round)
        if self.server.round == 2:
            raise stop

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "commit", fail)
        if stop is KeyboardInterrupt:
            assert fedbench(*TRAIN, "--again").code == 130
        else:
            with pytest.raises(stop):
                fedbench(*TRAIN, "--again")
    assert (artifact(ready, "run") / "predictions.parquet").read_bytes() == answers
    assert row() == before
    good(*TRAIN, "--again")
    assert not older(artifact(ready, "run"))


@pytest.mark.parametrize("kinds", [("dataset",), ("partition",), ("dataset", "partition", "run")])
def test_what_a_run_was_made_from_counts_too(ready: Path, kinds: tuple[str, ...]) -> None:
    """Images read, or clients drawn, by other code are read and drawn anew."""
    inputs = {kind: artifact(ready, kind).name for kind in ("dataset", "partition")}
    age(ready, *kinds)
    good("train", "--method", "local", *SMOKE)
    local = next(a for a in Store(ready).list("run") if a.manifest["spec"]["method"] == "local")
    assert {one["fingerprint"] for one in local.provenance["made_from"].values()} >= {"0" * 12}
    good("train", "--method", "local", *SMOKE, "--again")
    assert not any(older(artifact(ready, kind)) for kind in ("dataset", "partition"))
    assert {kind: artifact(ready, kind).name for kind in inputs} == inputs, "the same ids"
    local = next(a for a in Store(ready).list("run") if a.manifest["spec"]["method"] == "local")
    assert not any(one["fingerprint"] == "0" * 12 for one in local.provenance["made_from"].values())


@pytest.mark.parametrize("command", [TRAIN, TABLE])
def test_a_run_that_is_missing_begins_with_its_inputs_too(ready: Path, command: tuple[str, ...]) -> None:
    for kind in ("run", "metrics"):
        good("remove", artifact(ready, kind).name, "--yes")
    age(ready, "dataset", "partition")
    good(*command, "--again")
    assert not any(older(artifact(ready, kind)) for kind in ("dataset", "partition"))
    assert row()["state"] == "done"


def older(path: Path) -> bool:
    return bool(json.loads((path / "artifact.json").read_text())["provenance"]["fingerprint"] == "0" * 12)


def test_partition_says_that_older_code_drew_it(ready: Path) -> None:
    age(ready, "partition")
    assert (
        "drawn by code that has changed since: 'train --again' draws it anew"
        in good("partition", "digits", "--dir", "0.3", "--protocol", "feddrm").out
    )


def test_what_another_process_has_made_anew_is_not_made_again(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the table and the run's turn."""
    age(ready, "run")
    from fedbench.engine import sweep

    plan = sweep.plan

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        lacking = plan(*arguments, **options)
        edit_manifest(artifact(ready, "run"), lambda m: m["provenance"].update(fingerprint_parts=[], process="another"))
        return lacking

    monkeypatch.setattr(sweep, "plan", meanwhile)
    before = (artifact(ready, "run") / "artifact.json").read_bytes()
    assert good(*TABLE, "--again").err.splitlines()[-1] == "0 of 1 runs made, 1 by other processes"
    assert (artifact(ready, "run") / "artifact.json").read_bytes() != before
