"""FedDRM's model on simulated data: heads and their fit, likelihoods, tilted distributions, density ratios, FedAvg."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbench.errors import FedbenchError
from fedbench.theory.arrays import Array

# -- check -----------------------------------------------------------------------------------------------------


#: Relative tolerance of an exponent, because the simulations are small.
SHARE = 0.25


@dataclass(frozen=True)
class Point:
    """One number of a check."""

    at: str  #: name of the measured quantity, or where it was measured
    measured: float
    claimed: float


@dataclass(frozen=True)
class Check:
    """One statement, its numbers, and whether they confirm it."""

    source: str  #: place in the paper, such as "Theorem 2.2"
    statement: str
    points: tuple[Point, ...]
    holds: bool
    remark: str  #: conclusion, in one line
    control: bool = False  #: a condition of the statement is violated on purpose, so it should not hold


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """Return r of y = c xʳ, by least squares of the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def near(measured: float, claimed: float, share: float = SHARE) -> bool:
    """Whether a number is within a relative tolerance of the claimed one."""
    return abs(measured - claimed) <= share * abs(claimed)


# -- softmax ---------------------------------------------------------------------------------------------------
# A linear softmax head on fixed features: its cross-entropy, minimiser and Fisher information.
#
# Shapes: n samples, d features (including a constant 1 if the head has an intercept), C classes; coefficients [d, C].


Labels = NDArray[np.int64]


