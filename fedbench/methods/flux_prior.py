"""FLUX-prior: FLUX whose server is told how many distributions there are."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.methods.base import knob
from fedbench.methods.flux import Flux


@dataclass(frozen=True)
class FluxPrior(Flux):
    """FLUX-prior (Fenoglio et al., NeurIPS 2025): FLUX that clusters by k-means with the true number of distributions
    among the clients (where data drift, that of the last stage), from a single k-means++ start as in the released code.
    The same as `flux` with `--clustering prior`.

    deviates: from the paper as FLUX does.
    """

    name = "flux_prior"
    title = "FLUX-prior"

    clustering: str = knob("prior", "how descriptors are clustered", source="App. B", choices=("prior",))
