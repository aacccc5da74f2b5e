"""FedDRM's theory (Theorems 2.1, 2.2 and 2.5, Figure 3) on simulated data with a known truth: the paper's claims
against measurements, with both terms of Theorem 2.5, and Figure 3. NumPy only.

`feddrm_model` has the functions: class-conditional distributions and their marginals, the empirical likelihood by its
definition, Gaussian clients and ratios recovered by a head, a head's fit, and its training by FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbench.theory import feddrm_model as model
from fedbench.theory.arrays import Array, check_draws
from fedbench.theory.feddrm_model import Check, Labels, Point, centred, exponent, fit, information, near, with_constant

# -- identities ------------------------------------------------------------------------------------------------
# Theorems 2.1 and 2.2 of FedDRM on random problems: both claim identities, which must hold up to rounding.


#: Larger errors are not due to rounding.
_ROUNDING = 1e-6
_TILT, _ASIDE = 0.7, 0.01


def of_marginals(rng: np.random.Generator, draws: int) -> list[Check]:
    """Check Theorem 2.1, and Remark 2.3 about label shift."""
    errors, apart = [], []
    for _ in range(draws):
        joint, claimed = model.random_joint(rng)
        errors.append(float(np.abs(joint.log_ratios - claimed).max()))
        m, k = len(claimed), joint.probability.shape[1]
        apart.append(model.distance(model.label_shift(joint, rng.dirichlet(np.ones(k), m))))
    return [
        Check(
            "Theorem 2.1", "(2) and (3) give dP_X^(i)/dP_X^(0) = exp(γ† + ξᵀh)",
            (Point("largest error of a log ratio", max(errors), 0.0),), max(errors) < _ROUNDING,
            "With α_1 = 0 and β_1 = 0; (3) relates the clients' P_1^(i) to P_1^(0), as App. C.1 has it.",
        ),
        Check(
            "Theorem 2.1", "the same under label shift (Remark 2.3), with h = g",
            (Point("median distance from any γ + ξᵀh", float(np.median(apart)), 0.0),), max(apart) < _ROUNDING,
            "(2) with one α for all clients fixes their class shares; a ratio of two mixtures needs a richer h than g.",
        ),
    ]  # fmt: skip


def of_likelihood(rng: np.random.Generator, draws: int) -> list[Check]:
    """Check Theorem 2.2 at the maximum of the likelihood for given ξ, and elsewhere."""
    multipliers, values, gaps = [], [], []
    for _ in range(draws):
        m, d = int(rng.integers(2, 5)), int(rng.integers(2, 4))  # in one dimension many tilts are nearly dependent
        counts = rng.integers(15, 60, m)
        client, n = np.repeat(np.arange(m), counts), int(counts.sum())
        h = rng.standard_normal((m, d))[client] + rng.standard_normal((n, d))
        xi = _TILT * rng.standard_normal((m, d))
        gamma = model.optimal_intercepts(h, client, xi)
        best = model.profile(h, client, gamma, xi)
        multipliers.append(float(np.abs(best.multipliers - counts / n).max()))
        values.append(abs(best.value - model.dual(h, client, gamma, xi)) / n)
        gaps.append(_gap(h, client, gamma, xi, _ASIDE * rng.standard_normal(m)))
    source = "Theorem 2.2"
    return [
        Check(
            source, "the multipliers are n_l/N where the likelihood is largest in γ†",
            (Point("largest |ρ_l - n_l/N|", max(multipliers), 0.0),), max(multipliers) < _ROUNDING,
            "For every ξ: only the intercepts must be optimal.",
        ),
        Check(
            source, "there the profile log-likelihood is minus the cross-entropy, and a constant",
            (Point("largest difference a sample", max(values), 0.0),), max(values) < _ROUNDING,
            "The constant is -Σ n_l log n_l (App. C.4 leaves N log N out).",
        ),
        Check(
            source, "they are the same function of the parameters (7)",
            (Point(f"median difference a sample, γ† moved by {_ASIDE:g}", float(np.median(gaps)), 0.0),),
            max(gaps) < _ROUNDING,
            "Elsewhere the profile lies below, or no weights meet (5); both have the same maximum.",
        ),
    ]  # fmt: skip


def _gap(h: Array, client: Labels, gamma: Array, xi: Array, aside: Array) -> float:
    """Return (dual - profile) per sample at γ† + `aside`; halve `aside` as long as no weights satisfy (5)."""
    value = -np.inf
    while value == -np.inf:
        value = model.profile(h, client, gamma + aside, xi).value
        aside = aside / 2
    return (model.dual(h, client, gamma + 2 * aside, xi) - value) / len(h)


# -- descent ---------------------------------------------------------------------------------------------------
# The FedAvg part of Theorem 2.5 of FedDRM (App. E, Eq. 10): the distance between FedAvg's result and the minimiser.
#
#     ‖ζ^T - ζ̂‖² ≤ (1 - ημ)^(E T) ‖ζ^0 - ζ̂‖² + η² E² Ḡ² / (1 - (1 - ημ)^E)
#
# with Ḡ² the sum of each head's largest drift over the rounds, times (1-λ)² and λ². It assumes a μ-strongly convex and
# L-smooth loss, η ≤ 1/L, η L E ≤ 1/4. (Its proof omits the cross term of a square, and uses the drift at the start of a
# round for that in its middle.)


@dataclass(frozen=True, eq=False)
class Clients:
    """m clients with n samples each; their inputs and classes differ."""

    features: Array  #: [m, n, 1 + d]
    target: Labels  #: [m, n]
    classes: int

    @property
    def heads(self) -> tuple[tuple[Labels, int], tuple[Labels, int]]:
        """Labels [m, n] and number of outputs, of the client head and then of the target head."""
        m, n = self.target.shape
        return (np.repeat(np.arange(m)[:, None], n, axis=1), m), (self.target, self.classes)

    def smoothness(self, weight: float, ridge: float) -> float:
        """Return an L valid for all clients: largest eigenvalue of E[xxᵀ] / 2, times the larger weight, plus ρ."""
        moments = np.einsum("mna,mnb->mab", self.features, self.features) / self.features.shape[1]
        return max(weight, 1 - weight) * float(np.linalg.eigvalsh(moments).max()) / 2 + ridge


@dataclass(frozen=True, eq=False)
class Path:
    """Squared distances [T + 1] to the minimiser before each round and after the last, and the bound (10) on them."""

    distance: Array
    bound: Array


def descend(clients: Clients, *, weight: float, ridge: float, rate: float, steps: int, rounds: int) -> Path:
    """Run FedAvg on both heads from 0 (λ = `weight`, ρ = μ = `ridge`, η = `rate`, E = `steps`)."""
    distance, drift = np.zeros(rounds + 1), np.zeros(rounds + 1)
    peak = 0.0
    x = clients.features
    for (labels, classes), scale in zip(clients.heads, (1 - weight, weight), strict=True):
        best = fit(x.reshape(-1, x.shape[2]), labels.ravel(), classes, scale=scale, ridge=ridge)
        states = model.train(x, labels, classes, rate=rate, steps=steps, rounds=rounds, scale=scale, ridge=ridge)
        for t, state in enumerate(states):
            distance[t] += np.square(state.coefficients - best).sum()
            drift[t] = state.drift
        peak += drift.max()
    shrink = (1 - rate * ridge) ** (steps * np.arange(rounds + 1))
    settled = rate**2 * steps**2 * peak / (1 - (1 - rate * ridge) ** steps)
    return Path(distance, shrink * distance[0] + settled)


def random_clients(rng: np.random.Generator, clients: int = 3, n: int = 100, d: int = 2, classes: int = 4) -> Clients:
    """Draw inputs N(μ_i, I) with μ_i of N(0, I), and labels of one softmax model with coefficients N(0, 1)."""
    inputs = rng.standard_normal((clients, 1, d)) + rng.standard_normal((clients, n, d))
    x = with_constant(inputs)
    logits = x @ rng.standard_normal((1 + d, classes))
    return Clients(x, np.asarray((logits + rng.gumbel(size=logits.shape)).argmax(axis=2)), classes)


# -- consistency -----------------------------------------------------------------------------------------------
# The statistical part of Theorem 2.5 of FedDRM (Lemma E.1, Eq. 9): the distance between the minimiser of the pooled
# loss and the true parameters, with a fixed embedding and labels of a multinomial logistic model.
#
# The two heads then share nothing, so each is fitted separately: the client head's loss has the factor 1 - λ, the
# target head's λ, and both have the penalty (ρ/2)‖·‖². A softmax head is unique except for shifts of all classes:
# errors are those of coefficients of mean 0, and λ_min is the smallest positive eigenvalue (otherwise the printed bound
# is infinite for ρ = 0).


#: Number of inputs for the mean that approximates the population's Fisher information.
_POPULATION = 20_000


@dataclass(frozen=True, eq=False)
class Truth:
    """Both heads' coefficients, with mean 0 over the classes, and their Fisher information."""

    client: Array  #: [1 + d, m]
    target: Array  #: [1 + d, K]
    client_information: Array
    target_information: Array

    def sample(self, rng: np.random.Generator, n: int) -> tuple[Array, Labels, Labels]:
        """Draw features [n, 1 + d] of inputs N(0, I), with the client and the class [n] of each."""
        x = with_constant(rng.standard_normal((n, len(self.client) - 1)))
        client, target = (_labels(rng, x @ b) for b in (self.client, self.target))
        return x, client, target

    def claimed(self, weight: float, ridge: float) -> float:
        """1/((1-λ) λ_min(I_γ) + ρ) + 1/(λ λ_min(I_β) + ρ), which the theorem divides by N; λ = `weight`."""
        least = [eigenvalues(i)[0] for i in (self.client_information, self.target_information)]
        return float(1 / ((1 - weight) * least[0] + ridge) + 1 / (weight * least[1] + ridge))

    def client_error(self, x: Array, labels: Labels, weight: float, ridge: float) -> float:
        """Return ‖γ̂ - γ‖² of the client head fitted to this sample; λ = `weight`."""
        return _error(self.client, x, labels, 1 - weight, ridge)

    def target_error(self, x: Array, labels: Labels, weight: float, ridge: float) -> float:
        """Return ‖β̂ - β‖² of the target head."""
        return _error(self.target, x, labels, weight, ridge)


