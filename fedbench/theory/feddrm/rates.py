"""Recovered density ratios and Theorem 2.5 of FedDRM on random problems: what they say is a rate, and a bound."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedbench.theory.arrays import Array
from fedbench.theory.feddrm import consistency as c
from fedbench.theory.feddrm import densities as d
from fedbench.theory.feddrm import descent
from fedbench.theory.feddrm.check import SHARE, Check, Point, exponent, near

#: Samples of all clients together.
SIZES = (400, 1600, 6400)
_INPUTS = 1000
WEIGHTS = (0.5, 0.8, 0.95)
#: ρ where it stays as N grows, and where it makes the loss of FedAvg strongly convex.
_RIDGE, _CONVEX = 0.02, 0.5
#: A mean of squared errors is within this share of its expectation.
_LUCK = 0.4


def of_ratios(rng: np.random.Generator, draws: int) -> list[Check]:
    """Section 2.4, by Theorem 2.2: client logit less log n_i is the log density ratio."""
    exact, raw, bent, richer = (np.zeros((draws, len(SIZES))) for _ in range(4))
    for i in range(draws):
        equal, unequal = d.random_gaussians(rng, equal=True), d.random_gaussians(rng, equal=False)
        for j, n in enumerate(SIZES):
            (x, client), (at, _) = equal.sample(rng, n), equal.sample(rng, _INPUTS)
            head, true = d.head(x, client), equal.log_ratios(at)
            exact[i, j] = _squared(head.log_ratios(at), true)
            raw[i, j] = _squared(head.log_ratios(at, prior=False), true)
            (x, client), (at, _) = unequal.sample(rng, n), unequal.sample(rng, _INPUTS)
            true = unequal.log_ratios(at)
            bent[i, j] = _squared(d.head(x, client).log_ratios(at), true)
            richer[i, j] = _squared(d.head(d.products(x), client).log_ratios(d.products(at)), true)

    def check(statement: str, errors: Array, remark: str, control: bool) -> Check:
        typical = np.exp(np.log(errors).mean(axis=0) / 2).tolist()  # no problem outweighs the others
        points, rate = _rate("root mean squared error", typical, -0.5)
        return Check("Density ratios (4)", statement, points, rate, remark, control)

    return [
        check(
            "logit_i - log n_i is log dP^(i) less a constant; Gaussians of equal covariance, h(x) = x", exact,
            "The model (4) is exact here.", False,
        ),
        check("the same with log n_i left in", raw, "Logits are of posteriors, under the clients' shares.", True),
        check("unequal covariances, h(x) = x", bent, "Their log ratios are quadratic in x.", True),
        check(
            "unequal covariances, h(x) = x and the products of its coordinates (Example B.1)", richer,
            "The model (4) is exact again.", False,
        ),
    ]  # fmt: skip


def of_statistics(rng: np.random.Generator, draws: int) -> list[Check]:
    """Theorem 2.5's first term, and Lemma E.1 behind it."""
    truth, weight = c.random_truth(rng), WEIGHTS[1]
    free, fixed = np.zeros((draws, len(SIZES))), np.zeros((draws, len(SIZES)))
    client = np.zeros((draws, len(SIZES), len(WEIGHTS)))
    for i in range(draws):
        for j, n in enumerate(SIZES):
            x, who, target = truth.sample(rng, n)
            squares = [truth.client_error(x, who, w, 0.0) for w in WEIGHTS]
            client[i, j] = np.multiply(n, squares)
            free[i, j] = squares[1] + truth.target_error(x, target, weight, 0.0)
            fixed[i, j] = truth.client_error(x, who, weight, _RIDGE) + truth.target_error(x, target, weight, _RIDGE)
    limit = float((1 / c.eigenvalues(truth.client_information)).sum())
    scaled = client.mean(axis=(0, 1)).tolist()
    lemma = [limit / (1 - w) for w in WEIGHTS]
    source, head = "Theorem 2.5, samples", "N E‖γ̂ - γ‖², λ ="

    def check(statement: str, errors: Array, ridge: float, remark: str) -> Check:
        means = errors.mean(axis=0).tolist()
        claimed = [truth.claimed(weight, ridge) / n for n in SIZES]
        points, rate = _rate("mean squared error", means, -1.0, claimed)
        return Check(source, statement, points, rate, remark)

    def limits(statement: str, claimed: Sequence[float], remark: str) -> Check:
        points = tuple(Point(f"{head} {w:g}", m, v) for w, m, v in zip(WEIGHTS, scaled, claimed, strict=True))
        return Check(source, statement, points, all(near(p.measured, p.claimed, _LUCK) for p in points), remark)

    return [
        check(
            "‖ζ̂ - ζ‖² = O_p(({(1-λ)λ_min(I_γ)}⁻¹ + {λ λ_min(I_β)}⁻¹)/N), ρ = 0", free, 0.0,
            "As a rate; (9) has a factor that the theorem hides, the number of parameters.",
        ),
        check(
            f"the same with the penalty that the theorem has, ρ = {_RIDGE:g}", fixed, _RIDGE,
            "The penalty's bias stays whatever N is: ρ must vanish, but then nothing is strongly convex.",
        ),
        limits(
            "the client head's covariance is {(1-λ) I_γ}⁻¹/N (Lemma E.1)", lemma,
            "A factor before a loss moves no minimiser: on a fixed embedding, λ costs no accuracy.",
        ),
        limits("it is I_γ⁻¹/N, whatever λ is", [limit] * len(WEIGHTS), "What Lemma E.1 should say (for ρ = 0)."),
    ]  # fmt: skip


