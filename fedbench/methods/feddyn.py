"""FedDyn: a dynamic regulariser makes the minima of the clients' losses agree with the global one."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.client import Add, Client, ClientUpdate, Train
from fedbench.core.server import Server
from fedbench.core.state import State, model_in
from fedbench.methods.base import cross_entropy, hyperparameter
from fedbench.methods.parts.steps import PerParameter

#: Prefix of the gradient of a client's loss at its last model, for each parameter.
GRADIENT = "own_gradient"


@dataclass
class FedDynMemory:
    """The server's memory: h, a tensor for each parameter."""

    h: State


@dataclass(frozen=True)
class FedDyn(PerParameter):
    """FedDyn (Acar, Zhao, Matas, Mattina, Whatmough and Saligrama, ICLR 2021, Algorithm 1).

    A client of the cohort P receives theta, minimises L(w) - <g, w> + (alpha/2) ||w - theta||^2, which gives theta_k,
    and then sets g <- g - alpha (theta_k - theta). This is the gradient of L at theta_k, if theta_k is the minimum; g
    starts at 0. With m the number of all clients, the server sets h <- h - alpha (1/m) sum_P (theta_k - theta) and
    steps to theta <- mean_P(theta_k) - h / alpha.

    The setting's optimiser minimises for the setting's epochs or steps; its weight decay is part of L. In round 1
    clients train as in FedProx with mu = alpha. The logged loss includes the proximal term, not the linear one.

    deviates: clients count by their training sizes, in the mean and in h, as in FedAvg; Algorithm 1 counts them alike,
    as --weighting uniform does. With clients of one size that is the same.

    deviates: only parameters have g and h; running statistics of batch norms are averaged as in FedAvg.
    """

    name = "feddyn"
    title = "FedDyn"
    personal = (f"{GRADIENT}/",)
    per_parameter = (GRADIENT,)

    alpha: float = hyperparameter(
        0.01, "weight of the dynamic regulariser", "α", "Alg. 1; tuned: 0.1, 0.01 or 0.001", above=0
    )

    def start(self, server: Server) -> None:
        server.memory = FedDynMemory(model_in(server.initial, GRADIENT))  # zeros, like every client's g

    def local(self, client: Client) -> ClientUpdate:
        yield Train(cross_entropy, prox=self.alpha, rules=(Add(GRADIENT, -1.0),))
        start, end = client.received, client.state
        client.put({n: g - self.alpha * (end[n] - start[n]) for n, g in client.model(GRADIENT).items()}, GRADIENT)

    def step(self, server: Server, before: State, share: float) -> None:
        mean = server.shared
        h = {n: old - self.alpha * share * (mean[n] - before[n]) for n, old in server.memory.h.items()}
        server.memory = FedDynMemory(h)
        server.shared = {**mean, **{n: mean[n] - h[n] / self.alpha for n in h}}