def random_truth(rng: np.random.Generator, clients: int = 3, classes: int = 4, d: int = 2) -> Truth:
    """Draw coefficients of N(0, 1), and compute the information on a large sample of inputs."""
    client, target = (centred(rng.standard_normal((1 + d, c))) for c in (clients, classes))
    x = with_constant(rng.standard_normal((_POPULATION, d)))
    return Truth(client, target, information(x, client), information(x, target))


def eigenvalues(fisher: Array) -> Array:
    """Return the positive eigenvalues in ascending order."""
    values = np.linalg.eigvalsh(fisher)
    return np.asarray(values[values > 1e-9 * values[-1]])


def _error(true: Array, x: Array, labels: Labels, scale: float, ridge: float) -> float:
    return float(np.square(fit(x, labels, true.shape[1], scale=scale, ridge=ridge) - true).sum())


def _labels(rng: np.random.Generator, logits: Array) -> Labels:
    """Draw a class for each row with its softmax probabilities (the largest logit plus Gumbel noise)."""
    return np.asarray((logits + rng.gumbel(size=logits.shape)).argmax(axis=1))


# -- drift -----------------------------------------------------------------------------------------------------
# Figure 3 of FedDRM: the clients' gradients drift more for the client head than for the target head.
#
# The paper specifies three clients, ten classes, a random embedding, linear heads, FedAvg. The rest is our choice:
# 1,000 embeddings per client of N(μ_i, I) in 32 dimensions with μ_i of N(0, I/4), classes by the largest output of one
# random linear model, heads with an intercept from 0, 100 rounds of ten full-batch steps with learning rate 0.01.


