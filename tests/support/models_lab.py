"""What several models say, computed plainly: the oracle of the tests of methods with a given number of models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedbench.core.augment import to_input
from fedbench.core.federation import Federation
from fedbench.core.state import State
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import Run, method, train

#: Two groups of clients that disagree about the labels.
DATA = grouped_federation(concept=True)
#: Clients come and go; one of them takes part in no round.
SOME = grouped_setting(rounds=3, participation=0.5, seed=4)


def two_models(name: str, where: Path) -> Run:
    """A run of the method with two models whose clients come and go."""
    return train(method(name, clusters=2), DATA, where, SOME)


def log_probabilities(run: Run, data: Federation, state: State, rows: torch.Tensor) -> np.ndarray:
    """[n, K] float64: the logarithms of the class probabilities that the network with this state gives."""
    network = run.trainer.executor.model
    network.load_state_dict({name: state[name] for name in network.state_dict()})
    with torch.no_grad():
        logits = network.eval()(to_input(data.images[rows])).double().numpy()
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def losses(run: Run, data: Federation, states: list[State], client: int) -> np.ndarray:
    """[M, n] float64: each model's cross-entropy on each training image of the client."""
    rows = data.train[client]
    y = data.labels[rows].numpy()
    return np.stack([-log_probabilities(run, data, state, rows)[np.arange(len(y)), y] for state in states])


def mixed_answers(run: Run, data: Federation, states: list[State], weights: np.ndarray, client: int) -> np.ndarray:
    """[m] labels of the client's test images by the weighted mean of the models' class probabilities."""
    each = [np.exp(log_probabilities(run, data, state, data.test[client])) for state in states]
    return sum(w * p for w, p in zip(weights, each, strict=True)).argmax(1)


def given(run: Run, client: int, column: str = "own") -> np.ndarray:
    """What the client's test images were answered after the last round."""
    table = run.predictions.to_pandas()
    last = table[(table["round"] == table["round"].max()) & (table["client"] == client)]
    return last[column].to_numpy()


def accuracy(run: Run, data: Federation) -> float:
    """Mean over the clients of their accuracy after the last round."""
    return float(np.mean([(given(run, i) == data.labels[rows].numpy()).mean() for i, rows in enumerate(data.test)]))
