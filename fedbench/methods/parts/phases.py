"""The phases of a run of FLUX (Fenoglio et al., NeurIPS 2025, Algorithm 1), and what its server remembers in each."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from torch import Tensor

from fedbench.core.server import Server
from fedbench.methods.parts.descriptor import Bounds


class Phase(IntEnum):
    """Where a run stands."""

    WARM_UP = 0  #: FedAvg, until Eq. 14 ends it
    DESCRIPTION = 1  #: the next round that has a cohort, whose clients describe themselves and train
    GROUPED = 2  #: the rounds from then on
    REGROUPING = 3  #: a round in which the data drift: clients describe themselves again and do not train


@dataclass(frozen=True)
class Scaling:
    """The smallest and the largest value of each block of the descriptors that were grouped first: [B] each."""

    low: Tensor
    high: Tensor


@dataclass(frozen=True)
class Described:
    """The last grouping: its round, the clients [K] and their scaled descriptors [K, L]."""

    round: int
    clients: Tensor
    descriptors: Tensor


@dataclass
class Memory:
    """What the server remembers."""

    phase: Phase
    bounds: Bounds  #: of the latents, as clients last reported them
    accuracies: list[float] = field(default_factory=list)  #: on validation images, of the warm-up's rounds
    scaling: Scaling | None = None
    described: Described | None = None


def phase_of(server: Server, t: int) -> Phase:
    """The phase of round t, which is under way."""
    phase: Phase = server.memory.phase
    drifts = server.context.setting.drifts or ()
    return Phase.REGROUPING if phase == Phase.GROUPED and t in drifts else phase
