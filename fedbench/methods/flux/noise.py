"""Laplace noise on FLUX's descriptors, for differential privacy (Fenoglio et al., NeurIPS 2025, App. C.2, Table 5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedbench.errors import FedbenchError
from fedbench.methods.parts.descriptor import SEED


@dataclass(frozen=True)
class Noise:
    """Laplace noise on a descriptor (step S4), before it is scaled: b = range / (n epsilon) on every entry.

    The budget epsilon holds for each entry; for a whole descriptor of L entries they add up to L epsilon.

    released: as the authors' code has it: one range for all entries, largest minus smallest value of the client's
    projected latents and of the projected synthetic points; the same draws for all clients, for it seeds the generator
    anew before each; none on the descriptors of the test phase. Otherwise, as the paper says, each entry has the
    range of its own coordinate over the client's projected latents, and each client its own draws.
    """

    epsilon: float
    released: bool = False

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise FedbenchError(f"the privacy budget epsilon must be positive, not {self.epsilon}")

    def on(
        self, d: Tensor, projected: Tensor, points: Tensor, rng: np.random.Generator, *, test_phase: bool = False
    ) -> Tensor:
        """A descriptor [L] of projected latents [n, l] (or its first entries) with noise; `points` [200, l] are the
        projected synthetic points and `rng` is the client's own."""
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
