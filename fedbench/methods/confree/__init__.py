"""ConFREE: FedRep whose server takes out of clients' updates what works against one another's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbench.core.client import MEMBER, Client, ClientUpdate, Train
from fedbench.core.server import Server
from fedbench.core.state import weighted_mean
from fedbench.methods.base import BODY, HEAD, Method, cross_entropy, hyperparameter
from fedbench.methods.confree.conflicts import gram, orders, pairs, worst
from fedbench.methods.parts.parameters import trainable
from fedbench.methods.parts.split_steps import check_split, remaining
from fedbench.rng import stream
from fedbench.specs import Setting


@dataclass(frozen=True)
class ConFREE(Method):
    """Conflict-free client update aggregation (Zheng et al., AAAI 2025) on FedRep: head, then body; heads stay.

    For each tensor of the body by itself, with the clients' updates u_i as columns of U: (1) each u_i is projected onto
    the normal planes of those it conflicts with (a negative product), one after another in a random order; the mean of
    what remains is the guidance vector c. (2) The worst client is the x on the simplex that minimises
    x.(U'c) + α |c| |U x|. (3) The tensor moves by (c + α |c| U x / |U x|) / (1 + α²). Clients count alike. A client
    answers with its own head on the new body. The logged loss is the mean of both phases'.

    All of it needs inner products alone: the new tensor is a combination of the clients' and the old one.

    FedDRM's comparison has `rule` pairs: each update loses its projections on all others that it conflicts with, of the
    updates as they came, the whole body being one vector; then they are averaged by training sizes. Of the local steps
    `head_steps` train the head, its 5 of 10.

    deviates: projections divide by |u_j|², as in the paper; the authors' code does not, although it does not normalise
    the u_j either, so that of small updates nearly nothing is taken out.

    deviates: (2) is solved with updates scaled to a mean square of one, so that the solver's tolerance means the same
    whatever their size. α is not given in the authors' files; 0.5 is of CAGrad, where the construction is from.

    deviates: running statistics of batch norms, which are not updates, are averaged by training sizes.
    """

    name = "confree"
    title = "ConFREE"
    personal = HEAD
    serves = (MEMBER,)

    rule: str = hyperparameter(
        "worst", "how updates are combined", source="paper; FedDRM: pairs", choices=("worst", "pairs")
    )
    alpha: float = hyperparameter(
        0.5, "radius around the guidance vector, of its length (worst)", "α", "not given", least=0
    )
    head_epochs: int = hyperparameter(
        1, "epochs of the head alone, before those of the body", source="authors' FedRep", least=0
    )
    head_steps: int = hyperparameter(
        0,
        "of the setting's local steps, those of the head; 0: head_epochs",
        source="FedDRM, code: 5",
        least=0,
    )

    def check_setting(self, setting: Setting) -> None:
        check_split(self.name, "head-steps", self.head_steps, setting)

    def relative_compute(self, setting: Setting) -> float:
        return 1.0 if self.head_steps else 1 + self.head_epochs / (setting.epochs or 1)  # steps count as an epoch

    def local(self, client: Client) -> ClientUpdate:
        losses = []
        if self.head_steps or self.head_epochs:
            epochs = None if self.head_steps else self.head_epochs
            head = yield Train(cross_entropy, trains=HEAD, epochs=epochs, steps=self.head_steps or None)
            losses.append(head.loss)
        body = yield Train(cross_entropy, trains=BODY, steps=remaining(client.setting, self.head_steps))
        losses.append(body.loss)
        client.logged = sum(losses) / len(losses)

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        before, states, sizes = server.shared, [c.state for c in cohort], [c.n_train for c in cohort]
        server.shared = weighted_mean(states, sizes, before)
        # Sorted: in another process, after a checkpoint, the state may come in another order.
        moving = sorted(trainable(before))
        products = {n: gram(states, before, n) for n in moving}
        if self.rule == "pairs":
            weights = dict.fromkeys(moving, pairs(np.sum([products[n] for n in moving], axis=0), sizes))
        else:
            rng = stream(server.context.setting.seed, "order of projections", t)
            weights = {n: worst(products[n], orders(rng, len(cohort)), self.alpha) for n in moving}
        for n, w in weights.items():  # what the clients' weights leave over of one is the old tensor's
            server.shared |= weighted_mean([*states, before], [*w, 1 - w.sum()], [n])
