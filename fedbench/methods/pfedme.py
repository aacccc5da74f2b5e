"""pFedMe: personal models on the Moreau envelopes of the clients' losses."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.client import MEMBER, UNLABELLED, Client, ClientUpdate, Train
from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.methods.base import cross_entropy, hyperparameter
from fedbench.methods.parts.steps import PersonalModel, check_pull, check_sgd, moved
from fedbench.specs import Setting


@dataclass(frozen=True)
class PFedMe(PersonalModel):
    """Personalized FL with Moreau envelopes (T. Dinh, Tran and Nguyen, NeurIPS 2020, Algorithm 1).

    A client's local copy w_i starts as the shared model w. On each batch the personal model theta takes K steps
    theta <- theta - lr_p (grad loss(theta) + lambda (theta - w_i)), towards the minimiser that defines the envelope;
    then w_i <- w_i - lr lambda (w_i - theta), a gradient step on the envelope. The clients send w_i, and
    w <- (1 - beta) w + beta mean(w_i). A client predicts with theta as of the end of its last round.

    deviates: theta takes plain steps without momentum, but with the setting's weight decay; K and lr_p are not in
    pFedFDA's paper, the defaults are ours. At the start of a round theta is w, as in the authors' released code.

    deviates: only the round's cohort trains, and w_i are averaged by training sizes; in pFedMe's paper all clients
    train in every round and the server takes the plain mean of a sample of them.

    deviates: running statistics of norm layers are those that theta has seen; they are averaged with w_i.
    """

    name = "pfedme"
    title = "pFedMe"
    personalised = True
    serves = (MEMBER, UNLABELLED)

    lambda_: float = hyperparameter(
        5.0, "pull of the client's copy of the shared model on theta", "λ", "pFedFDA, App. C.2", above=0
    )
    inner_steps: int = hyperparameter(
        5, "steps of theta on each batch", "K", "Alg. 1; value not given by pFedFDA", least=1
    )
    inner_lr: float = hyperparameter(
        0.01, "learning rate of theta", "lr_p", "Alg. 1; value not given by pFedFDA", above=0
    )
    beta: float = hyperparameter(
        1.0, "share of its way to the clients' mean that the shared model moves", "β", "Alg. 1", above=0
    )

    def check_setting(self, setting: Setting) -> None:
        check_sgd(self.name, setting)
        check_pull(self.name, "lambda", self.lambda_, setting)

    def local(self, client: Client) -> ClientUpdate:
        trained = yield Train(
            cross_entropy,
            lr=self.inner_lr,
            momentum=0.0,
            prox=self.lambda_,
            repeat=self.inner_steps,
            follow=client.lr * self.lambda_,
        )
        client.put(client.model(), "own")
        client.put(trained.centre)

    def step(self, server: Server, before: State, share: float) -> None:
        if self.beta != 1:
            names = [name for name, t in before.items() if t.is_floating_point()]
            server.shared = {**server.shared, **moved(before, server.shared, self.beta, names)}

    def relative_compute(self, setting: Setting) -> float:
        return float(self.inner_steps)
