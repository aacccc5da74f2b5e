"""The models of the round with the lowest validation loss answer: the same training, the answers of another round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedbench import models
from fedbench.conformance.lab import stop_after
from fedbench.core.federation import Federation, to_input
from fedbench.core.trainer import Interrupted
from fedbench.errors import FedbenchError
from tests.support.groups_lab import drifted, grouped_federation, grouped_setting
from tests.support.lab import Run, same, train

#: Four rounds at a rate at which the last one is not the best.
DATA, SETTING = grouped_federation((0, 1, 0, 1), 60), grouped_setting(rounds=4, lr=1.5)


def validation_loss(run: Run, data: Federation) -> float:
    """The loss of the shared model on all clients' validation images (training images if there are none)."""
    net = models.build("digits_cnn", shape=data.shape, classes=10, seed=0)
    net.load_state_dict({name: torch.from_numpy(t) for name, t in run.shared.items()})
    rows = torch.cat([v if len(v) else t for v, t in zip(data.validation, data.train, strict=True)])
    with torch.no_grad():
        return float(F.cross_entropy(net.eval()(to_input(data.images[rows])), data.labels[rows]))


@pytest.mark.parametrize("held_back", [True, False])
def test_the_best_round_answers(held_back: bool, tmp_path: Path) -> None:
    data = DATA if held_back else replace(DATA, validation=[torch.zeros(0, dtype=torch.long)] * DATA.clients)
    rounds = [train("fedavg", data, tmp_path / str(t), replace(SETTING, rounds=t)) for t in (1, 2, 3, 4)]
    losses = [validation_loss(run, data) for run in rounds]
    best = int(np.argmin(losses))
    assert best < 3, "the last round would be answered by anyway"
    run = train("fedavg", data, tmp_path / "run", replace(SETTING, select="best"))
    assert same(run.shared, rounds[-1].shared), "training is FedAvg's"
    kept = run.trainer.server.best
    assert kept is not None
    assert kept.loss == pytest.approx(losses[best], rel=1e-4)
    for name, value in rounds[best].shared.items():
        assert torch.equal(kept.server[f"shared/{name}"], torch.from_numpy(value))
    told = rounds[best].predictions.to_pandas()
    for column in ("own", "test_phase"):
        assert run.predictions.to_pandas()[column].tolist() == told[column].tolist()


def test_while_the_loss_falls_it_is_fedavg(tmp_path: Path) -> None:
    data, s = grouped_federation((0, 0, 0), 200), grouped_setting(rounds=4)
    run, plain = (train("fedavg", data, tmp_path / str(how), replace(s, select=how)) for how in ("best", None))
    assert run.predictions.equals(plain.predictions)
    rounds = zip(run.trainer.checkpoint.rounds, plain.trainer.checkpoint.rounds, strict=True)
    assert [line["bytes_up"] - other["bytes_up"] for line, other in rounds] == [2 * 8 * 3] * 4  # a loss and a number


def test_models_of_other_data_do_not_compete(tmp_path: Path) -> None:
    """After a drift to data of which no model knows anything, the last stage's rounds answer."""
    before, after = grouped_federation((0, 0, 0, 0), 200), grouped_federation((2, 2, 2, 2), 200, concept=True)
    data = drifted(before, after, [2] * 4, [2] * 4)
    run = train("fedavg", data, tmp_path, grouped_setting(rounds=5, drifts=(5,), select="best"))
    kept = run.trainer.server.best
    assert kept is not None
    for name, value in run.shared.items():
        assert torch.equal(kept.server[f"shared/{name}"], torch.from_numpy(value)), "the one round of its stage"


def test_a_stopped_run_remembers_its_best_round(tmp_path: Path) -> None:
    s = replace(SETTING, select="best")
    whole = train("fedavg", DATA, tmp_path / "whole", s)
    with pytest.raises(Interrupted):
        train("fedavg", DATA, tmp_path / "stopped", s, observe=stop_after(2))
    resumed = train("fedavg", DATA, tmp_path / "stopped", s)
    assert resumed.predictions.equals(whole.predictions)
    assert same(resumed.tensors, whole.tensors)


@pytest.mark.parametrize("name", ["ditto", "ifca", "pfedfda"])
def test_of_a_personalised_method_the_personal_models_are_compared(name: str, tmp_path: Path) -> None:
    """The kept loss is the least, over the rounds, of what each round's clients would answer with."""
    run = train(name, DATA, tmp_path / "best", replace(SETTING, lr=0.1, rounds=2, select="best"))
    kept = run.trainer.server.best
    assert kept is not None
    ends = [train(name, DATA, tmp_path / str(t), replace(SETTING, lr=0.1, rounds=t)) for t in (1, 2)]
    assert any(same({n: t.numpy() for n, t in kept.server.items()}, end.tensors) for end in ends)


def test_answers_without_scores_cannot_be_selected(tmp_path: Path) -> None:
    with pytest.raises(FedbenchError, match="answer without scores"):
        train("fedem", DATA, tmp_path, replace(SETTING, select="best"))