CLIENTS, SAMPLES, DIMENSIONS, CLASSES = 3, 1000, 32, 10
ROUNDS, STEPS, RATE = 100, 10, 0.01
_SPREAD = 0.5


@dataclass(frozen=True, eq=False)
class Drift:
    """Drift of one head by round [T]."""

    drift: Array  #: G² (footnote 2 of the paper)
    squared_gradient: Array  #: ‖∇ℓ‖² of the mean of the clients' losses

    @property
    def relative(self) -> Array:
        """G²/‖∇ℓ‖²."""
        return np.asarray(self.drift / self.squared_gradient)


def clients(rng: np.random.Generator) -> Clients:
    """Draw the data of one simulation."""
    centre = _SPREAD * rng.standard_normal((CLIENTS, 1, DIMENSIONS))
    x = centre + rng.standard_normal((CLIENTS, SAMPLES, DIMENSIONS))
    target = (x @ rng.standard_normal((DIMENSIONS, CLASSES))).argmax(axis=2)
    return Clients(with_constant(x), target, CLASSES)


def simulate(seed: int, rounds: int = ROUNDS) -> tuple[Drift, Drift]:
    """Simulate the drift before each round of the client head and of the target head."""
    data = clients(np.random.default_rng(seed))
    out = []
    for labels, classes in data.heads:
        states = list(model.train(data.features, labels, classes, rate=RATE, steps=STEPS, rounds=rounds))[:-1]
        drift, squares = ([getattr(s, name) for s in states] for name in ("drift", "squared_gradient"))
        out.append(Drift(np.array(drift), np.array(squares)))
    return out[0], out[1]


