"""Clients whose images have several labels: the loss, what models answer, executors, and methods that cannot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedbench import methods
from fedbench.core.client import Batch, Client, Collect
from fedbench.core.federation import task_of, to_input
from fedbench.core.network import OfEach
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method, cross_entropy
from fedbench.methods.parts import responsibilities
from fedbench.methods.parts.clustered import probabilities, right, sample_losses
from fedbench.metrics.scores import macro_area
from fedbench.specs import Setting
from tests.support.lab import Run, method, setting, train, trainer
from tests.support.rays_lab import many_labelled

#: Methods that fill a table with FLUX's, by their options.
ABLE: dict[str, dict[str, Any]] = {"fedavg": {}, "flux": {}, "ifca": {"clusters": 2}, "mr_mtl": {}, "cfl": {}}
ABLE |= {"fedem": {"clusters": 2}, "fedrc": {"clusters": 2}, "feddrift": {}, "apfl_flux": {}}


def brief(**changes: Any) -> Setting:
    values = {"rounds": 1, "epochs": 1, "votes": False, "window": 1, "test_phase": True, "weight_decay": 0.0}
    return setting(**{**values, "momentum_restarts": True, **changes})


def scores(run: Run, name: str = "own_scores") -> np.ndarray:
    table = run.predictions.filter(run.predictions["round"].to_numpy() == run.trainer.setting.rounds)
    column = table[name].combine_chunks()
    return np.asarray(column.flatten()).reshape(len(column), -1)


def test_loss_of_labels_and_of_classes() -> None:
    """By hand: one number a label, and their mean; classes are as they were."""
    logits, x = torch.tensor([[0.5, -2.0, 3.0], [0.0, 1.0, -1.0]]), torch.zeros(2, 1)
    y = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    p = 1 / (1 + np.exp(-logits.numpy().astype(np.float64)))
    by_hand = -np.where(y.numpy() > 0, np.log(p), np.log(1 - p))
    many = Batch(x, y, torch.arange(2), {})
    assert float(cross_entropy(lambda x: logits, many).total) == pytest.approx(by_hand.mean())
    assert sample_losses(lambda x: logits, many).tolist() == pytest.approx(by_hand.mean(1).tolist())
    assert probabilities(logits, y).numpy() == pytest.approx(p)
    assert task_of(y).answer(torch.from_numpy(p)).numpy() == pytest.approx(p)
    one = Batch(x, torch.tensor([2, 1]), torch.arange(2), {})
    assert torch.equal(cross_entropy(lambda x: logits, one).total, F.cross_entropy(logits, one.y))
    assert torch.equal(sample_losses(lambda x: logits, one), F.cross_entropy(logits, one.y, reduction="none"))
    assert torch.equal(probabilities(logits, one.y), torch.softmax(logits, 1))
    assert task_of(one.y).answer(torch.from_numpy(p)).tolist() == p.argmax(1).tolist()
    values = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], dtype=torch.float64).log()
    y = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    by_hand = [[np.sqrt(0.5 * 0.25), 1.0, 0.25], [np.sqrt(0.1 * 0.8), 1.0, 0.1]]
    assert responsibilities.of_labels(values, y).exp().numpy() == pytest.approx(np.array(by_hand))
    assert torch.equal(responsibilities.of_labels(values, torch.tensor([2, 0])), values[:, [2, 0]])
    logits, y = torch.tensor([[1.0, -1.0, 2.0, -3.0]]), torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    assert right(logits, y).tolist() == [0.5]


def test_a_federation_of_multi_label(tmp_path: Path) -> None:
    """Some methods refuse it; a box may answer with scores."""
    refusing = {n for n in methods.names() if not methods.load(n)[0].takes_multi_label}
    assert refusing >= {"pfedfda", "fedpac", "feddrm", "fedrod", "atp", "haccs", "ftw_erm", "fitw_erm"}
    assert refusing.isdisjoint({*ABLE, "flux_soft", "fesem", "local"})
    plain, half = (train(how, many_labelled(2, 40), tmp_path / str(how), brief()) for how in ("fedavg", Ensemble()))
    assert scores(half) == pytest.approx((scores(plain) + 0.5) / 2, abs=1e-6)
    data = many_labelled(3, 20)
    assert data.multi_label
    rows = data.train[1]
    assert torch.equal(data.class_counts[1], data.labels[rows].sum(0))
    assert torch.equal(data.counts(rows), data.labels[rows].sum(0))
    joined = data.joined([data, many_labelled(2, 30)])
    assert torch.equal(joined[1].labels[joined[1].train[0]], many_labelled(2, 30).labels[many_labelled(2, 30).train[0]])


def test_it_learns_and_answers_with_probabilities(tmp_path: Path) -> None:
    data = many_labelled(3, 200)
    it = train("fedavg", data, tmp_path, brief(rounds=8, lr=0.2))
    table = it.predictions
    assert [str(table.schema.field(n).type) for n in ("label", "own_scores")] == [
        "fixed_size_list<element: uint8>[4]", "fixed_size_list<element: float>[4]",
    ]  # fmt: skip
    assert {"own", "votes", "test_phase"}.isdisjoint(table.column_names)
    rows = np.concatenate([t.numpy() for t in data.test])
    own, labels = scores(it), data.labels.numpy()[rows]
    assert np.asarray(table["label"].combine_chunks().flatten()).reshape(-1, 4).tolist() == labels.tolist()
    assert macro_area(own, labels) > 0.85
    # The scores are the network's probabilities, of every label by itself.
    network = it.trainer.executor.model
    network.load_state_dict({n: it.trainer.server.shared[n] for n in network.state_dict()})
    with torch.no_grad():
        expected = torch.sigmoid(network.eval()(to_input(data.images[torch.from_numpy(rows)]))).numpy()
    assert own == pytest.approx(expected, abs=1e-5)
    # What is shown while it trains is the share of labels on the right side of one half.
    clients = np.split((own > 0.5) == (labels > 0.5), 3)
    assert it.accuracy == pytest.approx(np.mean([c.mean() for c in clients]), abs=1e-6)


@dataclass(frozen=True)
class Ensemble(Method):
    """Answers with the mean of the shared model's probabilities and one half."""

    name = "half"
    takes_votes = False

    def personalise(self, client: Client) -> Any:
        found = yield Collect(OfEach(probabilities), split="test")
        assert found.labels.shape == found.rows[:, 0].shape
        assert bool((found.labels == -1).all())
        client.answer = (found.rows[:, 0] + 0.5) / 2


