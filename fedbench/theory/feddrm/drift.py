"""Figure 3 of FedDRM: the gradients of clients drift apart more for the client head than for the target head.

The paper says three clients, ten classes, a random embedding, linear heads, FedAvg. The rest is ours: 1,000 embeddings
a client of N(μ_i, I) in 32 dimensions with μ_i of N(0, I/4), classes by the largest output of one random linear model,
heads with an intercept from 0, 100 rounds of ten full-batch steps of rate 0.01.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbench.theory.arrays import Array
from fedbench.theory.feddrm import federated
from fedbench.theory.feddrm.descent import Clients
from fedbench.theory.feddrm.softmax import with_constant

CLIENTS, SAMPLES, DIMENSIONS, CLASSES = 3, 1000, 32, 10
ROUNDS, STEPS, RATE = 100, 10, 0.01
_SPREAD = 0.5


@dataclass(frozen=True, eq=False)
class Drift:
    """Of one head, by round [T]."""

    drift: Array  #: G² (footnote 2 of the paper)
    squared_gradient: Array  #: ‖∇ℓ‖² of the mean of the clients' losses

    @property
    def relative(self) -> Array:
        """G²/‖∇ℓ‖²."""
        return np.asarray(self.drift / self.squared_gradient)


def clients(rng: np.random.Generator) -> Clients:
    """The data of one simulation."""
    centre = _SPREAD * rng.standard_normal((CLIENTS, 1, DIMENSIONS))
    x = centre + rng.standard_normal((CLIENTS, SAMPLES, DIMENSIONS))
    target = (x @ rng.standard_normal((DIMENSIONS, CLASSES))).argmax(axis=2)
    return Clients(with_constant(x), target, CLASSES)


def simulate(seed: int, rounds: int = ROUNDS) -> tuple[Drift, Drift]:
    """The client head's and the target head's drift before each round."""
    data = clients(np.random.default_rng(seed))
    out = []
    for labels, classes in data.heads:
        states = list(federated.train(data.features, labels, classes, rate=RATE, steps=STEPS, rounds=rounds))[:-1]
        drift, squares = ([getattr(s, name) for s in states] for name in ("drift", "squared_gradient"))
        out.append(Drift(np.array(drift), np.array(squares)))
    return out[0], out[1]