def log_probabilities(logits: Array) -> Array:
    """Return the classes' log-probabilities, along the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def cross_entropy(logits: Array, labels: Labels) -> float:
    """Return the cross-entropy summed over all samples; logits [n, C]."""
    return -float(log_probabilities(logits)[np.arange(len(labels)), labels].sum())


def with_constant(features: Array) -> Array:
    """Prepend a constant 1 to features [..., d]: [..., 1 + d]."""
    return np.concatenate([np.ones((*features.shape[:-1], 1)), features], axis=-1)


def centred(coefficients: Array) -> Array:
    """Shift coefficients to mean 0 over the classes, as those of a fit; probabilities do not change."""
    return np.asarray(coefficients - coefficients.mean(axis=-1, keepdims=True))


def information(features: Array, coefficients: Array) -> Array:
    """Return the mean Fisher information [d C, d C]: E (diag(p) - p pᵀ) ⊗ x xᵀ, in the order of `coefficients.ravel()`.

    It is 0 in directions that shift all classes equally, because probabilities do not depend on them.
    """
    return _information(features, np.exp(log_probabilities(features @ coefficients)))


def fit(features: Array, labels: Labels, classes: int, *, scale: float = 1.0, ridge: float = 0.0) -> Array:
    """Return argmin of `scale` · mean cross-entropy + (`ridge`/2) ‖B‖², with mean 0 over the classes.

    Without a ridge there is no minimum if a hyperplane separates the classes: the coefficients are then merely large.
    """
    (n, d), one_hot = features.shape, np.eye(classes)[labels]

    def loss(flat: Array) -> tuple[float, Array, Array]:
        b = flat.reshape(d, classes)
        log_p = log_probabilities(features @ b)
        p = np.exp(log_p)
        value = -scale * float((one_hot * log_p).sum()) / n + ridge / 2 * float(flat @ flat)
        gradient = scale * features.T @ (p - one_hot) / n + ridge * b
        return value, gradient.ravel(), scale * _information(features, p) + ridge * np.eye(d * classes)

    return minimise(loss, np.zeros(d * classes), "fit of a softmax head").reshape(d, classes)


def _information(features: Array, p: Array) -> Array:
    (n, d), c = features.shape, p.shape[1]
    weighted = (p[:, :, None] * features[:, None]).reshape(n, c * d)
    whole = -(weighted.T @ weighted).reshape(c, d, c, d)
    whole[np.arange(c), :, np.arange(c)] += (weighted.T @ features).reshape(c, d, d)
    return np.asarray(whole.transpose(1, 0, 3, 2).reshape(d * c, d * c) / n)


# -- newton ----------------------------------------------------------------------------------------------------
# Damped Newton steps for the small convex problems of this folder.


#: The iteration ends if the predicted gain, relative to the value, is at most this, because more would be rounding.
_ENOUGH = 1e-11
_MOST = 200
#: Eigenvalues below this share of the largest count as 0: the function is flat in these directions.
_FLAT = 1e-11


def minimise(function: Callable[[Array], tuple[float, Array, Array]], start: Array, problem: str) -> Array:
    """Minimise a convex function.

    Arguments:
        function: point [k] -> value, gradient [k], Hessian [k, k]; the value is inf outside of its domain.
        start: a point of the domain; the result does not leave it in directions in which the function is flat.
        problem: name of the problem in errors.

    Raises FedbenchError if the steps do not converge, for example if the function is unbounded below.
    """
    point = np.asarray(start, float)
    value, gradient, hessian = function(point)
    for _ in range(_MOST):
        values, vectors = np.linalg.eigh(hessian)
        curved = values > _FLAT * max(values[-1], np.finfo(float).tiny)
        step = -vectors[:, curved] @ ((vectors[:, curved].T @ gradient) / values[curved])
        gain = -float(gradient @ step)
        settled, size = gain <= _ENOUGH * (1 + abs(value)), 1.0
        while True:
            after = function(point + size * step)
            if after[0] <= value - 0.1 * size * gain or (settled and np.isfinite(after[0])):
                break
            size /= 2
            if size < 1e-12:
                raise FedbenchError(f"{problem}: no step lowers the value")
        point, (value, gradient, hessian) = point + size * step, after
        if settled:
            return np.asarray(point)
    raise FedbenchError(f"{problem}: no solution within {_MOST} Newton steps")


# -- profile ---------------------------------------------------------------------------------------------------
# Theorem 2.2 of FedDRM: the profile log empirical likelihood, by its definition (5) and (6).
#
# The target's cross-entropy is the same on both sides, so only the clients' part is here:
#
#     ℓ(p) = Σ_ij (γ_i + ξ_iᵀh_ij + log p_ij),  Σ p_ij = 1,  Σ p_ij exp(γ_l + ξ_lᵀh_ij) = 1 for all l
#
# Only `dual` uses the theorem's claim. Shapes: N samples h [N, d] of clients [N] in 0..m-1; γ [m] is the paper's γ†,
# and ξ [m, d]. (The equation under (6), again in App. D, lacks the "1 +" that App. C.2 has.)


@dataclass(frozen=True, eq=False)
class Profile:
    """The supremum over p at given parameters; -inf if no weights satisfy the constraints."""

    value: float
    multipliers: Array  #: ρ_l [m]
    weights: Array  #: p_ij [N]


def profile(h: Array, client: Labels, gamma: Array, xi: Array) -> Profile:
    """Solve for the Lagrange multipliers at any parameters (App. C.2)."""
    tilts = gamma + h @ xi.T
    excess, (n, m) = np.expm1(tilts), tilts.shape

    def dual(rho: Array) -> tuple[float, Array, Array]:
        inside = 1 + excess @ rho
        if (inside <= 0).any():
            return np.inf, rho, np.eye(m)
        scaled = excess / inside[:, None]
        return -float(np.log(inside).sum()), -scaled.sum(axis=0), scaled.T @ scaled

    try:
        rho = minimise(dual, np.zeros(m), "the constraints (5)")
    except FedbenchError:  # the dual is unbounded below: no weights satisfy the constraints
        return Profile(-np.inf, np.full(m, np.nan), np.full(n, np.nan))
    weights = 1 / (n * (1 + excess @ rho))
    own = tilts[np.arange(n), client]
    return Profile(float((own + np.log(weights)).sum()), rho, weights)


def optimal_intercepts(h: Array, client: Labels, xi: Array) -> Array:
    """Return γ [m] that maximises the profile log-likelihood for these ξ, computed without multipliers.

    For weights p the constraints give γ_l = -log Σ p_ij exp(ξ_lᵀh_ij). With this, ℓ depends on p only, and it is
    concave in u = log p.
    """
    (n, m), log_tilt = (len(h), len(xi)), h @ xi.T
    counts = np.bincount(client, minlength=m)

    def loss(u: Array) -> tuple[float, Array, Array]:
        log_q = log_probabilities((u[:, None] + log_tilt).T)  # for each client over the samples [m, N]
        q = np.exp(log_q)
        total = u[0] + log_tilt[0] - log_q[:, 0]  # log Σ exp(u + ξ_lᵀh) [m]
        mass = np.asarray(counts @ q, float)
        return float(counts @ total - u.sum()), mass - 1, np.diag(mass) - (q.T * counts) @ q

    u = minimise(loss, np.zeros(n), "the largest empirical likelihood")
    joint = log_probabilities(u)[:, None] + log_tilt
    top = joint.max(axis=0)
    return np.asarray(-top - np.log(np.exp(joint - top).sum(axis=0)))


def dual(h: Array, client: Labels, gamma: Array, xi: Array) -> float:
    """Return the profile as Theorem 2.2 claims it: minus the client cross-entropy of the logits
    log n_l + γ_l + ξ_lᵀh, plus the constant -Σ n_l log n_l."""
    counts = np.bincount(client, minlength=len(xi)).astype(float)
    log_p = log_probabilities(np.log(counts) + gamma + h @ xi.T)
    return float(log_p[np.arange(len(h)), client].sum() - (counts * np.log(counts)).sum())


# -- tilts -----------------------------------------------------------------------------------------------------
# Theorem 2.1 of FedDRM: if class-conditional distributions are tilts of each other, so are the clients' marginals.
#
# Distributions are weights of S atoms, so every probability is an exact sum, not an estimate. Class 1 has α = 0 and
# β = 0, as (2) tacitly assumes. Index 0 is the server, 1..m are the clients.


@dataclass(frozen=True, eq=False)
class Joint:
    """Distributions of input and class of the server and m clients, and the values of h at the atoms."""

    probability: Array  #: [1 + m, K, S], each with sum 1
    h: Array  #: [S, d]

    @property
    def log_ratios(self) -> Array:
        """log dP_X^(i)/dP_X^(0) of the clients [m, S]."""
        marginal = np.log(self.probability.sum(axis=1))
        return np.asarray(marginal[1:] - marginal[0])


def tilted(base: Array, g: Array, h: Array, alpha: Array, beta: Array, xi: Array) -> tuple[Joint, Array]:
    """Return the distributions that (2) and (3) determine, and γ† + ξᵀh of (4) [m, S].

    (2) with one α for all clients and α†_ik = α_k + log(π_i1/π_ik) determines π_i: each class's tilt has sum 1.

    Arguments: base P_1^(0) [S], g [S, q], h [S, d], α [K] and β [K, q] (first ones 0), ξ of the clients [m, d].
    """
    tilt = np.exp(xi @ h.T)
    gamma = -np.log(tilt @ base)
    first = np.concatenate([base[None], tilt * np.exp(gamma)[:, None] * base])  # P_1^(i) [1 + m, S], by (3)
    against = np.exp(alpha + g @ beta.T).T * first[:, None]  # (π_ik/π_i1) P_k^(i), by (2)
    share = 1 / against.sum(axis=(1, 2))  # π_i1
    claimed = gamma + np.log(share[1:] / share[0])
    return Joint(against * share[:, None, None], h), claimed[:, None] + xi @ h.T


def label_shift(joint: Joint, classes: Array) -> Joint:
    """Apply label shift as in Section 2.1: the server's P_k for all clients, with class shares [m, K] by client."""
    conditional = joint.probability[0] / joint.probability[0].sum(axis=1, keepdims=True)
    return Joint(np.concatenate([joint.probability[:1], classes[:, :, None] * conditional]), joint.h)


