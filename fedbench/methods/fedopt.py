"""FedOpt: FedAvg with a server optimiser: FedAvgM, FedAdagrad, FedAdam, FedYogi."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.methods.base import Method, hyperparameter
from fedbench.methods.parts.steps import from_vector, trainable, vector


@dataclass
class FedOptMemory:
    """The server's memory of all parameters as one vector, [P] each; None before the first round."""

    m: Tensor | None = None
    v: Tensor | None = None


@dataclass(frozen=True)
class FedOpt(Method):
    """Adaptive federated optimization (Reddi et al., ICLR 2021, Algorithm 2) and FedAvgM (Hsu, Qi and Brown, 2019).

    Clients train as in FedAvg. With the mean Delta of their changes x_i - x the server updates, elementwise and without
    bias correction, starting from m = 0 and v = tau^2:

        m <- beta1 m + (1 - beta1) Delta                          (avgm: m <- beta1 m + Delta)
        v <- v + Delta^2                                          adagrad
        v <- beta2 v + (1 - beta2) Delta^2                        adam
        v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)            yogi
        x <- x + eta m / (sqrt(v) + tau)                          (avgm: x <- x + eta m)

    avgm with eta = 1 and beta1 = 0 is FedAvg. Each rule needs a different eta.

    deviates: Delta is weighted by training sizes, as FedAvg's mean is; Algorithm 2 weighs clients alike.

    deviates: only parameters move so; running statistics of batch norms are averaged as in FedAvg.
    """

    name = "fedopt"
    title = "FedOpt"

    server: str = hyperparameter(
        "adam", "the server's rule", source="Alg. 2", choices=("avgm", "adagrad", "adam", "yogi")
    )
    server_lr: float = hyperparameter(
        0.1, "step size of the server; avgm usually 1", "η", "Alg. 2; the paper tunes it", above=0
    )
    beta1: float = hyperparameter(
        0.9, "share of m that stays; for adagrad the paper has 0", "β1", "Reddi et al., Sec. 5", least=0, below=1
    )
    beta2: float = hyperparameter(
        0.99, "share of v that stays (adam, yogi)", "β2", "Reddi et al., Sec. 5", least=0, below=1
    )
    tau: float = hyperparameter(
        1e-3, "degree of adaptivity: the smaller, the more (not avgm)", "τ", "Reddi et al., Sec. 5", above=0
    )

    def start(self, server: Server) -> None:
        server.memory = FedOptMemory()

    def step(self, server: Server, before: State, share: float) -> None:
        # Sorted, because after a checkpoint another process may have the state in another order.
        moving = sorted(trainable(before))
        x, mean = vector(before, moving), vector(server.shared, moving)
        x = x + self.server_lr * self._direction(server, mean - x)
        server.shared = {**server.shared, **from_vector(x, before, moving)}

    def _direction(self, server: Server, delta: Tensor) -> Tensor:
        """Return the direction of all parameters [P], to be scaled by eta; update the moments [P] in the memory."""
        of = server.memory
        m = self.beta1 * (torch.zeros_like(delta) if of.m is None else of.m)
        if self.server == "avgm":
            server.memory = FedOptMemory(m + delta)
            return m + delta
        m = m + (1 - self.beta1) * delta
        v = self._second(torch.full_like(delta, self.tau**2) if of.v is None else of.v, delta.square())
        server.memory = FedOptMemory(m, v)
        return m / (v.sqrt() + self.tau)

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        """Return v after a round with the squared change `square`."""
        if self.server == "adagrad":
            return v + square
        towards = square - v if self.server == "adam" else square * torch.sign(square - v)
        return v + (1 - self.beta2) * towards
