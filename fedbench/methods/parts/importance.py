"""Importance weights of clients' training images: exact from known densities, or matched from unlabelled samples.

The weights are a client's personal state (never sent), so that they are found once, before the first round.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from fedbench.methods.parts.one_step import weighted_loss
from fedbench.ratios.exact import Floats
from fedbench.ratios.matching import Estimate, Matching, estimate
from fedbench.ratios.network import ratio_network
from fedbench.ratios.weights import check_weights, weights_of
from fedbench.spec import Setting

T = TypeVar("T")

#: Prefix of a client's own variables.
OWN = "ratio."
#: Its images' weights, padded to the length of the largest client's so that clients can be stacked.
WEIGHT = f"{OWN}weight"
#: Figures of them: the upper bound, the mean, the share that was lowered to the bound.
FIGURES = f"{OWN}figures"
NOTES = ("ratio_bound", "ratio_mean", "ratio_clamped")


def unit_weights(federation: Federation) -> State:
    """Every image counts once."""
    return {WEIGHT: torch.ones(max(federation.n_train)), FIGURES: torch.tensor([1.0, 1.0, 0.0])}


def keep(server: Server, federation: Federation, client: int, weights: Tensor, bound: float, lowered: int = 0) -> None:
    """Make these the weights [n] of a client's training images.

    Raises FedbenchError for a weight that is negative or not finite.
    """
    check_weights(weights.cpu().numpy(), client)
    device = federation.images.device
    padded = torch.zeros(max(federation.n_train), device=device)
    padded[: len(weights)] = weights.to(device=device, dtype=torch.float32)
    figures = torch.tensor([bound, float(weights.double().mean()), lowered / len(weights)], device=device)
    server.personal[client] = {**server.personal.get(client, {}), WEIGHT: padded, FIGURES: figures}


def keep_exact(server: Server, federation: Federation, ratios: Sequence[Floats]) -> None:
    """Weights by the stratum of each image; ratios[k] [S] are client k's. Raises FedbenchError as `weights_of`."""
    assert federation.densities is not None
    for client, (rows, table) in enumerate(zip(federation.train, ratios, strict=True)):
        found = weights_of(federation.densities.strata[rows.cpu().numpy()], table, client)
        keep(server, federation, client, torch.from_numpy(found), float(found.max()))


def matched(
    federation: Federation, setting: Setting, matching: Matching, pools: Sequence[np.ndarray]
) -> list[Estimate]:
    """Each client's ratios, matched to the unlabelled images of its pool (rows of the federation).

    The ratio network is the setting's model with one output. Clients match on their own, one a core.
    """
    device = federation.images.device
    # Built once, here: initial weights are drawn through torch's global generator, which threads would share.
    fresh = ratio_network(setting.model, federation.shape, setting.seed).to(device)

    def job(client: int) -> Estimate:
        network = copy.deepcopy(fresh)
        train = federation.images[federation.train[client]]
        pool = federation.images[torch.from_numpy(pools[client]).to(device)]
        return estimate(network, train, pool, matching, setting.seed, client, to_input)

    return each_client(federation, job)


def each_client(federation: Federation, job: Callable[[int], T]) -> list[T]:
    """job(client) for all clients; on a CPU one client a core, with one thread each."""
    from threadpoolctl import threadpool_limits

    if federation.images.device.type != "cpu":
        return [job(k) for k in range(federation.clients)]
    with (
        threadpool_limits(1),
        ThreadPoolExecutor(available_cores(), initializer=torch.set_num_threads, initargs=(1,)) as pool,
    ):
        return list(pool.map(job, range(federation.clients)))


def request(client: Client) -> Gradient:
    """The gradient of the weighted loss on the client's next batch."""
    return Gradient(weighted_loss, extras={"weight": client.state[WEIGHT]})


def note(client: Client) -> None:
    """Report the figures of the client's weights with the run."""
    client.notes.update(zip(NOTES, client.state[FIGURES].tolist(), strict=True))
