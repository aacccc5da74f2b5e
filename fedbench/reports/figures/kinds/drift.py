"""Figure 3 of FedDRM: simulated drift between the clients' gradients, of the client head and of the target head.

The paper specifies three clients, ten classes, a random embedding, linear heads, FedAvg. The rest is our choice:
1,000 embeddings per client of N(μ_i, I) in 32 dimensions with μ_i of N(0, I/4), classes by the largest output of one
random linear model, heads with an intercept from 0, 100 rounds of ten full-batch steps with learning rate 0.01.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedbench.planner.table.claims import judge
from fedbench.reports.figures.kind import Kind, Request, Row, by_line
from fedbench.reports.figures.output import claims_of
from fedbench.reports.figures.style import across, line_looks, subplots, titled
from fedbench.specs import check_seed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

CLIENTS, SAMPLES, DIMENSIONS, CLASSES = 3, 1000, 32, 10
ROUNDS, STEPS, RATE = 100, 10, 0.01
#: Standard deviation of the coordinates of μ_i.
SPREAD = 0.5


@dataclass(frozen=True, eq=False)
class HeadDrift:
    """Of one head, at the start of each round [T]."""

    drift: Array  #: G² = (1/m) Σ ‖∇ℓ_i - ∇ℓ‖² over the m clients (footnote 2 of the paper)
    squared_gradient: Array  #: ‖∇ℓ‖² of the mean of the clients' losses

    @property
    def relative(self) -> Array:
        """G²/‖∇ℓ‖²."""
        return np.asarray(self.drift / self.squared_gradient)


def sample(rng: np.random.Generator) -> tuple[Array, Labels, Labels]:
    """The data of one simulation: features [clients, samples, 1 + dimensions], the first of them a constant 1 for the
    intercept, and the labels [clients, samples] of the client head and of the target head."""
    centre = SPREAD * rng.standard_normal((CLIENTS, 1, DIMENSIONS))
    x = centre + rng.standard_normal((CLIENTS, SAMPLES, DIMENSIONS))
    target = (x @ rng.standard_normal((DIMENSIONS, CLASSES))).argmax(axis=2)
    client = np.repeat(np.arange(CLIENTS)[:, None], SAMPLES, axis=1)
    return np.concatenate([np.ones((CLIENTS, SAMPLES, 1)), x], axis=2), client, target


def simulate(seed: int, rounds: int = ROUNDS) -> tuple[HeadDrift, HeadDrift]:
    """Train the client head and the target head by FedAvg, each by itself, and follow their drift."""
    features, client, target = sample(np.random.default_rng(seed))
    return _follow(features, client, CLIENTS, rounds), _follow(features, target, CLASSES, rounds)


def _follow(features: Array, labels: Labels, classes: int, rounds: int) -> HeadDrift:
    """FedAvg of a linear softmax head from 0, by full-batch steps on the clients' mean cross-entropies."""
    (m, n, d), one_hot = features.shape, np.eye(classes)[labels]
    transposed = np.ascontiguousarray(np.swapaxes(features, 1, 2)) * (1 / n)

    def gradients(coefficients: Array) -> Array:
        logits = features @ coefficients
        shifted = logits - logits.max(axis=-1, keepdims=True)
        log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        return np.asarray(transposed @ (np.exp(log_probabilities) - one_hot))

    drift, squares = np.zeros(rounds), np.zeros(rounds)
    shared = np.zeros((d, classes))
    for t in range(rounds):
        first = gradients(np.broadcast_to(shared, (m, d, classes)))
        mean = first.mean(axis=0)
        drift[t] = np.square(first - mean).sum() / m
        squares[t] = np.square(mean).sum()
        local = shared - RATE * first
        for _ in range(STEPS - 1):
            local -= RATE * gradients(local)
        shared = local.mean(axis=0)
    return HeadDrift(drift, squares)


SEEDS = (0, 1, 2, 3, 4)
CLIENT, TARGET, RATIO = "client head", "target head", "client / target head"