def of_descent(rng: np.random.Generator, draws: int) -> list[Check]:
    """Theorem 2.5's second term: one problem, whatever `draws` says, since nothing but the data is random."""
    clients = descent.random_clients(rng)

    def follow(weight: float, steps: int, slower: int = 1) -> tuple[str, descent.Path, float]:
        rate = 1 / (4 * slower * steps * clients.smoothness(weight, _CONVEX))
        rounds = round(10 / (rate * steps * _CONVEX))
        path = descent.descend(clients, weight=weight, ridge=_CONVEX, rate=rate, steps=steps, rounds=rounds)
        return f"λ = {weight:g}, E = {steps}, η = {rate:.4f}", path, rate

    runs = [follow(w, 4) for w in WEIGHTS] + [follow(WEIGHTS[1], e) for e in (1, 8)]
    slower = [runs[1], *(follow(WEIGHTS[1], 4, by) for by in (2, 4))]
    ends = [float(path.distance[-1]) for _, path, _ in slower]
    power = exponent([rate for *_, rate in slower], ends)
    source, every = "Theorem 2.5, FedAvg", [path for _, path, _ in (*runs, *slower)]
    return [
        Check(
            source, "‖ζ^T - ζ̂‖² is at most (10), in every round",
            tuple(Point(at, float(p.distance[-1]), float(p.bound[-1])) for at, p, _ in runs),
            all((path.distance <= path.bound * (1 + 1e-9)).all() for path in every),
            "Far above: a single local step ends at the minimiser itself, where (10) still has its term.",
        ),
        Check(
            source, "the squared distance left is proportional to η E Ḡ²/μ",
            (*(Point(at, float(p.distance[-1]), float(p.bound[-1])) for at, p, _ in slower),
             Point("exponent of η", power, 1.0)), near(power, 1.0),
            "It is an upper bound only; what is left falls with η².",
        ),
    ]  # fmt: skip


def _squared(ratios: Array, true: Array) -> float:
    """Mean squared error over inputs and all clients but the first, whose ratio is to itself."""
    return float(np.square((ratios - true)[:, 1:]).mean())


def _rate(
    quantity: str, values: Sequence[float], power: float, claimed: Sequence[float] | None = None
) -> tuple[tuple[Point, ...], bool]:
    """A value a size, and the exponent of N, which may be lower; what is claimed without constants starts at the first
    one measured."""
    claimed = claimed or [values[0] * (n / SIZES[0]) ** power for n in SIZES]
    points = [Point(f"{quantity}, N = {n:,}", *pair) for n, *pair in zip(SIZES, values, claimed, strict=True)]
    measured = exponent(SIZES, values)
    return (*points, Point("exponent of N", measured, power)), measured <= power * (1 - SHARE)
