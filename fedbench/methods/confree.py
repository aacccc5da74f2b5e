"""ConFREE: FedRep; the server removes conflicting parts of the clients' updates.

Updates conflict if their inner product is negative. Their combination is computed in float64 and uses only the inner
products [n, n] of n updates; a combination of updates is a vector of weights [n].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fedbench.core.client import MEMBER, Client, ClientUpdate, Train
from fedbench.core.server import Server
from fedbench.core.state import PIECE, State, weighted_mean
from fedbench.methods.base import BODY, HEAD, cross_entropy, hyperparameter
from fedbench.methods.parts.steps import HeadFirst, remaining, steps_hyperparameter, trainable
from fedbench.rng import stream

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def gram(states: Sequence[State], before: State, name: str) -> Floats:
    """Return inner products [n, n] of the clients' updates of one tensor."""
    updates = torch.stack([s[name].flatten() for s in states]) - before[name].flatten()
    parts = (u.double() for u in torch.split(updates, max(1, PIECE // (8 * len(states))), 1))
    products: Floats = torch.stack([u @ u.T for u in parts]).sum(0).cpu().numpy()
    return products


def pairs(products: Floats, sizes: Sequence[int]) -> Floats:
    """Return the updates' weights [n] in their mean by sizes, each less its projections on conflicting ones."""
    shares = np.array(sizes) / sum(sizes)
    weights: Floats = shares - shares @ (np.minimum(products, 0) / (products.diagonal() + 1e-8))
    return weights


def orders(rng: np.random.Generator, n: int) -> Ints:
    """Return, for each of n clients, the other clients in a random order [n, n - 1]."""
    return np.array([rng.permutation(np.delete(np.arange(n), i)) for i in range(n)], np.int64)


def guidance(products: Floats, order: Ints) -> Floats:
    """Return the updates' weights [n] in the guidance vector: the mean of the updates, each projected onto the normal
    planes of the conflicting others, in sequence in the given order (as in PCGrad, Yu et al., 2020)."""
    squares, projected = products.diagonal(), np.eye(len(products))
    for others in order.T:  # the next other client of each client at once
        conflict = np.minimum((projected * products[others]).sum(1), 0)
        projected[range(len(products)), others] -= conflict / np.where(squares[others] > 0, squares[others], 1)
    weights: Floats = projected.mean(0)
    return weights


def worst(products: Floats, order: Ints, alpha: float) -> Floats:
    """Return the updates' weights [n] in the server's step: the best vector for the worst client within `alpha` times
    its length of the guidance vector (as in CAGrad, Liu et al., 2021), divided by 1 + alpha^2."""
    from scipy.optimize import Bounds, LinearConstraint, minimize

    n, guide = len(products), guidance(products, order)
    if not products.trace() > 0:  # all updates are zero
        return guide
    scaled = products * (n / products.trace())
    gains = scaled @ guide
    radius = alpha * np.sqrt(max(guide @ gains, 0.0))

    def length(x: Floats) -> float:
        return float(np.sqrt(x @ scaled @ x + 1e-8))

    def benefit(x: Floats) -> tuple[float, Floats]:
        return float(x @ gains + radius * length(x)), gains + radius * scaled @ x / length(x)

    x = minimize(
        benefit,
        np.full(n, 1 / n),
        jac=True,
        method="SLSQP",
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(np.ones(n), 1, 1),
        options={"ftol": 1e-10, "maxiter": 500},
    ).x
    weights: Floats = (guide + radius * x / length(x)) / (1 + alpha**2)
    return weights


@dataclass(frozen=True)
class ConFREE(HeadFirst):
    """Conflict-free client update aggregation (Zheng et al., AAAI 2025) on FedRep: head, then body; heads stay.

    For each tensor of the body separately, with the clients' updates u_i as columns of U: (1) each u_i is projected
    onto the normal planes of those with which it conflicts (a negative product), in sequence in a random order; the
    mean of the results is the guidance vector c. (2) The worst client is the x on the simplex that minimises
    x.(U'c) + α |c| |U x|. (3) The tensor moves by (c + α |c| U x / |U x|) / (1 + α²). Clients have equal weight. A
    client predicts with its head on the new body. The logged loss is the mean of both phases'.

    Only inner products are needed, because the new tensor is a combination of the clients' tensors and the old one.

    FedDRM's comparison has `rule` pairs: each update loses its projections on all original updates with which it
    conflicts, where the whole body is one vector; then updates are averaged by training sizes. `head_steps` of the
    local steps train the head, 5 of 10 there.

    deviates: projections divide by |u_j|², as in the paper; the authors' code does not, although it does not normalise
    the u_j either, so that of small updates nearly nothing is taken out.

    deviates: (2) is solved with updates scaled to a mean square of one, so that the solver's tolerance means the same
    whatever their size. α is not given in the authors' files; 0.5 is of CAGrad, where the construction is from.

    deviates: running statistics of batch norms, which are not updates, are averaged by training sizes.
    """

    name = "confree"
    title = "ConFREE"
    personalised = True
    personal = HEAD
    serves = (MEMBER,)

    rule: str = hyperparameter(
        "worst", "how updates are combined", source="paper; FedDRM: pairs", choices=("worst", "pairs")
    )
    alpha: float = hyperparameter(
        0.5, "radius around the guidance vector, of its length (worst)", "α", "not given", least=0
    )
    head_epochs: int = hyperparameter(
        1, "epochs of the head alone, before those of the body", source="authors' FedRep", least=0
    )
    head_steps: int = steps_hyperparameter("the head; 0: head_epochs", 5)

    def local(self, client: Client) -> ClientUpdate:
        phases = yield from self.train_head(client)
        phases.append((yield Train(cross_entropy, trains=BODY, steps=remaining(client.setting, self.head_steps))))
        client.logged = sum(phase.loss for phase in phases) / len(phases)

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        before, states, sizes = server.shared, [c.state for c in cohort], [c.n_train for c in cohort]
        server.shared = weighted_mean(states, sizes, before)
        # Sorted, because after a checkpoint another process may have the state in another order.
        moving = sorted(trainable(before))
        products = {n: gram(states, before, n) for n in moving}
        if self.rule == "pairs":
            weights = dict.fromkeys(moving, pairs(np.sum([products[n] for n in moving], axis=0), sizes))
        else:
            rng = stream(server.context.setting.seed, "order of projections", t)
            weights = {n: worst(products[n], orders(rng, len(cohort)), self.alpha) for n in moving}
        for n, w in weights.items():  # the old tensor gets the rest of weight 1
            server.shared |= weighted_mean([*states, before], [*w, 1 - w.sum()], [n])