def distance(joint: Joint) -> float:
    """Return the distance of the clients' log ratios from the nearest γ + ξᵀh: root mean square over atoms, weighted by
    the server's marginal."""
    weight = np.sqrt(joint.probability[0].sum(axis=0))
    design, wanted = with_constant(joint.h) * weight[:, None], joint.log_ratios.T * weight[:, None]
    rest = wanted - design @ np.linalg.lstsq(design, wanted, rcond=None)[0]
    return float(np.sqrt(np.square(rest).sum(axis=0).mean()))


def random_joint(rng: np.random.Generator, clients: int = 3, classes: int = 4, atoms: int = 60) -> tuple[Joint, Array]:
    """Draw a random case of `tilted`, with g = h of two dimensions."""
    g = rng.standard_normal((atoms, 2))
    alpha, beta = rng.standard_normal(classes), rng.standard_normal((classes, 2))
    alpha[0], beta[0] = 0, 0
    return tilted(rng.dirichlet(np.ones(atoms)), g, g, alpha, beta, rng.standard_normal((clients, 2)))


# -- densities -------------------------------------------------------------------------------------------------
# Density ratios of clients with Gaussian inputs, recovered from a client head and known exactly.
#
# With equal covariances the density-ratio model (4) holds with h(x) = x; with unequal ones h also needs the products of
# coordinates (FedDRM, Example B.1).


