"""FITW-ERM: importance weights for each client's own test distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fedbench.core.client import MEMBER, UNLABELLED, Client, ClientUpdate, Context
from fedbench.core.message import Question
from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.methods.base import Method, hyperparameter
from fedbench.methods.parts import importance
from fedbench.methods.parts.one_step import Moments, check_one_step, server_step, upload_gradient
from fedbench.ratios.exact import stratum_ratios
from fedbench.specs import Setting


@dataclass(frozen=True)
class FITWERM(importance.RatioOptions, Method):
    """Federated individual true weighted ERM (FTW-ERM's paper, TMLR 2023, Sec. 2, Eq. 2.4).

    Client k weights the loss of its training image x by q_k(x) / p_k(x): its own test density over its own training
    density. Nothing but gradients leaves the client; else the loop is fedsgd's. Ratios are exact or matched to `n_te`
    of its own unlabelled test images, as in ftw_erm.

    deviates: where a partition declares no densities, a class is as probable as its share of the client's images, in
    training as in tests.

    deviates: HDRM's optimiser and the size of the pool are those of the authors' code, the paper names none, and so is
    its ratio network, the classifier with one output (on CIFAR-10 ours alone); the upper bound is the k-means estimate
    that the paper describes, where the code assumes 10.
    """

    name = "fitw_erm"
    title = "FITW-ERM"
    serves = (MEMBER, UNLABELLED)
    takes_multi_label = False
    measures = importance.MEASURES
    personal = (importance.OWN,)

    scale: str = hyperparameter(
        "mean", "of the clients' gradients", source="code: mean; paper: sum", choices=("mean", "sum")
    )

    def check_setting(self, setting: Setting) -> None:
        check_one_step(self.name, setting)

    def variables(self, model: nn.Module, context: Context, generator: torch.Generator) -> State:
        return importance.unit_weights(context)

    def start(self, server: Server) -> None:
        server.memory = Moments()

    def ask(self, server: Server, t: int, k: int) -> Question | None:
        return Question() if t == k == 0 else None

    def reply(self, client: Client) -> None:
        if self.ratios == "exact":
            own, test = (side[client.index] for side in client.context.strata)
            importance.keep_exact(client, stratum_ratios(own, test))
        else:
            pool = importance.sample(client, self.n_te)
            importance.keep_matched(client, importance.matched(client, pool, self.matching))

    def local(self, client: Client) -> ClientUpdate | None:
        return upload_gradient(client, importance.request(client))

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        server_step(server, cohort, self.scale)

    def personalise(self, client: Client) -> ClientUpdate | None:
        if client.kind == MEMBER:
            importance.note(client)
        return None
