"""The cost of a round in FLUX's Table 7: by the paper's formulas, and as fedbench's methods send and compute. No torch.

Printed costs are the formulas of the paper (Fenoglio et al., NeurIPS 2025, App. E.2), in which a client's local work is
one pass over its training images. Ours are means over the R rounds of a run with all clients: the bytes of the methods'
messages, and the passes of their clients through the network, of which training makes E.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from fedbench.errors import check_known
from fedbench.models.counts import NetworkSizes, Shape, counts
from fedbench.reader import Between

#: Bytes per parameter, and cost of a training pass in forward passes.
BYTES, TRAINING = 4, 3
#: Operations of FLUX's projection: a singular value decomposition of 200 points, for each latent.
PROJECTION = 200**2


Count = Annotated[int, Between(1, 10**9)]


@dataclass(frozen=True)
class Case:
    """A network and a federation whose costs are counted; the letters are the paper's symbols."""

    model: str
    shape: Annotated[Shape, Between(1, 10**9)]  #: height, width, channels
    classes: Count
    clients: Count  #: K
    clusters: Count  #: M
    samples: Count  #: s, training images of a client
    validation: Count  #: validation images of a client
    rounds: Count  #: R
    epochs: Count  #: E
    components: Count  #: l
    inner_steps: Count  #: C, of pFedMe
    clustering_round: Count  #: of FLUX

    @property
    def network(self) -> NetworkSizes:
        return counts(self.model, self.shape, self.classes)

    @property
    def p(self) -> int:
        """Parameters."""
        return self.network.total

    @property
    def L(self) -> int:
        """Size of a descriptor in numbers, 2 (U + 1) l."""
        return 2 * (self.classes + 1) * self.components

    @property
    def model_bytes(self) -> int:
        """Bytes of a model: parameters and buffers of batch norms."""
        return BYTES * self.p + self.network.buffers

    @property
    def inference(self) -> int:
        """MAC of a forward pass over a client's training images, s F_inf."""
        return self.samples * self.network.forward

    @property
    def training(self) -> int:
        """MAC of one training pass over them, s F_train."""
        return TRAINING * self.inference


class Cost(NamedTuple):
    """Costs per round: bytes and MAC of one client, operations of the server."""

    printed_bytes: float
    printed_client: float
    printed_server: float
    bytes_up: float
    bytes_down: float
    client: float


def cost(method: str, case: Case) -> Cost:
    """The costs of a method of `METHODS`. Raises FedbenchError for another one."""
    check_known("method whose costs are counted", method, METHODS)
    return METHODS[method](case)


def _fedavg(c: Case) -> Cost:
    return Cost(BYTES * c.p, c.training, c.clients * c.p, c.model_bytes, c.model_bytes, c.epochs * c.training)


def _ifca(c: Case) -> Cost:
    """Clients also send the index of the model that they chose."""
    return _fedavg(c)._replace(
        printed_bytes=BYTES * c.clusters * c.p,
        printed_client=c.training + c.clusters * c.inference,
        bytes_up=c.model_bytes + 8,
        bytes_down=c.clusters * c.model_bytes,
        client=c.epochs * c.training + c.clusters * c.inference,
    )


def _fesem(c: Case) -> Cost:
    """Clients receive all models, to choose the best, in the first round only."""
    return _fedavg(c)._replace(
        printed_server=c.clusters * c.clients * c.p,
        bytes_down=c.model_bytes * (c.rounds - 1 + c.clusters) / c.rounds,
        client=c.epochs * c.training + c.clusters * c.inference / c.rounds,
    )


def _fedem(c: Case) -> Cost:
    each = _fedavg(c)
    return Cost(
        BYTES * c.clusters * c.p,
        c.clusters * (c.training + c.inference),
        c.clusters * c.clients * c.p,
        c.clusters * each.bytes_up,
        c.clusters * each.bytes_down,
        c.clusters * (each.client + c.inference),
    )


def _fedrc(c: Case) -> Cost:
    """Also sends, with each model, its share of each class, in double precision."""
    found, shares = _fedem(c), 8 * c.clusters * c.classes
    return found._replace(bytes_up=found.bytes_up + shares, bytes_down=found.bytes_down + shares)


def _feddrift(c: Case) -> Cost:
    """M models from the second round on. Clients then also receive the index of their model and its former accuracy,
    and send each model's accuracy, in double precision, and the index of the model that they trained."""
    later = (c.rounds - 1) / c.rounds
    return _ifca(c)._replace(
        bytes_up=c.model_bytes + 8 * (c.clusters + 1) * later,
        bytes_down=c.model_bytes * (1 / c.rounds + c.clusters * later) + 16 * later,
        client=c.epochs * c.training + c.clusters * c.inference * later,
    )


def _cfl(c: Case) -> Cost:
    return _fedavg(c)._replace(printed_server=c.clients**2 * c.p)


def _pfedme(c: Case) -> Cost:
    """fedbench's has no inner problem: it trains one personal model."""
    return _fedavg(c)._replace(printed_client=(c.inner_steps + 1) * c.training)


def _apfl(c: Case) -> Cost:
    return _fedavg(c)._replace(printed_client=2 * c.training, client=2 * c.epochs * c.training)


def _atp(c: Case) -> Cost:
    """fedbench's learns the rates on validation images after the last round, in R more rounds, with two gradients per
    image; the model is sent once more for this."""
    rates, learning = c.network.tensors, 2 * c.validation * TRAINING * c.network.forward
    return Cost(
        BYTES * (c.p + rates),
        2 * c.training,
        c.clients * (c.p + rates),
        c.model_bytes + BYTES * rates,
        c.model_bytes * (1 + 1 / c.rounds) + BYTES * rates,
        c.epochs * c.training + learning,
    )


def _flux(c: Case) -> Cost:
    """A client sends its descriptor once in a run and receives the bounds of the latents and whether to train, in
    double precision. In each round of warm-up it sends an accuracy, the number of validation images and their largest
    latent (20 bytes)."""
    once = (c.clustering_round - 1) * c.validation * c.network.forward + c.inference + PROJECTION * c.network.latents
    return Cost(
        BYTES * (c.p + c.L),
        c.training + PROJECTION * c.network.latents,
        c.clients * c.p + c.L * math.log2(c.L),
        c.model_bytes + (20 * (c.clustering_round - 1) + 2 * BYTES * c.L) / c.rounds,
        c.model_bytes + (16 * c.network.latents + 8) / c.rounds,
        c.epochs * c.training + once / c.rounds,
    )


#: Method -> cost function; `mr_mtl` is FLUX's pFedMe, and `apfl_flux` its APFL.
METHODS: Mapping[str, Callable[[Case], Cost]] = {
    "fedavg": _fedavg,
    "ifca": _ifca,
    "fesem": _fesem,
    "fedem": _fedem,
    "fedrc": _fedrc,
    "feddrift": _feddrift,
    "cfl": _cfl,
    "mr_mtl": _pfedme,
    "apfl_flux": _apfl,
    "atp": _atp,
    "flux": _flux,
}
