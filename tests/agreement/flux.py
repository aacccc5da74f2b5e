"""FLUX's code: the descriptors of clients under one model, their scaling, the elbow of their distances, the clusters,
and the models averaged within them."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from sklearn.cluster import DBSCAN
from sklearn.preprocessing import MinMaxScaler
from torch import Tensor, nn

from fedbench.core.images import to_input
from fedbench.core.state import State, weighted_mean
from fedbench.methods.agreement import Difference
from fedbench.methods.flux import clustering
from fedbench.methods.parts import description
from fedbench.methods.parts.descriptor import Scaling, cube, descriptor
from tests.agreement.cases import EQUAL, ONE_BATCH, UNEQUAL, Case, network
from tests.agreement.compare import Against, sharing
from tests.agreement.foreign import importable

TITLE = "FLUX's code"
REPOSITORY = "dariofenoglio98/FLUX"
CHANGES = (
    "its loader hands out fedbench's images, and the network is ours",
    "stubs replace flwr and seaborn where they are missing; its Flower strategy is called with what clients would send",
    "it plots nothing and saves nothing",
)
OPTIONS = {"flux": "--neighbours rounded"}
#: Of whose distances there is an elbow, without which its code stops. Five clients have none.
MANY = Case("twenty clients", (16, 32, 48, 32, 16) * 4)
#: Its bound of latents before clients have reported theirs, and its number of components.
TOP, COMPONENTS = description.FIRST_TOP, 10


class Latent(nn.Module):
    """Our network, with its way to ask for latents."""

    num_classes = 10

    def __init__(self) -> None:
        super().__init__()
        self.it = network()

    def forward(self, x: Tensor, latent: bool = False) -> Any:
        z = self.it.features(x)
        return (self.it.head(z), z) if latent else self.it.head(z)


def theirs_of(case: Case) -> np.ndarray:
    """Descriptors of the clients [M, L]."""
    module, model = importlib.import_module("public.models"), Latent()
    rows = []
    for i in range(len(case.sizes)):
        at = case.data.train[i]
        batch = (to_input(case.data.images[at]), case.data.labels[at])
        loader: Any = mock.MagicMock()
        loader.__iter__.side_effect = lambda batch=batch: iter([batch])
        loader.dataset = range(len(at))
        found = module.ModelEvaluator(loader, "cpu").extract_descriptors(model, i, TOP)
        names = ("latent_space_mean", "latent_space_std", "latent_space_mean_by_label", "latent_space_std_by_label")
        rows.append([value for name in names for value in json.loads(found[name])])
    return np.array(rows)


def ours_of(case: Case) -> np.ndarray:
    """The same by fedbench."""
    model = network().eval()
    rows = []
    with torch.no_grad():
        for at in case.data.train:
            z = model.features(to_input(case.data.images[at]))
            how = description.projection(cube(torch.tensor(TOP), z.shape[1]), COMPONENTS)
            rows.append(descriptor((z - how.mean) @ how.axes.T, case.data.labels[at], 10).numpy())
    return np.array(rows)


def clustered_theirs(case: Case, descriptors: np.ndarray) -> dict[str, State]:
    """What its strategy makes of such descriptors [M, L] and of models, each client's a network of its own."""
    module, sizes = importlib.import_module("flux.server"), case.sizes
    strategy = module.SaveModelStrategy(network(), "", module.client_descr_scaling(1, MinMaxScaler()), mock.MagicMock())
    strategy.cluster_status, strategy.accept_failures, strategy.fit_metrics_aggregation_fn = 1, True, None  # to cluster
    parts = np.split(descriptors, np.cumsum([COMPONENTS, COMPONENTS, 10 * COMPONENTS]), axis=1)
    names = ("latent_space_mean", "latent_space_std", "latent_space_mean_by_label", "latent_space_std_by_label")
    results = []
    for i, n in enumerate(sizes):
        sent = {name: json.dumps(part[i].tolist()) for name, part in zip(names, parts, strict=True)}
        model = [p.numpy() for p in trained(i).values()]
        results.append(
            (SimpleNamespace(cid=i), SimpleNamespace(metrics={"cid": i, **sent}, parameters=model, num_examples=n))
        )
    scans, centroids = [], []

    def scan(eps: float, **how: Any) -> Any:
        scans.append(eps)
        return DBSCAN(eps=eps, **how)

    def remember(*of: Any, **how: Any) -> Any:
        centroids.append(calculate(*of, save=False, **how))
        return centroids[-1]

    calculate = module.utils.calculate_centroids
    with contextlib.ExitStack() as patched:
        for of, name, value in (
            (module.cfg, "n_clients", len(sizes)),
            (module, "DBSCAN", scan),
            (module, "parameters_to_ndarrays", lambda values: values),
            (module, "ndarrays_to_parameters", lambda values: values),
            (module.utils, "cluster_plot", mock.Mock()),
            (module.utils, "calculate_centroids", remember),
            (module.np, "load", lambda path: np.array(1)),  # the number of true clusters, which is only printed
            (module.np, "save", mock.Mock()),
            (module.torch, "save", mock.Mock()),
        ):
            patched.enter_context(mock.patch.object(of, name, value))
        strategy.aggregate_fit(2, results, [])
    labels = [int(strategy.cluster_labels[i]) for i in range(len(sizes))]
    averaged = strategy.aggregated_cluster_parameters
    models = {m: dict(zip(trained(0), map(torch.from_numpy, averaged[m]), strict=True)) for m in set(labels)}
    return {
        "elbow": {"epsilon": torch.tensor(scans[0])},
        "clusters": sharing(labels),
        "centroids": {str(i): torch.from_numpy(centroids[0][m]) for i, m in enumerate(labels)},
        "clusters' models": {f"{i}/{n}": t for i, m in enumerate(labels) for n, t in models[m].items()},
    }