def test_flux_clusters_in_round_four_and_describes_labels(tmp_path: Path) -> None:
    """The validation score is one half for ever (the released code), so warm-up ends after round 3."""
    data = many_labelled(4, 30)
    it = train("flux", data, tmp_path, brief(rounds=4))
    assert it.trainer.server.memory.accuracies == [0.5, 0.5, 0.5]
    lines = {line["round"]: line for line in it.trainer.checkpoint.rounds}
    assert lines[4]["figure_clustering_round"] == 4
    assert "figure_clustering_round" not in lines[3]
    found = it.trainer.method.described(it.trainer.server)
    assert found is not None
    assert found[1].shape == (4, 2 * (4 + 1) * 10)  # U labels, l = 10


@pytest.mark.parametrize("name", methods.names())
def test_every_method_takes_many_labels_or_says_that_it_does_not(name: str, tmp_path: Path) -> None:
    how = method(name, **ABLE.get(name, {}))
    if name == "fedavg":
        with pytest.raises(FedbenchError, match="cannot vote on multi-label images"):
            train(how, many_labelled(2, 20), tmp_path / "votes", brief(votes=True))
    if not how.takes_multi_label:
        with pytest.raises(FedbenchError, match=f"{name} works with one class an image, and these .* 4 labels each"):
            trainer(how, many_labelled(2, 20), tmp_path, brief())
        return
    once = {"steps": 1, "epochs": None, "momentum": 0.0} if name in ("fedsgd", "fedbn", "grayscale") else {}
    it = train(how, many_labelled(3, 30), tmp_path, brief(**once))
    own = scores(it)
    assert own.shape == (27, 4)
    assert ((own >= 0) & (own <= 1)).all()
    assert len(np.unique(own)) > 1
