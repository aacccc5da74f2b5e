"""Jobs and users' files on their way to another process."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbench.engine.engines import own
from fedbench.engine.engines.order import Order, executed, sendable
from fedbench.engine.job import Job
from fedbench.errors import FedbenchError
from fedbench.store import Store
from tests.support.cli_user import own_method
from tests.support.make_runs import run_spec


def job(method: str = "fedavg", **overrides: Any) -> Job:
    return replace(Job.of(run_spec(2, 2).setting, method, overrides), keep=frozenset({"model"}), replaces="")


def test_jobs_are_the_same_at_the_other_end() -> None:
    before = job("fedprox", mu=0.25)
    (after,) = pickle.loads(pickle.dumps(Order.of([before], [Path()], "cpu", "cores"))).opened()
    assert (after.spec, after.overrides, after.keep, after.replaces) == (
        before.spec, {"mu": 0.25}, {"model"}, "",
    )  # fmt: skip


def test_a_job_that_would_be_another_run_there(store: Store) -> None:
    order = Order.of([job()], [], "cpu", "cores")
    there = {**order.jobs[0], "overrides": {}, "named": "local"}
    with pytest.raises(FedbenchError, match=r"would be .* for the worker; its fedbench is not that of the driver"):
        replace(order, jobs=[there]).opened()
    result = executed(replace(order, jobs=[there]), store, lambda _: None)
    assert isinstance(result.error, FedbenchError)
    with pytest.raises(FedbenchError):
        result.checked()


@pytest.mark.parametrize("there", ["as here", "gone", "another code"])
def test_a_users_file_where_it_is_gone_or_another(tmp_path: Path, there: str) -> None:
    reference = own_method(tmp_path)
    before = job(reference, half=0.5)
    (sent,) = own.of_runs([(reference, before.spec), (reference, before.spec)])
    order = pickle.loads(pickle.dumps(Order.of([before], [], "cpu", "cores")))
    file = tmp_path / "mine.py"
    if there == "gone":
        file.unlink()
    elif there == "another code":
        file.write_text(file.read_text() + "\nOVER = 1\n")
    (after,) = order.opened()
    assert after.spec == before.spec
    place = Path(sent.reference().rpartition(":")[0])
    assert (place == file) == (there == "as here")
    assert place.read_bytes() == sent.texts["mine.py"]
    if there != "as here":
        assert place.parent.parent.stat().st_mode & 0o077 == 0, "nobody else can put anything there"


def test_no_place_for_a_users_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = own_method(tmp_path)
    (sent,) = own.of_runs([(reference, job(reference, half=0.5).spec)])
    (tmp_path / "mine.py").unlink()

    def refuse() -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(own, "_copies", refuse)
    with pytest.raises(FedbenchError, match=r"cannot copy mine.py into .* \(Permission denied\); set TMPDIR"):
        sent.reference()


def test_an_error_that_cannot_be_sent_says_the_same() -> None:
    class Odd(Exception):
        def __reduce__(self) -> Any:
            raise TypeError("no")

    assert str(sendable(Odd("why"))) == "Odd: why"
    same = FedbenchError("what", "hint")
    assert sendable(same) is same