# -- rates -----------------------------------------------------------------------------------------------------


#: Total numbers of samples.
SIZES = (400, 1600, 6400)
_INPUTS = 1000
WEIGHTS = (0.5, 0.8, 0.95)
#: ρ that stays constant as N grows, and ρ that makes FedAvg's loss strongly convex.
_RIDGE, _CONVEX = 0.02, 0.5
#: Relative tolerance for a mean of squared errors.
_LUCK = 0.4


def of_ratios(rng: np.random.Generator, draws: int) -> list[Check]:
    """Check Section 2.4 with Theorem 2.2: client logit minus log n_i is the log density ratio."""
    exact, raw, bent, richer = (np.zeros((draws, len(SIZES))) for _ in range(4))
    for i in range(draws):
        equal, unequal = model.random_gaussians(rng, equal=True), model.random_gaussians(rng, equal=False)
        for j, n in enumerate(SIZES):
            (x, client), (at, _) = equal.sample(rng, n), equal.sample(rng, _INPUTS)
            head, true = model.head(x, client), equal.log_ratios(at)
            exact[i, j] = _squared(head.log_ratios(at), true)
            raw[i, j] = _squared(head.log_ratios(at, prior=False), true)
            (x, client), (at, _) = unequal.sample(rng, n), unequal.sample(rng, _INPUTS)
            true = unequal.log_ratios(at)
            bent[i, j] = _squared(model.head(x, client).log_ratios(at), true)
            richer[i, j] = _squared(model.head(model.products(x), client).log_ratios(model.products(at)), true)

    def check(statement: str, errors: Array, remark: str, control: bool) -> Check:
        typical = np.exp(np.log(errors).mean(axis=0) / 2).tolist()  # geometric, so that no problem dominates
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
    """Check Theorem 2.5's first term, and Lemma E.1, from which it follows."""
    truth, weight = random_truth(rng), WEIGHTS[1]
    free, fixed = np.zeros((draws, len(SIZES))), np.zeros((draws, len(SIZES)))
    client = np.zeros((draws, len(SIZES), len(WEIGHTS)))
    for i in range(draws):
        for j, n in enumerate(SIZES):
            x, who, target = truth.sample(rng, n)
            squares = [truth.client_error(x, who, w, 0.0) for w in WEIGHTS]
            client[i, j] = np.multiply(n, squares)
            free[i, j] = squares[1] + truth.target_error(x, target, weight, 0.0)
            fixed[i, j] = truth.client_error(x, who, weight, _RIDGE) + truth.target_error(x, target, weight, _RIDGE)
    limit = float((1 / eigenvalues(truth.client_information)).sum())
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
    """Check Theorem 2.5's second term on one problem, for any `draws`, because only the data are random."""
    clients = random_clients(rng)

    def follow(weight: float, steps: int, slower: int = 1) -> tuple[str, Path, float]:
        rate = 1 / (4 * slower * steps * clients.smoothness(weight, _CONVEX))
        rounds = round(10 / (rate * steps * _CONVEX))
        path = descend(clients, weight=weight, ridge=_CONVEX, rate=rate, steps=steps, rounds=rounds)
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
    """Return the mean squared error over inputs and all clients but the first, which is the reference."""
    return float(np.square((ratios - true)[:, 1:]).mean())


def _rate(
    quantity: str, values: Sequence[float], power: float, claimed: Sequence[float] | None = None
) -> tuple[tuple[Point, ...], bool]:
    """Return a point per size, and whether N's exponent is at most `power` up to SHARE. Claims without constants start
    at the first measured value."""
    claimed = claimed or [values[0] * (n / SIZES[0]) ** power for n in SIZES]
    points = [Point(f"{quantity}, N = {n:,}", *pair) for n, *pair in zip(SIZES, values, claimed, strict=True)]
    measured = exponent(SIZES, values)
    return (*points, Point("exponent of N", measured, power)), measured <= power * (1 - model.SHARE)


# -- checks ------------------------------------------------------------------------------------------------------


DRAWS = 20
#: Each takes about half a second.
MOST = 10_000


def checks(draws: int = DRAWS, seed: int = 0) -> list[Check]:
    """Check every statement on `draws` simulated problems. Raises FedbenchError unless `draws` is 1 to MOST and the
    seed is valid."""
    check_draws(draws, seed, MOST)
    parts = (of_marginals, of_likelihood, of_ratios, of_statistics, of_descent)
    streams = np.random.default_rng(seed).spawn(len(parts))
    return [check for part, rng in zip(parts, streams, strict=True) for check in part(rng, draws)]
