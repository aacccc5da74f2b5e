"""Which shipped runs can be made again, and what is said of one that was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench.engine import verify
from fedbench.engine.job import Job
from fedbench.engine.run import execute_all
from fedbench.engine.verify import Checked, Verdict, as_made, compare, sample
from fedbench.results.making import row_of
from fedbench.results.pack import Row, write
from fedbench.results.packs import Packs, Shipped
from fedbench.specs import DatasetSpec
from fedbench.store import Artifact, Store
from tests.support.frames import refused
from tests.support.make_runs import small_run

#: One run of FedAvg on the digits.
DIGITS = Path(__file__).parents[1] / "fixtures/results/digits.parquet"


@pytest.fixture
def run() -> Shipped:
    (one,) = Packs([DIGITS]).runs()
    return one


def of_setting(run: Shipped, **changes: Any) -> Shipped:
    """The same run with another setting."""
    spec = replace(run.spec, setting=replace(run.spec.setting, **changes))
    return replace(run, spec=spec, row=replace(run.origin, spec=spec))


def test_made_again_on_the_same_kind_of_device_by_the_same_executor(run: Shipped) -> None:
    def place(device: str, executor: str) -> tuple[str, str]:
        return as_made(replace(run, manifest={"provenance": {"device": device, "executor": executor}}))

    assert [place("cpu", "cores"), place("cpu", "stacked")] == [("cpu", "cores"), ("cpu", "stacked")]
    assert place("NVIDIA H100", "graphed") == ("auto", "auto")


def test_runs_of_other_versions_and_images_are_not_drawn(run: Shipped, store: Store) -> None:
    setting, nobodys = run.origin.spec.setting, DatasetSpec("none", "generated", "0")
    older = of_setting(run, version=setting.version - 1)
    elsewhere = of_setting(run, partition=replace(setting.partition, dataset=nobodys))
    assert sample([older, run, elsewhere], 10_000, 0, store, []) == [run]
    for others, line in (
        ([older], "images are not at hand, or they are of other versions than today's"),
        ([elsewhere], "images are not at hand, or they are of other versions than today's"),
        ([], "there is none"),
    ):
        refused(line, sample, others, 3, 0, store, [])


def changed(row: Row, metric: str, by: float) -> Row:
    """The row with other values of a metric."""
    m = row.metrics
    return replace(row, metrics=replace(m, value=np.where(m.metric == m.names.index(metric), m.value + by, m.value)))


def test_what_is_said_of_a_run_made_again(store: Store, tmp_path: Path) -> None:
    run = small_run(store)
    dated = {"started": "2026-01-02T03:04:05Z", "train_seconds": 1.0, **run.provenance}
    dated_run = replace(run, manifest={**run.manifest, "provenance": dated})
    about = {"device": "cpu", "cpu": "AVX9", "processor": "Six 6-9-1", "cores": 2, "executor": "stacked"}
    shipped = replace(row_of(dated_run, store, "Ada"), about=about)
    other = replace(shipped, predictions="0" * 64)
    write(tmp_path / "pack.parquet", [shipped])
    (packed,) = Packs([tmp_path / "pack.parquet"]).runs()

    def verdict(row: Row, **told: str | int) -> tuple[Verdict, float, str]:
        one = replace(packed, row=row)  # whatever a pack may hold
        again = replace(run, manifest={**run.manifest, "provenance": {**about, **told}})
        result = compare(one, again, store, tolerance=0.125)
        return result.verdict, result.difference, result.metric

    assert verdict(shipped)[:2] == (Verdict.SAME, 0.0)
    assert verdict(changed(shipped, "local_training_seconds", 9.0))[:2] == (Verdict.SAME, 0.0)
    assert verdict(changed(shipped, "client_accuracy", 1e-12))[0] == Verdict.SAME
    assert verdict(changed(shipped, "client_accuracy", 0.25)) == (Verdict.OTHER_NUMBERS, 0.25, "client_accuracy")
    assert verdict(changed(shipped, "client_accuracy", np.nan)) == (Verdict.OTHER_NUMBERS, np.inf, "client_accuracy")
    assert verdict(other)[0] == Verdict.OTHER_BITS
    assert verdict(other, cpu="another")[0] == verdict(other, processor="another")[0] == Verdict.CLOSE
    assert verdict(other, cores=1)[0] == Verdict.CLOSE
    assert verdict(changed(other, "average_accuracy", 0.125), cpu="another")[0] == Verdict.CLOSE
    far = verdict(changed(other, "average_accuracy", 0.25), cpu="another")
    assert far == (Verdict.FAR, 0.25, "average_accuracy")
    checked = Checked(Verdict.CLOSE, 0.0, "average_accuracy", "here", (None, "Xeon 6-207-2"))
    why = "(the processor it was made on was not recorded)"
    assert checked.words == f"other bits {why}, accuracies within the tolerance"
    assert replace(checked, processors=("Xeon 6-207-1", "Xeon 6-207-2")).words == str(Verdict.CLOSE)
    assert replace(checked, verdict=Verdict.SAME).words == "the same predictions"


def test_what_hangs_on_rounding_comes_out_again(run: Shipped, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run far from the shipped one is FAR or UNSTABLE by how far another executor moves it."""
    job = Job.of_spec(run.origin.spec)
    (again,) = execute_all([job], store, [], device="cpu", executor="sequential")
    checked = Checked(Verdict.FAR, 0.5, "average_accuracy", "here", ("one", "another"))
    result = verify.settled(checked, run, again, store, [])
    assert (result.verdict, result.difference) == (Verdict.FAR, 0.5)
    assert result.rounding < 0.01

    def unlike(_jobs: list[Job], *where: Any, executor: str, **how: Any) -> list[Artifact]:
        """As if the other executor rounded so badly that it trained from other initial weights."""
        assert executor == "stacked"
        setting = replace(job.spec.setting, seed=job.spec.setting.seed + 1)
        return execute_all([Job.of(setting, "fedavg", {})], *where, executor=executor, **how)

    monkeypatch.setattr(verify, "execute_all", unlike)
    moved = verify.settled(checked, run, again, store, []).rounding
    assert moved > 0.01
    for difference, verdict in ((2.9 * moved, Verdict.UNSTABLE), (3.1 * moved, Verdict.FAR)):
        assert verify.settled(replace(checked, difference=difference), run, again, store, []).verdict is verdict
    assert [one.id for one in store.list("run")] == [again.id]
