"""FLUX: clients are clustered once by descriptors of their data; unlabelled clients use the nearest cluster."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.core.client import UNLABELLED, UNSEEN, Client, ClientUpdate, Collect, Context
from fedbench.core.server import Server
from fedbench.methods.base import FORWARD, hyperparameter
from fedbench.methods.flux import clustering
from fedbench.methods.parts import description
from fedbench.methods.parts.clustered import CLUSTERS, Choice, answer_at_random, average_by_cluster, side_by_side
from fedbench.methods.parts.description import Phase, phase_of
from fedbench.methods.parts.descriptor import MOMENTS, SEED, Bounds, Scaling
from fedbench.methods.parts.linkage import MEASURES
from fedbench.methods.parts.warm_up import WarmsUp
from fedbench.rng import stream
from fedbench.specs import Setting


@dataclass(frozen=True)
class Centroids:
    """Message to a late or unlabelled client, sent with theta* and all models: the bounds, the scaling and the
    centroids [M, L], by which it finds its cluster."""

    bounds: Bounds
    scaling: Scaling
    centroids: Tensor


@dataclass
class FluxMemory(description.DescriptionMemory):
    """The server's memory, also of the last clustering: centroids [M, L], the distance at the elbow (None: not used),
    and the number of training images [M] behind the clusters' running means."""

    centroids: Tensor | None = None
    elbow: float | None = None
    behind: Tensor | None = None