@dataclass(frozen=True, eq=False)
class Gaussians:
    """m clients with inputs of d dimensions."""

    mean: Array  #: [m, d]
    covariance: Array  #: [m, d, d]
    shares: Array  #: [m] of the samples, with sum 1

    def sample(self, rng: np.random.Generator, n: int) -> tuple[Array, Labels]:
        """Draw about n inputs [N, d] with the client of each [N]; clients have their shares, rounded."""
        client = np.repeat(np.arange(len(self.mean)), np.rint(self.shares * n).astype(int))
        root = np.linalg.cholesky(self.covariance)[client]
        noise = rng.standard_normal((len(client), self.mean.shape[1]))
        return self.mean[client] + np.einsum("nij,nj->ni", root, noise), client

    def log_ratios(self, x: Array) -> Array:
        """Return log dP^(i)/dP^(1) of every client at inputs [N, d]: [N, m]."""
        apart = x[:, None] - self.mean
        square = np.einsum("nmi,mij,nmj->nm", apart, np.linalg.inv(self.covariance), apart)
        log_density = -(square + np.linalg.slogdet(self.covariance)[1]) / 2
        return np.asarray(log_density - log_density[:, :1])


def random_gaussians(rng: np.random.Generator, *, equal: bool, clients: int = 3, d: int = 2) -> Gaussians:
    """Draw means of N(0, I/4) and covariances, one for all clients if `equal`; the shares are 1 : 2 : 4 ..."""
    root = np.eye(d) + rng.uniform(-0.3, 0.3, (1 if equal else clients, d, d))
    covariance = np.broadcast_to(root @ np.swapaxes(root, 1, 2), (clients, d, d))
    shares = 2.0 ** np.arange(clients)
    return Gaussians(rng.standard_normal((clients, d)) / 2, covariance, shares / shares.sum())


def products(x: Array) -> Array:
    """Return coordinates and their products [N, d + d (d + 1)/2]: the h of Example B.1."""
    first, second = np.triu_indices(x.shape[1])
    return np.concatenate([x, x[:, first] * x[:, second]], axis=1)


@dataclass(frozen=True, eq=False)
class Head:
    """A client head fitted to features of a sample."""

    coefficients: Array  #: [1 + d, m]
    counts: Array  #: n_i [m]

    def log_ratios(self, features: Array, *, prior: bool = True) -> Array:
        """Return log density ratios to the first client at features [n, d]: [n, m].

        They are logit_i - log n_i, minus that of the first client (Theorem 2.2); with `prior` False log n_i stays in.
        """
        logits = with_constant(features) @ self.coefficients
        ratios = logits - np.log(self.counts) if prior else logits
        return np.asarray(ratios - ratios[:, :1])


def head(features: Array, client: Labels) -> Head:
    """Fit the client head with the smallest cross-entropy on features [N, d]."""
    counts = np.bincount(client).astype(float)
    return Head(fit(with_constant(features), client, len(counts)), counts)


# -- federated -------------------------------------------------------------------------------------------------
# FedAvg of one linear softmax head on fixed features, full batches, clients of equal size (FedDRM, Section 2.4).


@dataclass(frozen=True, eq=False)
class Round:
    """The shared coefficients [d, C] before a round, and each client's gradient there [m, d, C]."""

    coefficients: Array
    gradients: Array

    @property
    def drift(self) -> float:
        """G² = (1/m) Σ ‖∇ℓ_i - ∇ℓ‖² (footnote 2)."""
        return float(np.square(self.gradients - self.gradients.mean(axis=0)).sum() / len(self.gradients))

    @property
    def squared_gradient(self) -> float:
        """‖∇ℓ‖²."""
        return float(np.square(self.gradients.mean(axis=0)).sum())


def train(
    features: Array,
    labels: Labels,
    classes: int,
    *,
    rate: float,
    steps: int,
    rounds: int,
    scale: float = 1.0,
    ridge: float = 0.0,
) -> Iterator[Round]:
    """Yield the state before each round, starting with coefficients 0, and the final one: `rounds` + 1 items.

    Arguments:
        features, labels: of the clients, [m, n, d] and [m, n].
        rate, steps: η and E.
        scale, ridge: the loss is scale · cross-entropy + (ridge/2) ‖B‖².
    """
    (m, n, d), one_hot = features.shape, np.eye(classes)[labels]
    transposed = np.ascontiguousarray(np.swapaxes(features, 1, 2)) * (scale / n)

    def gradients(b: Array) -> Array:
        return np.asarray(transposed @ (np.exp(log_probabilities(features @ b)) - one_hot) + ridge * b)

    shared = np.zeros((d, classes))
    for _ in range(rounds):
        first = gradients(np.broadcast_to(shared, (m, d, classes)))
        yield Round(shared, first)
        local = shared - rate * first
        for _ in range(steps - 1):
            local -= rate * gradients(local)
        shared = local.mean(axis=0)
    yield Round(shared, gradients(np.broadcast_to(shared, (m, d, classes))))
