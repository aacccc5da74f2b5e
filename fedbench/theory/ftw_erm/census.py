"""What FTW-ERM's conditions are worth: how often each holds on random problems, and what it promises then.

The promise is always taken from the closed forms of bias and variance (`OneHot`), never from a condition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbench.specs import check_seed, require
from fedbench.theory.arrays import Array
from fedbench.theory.ftw_erm import conditions as c
from fedbench.theory.ftw_erm.onehot import OneHot
from fedbench.theory.ftw_erm.ridge import Risk

DRAWS = 200_000
#: All are held in memory at the same time, and so many tell a share to 0.0002.
MOST = 5_000_000
_DIMENSION = 3


@dataclass(frozen=True)
class Finding:
    """One condition on random draws: in how many it held, and in how many of these its promise did."""

    source: str  #: where the condition comes from, such as "Theorem 2 (4.3)"
    condition: str
    promise: str
    unit: str  #: what was drawn: "coordinates" or "problems"
    drawn: int
    held: int
    followed: int
    remark: str  #: one line on what this shows

    @property
    def share(self) -> float | None:
        """Share of the draws with the condition in which the promise held; None if the condition never did."""
        return self.followed / self.held if self.held else None


def problems(rng: np.random.Generator, n: int, d: int = _DIMENSION) -> tuple[OneHot, Array]:
    """n random problems of d coordinates, and weights [n, d] drawn without regard to any condition.

    Probabilities are uniform on the simplex, counts 1..20, λ and w log-uniform in [0.1, 10], σ² in [0.01, 1], θ normal.
    """
    problem = OneHot(
        train=rng.dirichlet(np.ones(d), n),
        test=rng.dirichlet(np.ones(d), n),
        counts=rng.integers(1, 21, (n, d)).astype(float),
        theta=rng.standard_normal((n, d)),
        noise=_log_uniform(rng, 0.01, 1, n),
        ridge=_log_uniform(rng, 0.1, 10, n),
    )
    return problem, _log_uniform(rng, 0.1, 10, (n, d))


def inside(rng: np.random.Generator, problem: OneHot) -> tuple[Array, c.Truth]:
    """Weights [n, d] drawn uniformly between the two ends of (4.3), and in which problems [n] that is possible."""
    low, high = np.maximum(problem.s - 1, 0), problem.xi / problem.s
    return low + rng.random(low.shape) * np.maximum(high - low, 0), np.all(low <= high, axis=-1)


def census(draws: int = DRAWS, seed: int = 0) -> list[Finding]:
    """Count every condition on `draws` random problems (three coordinates each). Raises FedbenchError unless draws are
    1 to MOST and the seed is one."""
    require(
        1 <= draws <= MOST, f"there must be at least 1 draw and at most {MOST:,}, which take some 3 GB, not {draws}"
    )
    check_seed(seed)
    rng = np.random.default_rng(seed)
    problem, w = problems(rng, draws)
    s, xi = problem.s, problem.xi
    weighted, erm, fair = problem.weighted_terms(w), problem.erm_terms("paper"), problem.erm_terms("consistent")
    within, possible = inside(rng, problem)

    lower_bias, lower_variance = weighted.bias <= erm.bias, weighted.variance <= erm.variance
    higher_variance = erm.variance <= weighted.variance

    def finding(source: str, condition: str, promise: str, held: c.Truth, follows: c.Truth, remark: str) -> Finding:
        unit = "problems" if held.ndim == 1 else "coordinates"
        return Finding(
            source, condition, promise, unit, held.size, int(held.sum()), int((held & follows).sum()), remark
        )

    whole = [_total(r) for r in (problem.weighted(within), problem.weighted(problem.ratio), problem.erm("paper"))]
    theorem, proposition, printed = "Theorem 2 (4.3)", "Proposition 3", c.printed_proposition(w, s, xi)
    return [
        finding(
            theorem, "upper half: w ≤ ξ/s", "V_FTW ≤ V_ERM", c.printed_upper(w, s, xi), lower_variance,
            "Right: it is sufficient for the variance.",
        ),
        finding(
            theorem, "lower half: w ≥ s - 1", "B_FTW ≤ B_ERM", c.printed_lower(w, s), lower_bias,
            "Not sufficient for the bias, which needs w ≥ s + (s-1)λ/μ.",
        ),
        finding(
            theorem, "both halves, all coordinates", "R_FTW ≤ R_ERM", possible, whole[0] <= whole[2],
            "w drawn inside (4.3) where that can be: the conclusion need not follow.",
        ),
        finding(
            theorem, "the true ratio w = λ'/λ, all coordinates", "R_FTW ≤ R_ERM",
            np.all(c.printed_for_true_ratio(s, xi), axis=-1), whole[1] <= whole[2],
            "Impossible: it needs s < 1 everywhere, but λ and λ' both sum to 1.",
        ),
        finding(
            "exact", "w ≥ s + (s-1)λ/μ, and s ≤ 1-ξ or w ≤ ξ/(s-1+ξ)", "B_FTW ≤ B_ERM, V_FTW ≤ V_ERM",
            c.exact_theorem(w, s, xi), lower_bias & lower_variance,
            "What (4.3) should say; possible only where s ≤ 1.",
        ),
        finding(
            proposition, "as printed", "V_ERM ≤ V_FTW", printed, higher_variance,
            "The variance half has the wrong direction.",
        ),
        finding(
            proposition, "as printed", "R_ERM ≤ R_FTW", printed, _total(erm) <= _total(weighted),
            "Often true all the same, because the bias decides.",
        ),
        finding(
            "corrected", "ξ/(s-1+ξ) ≤ w ≤ s + (s-1)λ/μ", "R_ERM ≤ R_FTW", c.corrected_proposition(w, s, xi),
            _total(erm) <= _total(weighted), "Proposition 3 with that half turned round; possible only where s ≥ 1.",
        ),
        finding(
            "both under Σ_te", "w ≠ 1", "B_FTW ≤ B_ERM, V_FTW ≤ V_ERM", w != 1,
            (weighted.bias <= fair.bias) & (weighted.variance <= fair.variance),
            "Scored alike, weights only trade bias (w ≥ 1) for variance (w ≤ 1).",
        ),
    ]  # fmt: skip


def _total(risk: Risk) -> Array:
    total: Array = risk.total
    return total


def _log_uniform(rng: np.random.Generator, low: float, high: float, size: int | tuple[int, ...]) -> Array:
    return np.exp(rng.uniform(np.log(low), np.log(high), size))
