"""Papers' theory as functions and checks, without torch: one module per paper (`ftw_erm`, `feddrm`), and in `arrays`
the distance between FLUX's descriptors and Wasserstein distances (Table 4). PAPERS lists what
`fedbench theory --paper NAME` checks on simulated data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedbench.theory import feddrm, ftw_erm
from fedbench.theory.feddrm_model import Check
from fedbench.theory.ftw_erm import Finding


@dataclass(frozen=True)
class Paper:
    """The checks of one paper, and the texts of their report."""

    question: str
    problems: str  #: name of the draws, in the plural
    draws: int  #: default number of draws
    check: Callable[[int, int], Sequence[Finding | Check]]  #: (draws, seed) -> results
    terms: str  #: meaning of the symbols


PAPERS = {
    "ftw_erm": Paper(
        "When does weighting help?",
        "random one-hot problems",
        ftw_erm.DRAWS,
        ftw_erm.census,
        "FTW: weighted, under the test second moment; ERM: unweighted, under the training one (the paper's proofs take "
        "it so).\nB bias, V variance, R = B + V; s = sqrt(λ'/λ), ξ = λ/(λ + μ).",
    ),
    "feddrm": Paper(
        "Does FedDRM's theory hold?",
        "simulated problems",
        feddrm.DRAWS,
        feddrm.checks,
        "γ† + ξᵀh(x): log density ratio of a client, which has n_l of the N samples; λ weighs the target head, 1 - λ "
        "the client head, ρ penalises both; η rate, E local steps, μ = ρ strong convexity, Ḡ² drift of gradients.\n"
        "Errors of density ratios are claimed as a rate only, which starts at the first number measured.",
    ),
}
