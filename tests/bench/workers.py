"""What the executor `workers` costs: the same round by `cores` and by as many workers of a Ray cluster of this machine.

    python tests/bench/workers.py                      # all five workloads, as many workers as cores
    python tests/bench/workers.py --only a,b10 --rounds 5

Both ways take turns, round by round, in one process, so that whatever else the machine does meets both, and the states
that come out must be the same bits. A round is the clients' local work and the mean of their uploads, or (workload d)
the answers of all personal models. `overhead` is what the messages cost: a round in which all goes to the workers and
comes back while nothing is trained, by `workers` less by `cores`, as a share of the round by `cores`. Beside it stands
the median of the whole rounds' ratios. Of workload a fewer clients are taken: each has the work that it has there.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import ray
import torch
from workloads import WORKLOADS, Workload

from fedbench.core.client import Client
from fedbench.core.context import Context
from fedbench.core.executors import Cores, Executor, Sequential, one_thread
from fedbench.core.federation import Federation
from fedbench.core.start import new_client
from fedbench.core.state import Mean, State, state_of
from fedbench.core.votes import vote
from fedbench.engine.engines import cluster
from fedbench.engine.workers.actor import Actors, fetched
from fedbench.engine.workers.host import Host
from fedbench.engine.workers.spread import Workers
from fedbench.methods.fedavg import FedAvg

#: Rounds without work that are measured, after a first one.
IDLE = 5


class Station:
    """A worker of a workload."""

    def begin(self, there: tuple[Workload, Federation]) -> None:
        workload, federation = there
        executor = Sequential(workload.build(), federation, workload.setting())
        self.host = Host(executor, _same(workload, federation), fetched)

    def work(self, parcel: Any) -> Any:
        return self.host.work(parcel)

    def end(self) -> None:
        del self.host


def _same(workload: Workload, federation: Federation) -> dict[str, Any]:
    context = Context.of(federation, workload.setting())
    return {"method": FedAvg(), "federation": federation, "plan": workload.plan(), "context": context}


def clients(same: Mapping[str, Any], states: list[State], t: int) -> list[Client]:
    """All clients at the start of round t."""
    of = same["context"], same["federation"], same["plan"]
    return [new_client(i, t, dict(states[i % len(states)]), *of) for i in range(len(same["federation"].train))]


def a_round(executor: Executor, same: Mapping[str, Any], state: State, t: int) -> State:
    """FedAvg's, block by block as the trainer does: the mean that comes out."""
    who = clients(same, [state], t)
    mean = Mean(state, [c.n_train for c in who])
    size = max(4 * executor.width, (128 << 20) // sum(x.numel() * x.element_size() for x in state.values()))
    while who:
        block, who = who[:size], who[size:]
        executor.run(block, same["method"].local)
        with one_thread():
            for client in block:
                mean.add(client.state)
    return mean.result()


def answers(executor: Executor, same: Mapping[str, Any], states: list[State], t: int) -> State:
    """What all personal models answer."""
    who = clients(same, states, t)
    votes = vote(who, [who], executor, ["plain"])["plain"].votes
    assert votes is not None
    return {"votes": torch.from_numpy(votes[:].astype("int64"))}


def idle(executor: Executor, same: Mapping[str, Any], states: list[State], trains: bool) -> float:
    """Seconds of a round without work: every client goes, and (`trains`) comes back with other tensors."""
    began = time.perf_counter()
    who = clients(same, states, 1)
    if trains:
        executor.run(who, _renewed)
    else:
        executor.map(lambda worker, block: None, executor.blocks(who))
    return time.perf_counter() - began


def _renewed(client: Client) -> None:
    client.state = {name: tensor.clone() for name, tensor in client.state.items()}


def measured(workload: Workload, rounds: int, cores: int) -> str:
    """The line of a workload."""
    federation, model = workload.federation(), workload.build()
    same, trains = _same(workload, federation), not workload.answers
    states = [state_of(workload.build(seed)) for seed in range(1 if trains else len(workload.train))]
    stations = [ray.remote(Station).options(num_cpus=1).remote() for _ in range(cores)]
    there = ray.put((workload, federation))
    ray.get([station.begin.remote(there) for station in stations])
    ways: dict[str, Executor] = {
        "cores": Cores(model, federation, workload.setting(), cores),
        "workers": Workers(Actors(stations, 1), model, same),
    }
    whole: dict[str, list[float]] = {way: [] for way in ways}
    empty: dict[str, list[float]] = {way: [] for way in ways}
    for t in range(1 + IDLE):
        for way in list(ways)[:: 1 - 2 * (t % 2)]:
            empty[way].append(idle(ways[way], same, states, trains))
    for t in range(1, 1 + rounds):
        out = {}
        for way in list(ways)[:: 1 - 2 * (t % 2)]:
            began = time.perf_counter()
            out[way] = a_round(ways[way], same, states[0], t) if trains else answers(ways[way], same, states, t)
            whole[way].append(time.perf_counter() - began)
        assert all(torch.equal(out["cores"][name], out["workers"][name]) for name in out["cores"]), "other bits"
    for executor in ways.values():
        executor.close()
    for station in stations:
        ray.kill(station)
    n, size = len(workload.train), sum(x.numel() * x.element_size() for x in states[0].values())
    seconds, extra = median(whole["cores"]), [w - c for c, w in zip(empty["cores"], empty["workers"], strict=True)][1:]
    ratios = [w / c for c, w in zip(whole["cores"], whole["workers"], strict=True)]
    return (
        f"{workload.title}: {n} clients of {size / 1e6:.1f} MB, {seconds:.2f} s by cores, "
        f"{1e3 * seconds * cores / n:.0f} ms of a core a client; overhead {median(extra):.3f} s "
        f"({min(extra):.3f} to {max(extra):.3f}), {1e3 * median(extra) / n:.1f} ms a client, "
        f"{100 * median(extra) / seconds:.1f} % of the round; "
        f"whole rounds {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) of cores"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default=",".join(WORKLOADS), metavar="KEY,...")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--short", action="store_true", help="few steps of few clients, to see that it runs")
    asked = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    cluster.connected("local")
    for key in asked.only.split(","):
        workload = WORKLOADS[key]("cpu")
        workload = workload.short() if asked.short else workload.sample() if key == "a" else workload
        print(measured(workload, asked.rounds, asked.cores), flush=True)


if __name__ == "__main__":
    main()
