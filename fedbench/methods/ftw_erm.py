"""FTW-ERM: importance weights for the test distributions of all clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedbench.core.client import Client
from fedbench.core.message import Question
from fedbench.core.server import Server
from fedbench.methods.base import check, hyperparameter
from fedbench.methods.parts import importance
from fedbench.methods.parts.importance import Pool
from fedbench.methods.parts.one_step import AdamMemory, scale_hyperparameter
from fedbench.ratios.exact import case_ratios, stratum_ratios
from fedbench.ratios.matching import shuffle


@dataclass(frozen=True)
class FTWERM(importance.Weighted):
    """Federated true weighted ERM (FTW-ERM, TMLR 2023, Sec. 2, Eq. 2.5).

    Client k weights the loss of its training image x by r_k(x) = sum_l q_l(x) / p_k(x), the test densities q_l of all
    clients over its training density p_k; otherwise the loop is fedsgd's. Ratios are exact, from the densities that the
    partition declares (Prop. 4 under target shift; joint with the label on Colored MNIST), or estimated (HDRM,
    Algorithm 1): every client sends `n_te` unlabelled test images once, and the server shuffles them and sends the
    anonymous pool to all. With `case` only client 1's test distribution counts (Sec. 2, App. C, Table 5).

    deviates: where a partition declares no densities, a class is as probable as its share of the client's images, in
    training as in tests.

    deviates: HDRM's optimiser and the size of the pool are those of the authors' code, the paper names none, and so is
    its ratio network, the classifier with one output (on CIFAR-10 ours alone); the upper bound is the k-means estimate
    that the paper describes, where the code assumes 10.
    """

    name = "ftw_erm"
    title = "FTW-ERM"

    case: str = hyperparameter(
        "all",
        "whose test distribution counts: all clients', or client 1's alone in one of the special cases",
        source="App. C, Table 5",
        choices=("all", "no_cs", "cs_one", "cs_both", "cs_multi"),
    )
    scale: str = scale_hyperparameter("over clients")

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.case == "all" or self.ratios == "exact", self.name, "case", self.case, "all with --ratios hdrm")

    def ask(self, server: Server, t: int, k: int) -> Question | Pool | None:
        """Before the first round ask for images, then for estimates from the pool; exact ratios need one question."""
        if t or k > (self.ratios == "hdrm"):
            return None
        return server.memory if k else Question()

    def reply(self, client: Client) -> None:
        train, test = client.context.strata
        if isinstance(client.inbox, Pool):
            estimate = importance.matched_once(client, client.inbox.images, self.matching)
            importance.keep_matched(client, estimate, client.context.clients if self.scale == "sum" else 1)
        elif self.ratios == "hdrm":
            # In the order in which they are stored, which hides the order of the draw.
            client.upload = Pool(importance.sample(client, self.n_te, in_order=True))
        elif self.case == "all":
            importance.keep_exact(client, stratum_ratios(train[client.index], test, self.scale))
        else:
            importance.keep_exact(client, case_ratios(self.case, train, test)[client.index])

    def learn(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        server.memory = AdamMemory()
        if cohort[0].upload:  # the pool is needed until the clients have estimated their ratios
            images = torch.cat([c.upload.images for c in cohort])
            order = torch.from_numpy(shuffle(len(images), server.context.setting.seed)).to(images.device)
            server.memory = Pool(images[order])