def clustered_ours(case: Case, descriptors: np.ndarray) -> dict[str, State]:
    """The same by fedbench."""
    scaled = Scaling.fit(descriptors, COMPONENTS).apply(descriptors, COMPONENTS)
    labels, eps = clustering.cluster("density", scaled, 1.0, 0.0, 0, "rounded")
    centres = clustering.centroids(scaled, labels)
    models = {}
    for m in set(labels.tolist()):
        members = np.flatnonzero(labels == m).tolist()
        states = [trained(i) for i in members]
        models[m] = weighted_mean(states, [float(case.sizes[i]) for i in members], states[0])
    return {
        "elbow": {"epsilon": torch.tensor(eps)},
        "clusters": sharing(labels.tolist()),
        "centroids": {str(i): torch.from_numpy(centres[m]) for i, m in enumerate(labels)},
        "clusters' models": {f"{i}/{n}": t for i, m in enumerate(labels.tolist()) for n, t in models[m].items()},
    }


@cache
def trained(i: int) -> State:
    """A model of client i."""
    generator = torch.Generator().manual_seed(i)
    return {n: t + 0.1 * torch.randn(t.shape, generator=generator) for n, t in network().state_dict().items()}


def compare(case: Case) -> Iterator[Difference]:
    mine, found = ours_of(case), Against("flux", "FLUX", case.name)
    found.see("descriptors", {"all": torch.from_numpy(mine)}, {"all": torch.from_numpy(theirs_of(case))})
    scaler = importlib.import_module("flux.server").client_descr_scaling(1, MinMaxScaler())
    scaled = Scaling.fit(mine, COMPONENTS).apply(mine, COMPONENTS)
    found.see("scaled descriptors", {"all": torch.from_numpy(scaled)}, {"all": torch.from_numpy(scaler.scale(mine))})
    if case == MANY:
        theirs = clustered_theirs(case, mine)
        for quantity, values in clustered_ours(case, mine).items():
            found.see(quantity, values, theirs[quantity])
    yield from found.differences({})


def differences(folder: Path, chosen: Collection[str]) -> Iterator[Difference]:
    flower = ("server.client_proxy", "server.client_manager", "server.strategy", "common.logger")
    with importable(folder, (*(f"flwr.{name}" for name in flower), "seaborn")):
        if "flux" in chosen:
            for case in (EQUAL, UNEQUAL, ONE_BATCH, MANY):
                yield from compare(case)
