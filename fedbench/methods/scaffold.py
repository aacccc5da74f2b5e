"""SCAFFOLD: local steps are corrected by control variates."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.client import Add, Client, ClientUpdate, Train
from fedbench.core.server import Server
from fedbench.core.state import State, model_in, name_in
from fedbench.methods.base import cross_entropy, hyperparameter
from fedbench.methods.parts.steps import PerParameter, check_sgd, moved
from fedbench.specs import Setting

#: Prefixes of the server's control variate c, which all clients receive, and of a client's c_i, for each parameter.
CONTROL, OWN = "control", "own_control"


@dataclass(frozen=True)
class Scaffold(PerParameter):
    """SCAFFOLD (Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, ICML 2020, Algorithm 1).

    A client of the cohort receives x and c and takes K plain steps y <- y - lr (g(y) - c_i + c) (lines 7 to 11). Then
    c_i <- c_i - c + (x - y) / (K lr) (line 12, option II), and it sends y - x and the change of c_i (lines 13 and 14).
    The server steps to x + eta_g mean(y - x), and c moves by |S|/N times the mean change (lines 16 and 17), so that
    c stays the mean of all c_i. Steps have no momentum, whatever the setting's; its weight decay is part of g.

    In round 1 all control variates are zero: it is FedAvg without momentum.

    deviates: clients count by their training sizes, in both means and in |S|/N, as in FedAvg; Algorithm 1 counts them
    alike, as --weighting uniform does. With clients of one size that is the same.

    deviates: option I of line 12, a further pass over the client's data at x, is left out; the paper's experiments use
    option II.

    deviates: only parameters have control variates; running statistics of batch norms are averaged as in FedAvg.
    """

    name = "scaffold"
    title = "SCAFFOLD"
    personal = (f"{OWN}/",)
    per_parameter = (CONTROL, OWN)

    server_lr: float = hyperparameter(
        1.0, "step size of the server", "η_g", "Alg. 1; the paper's experiments: 1", above=0
    )

    def check_setting(self, setting: Setting) -> None:
        check_sgd(self.name, setting)

    def local(self, client: Client) -> ClientUpdate:
        trained = yield Train(cross_entropy, momentum=0.0, rules=(Add(OWN, -1.0), Add(CONTROL)))
        x, y, c, own = client.received, client.state, client.model(CONTROL), client.model(OWN)
        new = {n: own[n] - c[n] + (x[n] - y[n]) / (trained.steps * client.lr) for n in c}
        # The mean of these messages is c plus the mean change.
        client.put({n: c[n] + new[n] - own[n] for n in c}, CONTROL)
        client.put(new, OWN)

    def step(self, server: Server, before: State, share: float) -> None:
        means, names = server.shared, model_in(before, CONTROL)
        x = moved(before, means, self.server_lr, names)
        c = moved(before, means, share, [name_in(CONTROL, n) for n in names])
        server.shared = {**means, **x, **c}
