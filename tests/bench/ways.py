"""The ways in which a workload is done: the usual one, executors, another framework, and variants tried on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Way:
    """How a workload is done: by an executor with options, or (executor None) by a `peer`."""

    title: str
    executor: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    peer: str = "usual"  #: or blazefl


USUAL = Way("usual", None)

#: Another framework's threads: as they come (each with all cores as intra-op threads), and at their best.
PEERS = (
    Way("BlazeFL", None, peer="blazefl"),
    Way("BlazeFL, 1 intra-op thread", None, {"threads": 1}, peer="blazefl"),
)

#: Executors measured unless others are named: those that could win on the device.
EXECUTORS = {"cpu": ("cores", "stacked"), "cuda": ("sequential", "stacked", "graphed")}
#: On a CPU these keep each core busy with one client; stacks of them take only longer and more memory.
LARGE = ("c", "d")

#: Variants of the workloads in EXPERIMENT_WORKLOADS, in the order in which they were thought of. The graph of the
#: stacked step is the executor `graphed` itself; both leave convolutions to torch's own vmap on a GPU.
EXPERIMENT_WORKLOADS = ("a", "b1200", "c")
EXPERIMENTS = (
    Way("clients among the channels", "stacked", {"convolution": "grouped"}),
    Way("graph of the sequential step", "graphed", {"block": 1}),
    Way("graph, clients among the channels", "graphed", {"convolution": "grouped"}),
    Way("2 streams", "cores", {"cores": 2}),
    Way("4 streams", "cores", {"cores": 4}),
    Way("8 streams", "cores", {"cores": 8}),
)


def of(workload: str, device: str, executors: Sequence[str] = (), peers: bool = False) -> list[Way]:
    """The usual way, these executors (none: those worth measuring) and the peers, in this order."""
    worth = [n for n in EXECUTORS[device] if not (device == "cpu" and workload in LARGE and n == "stacked")]
    return [USUAL, *(Way(name, name) for name in executors or worth), *(PEERS if peers else ())]
