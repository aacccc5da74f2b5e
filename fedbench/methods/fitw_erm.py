"""FITW-ERM: importance weights for each client's own test distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fedbench.core.client import Box, Client
from fedbench.core.federation import Federation
from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.methods.base import Method, check, knob
from fedbench.methods.parts import importance
from fedbench.methods.parts.one_step import check_one_step, server_step, upload_gradient
from fedbench.ratios.exact import stratum_ratios
from fedbench.ratios.matching import Matching
from fedbench.ratios.pool import contributions
from fedbench.spec import Setting


@dataclass(frozen=True)
class FITWERM(Method):
    """Federated individual true weighted ERM (FTW-ERM's paper, TMLR 2023, Sec. 2, Eq. 2.4).

    Client k weights the loss of its training image x by q_k(x) / p_k(x): its own test density over its own training
    density. Nothing but gradients leaves the client; else the loop is fedsgd's. Ratios are exact or matched to `n_te`
    of its own unlabelled test images, as in ftw_erm, whose departures hold here too.

    deviates: HDRM's ratio network and its optimiser are those of the authors' code, and its upper bound is the k-means
    estimate that the paper describes.
    """

    name = "fitw_erm"
    title = "FITW-ERM"
    personal = (importance.OWN,)

    ratios: str = knob("exact", "known ratios, or ratios matched by HDRM", "r", "Sec. 3", choices=("exact", "hdrm"))
    scale: str = knob("mean", "of the clients' gradients", source="code: mean; paper: sum", choices=("mean", "sum"))
    divergence: str = knob("lsif", "of HDRM", "f", "Sec. 3", choices=("lsif", "ukl", "lr", "pu"))
    n_te: int = knob(100, "own unlabelled test images that HDRM uses", "n_te", "code")
    clusters: int = knob(20, "k-means clusters of the ratio's upper bound", "M", "App. N, Table 13")
    restarts: int = knob(10, "starts of k-means", source="code")
    matching_epochs: int = knob(10, "passes of HDRM over the training images", source="code")

    def __post_init__(self) -> None:
        for option in ("n_te", "clusters", "restarts", "matching_epochs"):
            value = getattr(self, option)
            check(value >= 1, self.name, option.replace("_", "-"), value, "at least 1")

    def check_setting(self, setting: Setting) -> None:
        check_one_step(self.name, setting)

    def variables(self, model: nn.Module, federation: Federation, generator: torch.Generator) -> State:
        return importance.unit_weights(federation)

    def describe(self, server: Server, federation: Federation, setting: Setting) -> tuple[int, int]:
        known = federation.densities
        if self.ratios == "exact":
            assert known is not None
            tables = [stratum_ratios(p, q) for p, q in zip(known.train, known.test, strict=True)]
            importance.keep_exact(server, federation, tables)
            return 0, 0
        own = contributions([rows.cpu().numpy() for rows in federation.test], self.n_te, setting.seed)
        matching = Matching(self.divergence, self.matching_epochs, clusters=self.clusters, restarts=self.restarts)
        for k, one in enumerate(importance.matched(federation, setting, matching, own)):
            importance.keep(server, federation, k, one.weights, one.bound, one.at_bound)
        return 0, 0

    def local(self, client: Client) -> Box | None:
        return upload_gradient(client, importance.request(client))

    def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        server_step(server, cohort, self.scale)

    def personalise(self, client: Client) -> Box | None:
        importance.note(client)
        return None
