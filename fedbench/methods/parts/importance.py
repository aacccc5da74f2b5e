"""Importance weights of clients' training images: exact from known densities, or estimated from unlabelled samples.

They are computed once, before the first round, and stored in the client's personal state, so checkpoints contain them
and they are never sent.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedbench.core.client import MEMBER, UNLABELLED, Client, Context, Gradient
from fedbench.core.images import stored_to_input
from fedbench.core.state import State
from fedbench.errors import FedbenchError
from fedbench.measure import Measure
from fedbench.methods.base import hyperparameter
from fedbench.methods.parts.one_step import OneStep, weighted_loss
from fedbench.ratios.exact import Floats, check_weights, weights_of
from fedbench.ratios.matching import Estimate, Matching, contribution, estimate, find_bound, ratio_network
from fedbench.specs import Setting

#: Prefix of a client's personal variables.
OWN = "ratio."
#: Weights of the client's images, padded to the largest client's size so that clients can be stacked.
WEIGHT = f"{OWN}weight"
#: Prefix of metrics that the run reports.
NOTE = f"{OWN}note."

RATIO_BOUND = Measure(
    "ratio_bound",
    "estimate of the largest ratio of test to training density, which the method notes of a client before training; "
    "for the federation the largest of its clients",
    "ratio",
    of="client",
    federation="max",
    source="FTW-ERM (TMLR 2023), Table 13",
    least=0,
)
#: Measures of the methods that weight training images; the last three exist only for estimated weights.
MEASURES = (
    RATIO_BOUND,
    Measure("ratio_mean", "mean weight of a client's training images", "ratio", of="client", least=0),
    Measure("ratio_clamped", "share of them whose weight was lowered to the bound", "fraction", of="client", least=0),
    Measure("ratio_floored", "share of them whose weight was raised to the floor", "fraction", of="client", least=0),
    Measure("ratio_ascents", "share of matching's steps with a negative surplus", "fraction", of="client", least=0),
)


@dataclass(frozen=True)
class Pool:
    """Unlabelled images [m, H, W, C] uint8: from one client to the server, or from all clients back to each."""

    images: Tensor


def keep(client: Client, weights: Tensor, **metrics: float) -> None:
    """Set the weights [n] of a client's training images, and report the metrics and the mean weight.

    Raises FedbenchError for a weight that is negative or not finite, and if none is positive.
    """
    check_weights(weights.cpu().numpy(), client.index)
    padded = torch.zeros(max(client.context.n_train), device=client.context.device)
    padded[: len(weights)] = weights.to(padded)
    keep_metrics(client, ratio_mean=float(weights.double().mean()), **metrics)
    client.state = {**client.state, WEIGHT: padded}


def keep_metrics(client: Client, **metrics: float) -> None:
    """Report a client's metrics with the run."""
    device = client.context.device
    notes = {f"{NOTE}{name}": torch.tensor(float(value), device=device) for name, value in metrics.items()}
    client.state = {**client.state, **notes}


def note(client: Client) -> None:
    """Copy a member's metrics to the table of the run's clients."""
    if client.kind == MEMBER:
        notes = {name.removeprefix(NOTE): float(t) for name, t in client.state.items() if name.startswith(NOTE)}
        client.metrics.update(notes)


def keep_exact(client: Client, ratios: Floats) -> None:
    """Set weights by the stratum of each image, from the strata's ratios [S]. Raises FedbenchError as `weights_of`."""
    weights = weights_of(client.strata.cpu().numpy(), ratios, client.index)
    keep(client, torch.from_numpy(weights), ratio_bound=weights.max())


def keep_matched(client: Client, estimate: Estimate, times: int = 1) -> None:
    """Set estimated weights times `times`, and report how many were lowered to the bound or raised to the floor."""
    n = len(estimate.weights)
    keep(
        client,
        times * estimate.weights,
        ratio_bound=times * estimate.bound,
        ratio_clamped=estimate.at_bound / n,
        ratio_floored=estimate.at_floor / n,
        ratio_ascents=estimate.ascents,
    )


