"""The upper bound of density ratios by k-means: measures the clients' data and trains nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from fedbench.core.client import MEMBER, UNLABELLED, Client, ClientUpdate, Context
from fedbench.core.state import State
from fedbench.measure import Measure
from fedbench.methods.base import hyperparameter
from fedbench.methods.parts import importance
from fedbench.methods.parts.steps import AsksFirst
from fedbench.ratios.bound import kmeans_bound


@dataclass(frozen=True)
class KMeansBound(AsksFirst):
    """Estimated maximum of q_k(x) / p_k(x) of each client (FTW-ERM's paper, TMLR 2023, App. N, Table 13).

    The client's training and test images, as raw pixels, are clustered jointly; the estimate is the largest ratio of a
    cluster's share of the test images to its share of the training images. It is reported as ratio_bound, and the
    number of training images in that cluster as ratio_bound_images, because the estimate is unreliable if they are few.
    The network is not trained, and its predictions are meaningless.
    """

    name = "kmeans_bound"
    title = "k-means bound"
    serves = (MEMBER, UNLABELLED)
    takes_multi_label = False
    measures = (
        importance.RATIO_BOUND,
        Measure("ratio_bound_images", "training images in the cluster of that ratio", "count", of="client", least=0),
    )
    personal = (importance.OWN,)
    trains = False

    clusters: int = hyperparameter(20, "k-means clusters", "M", "App. N, Table 13", least=1)
    restarts: int = hyperparameter(
        10, "starts of k-means, of which the one of least inertia counts", source="code", least=1
    )

    def variables(self, model: nn.Module, context: Context, generator: torch.Generator) -> State:
        return {f"{importance.NOTE}ratio_bound": torch.zeros(())}

    def reply(self, client: Client) -> None:
        train, test = (client.images(split).flatten(1).cpu().numpy() for split in ("train", "test"))
        bound = kmeans_bound(train, test, self.clusters, self.restarts, client.setting.seed)
        importance.keep_metrics(client, ratio_bound=bound.value, ratio_bound_images=bound.train_count)

    def communicates(self, t: int, rounds: int) -> bool:
        return False

    def local(self, client: Client) -> ClientUpdate | None:
        return None

    def personalise(self, client: Client) -> None:
        importance.note(client)
