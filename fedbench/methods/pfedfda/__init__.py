"""pFedFDA: personalisation by adapting a generative classifier."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.core.client import MEMBER, UNSEEN, Batch, Client, ClientUpdate, Collect, Context, Loss, Train
from fedbench.core.state import State
from fedbench.errors import DivergedError
from fedbench.measure import Measure
from fedbench.methods.base import BODY, FORWARD, Method, check, features, hyperparameter
from fedbench.methods.pfedfda.gaussian import Gaussian, Moments, classifier, estimate, packed, prior, unpacked
from fedbench.methods.pfedfda.interpolation import FeatureRows, halves, search_beta
from fedbench.specs import Setting

SMALLEST = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class PFedFDA(Method):
    """Personalized FL via feature distribution adaptation (McLaughlin and Su, NeurIPS 2024, Algorithm 1).

    The head is the Bayes classifier of Gaussian features: class means mu, one tied covariance Sigma, and the client's
    prior. A round: freeze the head of the *global* Gaussian, train the body on cross-entropy, store the features of the
    training batches, estimate the client's Gaussian from them, choose beta by held-out cross-entropy, send the body and
    beta local + (1 - beta) global. The server averages all three by training size. Before it predicts, a client adapts
    the Gaussian once more on the averaged body (no gradient step).

    deviates: a bounded solver finds beta, as the paper says; the official code clips the result of an unbounded one,
    which often is 0 or 1 although the minimum lies between.

    deviates: one beta serves means and covariance, as in the paper's main tables; the official code has two unless told
    otherwise.

    deviates: as in the official code, beta minimises the mean cross-entropy of two folds without classes of a single
    row, and is 0 if no row is left; a failed search keeps the last beta. The paper says nothing of this.

    deviates: as in the official code, a covariance gets 1.0 on its diagonal and 1e-4 on every entry (the paper: a small
    ridge), the head is shrunk and the prior smoothed by 1e-4, and means start uniform in [0, 1) (the paper: Gaussian).

    deviates: as in the official code, the features of all local epochs count (the paper: of the latest). In the last
    pass, over the averaged body, a class needs three images for a mean of its own, which the paper does not say.

    deviates: that pass keeps its last short batch; the official code drops it.

    deviates: sums are in float64, and the head is solved by Cholesky: logits differ by less than 1e-5.
    """

    name = "pfedfda"
    title = "pFedFDA"
    personalised = True
    serves = (MEMBER, UNSEEN)
    takes_multi_label = False
    measures = (
        Measure("beta", "weight of a client's own Gaussian against the common one", "fraction", of="client"),
        Measure("beta_0", "that weight for the class means, where there are two betas", "fraction", of="client"),
        Measure("beta_1", "that weight for the covariance, where there are two betas", "fraction", of="client"),
    )
    # Neither the unused linear head nor the last beta leaves the client.
    personal = ("head.", "gaussian.beta")

    betas: int = hyperparameter(
        1, "0: local statistics only (NB), 1: one beta (SB), 2: means and covariance apart (MB)", "β", "Eq. 9; Sec. 5.3"
    )
    cov_ridge: float = hyperparameter(1.0, "added to the diagonal of a client's covariance", "ε", "Sec. 4.3; code")
    cov_offset: float = hyperparameter(1e-4, "added to every entry of a client's covariance", source="code", least=0)
    feature_store: str = hyperparameter(
        "all_epochs",
        "which training features the statistics come from",
        source="Alg. 1; code",
        choices=("all_epochs", "last_epoch", "extra_pass"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.betas in (0, 1, 2), self.name, "betas", self.betas, "0, 1 or 2")
        # If features have no variance, only the ridge makes the float32 covariance invertible.
        check(self.cov_ridge >= SMALLEST, self.name, "cov-ridge", self.cov_ridge, f"at least {SMALLEST:.3g} (float32)")

    def check_setting(self, setting: Setting) -> None:
        by_steps = self.feature_store == "last_epoch" and setting.steps is not None
        check(not by_steps, self.name, "feature-store", self.feature_store, "all_epochs or extra_pass with local steps")

    def variables(self, model: Any, context: Context, generator: torch.Generator) -> State:
        d = model.feature_size
        return {
            "gaussian.mean": torch.rand(context.classes, d, generator=generator),
            "gaussian.covariance": packed(torch.eye(d)),
            "gaussian.beta": torch.full((max(self.betas, 1),), 0.5),
        }

    def loss(self, model: Any, batch: Batch) -> Loss:
        """Return the cross-entropy of the frozen generative head, and collect the features."""
        z = model.features(batch.x)
        logits = F.linear(z, batch.extras["weight"], batch.extras["bias"])
        return Loss(F.cross_entropy(logits.float(), batch.y), collected=z)

    def local(self, client: Client) -> ClientUpdate:
        weight, bias = classifier(_gaussian(client.received), prior(client.class_counts))
        trained = yield Train(self.loss, trains=BODY, extras={"weight": weight.float(), "bias": bias.float()})
        rows, labels = trained.collected, trained.labels
        if self.feature_store == "last_epoch":
            rows, labels = rows[-trained.pass_rows :], labels[-trained.pass_rows :]
        elif self.feature_store == "extra_pass":
            rows, labels = yield Collect(features)
        mixed, beta = self.interpolated(client, rows, labels)
        client.state = {
            **client.state,
            "gaussian.mean": mixed.mean.float(),
            "gaussian.covariance": packed(mixed.covariance.float()),
            "gaussian.beta": beta.float().to(rows.device),
        }

    def interpolated(self, client: Client, rows: Tensor, labels: Tensor, min_rows: int = 1) -> tuple[Gaussian, Tensor]:
        """Return the interpolated Gaussian and beta from a client's features (Alg. 1, lines 8 to 11).

        Raises DivergedError if the features are not finite, or too large for float32.
        """
        common, betas = _gaussian(client.received), max(self.betas, 1)

        def of(moments: Moments, least: int = 1) -> Gaussian:
            return estimate(moments, common, self.cov_ridge, self.cov_offset, least)

        # The sums of all folds give the total, so no row is summed twice. Their time counts as estimation.
        with client.timed("interpolation"):
            parts = halves(rows, labels) if self.betas else [FeatureRows(rows.double(), labels)]
        with client.timed("estimation"):
            moments = [Moments.of(z, y, len(common.mean)) for z, y in parts]
            whole = functools.reduce(Moments.__add__, moments)
            _check_finite(client, whole)
            own = of(whole, min_rows)
        with client.timed("interpolation"):
            beta = torch.ones(betas, dtype=torch.float64)
            if self.betas:
                previous = client.received["gaussian.beta"]
                beta = search_beta(parts, moments, common, prior(client.class_counts), of, betas, previous)
            mixed = own.mix(common, float(beta[0]), float(beta[-1]))
        client.metrics.update({f"beta{'' if len(beta) == 1 else f'_{k}'}": float(b) for k, b in enumerate(beta)})
        return mixed, beta

    def personalising(self, setting: Setting, kind: str, final: bool, n_train: int, n_test: int) -> float:
        return n_train * FORWARD

    def personalise(self, client: Client) -> ClientUpdate:
        # Section 1.5 of the notes: the averaged body, one pass, means only for classes with more than two rows.
        rows, labels = yield Collect(features)
        mixed, _ = self.interpolated(client, rows, labels, min_rows=3)
        weight, bias = classifier(mixed, prior(client.class_counts))
        client.state = {**client.state, "head.weight": weight.float(), "head.bias": bias.float()}


def _gaussian(state: State) -> Gaussian:
    return Gaussian(state["gaussian.mean"].double(), unpacked(state["gaussian.covariance"]).double())


def _check_finite(client: Client, moments: Moments) -> None:
    """Raise DivergedError for a diverged run: a sum is not finite if a feature is not."""
    if not bool(torch.stack([moments.mean.sum(), moments.scatter.sum()]).float().isfinite().all()):
        raise DivergedError(
            f"training diverged: client {client.index} in round {client.round} has features not finite",
            "a smaller --lr or a larger --cov-ridge may help",
        )