def sample(client: Client, size: int, in_order: bool = False) -> Tensor:
    """Draw `size` of the client's test images [size, H, W, C], in the order of the draw or (`in_order`) of storage.
    Raises FedbenchError if it has fewer."""
    images = client.images("test")
    positions = contribution(len(images), size, client.setting.seed, client.index)
    if in_order:
        positions.sort()
    return images[torch.from_numpy(positions).to(images.device)]


def matched(client: Client, pool: Tensor, matching: Matching, draws: int | None = None) -> Estimate:
    """Estimate the client's ratios from unlabelled images [m, H, W, C], with its random streams or those of `draws`.

    The ratio network is the setting's model with one output. Raises FedbenchError as `ratios.matching.estimate` does,
    naming the client.
    """
    at, seed, train = client.context, client.setting.seed, client.images()
    index = client.index if draws is None else draws
    try:
        bound = find_bound(train, pool, matching, seed)
        with LOCK:  # initial weights come from torch's global generator, which threads share
            network = ratio_network(at.setting.model, at.shape, seed).to(at.device)
        return estimate(network, train, pool, matching, bound, seed, index, stored_to_input)
    except FedbenchError as error:
        if f"client {index}" in error.message:
            raise
        raise FedbenchError(f"client {index}: {error.message}", error.hint) from error


def matched_once(client: Client, pool: Tensor, matching: Matching) -> Estimate:
    """Do the same as `matched`, once for all clients with the same training images, if all share the pool. The draws
    are those of the client with the lowest number (FTW-ERM's hundred clients are ten such groups)."""
    first = client.first_alike
    with LOCK:
        shared = MATCHES.setdefault(client.context, {}).setdefault(first, Match())
    with shared.lock:
        shared.estimate = shared.estimate or matched(client, pool, matching, first)
        return shared.estimate


@dataclass
class Match:
    """A shared estimate; its lock is held during the computation."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    estimate: Estimate | None = None


#: Held while a ratio network is built or `MATCHES` is accessed.
LOCK = threading.Lock()
#: Shared estimates by run (its context) and first client. This is only a cache.
MATCHES: weakref.WeakKeyDictionary[Context, dict[int, Match]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Weighted(OneStep):
    """A method whose clients weight their training images by density ratios that are computed once."""

    serves = (MEMBER, UNLABELLED)
    takes_multi_label = False
    measures = MEASURES
    personal = (OWN,)

    ratios: str = hyperparameter(
        "exact", "known ratios, or ratios matched by HDRM", "r", "Sec. 3", choices=("exact", "hdrm")
    )
    divergence: str = hyperparameter("lsif", "of HDRM", "f", "Sec. 3", choices=("lsif", "ukl", "lr", "pu"))
    n_te: int = hyperparameter(100, "unlabelled test images of a client that HDRM uses", "n_te", "code", least=1)
    clusters: int = hyperparameter(20, "k-means clusters of the ratio's upper bound", "M", "App. N, Table 13", least=1)
    restarts: int = hyperparameter(10, "starts of k-means", source="code", least=1)
    matching_epochs: int = hyperparameter(10, "passes of HDRM over the training images", source="code", least=1)

    @property
    def matching(self) -> Matching:
        """HDRM's hyper-parameters from these options."""
        return Matching(self.divergence, self.matching_epochs, clusters=self.clusters, restarts=self.restarts)

    def check_setting(self, setting: Setting) -> None:
        super().check_setting(setting)
        if setting.drifts:
            raise FedbenchError(
                f"{self.name} weights a client's images once, before the first round, and these data drift later",
                "choose another method ('fedsgd', say) or a partition without --phases",
            )

    def variables(self, model: nn.Module, context: Context, generator: torch.Generator) -> State:
        return {WEIGHT: torch.ones(max(context.n_train))}

    def request(self, client: Client) -> Gradient:
        return Gradient(weighted_loss, extras={"weight": client.state[WEIGHT]})

    def personalise(self, client: Client) -> None:
        note(client)
