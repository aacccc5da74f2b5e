"""HACCS: clients whose data have the same histograms learn together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbench.core.client import Client
from fedbench.core.server import Server
from fedbench.methods.base import hyperparameter
from fedbench.methods.parts.clustered import Clustered, average_by_cluster
from fedbench.methods.parts.linkage import noise_alone
from fedbench.methods.parts.steps import AsksFirst

#: Number of images whose pixels are counted at once.
CHUNK = 1024

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Histograms:
    """Message from a client: images of each class [K] int32, and their pixels in each bin [K, bins] int32."""

    labels: Tensor
    pixels: Tensor


@dataclass(frozen=True)
class HACCS(AsksFirst, Clustered):
    """Heterogeneity-aware clustered client selection (Wolfrath et al., IPDPS 2022), as FLUX compares it (Table 8).

    Once before the first round every client sends histograms of its training data: of its labels, and of the pixels of
    each class's images. The distance of two clients is the Hellinger distance of their label histograms plus the mean
    over classes of that of their pixel histograms. OPTICS finds clusters of at least `min_samples` clients; every other
    client is a cluster of one. From then on FedAvg runs in each cluster. A client predicts with its cluster's model,
    whether it participates or not; a client without labels, which could not send such histograms, predicts with the
    ensemble of all clusters' models.

    A class without images has an empty histogram: at distance 0 from another empty one, and at the square root of a
    half from any other, as in the authors' code, which also counts pixels of all channels in one histogram.

    If all clients are equally far apart, for example with one class each, OPTICS puts them into one cluster.

    deviates: the paper has two variants, label histograms or pixel histograms a class, and FLUX does not say which;
    here the two distances are added, with 16 bins of pixel values. No noise for privacy is added to the histograms.

    deviates: the paper's main matter, which clients of a cluster take part in a round by their speed, is left out; the
    cohorts are those of every method.

    deviates: where the data drift, the clusters stay those of the first stage.
    """

    name = "haccs"
    title = "HACCS"
    clusters_by = "descriptors"
    takes_multi_label = False
    takes_vectors = False

    bins: int = hyperparameter(16, "bins of the pixel histograms", source="not given by HACCS", least=1, most=256)
    min_samples: int = hyperparameter(2, "clients that make a cluster, at least", source="code: OPTICS", least=2)

    def reply(self, client: Client) -> None:
        classes, labels = len(client.class_counts), client.labels()
        pixels = histograms(client.images(), labels, classes, self.bins)
        client.upload = Histograms(client.class_counts.int().cpu(), pixels.int().cpu())

    def learn(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        labels, pixels = (
            np.stack([part.double().numpy() for part in parts])
            for parts in ([c.upload.labels for c in cohort], [c.upload.pixels for c in cohort])
        )
        clusters = optics(distances(labels, pixels), self.min_samples)
        server.models = [dict(server.shared) for _ in range(clusters.max() + 1)]
        server.assigned = {c.index: int(m) for c, m in zip(cohort, clusters, strict=True)}

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        average_by_cluster(server, cohort)


def histograms(images: Tensor, labels: Tensor, classes: int, bins: int) -> Tensor:
    """Count the pixels of each class's images [n, H, W, C] uint8 by value in bins, [classes, bins]."""
    counts = torch.zeros(classes * bins, dtype=torch.int64, device=images.device)
    for part, y in zip(torch.split(images, CHUNK), torch.split(labels, CHUNK), strict=True):
        cell = part.flatten(1).long() * bins // 256 + bins * y[:, None]
        counts += torch.bincount(cell.flatten(), minlength=len(counts))
    return counts.view(-1, bins)


def distances(labels: Array, pixels: Array) -> Array:
    """Return distances [K, K] of K clients, from counts of their labels [K, classes] and of their pixels by class and
    bin [K, classes, bins]."""
    by_class = [hellinger(pixels[:, c]) for c in range(pixels.shape[1])]
    return np.asarray(hellinger(labels) + np.mean(by_class, 0))


def hellinger(counts: Array) -> Array:
    """Return Hellinger distances [K, K] of histograms [K, n]; an empty one has share 0 in every bin."""
    from scipy.spatial.distance import cdist

    roots = np.sqrt(counts / np.maximum(counts.sum(1, keepdims=True), 1))
    return np.asarray(cdist(roots, roots) / np.sqrt(2))


def optics(apart: Array, min_samples: int = 2) -> NDArray[np.int64]:
    """Return the cluster of each of K >= 1 clients [K] from their distances [K, K]; noise points are clusters of one.

    Fewer than `min_samples` clients, or clients at distance 0 from each other, are one cluster.
    """
    from sklearn.cluster import OPTICS

    if len(apart) < min_samples:
        return np.zeros(len(apart), np.int64)
    with np.errstate(divide="ignore", invalid="ignore"):  # for clients at distance 0
        return noise_alone(OPTICS(min_samples=min_samples, metric="precomputed").fit_predict(apart))
