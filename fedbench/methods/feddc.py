"""FedDC: clients learn the drift of their models from the shared one; the server corrects it."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.client import Add, Client, ClientUpdate, Train
from fedbench.core.server import Server
from fedbench.core.state import State, model_in, name_in
from fedbench.methods.base import cross_entropy, hyperparameter
from fedbench.methods.parts.steps import PerParameter, check_sgd, moved
from fedbench.specs import Setting

#: Prefixes of a client's drift h_i, its last change per step, and the mean change of all clients, for each parameter.
DRIFT, OWN, MEAN = "drift", "own_change", "change"


@dataclass(frozen=True)
class FedDC(PerParameter):
    """FedDC (Gao, Fu, Li, Chen, Xu and Xu, CVPR 2022).

    A client of the cohort receives w. It takes K plain steps on its loss plus the drift's penalty (alpha/2)
    ||h_i + theta - w||^2 and the gradient correction <theta, g_i - g> / (lr K), and ends at theta_i. Here g_i is its
    change when it last participated, and g the mean of these over all training clients. Then h_i <- h_i + theta_i - w.
    The server's w becomes the mean of theta_i + h_i over the cohort. Initially all h_i and g_i are zero.

    Steps have no momentum, whatever the setting's, because with momentum a change is not lr K times a gradient. The
    logged loss includes (alpha/2) ||theta - w||^2, not the linear terms. In round 1 clients train as in FedProx with
    mu = alpha, and the server goes twice as far. So even with alpha = 0 and correction = 0 it is not FedAvg: w then has
    a momentum of 1, which alpha damps.

    deviates: g_i is divided by the client's own lr K, of the round it is from, before the mean g is taken; the paper
    writes one K. With clients of one size and a constant rate that is the same.

    deviates: clients count by their training sizes, in both means.

    deviates: the mean g is over the last changes of all clients, zero for one that has not taken part, as in the
    authors' code (gaoliang13/FedDC); it may also be read as that of the last round's cohort.

    deviates: the authors' code differs from this and is not followed: it takes the mean of h over all clients, not the
    cohort; it adds g_i - g to the new g_i; and it divides alpha and g by a client's images over the mean client's.

    deviates: only parameters have drifts and changes; running statistics of batch norms are averaged as in FedAvg.
    """

    name = "feddc"
    title = "FedDC"
    personal = (f"{DRIFT}/", f"{OWN}/")
    per_parameter = (DRIFT, OWN, MEAN)

    alpha: float = hyperparameter(
        0.1, "weight of the drift's penalty", "α", "authors' code: 0.1; CIFAR-10: 0.01", least=0.0
    )
    correction: float = hyperparameter(
        1.0, "weight of the gradient correction; 0: none", source="as in the paper", least=0.0
    )

    def check_setting(self, setting: Setting) -> None:
        check_sgd(self.name, setting)

    def local(self, client: Client) -> ClientUpdate:
        rules = (Add(DRIFT, self.alpha), Add(OWN, self.correction), Add(MEAN, -self.correction))
        trained = yield Train(cross_entropy, prox=self.alpha, momentum=0.0, rules=rules)
        w, theta, mean, own = client.received, client.state, client.model(MEAN), client.model(OWN)
        drift = {n: h + theta[n] - w[n] for n, h in client.model(DRIFT).items()}
        change = {n: (theta[n] - w[n]) / (trained.steps * client.lr) for n in drift}
        client.put({n: theta[n] + h for n, h in drift.items()})
        # The mean of these messages is g plus the mean change of g_i.
        client.put({n: mean[n] + change[n] - own[n] for n in drift}, MEAN)
        client.put(drift, DRIFT)
        client.put(change, OWN)

    def step(self, server: Server, before: State, share: float) -> None:
        names = [name_in(MEAN, n) for n in model_in(before, MEAN)]
        server.shared = {**server.shared, **moved(before, server.shared, share, names)}