@dataclass(frozen=True)
class LaplaceNoise:
    """Laplace noise on a descriptor (step S4), before scaling, for differential privacy (App. C.2, Table 5):
    b = range / (n epsilon) on every entry.

    The budget epsilon holds for each entry; for a whole descriptor of L entries the budgets add up to L epsilon.

    released: follow the authors' code: one range for all entries, largest minus smallest value of the client's
    projected latents and of the projected synthetic points; the same draws for all clients, because it reseeds the
    generator before each; no noise in the test phase. Otherwise, as in the paper, each entry has the range of its
    coordinate over the client's projected latents, and each client has independent draws.
    """

    epsilon: float
    released: bool = False

    def on(
        self, d: Tensor, projected: Tensor, points: Tensor, rng: np.random.Generator, *, test_phase: bool = False
    ) -> Tensor:
        """Add noise to a descriptor [L] (or its first entries) of projected latents [n, l]; `points` [200, l] are the
        projected synthetic points, and `rng` is the client's generator."""
        if self.released and test_phase:
            return d
        rows = projected.double()
        if self.released:
            rng = np.random.default_rng(SEED)
            values = torch.cat([rows.flatten(), points.to(rows).flatten()])
            spread = values.max() - values.min()
        else:
            spread = (rows.amax(0) - rows.amin(0)).repeat(len(d) // rows.shape[1])
        draws = torch.from_numpy(rng.laplace(size=len(d))).to(d.device)
        return d + draws * spread / (len(rows) * self.epsilon)


#: Moments in the rows of Table 66.
BLOCKS = {"mu_x": ("mu_x",), "mu_x,sigma_x": ("mu_x", "sigma_x"), "mu_x,mu_u": ("mu_x", "mu_u"), "all": MOMENTS}


@dataclass(frozen=True)
class Flux(WarmsUp):
    """FLUX (Fenoglio et al., NeurIPS 2025, Algorithms 1 and 2), in four phases (`parts/warm_up.py`).

    Warm-up is FedAvg. After each of its rounds the cohort reports the averaged model's accuracy on its validation
    images and the bounds of their latents. When the accuracy's slope falls below T (Eq. 14), the next round is that of
    description (Algorithm 1, lines 2 to 11). With the model of that moment, theta*, clients project their training
    images' latents on l axes that follow from these bounds, and send mean and standard deviation of each coordinate,
    over all images and over each class (Eq. 5 to 8). The server scales each block of moments to [0, 1] and clusters the
    descriptors: neighbours are within the distance at the elbow of the nearest-neighbour curve, and a client without
    neighbours is a cluster of one. From then on it averages within clusters (lines 15 to 35). A client that first
    participates later joins the centroid nearest to its whole descriptor (lines 20 to 25), a client without labels the
    one nearest to its label-free moments (Eq. 9; Algorithm 2), with the stored theta*, bounds and scaling.

    In a round of a drift, clients describe themselves again instead of training. The server clusters them again, and a
    new cluster starts with the model of the old cluster whose centroid is nearest
    (Table 6, Appendix D.3; flux/protocol.md#drifting-data).

    With `clustering` prior it is FLUX-prior: k-means with the true number of distributions (under drift, that of the
    last phase), from a single k-means++ start as in the released code.

    deviates: in a federation without validation images, training images stand for them during warm-up.

    deviates: latents are what the first linear layer reads, the axes come from bounds common to all coordinates
    (`box`), and blocks of descriptors are scaled, all as in the released code; the paper says the final hidden layer,
    bounds of each coordinate, and nothing of scaling. Bounds of each coordinate, too, are those of the validation
    images' latents.

    deviates: two clients that lie exactly as far apart as the distance at the elbow are always in one cluster, as in
    DBSCAN's definition; in the released code rounding decides, and where it parts them makes one cluster more (in 105
    of 400 synthetic cases). `neighbours` rounded counts as that code does.

    deviates: with partial participation the bounds are those that clients have last reported, as with all clients; the
    released script for it keeps to the first ones, 0 and 2, until it clusters in round 5.

    deviates: by Eq. 14 warm-up ends after round 3 at the earliest; here it ends before, where 80 % of all rounds are
    over by then.

    deviates: FLUX-prior's single start of k-means depends on the clients' order, which in the original is that of
    their arrival at the server; here it is that of their numbers.

    deviates: the distance within clusters comes from the elbow on every data set; the released code sets it to 1.0 on
    CheXpert (`reach`).

    deviates: with `assignment` random, every test image is answered by a cluster drawn for it: the accuracy of a client
    that is given a cluster at random, on average, which the protocol takes from ten draws.

    deviates: a client that comes after the clustering chooses its cluster itself: it is sent theta*, the bounds, the
    scaling, the centroids and all models, whose bytes count, and tells its choice. In the paper it sends its descriptor
    and gets the one model.
    """

    name = "flux"
    title = "FLUX"
    clusters_by = "descriptors"
    version = 2  #: the released code's synthetic points
    measures = (CLUSTERS, *MEASURES)
    memory = FluxMemory

    first_slope: int = hyperparameter(
        3, "first round whose slope counts; 2 in the released code", source="Eq. 14", least=2
    )
    box: str = hyperparameter(
        "common",
        "bounds of the synthetic points",
        source="code; the paper: coordinate",
        choices=("common", "coordinate"),
    )
    blocks: str = hyperparameter(
        "all", "moments of the descriptor that are clustered", source="Table 66", choices=tuple(BLOCKS)
    )
    neighbours: str = hyperparameter(
        "exact",
        "whether two clients at the elbow's own distance are neighbours: always, or as rounding has it",
        source="DBSCAN; the released code: rounded",
        choices=clustering.NEIGHBOURS,
        later=True,
    )
    clustering: str = hyperparameter(
        "density", "how descriptors are clustered", source="Table 63", choices=clustering.KINDS
    )
    reach: float = hyperparameter(
        0.0, "distance within clusters; 0: that at the elbow", source="the released code: 1.0 on CheXpert", least=0
    )
    assignment: str = hyperparameter(
        "nearest", "cluster of a client without labels", source="Table 65", choices=("nearest", "random")
    )
    average: str = hyperparameter(
        "participants",
        "models that a cluster's is the mean of: the round's, or all since the clustering",
        source="Algorithm 1; the released code: running",
        choices=("participants", "running"),
    )
    epsilon: float = hyperparameter(
        0.0, "privacy budget of a coordinate under Laplace noise; 0: no noise", "ε", "Table 5", least=0
    )
    noise: str = hyperparameter(
        "independent",
        "noise of the clients",
        source="paper; the released code: common",
        choices=("independent", "common"),
    )

    def build(self, model: nn.Module, context: Context) -> nn.Module:
        import sklearn.cluster  # noqa: F401 - slow, and would else count as the work of the round that clusters

        return super().build(model, context)

    def broadcast(self, server: Server, client: Client) -> None:
        super().broadcast(server, client)  # lines 3 to 5
        if phase_of(server, client.round) == Phase.GROUPED and client.index not in server.assigned:  # lines 20 to 25
            self.lead(server, client)

    def local(self, client: Client) -> ClientUpdate:
        if isinstance(client.inbox, Centroids):
            client.upload = Choice(self.choose(client, (yield from self.describe(client))))
        yield from super().local(client)  # lines 4 and 5, and 32 to 35

    def describe(self, client: Client, split: str = "train") -> Generator[Collect, Any, Tensor]:
        """Return the descriptor that the client sends, with noise if epsilon is above 0."""
        bounds = client.inbox.bounds
        d, rows = yield from description.describe(client, bounds, self.components, split)
        if not self.epsilon:
            return d
        noise = LaplaceNoise(self.epsilon, released=self.noise == "common")
        unlabelled = split == "test"
        rng = stream(client.setting.seed, "privacy", client.index, client.round, int(unlabelled))
        points = description.projection(bounds, self.components).points
        return noise.on(d, rows, points, rng, test_phase=unlabelled)

    def lead(self, server: Server, client: Client) -> None:
        """Send a client that needs a cluster after the clustering, and holds theta*, the data to find it."""
        memory = server.memory
        client.state = {**client.state, **side_by_side(server.models)}
        client.inbox = Centroids(memory.bounds, memory.scaling, memory.centroids)

    def choose(self, client: Client, d: Tensor) -> int:
        """Load the model of the cluster whose centroid is nearest to the client's descriptor, and return its number. A
        client without labels has only the first entries of a descriptor (Eq. 9)."""
        at: Centroids = client.inbox
        point = description.scaled(
            at.scaling, d.cpu().numpy()[None], self.components, client.context.classes, BLOCKS[self.blocks]
        )
        m = int(clustering.nearest(point, at.centroids.cpu().numpy()[:, : point.shape[1]])[0])
        client.put(client.model(str(m)))
        return m

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        memory, phase = server.memory, phase_of(server, t)
        if phase == Phase.WARM_UP:
            super().aggregate(server, cohort, t)
            return
        if phase == Phase.DESCRIPTION:  # from now on the shared model is theta*
            self.cluster(server, cohort, t)
            server.models = [server.shared] * len(memory.centroids)
            memory.phase = Phase.GROUPED
        elif phase == Phase.REGROUPING:
            centres, models = memory.centroids.cpu().numpy(), server.models
            self.cluster(server, cohort, t)
            server.models = [models[m] for m in clustering.nearest(memory.centroids.numpy(), centres)]
            return
        server.assigned |= {c.index: c.upload.model for c in cohort if isinstance(c.upload, Choice)}
        behind = average_by_cluster(server, cohort, memory.behind)  # line 17
        memory.behind = behind if self.average == "running" else None

    def cluster(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        """Cluster the cohort's clients by their descriptors (lines 9 to 11)."""
        memory = server.memory
        descriptors = description.remember(server, cohort, t, self.components, BLOCKS[self.blocks])
        how = (self.scale, self.reach, server.context.groups, self.neighbours)
        labels, eps = clustering.cluster(self.clustering, descriptors, *how)
        server.assigned = {c.index: int(m) for c, m in zip(cohort, labels, strict=True)}
        memory.centroids = torch.from_numpy(clustering.centroids(descriptors, labels))
        memory.elbow, memory.behind = None if math.isnan(eps) else eps, None

    def round_metrics(self, server: Server) -> Mapping[str, float]:
        memory = server.memory
        if memory.phase != Phase.GROUPED:  # reported in warm-up too, so that runs that never cluster have a value
            return {"clusters": 1.0}
        numbers = {"clusters": float(len(server.models)), "clustering_round": float(memory.described.round)}
        return numbers if memory.elbow is None else {**numbers, "elbow": memory.elbow}

    def serve(self, server: Server, client: Client) -> None:
        """Send a client that has not participated since the clustering what it needs to find a cluster, as a late
        client in a round; one without labels uses its test images."""
        if server.models and (client.kind == UNLABELLED or client.index not in server.assigned):
            self.lead(server, client)

    def personalising(self, setting: Setting, kind: str, final: bool, n_train: int, n_test: int) -> float:
        unlabelled = kind == UNLABELLED and self.assignment != "random"
        return FORWARD * (n_test if unlabelled else n_train if kind == UNSEEN else 0)

    def personalise(self, client: Client) -> ClientUpdate:
        if not isinstance(client.inbox, Centroids):  # it has a cluster, or there are no clusters yet
            return
        if client.kind == UNLABELLED and self.assignment == "random":
            yield from answer_at_random(client)
        else:
            self.choose(client, (yield from self.describe(client, "test" if client.kind == UNLABELLED else "train")))
