"""FedPAC: features aligned by class means, and heads combined for each client.

Shapes in the combination of the heads: M clients, K classes, d features, n rows. Everything there runs in float64.
Equations are those of FedPAC (Xu, Tong and Huang, ICLR 2023) as its official code computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.core.client import MEMBER, UNSEEN, Batch, Client, ClientUpdate, Collect, Context, Loss, Train
from fedbench.core.server import Server
from fedbench.core.state import State, matches, weighted_mean
from fedbench.methods.base import (
    BODY,
    FORWARD,
    HEAD,
    Scored,
    cross_entropy,
    features,
    hyperparameter,
    score_hyperparameter,
)
from fedbench.methods.parts.prototypes import COUNT, MEAN, class_means, none, own_class_means, pooled
from fedbench.specs import Setting

Floats = npt.NDArray[np.float64]


def nearest_to_origin(b: Floats) -> Floats | None:
    """Return the a [M] that minimises |B a|^2 = a^T (B^T B) a with a >= 0 and sum a = 1, for B [r, M]; None if B is
    zero (any a is then optimal) or not finite, or if the solver fails.

    Exact, by non-negative least squares (Lawson and Hanson, 1974, ch. 23): the x >= 0 that minimises
    |B x|^2 + (1^T x - 1)^2 is a multiple of a, because on each ray from the origin the minimum grows with |B a|. Unlike
    a substitution by the inverse of B^T B, this also works for singular B^T B.
    """
    from scipy.optimize import nnls

    with np.errstate(over="ignore", invalid="ignore"):
        scale = np.sqrt(np.square(b).sum() / b.shape[1])
    if not (np.isfinite(scale) and scale > 0):
        return None
    try:
        x, _ = nnls(np.vstack([b / scale, np.ones(b.shape[1])]), np.append(np.zeros(len(b)), 1.0))
    except RuntimeError:  # SciPy's limit of iterations
        return None
    total = x.sum()
    return x / total if total > 0 else None


#: Weights of a combination up to this value are set to zero (official code).
LEAST_WEIGHT = 1e-3


def statistics(rows: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return (V, h) of a client's features, float64: the variance of its classifier estimate, a scalar, and h [K, d].

    h_k = p_k mu_k and V = (sum_k p_k tr E[z z^T | k] - sum_k p_k^2 |mu_k|^2) / n, where p_k is the share of class k.
    The first sum is the mean of |z|^2 over all rows.
    """
    z = rows.double()
    share = torch.bincount(labels, minlength=classes).double() / len(z)
    h = share[:, None] * class_means(z, labels, classes)
    variance = (z.square().sum(1).mean() - h.square().sum()) / len(z)
    return variance.clamp(min=0), h  # only rounding can make it negative


def combination(variances: Tensor, h: Tensor) -> Tensor:
    """Return weights [M, M], float64 on the CPU: row i mixes the clients' heads into that of client i.

    Row i minimises a^T (diag V + D_i) a on the simplex, D_i[j, l] = sum_k <h_i,k - h_j,k, h_i,k - h_l,k>, for
    variances V [M] and h [M, K, d]. Weights up to LEAST_WEIGHT are dropped. Without a solution the client's head does
    not change.
    """
    centred = h.double().flatten(1)
    centred = centred - centred.mean(0)  # only differences count; smaller numbers lose less precision
    # Columns with the same scalar products but fewer entries: <r_j, r_l> = <h_j, h_l>.
    r = torch.linalg.qr(centred.T, mode="r").R.cpu().numpy()
    deviations = np.diag(variances.double().sqrt().cpu().numpy())
    weights = np.eye(len(h))
    for i in range(len(h)):
        a = nearest_to_origin(np.vstack([deviations, r - r[:, i, None]]))
        if a is not None and (weight := np.where(a > LEAST_WEIGHT, a, 0.0)).any():
            weights[i] = weight / weight.sum()
    return torch.from_numpy(weights)


@dataclass(frozen=True)
class Statistics:
    """Message from a client, sent with its model: V [] and h [K, d] of its features (see `statistics`)."""

    variance: Tensor
    h: Tensor


@dataclass
class FedPACMemory:
    """The server's memory: the combined head of each client that has participated."""

    of: dict[int, State]


