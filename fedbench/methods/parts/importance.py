"""Importance weights of clients' training images: exact from known densities, or matched from unlabelled samples.

They are found once, before the first round, and kept as the client's personal state, so that a checkpoint holds them
and nothing sends them.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedbench.core.augment import to_input
from fedbench.core.client import Client, Gradient
from fedbench.core.executors import available_cores
from fedbench.core.federation import Federation
from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method, check, knob
from fedbench.methods.parts.one_step import weighted_loss
from fedbench.ratios.exact import Floats
from fedbench.ratios.matching import Estimate, Matching, estimate, find_bound
from fedbench.ratios.network import ratio_network
from fedbench.ratios.weights import check_weights, weights_of
from fedbench.spec import Setting

T = TypeVar("T")

#: Prefix of a client's own variables.
OWN = "ratio."
#: Its images' weights, padded to the length of the largest client's so that clients can be stacked.
WEIGHT = f"{OWN}weight"
#: Prefix of figures that are reported with the run.
NOTE = f"{OWN}note."


@dataclass(frozen=True)
class RatioOptions:
    """Options of the methods that weigh training images by density ratios."""

    ratios: str = knob("exact", "known ratios, or ratios matched by HDRM", "r", "Sec. 3", choices=("exact", "hdrm"))
    divergence: str = knob("lsif", "of HDRM", "f", "Sec. 3", choices=("lsif", "ukl", "lr", "pu"))
    n_te: int = knob(100, "unlabelled test images of a client that HDRM uses", "n_te", "code")
    clusters: int = knob(20, "k-means clusters of the ratio's upper bound", "M", "App. N, Table 13")
    restarts: int = knob(10, "starts of k-means", source="code")
    matching_epochs: int = knob(10, "passes of HDRM over the training images", source="code")

    @property
    def matching(self) -> Matching:
        """HDRM with these options."""
        return Matching(self.divergence, self.matching_epochs, clusters=self.clusters, restarts=self.restarts)


def unit_weights(federation: Federation) -> State:
    """Every image counts once."""
    return {WEIGHT: torch.ones(max(federation.n_train))}


def keep(server: Server, federation: Federation, client: int, weights: Tensor, **figures: float) -> None:
    """Make these the weights [n] of a client's training images, and report the figures and the mean weight.

    Raises FedbenchError for a weight that is negative or not finite, and if none is positive.
    """
    check_weights(weights.cpu().numpy(), client)
    padded = torch.zeros(max(federation.n_train), device=federation.images.device)
    padded[: len(weights)] = weights.to(padded)
    keep_notes(server, federation, client, ratio_mean=float(weights.double().mean()), **figures)
    server.personal[client][WEIGHT] = padded


def keep_notes(server: Server, federation: Federation, client: int, **figures: float) -> None:
    """Report these figures of a client with the run."""
    device = federation.images.device
    told = {f"{NOTE}{name}": torch.tensor(float(value), device=device) for name, value in figures.items()}
    server.personal[client] = {**server.personal.get(client, {}), **told}


def note(client: Client) -> None:
    """Hand the figures on to the table of the run's clients."""
    told = {name.removeprefix(NOTE): t for name, t in client.state.items() if name.startswith(NOTE)}
    client.notes.update({name: float(t) for name, t in told.items()})


def keep_exact(server: Server, federation: Federation, ratios: Sequence[Floats]) -> None:
    """Weights by the stratum of each image; ratios[k] [S] are client k's. Raises FedbenchError as `weights_of`."""
    for client, (rows, table) in enumerate(zip(federation.train, ratios, strict=True)):
        found = weights_of(federation.densities.strata[rows.cpu().numpy()], table, client)
        keep(server, federation, client, torch.from_numpy(found), ratio_bound=found.max())


def keep_matched(server: Server, federation: Federation, found: Sequence[Estimate], times: int = 1) -> None:
    """Matched weights, `times` over, with how many were lowered to the bound and raised to the floor."""
    for client, one in enumerate(found):
        n = len(one.weights)
        keep(
            server, federation, client, times * one.weights, ratio_bound=times * one.bound,
            ratio_clamped=one.at_bound / n, ratio_floored=one.at_floor / n, ratio_ascents=one.ascents,
        )  # fmt: skip


def at_least_one(method: Method, *options: str) -> None:
    """Raise FedbenchError about a hyper-parameter below one."""
    for option in options:
        value = method.params[option]
        check(int(str(value)) >= 1, method.name, option.replace("_", "-"), value, "at least 1")


def matched(
    federation: Federation, setting: Setting, matching: Matching, pools: Sequence[np.ndarray]
) -> list[Estimate]:
    """Each client's ratios, matched to the unlabelled images of its pool (rows of the federation).

    The ratio network is the setting's model with one output. Clients match on their own; those that hold the same
    images and the same pool match once. An interrupt waits for those at work. Raises FedbenchError as
    `ratios.matching.estimate` does, naming the client.
    """
    device = federation.images.device
    rows = [torch.from_numpy(pool).to(device) for pool in pools]
    # Built once, here: initial weights are drawn through torch's global generator, which threads would share.
    fresh = ratio_network(setting.model, federation.shape, setting.seed).to(device)

    def samples(client: int) -> tuple[Tensor, Tensor]:
        return federation.images[federation.train[client]], federation.images[rows[client]]

    first: dict[bytes, int] = {}
    twin = [first.setdefault(_digest(*samples(k)), k) for k in range(federation.clients)]

    def bound(client: int) -> float:
        return find_bound(*samples(client), matching, setting.seed)

    def fit(client: int) -> Estimate:
        train, pool = samples(client)
        return estimate(copy.deepcopy(fresh), train, pool, matching, setting.seed, client, to_input, bounds[client])

    bounds = each(first.values(), bound)
    found = each(first.values(), fit, threads=device.type == "cpu")  # a GPU is busy with one
    return [found[k] for k in twin]


def each(clients: Iterable[int], job: Callable[[int], T], threads: bool = True) -> dict[int, T]:
    """job(client) by client: one client a core with one thread each, or one after another.

    A FedbenchError names the client that it is about.
    """
    from threadpoolctl import threadpool_limits

    def named(client: int) -> T:
        try:
            return job(client)
        except FedbenchError as error:
            if f"client {client}" in error.message:
                raise
            raise FedbenchError(f"client {client}: {error.message}", error.hint) from error

    ordered = list(clients)
    if not threads:
        return {client: named(client) for client in ordered}
    with (
        threadpool_limits(1),
        ThreadPoolExecutor(available_cores(), initializer=torch.set_num_threads, initargs=(1,)) as pool,
    ):
        return dict(zip(ordered, pool.map(named, ordered), strict=True))


def request(client: Client) -> Gradient:
    """The gradient of the weighted loss on the client's next batch."""
    return Gradient(weighted_loss, extras={"weight": client.state[WEIGHT]})


def _digest(*images: Tensor) -> bytes:
    whole = hashlib.blake2b()
    for part in images:
        whole.update(part.cpu().numpy().tobytes())
    return whole.digest()
