"""FLUX's code: the descriptors of clients under one model, and their scaling."""

from __future__ import annotations

import importlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from sklearn.preprocessing import MinMaxScaler
from torch import Tensor, nn

from fedbench.core.images import to_input
from fedbench.methods.agreement import Difference
from fedbench.methods.parts import description
from fedbench.methods.parts.descriptor import Scaling, cube, descriptor
from tests.agreement.cases import EQUAL, ONE_BATCH, UNEQUAL, Case, network
from tests.agreement.compare import Against
from tests.agreement.foreign import importable

TITLE = "FLUX's code"
REPOSITORY = "dariofenoglio98/FLUX"
CHANGES = (
    "its loader hands out fedbench's images, and the network is ours",
    "stubs replace flwr and seaborn where they are missing; its clustering, within a Flower strategy, is not run",
)
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


def compare(case: Case) -> Iterator[Difference]:
    mine, found = ours_of(case), Against("flux", "FLUX", case.name)
    found.see("descriptors", {"all": torch.from_numpy(mine)}, {"all": torch.from_numpy(theirs_of(case))})
    scaler = importlib.import_module("flux.server").client_descr_scaling(1, MinMaxScaler())
    scaled = Scaling.fit(mine, COMPONENTS).apply(mine, COMPONENTS)
    found.see("scaled descriptors", {"all": torch.from_numpy(scaled)}, {"all": torch.from_numpy(scaler.scale(mine))})
    yield from found.differences({})


def differences(folder: Path, chosen: Collection[str]) -> Iterator[Difference]:
    flower = ("server.client_proxy", "server.client_manager", "server.strategy", "common.logger")
    with importable(folder, (*(f"flwr.{name}" for name in flower), "seaborn")):
        if "flux" in chosen:
            for case in (EQUAL, UNEQUAL, ONE_BATCH):
                yield from compare(case)