#: Title of a panel -> what it shows, on its y axis.
QUANTITIES = {
    "Against the head's own gradient": r"$G^2\,/\,\|\nabla\ell\|^2$",
    "Client head against target head": r"$G^2_\mathrm{client}\,/\,G^2_\mathrm{class}$",
}


class Drift(Kind):
    """A panel for each reading of the paper's "relative": to the head's gradient, and one head to the other."""

    names = ("drift",)
    options = ("seed",)
    columns = ("panel", "line", "seed", "round", "value")
    of_figure = ("seeds",)

    def rows(self, request: Request) -> list[Row]:
        """A row per simulation and round (from 1); the simulations take a second or two per seed. Raises FedbenchError
        for an invalid seed."""
        seeds = SEEDS if request.seed is None else (request.seed,)
        for seed in seeds:
            check_seed(seed)
        heads = dict(zip((CLIENT, TARGET), zip(*map(simulate, seeds), strict=True), strict=True))
        relative = {name: np.array([d.relative for d in runs]) for name, runs in heads.items()}
        drift = {name: np.array([d.drift for d in runs]) for name, runs in heads.items()}
        panels = dict(zip(QUANTITIES, (relative, {RATIO: drift[CLIENT] / drift[TARGET]}), strict=True))
        numbers, columns = _numbers({f"{name}, relative": v for name, v in relative.items()} | drift, seeds)
        claims = [judge(claim, numbers, [*claim.rows, *claim.than], columns, {}) for claim in self.spec.claims]
        about, rows = {"seeds": list(seeds), **claims_of(claims)}, []
        for title, lines in panels.items():
            parts = []
            for name, values in lines.items():
                first, last = np.median(values[:, [0, -1]], axis=0)
                parts.append(f"{name} {first:.2f} in round 1, {last:.2f} in round {values.shape[1]}")
                for seed, course in zip(seeds, values.tolist(), strict=True):
                    row = {**about, "panel": title, "line": name, "seed": seed}
                    rows += [{**row, "round": t, "value": value} for t, value in enumerate(course, 1)]
            over = f"median of {len(seeds)} seeds" if len(seeds) > 1 else "one seed"
            request.say(f"{title}, {over}: {'; '.join(parts)}")
        return rows

    def paint(self, figure: Figure, rows: list[Row]) -> None:
        """Draw the median over the seeds and the range from minimum to maximum, on a logarithmic axis."""
        panels, looks = self.panels(rows), line_looks((CLIENT, TARGET, RATIO), dashed=True)
        wide = across(figure, len(panels))
        grid = subplots(figure, -(-len(panels) // wide), wide)
        for axes, panel in titled(grid, panels):
            lines = by_line(panel)
            for name, of_line in lines.items():
                values = np.array([[row["value"] for row in seed] for seed in by_line(of_line, "seed").values()])
                rounds = np.arange(1, values.shape[1] + 1)
                axes.plot(rounds, np.median(values, axis=0), **looks[name], label=name)
                if len(values) > 1:
                    low, high = values.min(axis=0), values.max(axis=0)
                    axes.fill_between(rounds, low, high, color=looks[name]["color"], alpha=0.18, linewidth=0)
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.grid(axis="y")
            axes.margins(x=0.015)
            axes.set_xlabel("communication round")
            axes.set_ylabel(QUANTITIES[panel[0]["panel"]])
            if len(lines) > 1:
                axes.legend(loc="best")
            if RATIO in lines:
                axes.axhline(1, color="0.45", linewidth=0.8, linestyle=":", zorder=0)
        seeds = rows[0]["seeds"]
        said = f"median and range of {len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
        figure.suptitle(f"{self.spec.title} (simulated, {said})")


def _numbers(lines: Mapping[str, Array], seeds: tuple[int, ...]) -> tuple[dict[tuple[str, str], float], list[str]]:
    """(line, "round T, seed S") -> value, and the list of all these rounds and seeds."""
    rounds = range(next(iter(lines.values())).shape[1])
    where = {f"round {t + 1}, seed {seed}": (i, t) for i, seed in enumerate(seeds) for t in rounds}
    return {(name, at): float(v[place]) for name, v in lines.items() for at, place in where.items()}, list(where)
