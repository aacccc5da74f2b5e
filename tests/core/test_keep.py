"""What a run keeps: models that answer again as they did, logits that mean what was answered; all else is as it was."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from fedbench.conformance.lab import stop_after
from fedbench.core.client import Collect, logits
from fedbench.core.evaluation import BY_CLIENT, BY_SERVER, answers, who_answers
from fedbench.core.tables import Models
from fedbench.core.trainer import Interrupted
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method
from tests.support.keep_lab import BOTH, BRIEF, DATA, kept, models, network
from tests.support.lab import finish, method, own, parquet_bytes, setting, trainer


@dataclass(frozen=True)
class Doubled(Method):
    """A user's method whose clients answer by a function of their own."""

    name, title = "doubled", "Doubled"

    def twice(self, model: Any, batch: Any) -> torch.Tensor:
        return 2 * logits(model, batch)

    def personalise(self, client: Any) -> None:
        client.answers_by = Collect(self.twice)


def last(table: pa.Table, name: str) -> np.ndarray:
    """A column after the last round, on whole images."""
    import pyarrow.compute as pc

    there = table.filter((pc.field("round") == 2) & (pc.field("view") == "plain"))
    column = there.column(name).combine_chunks()
    return np.array(column.flatten()).reshape(len(there), -1) if name == "logits" else np.array(column)


def answered_by(logits: pa.Table, predictions: pa.Table) -> None:
    """What was answered has the highest logit, or one that float16 does not tell from it."""
    values = last(logits, "logits").astype(np.float64)
    own = values[np.arange(len(values)), last(predictions, "own")]
    np.testing.assert_allclose(own, values.max(1), atol=5e-3)


def places(it: Models) -> set[str]:
    return {key.split("/")[0] for key in it.tensors}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (method("fedavg"), {"server"}),
        (method("ditto", personal_epochs=1), {"server", "client"}),
        (method("ifca", clusters=2), {"server", "cluster"}),
        (method("flux", start=1), {"server", "cluster"}),
        (method("feddrm"), {"server", "client"}),
        (method("pfedfda"), {"server", "client"}),
        (method("apfl"), {"server", "client"}),
        (method("fedproto"), {"server", "client"}),
        (method("fedavgft", finetune_rounds=1), {"server", "client"}),
        (Doubled(), {"server"}),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else "",
)
def test_kept_models_answer_again_as_they_did(tmp_path: Path, how: Method, expected: set[str]) -> None:
    executor = "stacked" if how.name in ("ditto", "flux") else "sequential"
    run = kept(how, tmp_path / "kept", executor, votes=False)
    without = kept(how, tmp_path / "plain", executor, keep=frozenset(), votes=False)
    assert parquet_bytes(run.predictions) == parquet_bytes(without.predictions), "keeping changes nothing"
    assert without.trainer.checkpoint.models() is without.trainer.checkpoint.read_logits() is None
    it = models(run)
    assert places(it) == expected
    again = answers(it, network(run), lambda: how, DATA, run.trainer.setting)
    own, before = last(run.predictions, "own"), run.trainer.checkpoint.read_logits()
    assert len(np.unique(own)) > 2, "answers too alike to show anything"
    assert before is not None
    np.testing.assert_allclose(again.logits, last(before, "logits"), atol=0.02)
    assert (again.own == own).mean() > 0.98  # executors agree but for rounding, which decides between equals
    answered_by(before, run.predictions)
    total = np.exp(np.array(last(before, "logits"), np.float64)).sum(1)
    np.testing.assert_allclose(total, 1, atol=0.02)


@pytest.mark.parametrize(("how", "votes"), [(method("feddrm"), True), (method("fedem", clusters=2), False)])
def test_logits_are_those_of_the_answers(tmp_path: Path, how: Method, votes: bool) -> None:
    """Also where clients vote, and of a mixture, which answers nobody else."""
    run = kept(how, tmp_path, votes=votes)
    before, it = run.trainer.checkpoint.read_logits(), models(run)
    assert before is not None
    assert before.num_rows == run.predictions.num_rows
    answered_by(before, run.predictions)
    if not votes:
        assert {"0/head.weight", "1/head.weight"} <= it.layer("server").keys()
        with pytest.raises(FedbenchError, match="client 0 of the run cannot answer other images: several models"):
            who_answers(it, DATA.clients)


def test_what_cannot_be_kept_is_left_out_and_the_run_goes_on(tmp_path: Path) -> None:
    """Of clients who answer with classes alone, or by a function that stands nowhere."""

    def with_classes(self: Method, client: Any) -> None:
        client.answer = torch.zeros(client.count("test"), dtype=torch.long)

    def by_lambda(self: Method, client: Any) -> None:
        client.answers_by = Collect(lambda model, batch: model(batch.x))

    run = kept(own(personalise=with_classes, takes_votes=False), tmp_path / "classes")
    assert run.trainer.checkpoint.read_logits() is None
    assert models(run).clients[0].alone
    nowhere = models(kept(own(personalise=by_lambda), tmp_path / "lambdas"))
    with pytest.raises(FedbenchError, match="stands in no module by that name"):
        who_answers(nowhere, DATA.clients)


def test_a_model_of_every_clients_own_after_local_training(tmp_path: Path) -> None:
    """The body that answers is not the server's: it was there before the average."""
    run = kept(method("fedrep", score="after_local"), tmp_path, votes=False)
    it = models(run)
    assert "client/0/backbone.0.weight" in it.tensors
    again = answers(it, network(run), lambda: None, DATA, run.trainer.setting)
    np.testing.assert_array_equal(again.own, last(run.predictions, "own"))


def test_other_clients_are_answered_by_the_server_if_it_has_a_whole_model(tmp_path: Path) -> None:
    it = models(kept(method("fedavg"), tmp_path / "fedavg"))
    assert (who_answers(it, 3), who_answers(it, 5)) == (BY_CLIENT, BY_SERVER)
    with pytest.raises(FedbenchError, match=r"3 clients and the partition 5.*lacks head.weight"):
        who_answers(models(kept(method("feddrm"), tmp_path / "feddrm")), 5)
    with pytest.raises(FedbenchError, match="which of the 2 clusters' models"):
        who_answers(models(kept(method("ifca", clusters=2), tmp_path / "ifca")), 5)


def test_an_interrupted_run_goes_on_keeping(tmp_path: Path) -> None:
    """It keeps what it was begun with, whoever goes on; after the last round too."""
    s = setting(**BRIEF)
    for t in (1, 2):
        how, folder = method("ditto", personal_epochs=1), tmp_path / str(t)
        it = trainer(how, DATA, folder, s)
        it.checkpoint.keep = BOTH
        with pytest.raises(Interrupted):
            finish(it, stop_after(t))
        resumed = finish(trainer(how, DATA, folder, s))
        whole = kept(how, tmp_path / f"whole {t}")
        ours, theirs = models(resumed), models(whole)
        assert ours.tensors.keys() == theirs.tensors.keys()
        assert all(torch.equal(t, theirs.tensors[name]) for name, t in ours.tensors.items())
        logits_of = [run.trainer.checkpoint.read_logits() for run in (resumed, whole)]
        assert logits_of[0] is not None
        assert logits_of[0].equals(logits_of[1])


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "models.safetensors").write_bytes(b"nothing")
    with pytest.raises(FedbenchError, match="cannot read the models"):
        Models.read(tmp_path / "models.safetensors")