@dataclass(frozen=True)
class FedPAC(Scored):
    """Personalization with feature alignment and classifier collaboration (Xu, Tong and Huang, ICLR 2023, Alg. 1).

    A client's round: statistics of the received body's features; `head_epochs` of the head only; the setting's epochs
    of the body only, on the cross-entropy plus lambda times the mean squared distance of the features from their
    class's prototype; new class means. In the first round there are no prototypes and no distance; for a class that no
    other client has, the client's mean is the prototype. The server averages bodies by training size and prototypes by
    class. A quadratic programme determines the convex combination of all heads that each client of the round gets.

    With `score` after_local a client of the round predicts with its model at the end of its training (so the last
    round combines no heads, because they would not be used); with after_aggregate it predicts with the averaged body
    and its combined head. The logged loss is that of the head's epochs.

    An unseen client starts from the averaged body and the mean of the last round's trained heads, weighted by training
    size, and after the last round fine-tunes the head only or everything. pFedFDA's paper (App. C.3) takes the better
    of the two in the mean over clients: run both.

    deviates: the quadratic programme is solved exactly, by non-negative least squares; the official code calls a
    general solver, after dropping eigenvalues below 0.01 where rounding has made one negative.

    deviates: features for statistics and prototypes come from one pass in evaluation mode over all training images.

    deviates: the body trains at the setting's rate as in pFedFDA's comparison; FedPAC's own runs use 0.02 on CIFAR.
    """

    name = "fedpac"
    title = "FedPAC"
    personalised = True
    serves = (MEMBER, UNSEEN)
    takes_multi_label = False

    lambda_: float = hyperparameter(
        1.0, "weight of the distance from the prototypes", "λ", "pFedFDA, App. C.2", least=0
    )
    head_epochs: int = hyperparameter(
        1, "epochs of the head alone, before those of the body", source="pFedFDA, App. C.2", least=0
    )
    head_lr: float = hyperparameter(0.1, "learning rate of the head's epochs", "η_g", "pFedFDA, App. C.2", above=0)
    newcomers: str = hyperparameter(
        "head", "what an unseen client fine-tunes", source="pFedFDA, App. C.3", choices=("head", "all")
    )
    newcomer_epochs: int = hyperparameter(
        5, "epochs that an unseen client fine-tunes", source="pFedFDA, App. C.3", least=0
    )
    score: str = score_hyperparameter("official code; not given by pFedFDA")

    def variables(self, model: Any, context: Context, generator: torch.Generator) -> State:
        return none(model, context)

    def loss(self, model: Any, batch: Batch) -> Loss:
        """Return cross-entropy plus lambda times the mean squared distance of features from the prototypes [K, d]."""
        z = model.features(batch.x)
        distance = F.mse_loss(z.float(), batch.extras["prototypes"][batch.y])
        return Loss(F.cross_entropy(model.head(z).float(), batch.y) + self.lambda_ * distance)

    def start(self, server: Server) -> None:
        server.memory = FedPACMemory({})

    def broadcast(self, server: Server, client: Client) -> None:
        first = {n: t for n, t in server.initial.items() if matches(n, HEAD)}
        client.state = {**client.state, **server.memory.of.get(client.index, first)}

    def local(self, client: Client) -> ClientUpdate:
        classes = len(client.class_counts)
        rows, labels = yield Collect(features)
        variance, h = statistics(rows, labels, classes)
        if self.head_epochs:
            yield Train(cross_entropy, trains=HEAD, epochs=self.head_epochs, lr=self.head_lr)
        has_prototype = client.received[COUNT] > 0
        if self.lambda_ and bool(has_prototype.any()):
            own = class_means(rows, labels, classes).float()
            targets = torch.where(has_prototype[:, None], client.received[MEAN], own)
            yield Train(self.loss, trains=BODY, extras={"prototypes": targets})
        else:
            yield Train(cross_entropy, trains=BODY)
        means = yield from own_class_means(client)
        client.state = {**client.state, MEAN: means, COUNT: client.class_counts}
        client.upload = Statistics(variance.float(), h.float())

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        sizes, states = [c.n_train for c in cohort], [c.state for c in cohort]
        means = weighted_mean(states, sizes, [n for n in server.shared if n not in (MEAN, COUNT)])
        server.shared = {**means, **pooled(states)}
        own = {c.index: {n: t for n, t in c.state.items() if matches(n, HEAD)} for c in cohort}
        senders = [] if cohort[0].final and self.answers_after_local else [c for c in cohort if c.upload]
        server.memory = FedPACMemory({**server.memory.of, **own, **(combined(senders) if senders else {})})

    def relative_compute(self, setting: Setting) -> float:
        return 1 + self.head_epochs / (setting.epochs or 1)  # local steps count as an epoch

    def serve(self, server: Server, client: Client) -> None:
        if client.kind == MEMBER:
            self.broadcast(server, client)

    def personalising(self, setting: Setting, kind: str, final: bool, n_train: int, n_test: int) -> float:
        passes = self.newcomer_epochs if final and kind == UNSEEN else 0
        return passes * n_train * (FORWARD if self.newcomers == "head" else 1)

    def personalise(self, client: Client) -> ClientUpdate:
        if client.kind == UNSEEN and client.final and self.newcomer_epochs:
            trains = HEAD if self.newcomers == "head" else ("",)
            yield Train(cross_entropy, trains=trains, epochs=self.newcomer_epochs)


def combined(cohort: Sequence[Client]) -> dict[int, State]:
    """Return the combination of all heads for each client of the cohort."""
    variances, h = (torch.stack([getattr(c.upload, part) for c in cohort]) for part in ("variance", "h"))
    weights = combination(variances, h)
    heads: dict[int, State] = {c.index: {} for c in cohort}
    for name in (n for n in cohort[0].state if matches(n, HEAD)):
        stacked = torch.stack([c.state[name] for c in cohort])
        mixed = weights.to(stacked.device) @ stacked.double().flatten(1)
        for own, row in zip(heads.values(), mixed.to(stacked.dtype), strict=True):
            own[name] = row.clone().view(stacked.shape[1:])
    return heads
