"""FITW-ERM: importance weights for each client's own test distribution."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.client import Client
from fedbench.methods.parts import importance
from fedbench.methods.parts.one_step import scale_hyperparameter
from fedbench.methods.parts.steps import AsksFirst
from fedbench.ratios.exact import stratum_ratios


@dataclass(frozen=True)
class FITWERM(AsksFirst, importance.Weighted):
    """Federated individual true weighted ERM (FTW-ERM's paper, TMLR 2023, Sec. 2, Eq. 2.4).

    Client k weights the loss of its training image x by q_k(x) / p_k(x), its test density over its training density.
    Only gradients leave the client; otherwise the loop is fedsgd's. Ratios are exact, or estimated from `n_te` of the
    client's unlabelled test images, as in ftw_erm.

    deviates: where a partition declares no densities, a class is as probable as its share of the client's images, in
    training as in tests.

    deviates: HDRM's optimiser and the size of the pool are those of the authors' code, the paper names none, and so is
    its ratio network, the classifier with one output (on CIFAR-10 ours alone); the upper bound is the k-means estimate
    that the paper describes, where the code assumes 10.
    """

    name = "fitw_erm"
    title = "FITW-ERM"

    scale: str = scale_hyperparameter()

    def reply(self, client: Client) -> None:
        if self.ratios == "exact":
            own, test = (side[client.index] for side in client.context.strata)
            importance.keep_exact(client, stratum_ratios(own, test))
        else:
            pool = importance.sample(client, self.n_te)
            importance.keep_matched(client, importance.matched(client, pool, self.matching))
