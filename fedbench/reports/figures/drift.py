"""Figure 3 of FedDRM: how far clients' gradients drift apart, of the client head and of the target head; simulated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedbench.reports.figures.kind import Ask, Kind
from fedbench.reports.figures.panel import Content, Panel
from fedbench.reports.figures.spec import FigureSpec
from fedbench.reports.figures.style import colour, subplots
from fedbench.reports.table.claims import judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbench.theory.arrays import Array

SEEDS = (0, 1, 2, 3, 4)
CLIENT, TARGET, RATIO = "client head", "target head", "client / target head"


@dataclass(frozen=True)
class Courses:
    """Lines over rounds, one a simulation."""

    quantity: str  #: the axis' label
    lines: Mapping[str, Array]  #: name -> [seeds, rounds]
    seeds: tuple[int, ...]


class Drift(Kind[Courses]):
    """A panel a reading of the paper's "relative": against the head's own gradient, and one head against the other."""

    options: ClassVar[tuple[str, ...]] = ("seed",)
    columns: ClassVar[tuple[str, ...]] = ("panel", "line", "seed", "round", "value")

    def gather(self, figure: FigureSpec, ask: Ask) -> Content[Courses]:
        """Simulate (a second or two a seed). Raises FedbenchError for a seed that is none."""
        from fedbench.specs import check_seed
        from fedbench.theory.feddrm.drift import simulate

        seeds = SEEDS if ask.seed is None else (ask.seed,)
        for seed in seeds:
            check_seed(seed)
        heads = dict(zip((CLIENT, TARGET), zip(*map(simulate, seeds), strict=True), strict=True))
        relative = {name: np.array([d.relative for d in runs]) for name, runs in heads.items()}
        own = {name: np.array([d.drift for d in runs]) for name, runs in heads.items()}
        ratio = {RATIO: own[CLIENT] / own[TARGET]}
        quantities = r"$G^2\,/\,\|\nabla\ell\|^2$", r"$G^2_\mathrm{client}\,/\,G^2_\mathrm{class}$"
        panels = [
            Panel("Against the head's own gradient", {}, Courses(quantities[0], relative, seeds)),
            Panel("Client head against target head", {}, Courses(quantities[1], ratio, seeds)),
        ]
        numbers, columns = _numbers({f"{name}, relative": v for name, v in relative.items()} | own, seeds)
        claims = [judge(claim, numbers, [*claim.rows, *claim.than], columns, {}) for claim in figure.claims]
        return Content(panels, {"seeds": list(seeds)}, claims)

    def rows(self, marks: Courses) -> Iterator[Mapping[str, Any]]:
        """One line a round, counted from 1, of each simulation."""
        for name, values in marks.lines.items():
            for seed, course in zip(marks.seeds, values.tolist(), strict=True):
                for t, value in enumerate(course, 1):
                    yield {"line": name, "seed": seed, "round": t, "value": value}

    def values(self, marks: Courses) -> Mapping[str, Any]:
        """Every line by round from 1, a list a seed."""
        return {"lines": {name: values.tolist() for name, values in marks.lines.items()}}

    def words(self, figure: FigureSpec, content: Content[Courses]) -> Iterable[str]:
        for panel in content.panels:
            parts = []
            for name, values in panel.marks.lines.items():
                first, last = np.median(values[:, [0, -1]], axis=0)
                parts.append(f"{name} {first:.2f} in round 1, {last:.2f} in round {values.shape[1]}")
            count = len(panel.marks.seeds)
            yield f"{panel.title}, {f'median of {count} seeds' if count > 1 else 'one seed'}: {'; '.join(parts)}"

    def paint(self, figure: FigureSpec, content: Content[Courses]) -> Figure:
        """The median of the simulations over the range of all of them, on a logarithmic axis."""
        picture, (row,) = subplots((0.6 + 3.1 * len(content.panels), 3.1), 1, len(content.panels))
        colours = {name: colour(i) for i, name in enumerate((CLIENT, TARGET, RATIO))}
        for axes, panel in zip(row, content.panels, strict=True):
            for name, values in panel.marks.lines.items():
                rounds = np.arange(1, values.shape[1] + 1)
                axes.plot(rounds, np.median(values, axis=0), color=colours[name], label=name)
                if len(values) > 1:
                    low, high = values.min(axis=0), values.max(axis=0)
                    axes.fill_between(rounds, low, high, color=colours[name], alpha=0.18, linewidth=0)
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.grid(axis="y")
            axes.margins(x=0.015)
            axes.set_title(panel.title)
            axes.set_xlabel("communication round")
            axes.set_ylabel(panel.marks.quantity)
            if len(panel.marks.lines) > 1:
                axes.legend(loc="best")
        row[1].axhline(1, color="0.45", linewidth=0.8, linestyle=":", zorder=0)
        seeds = content.about["seeds"]
        said = f"median and range of {len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
        picture.suptitle(f"{figure.title} (simulated, {said})", fontsize=9)
        return picture


def _numbers(lines: Mapping[str, Array], seeds: tuple[int, ...]) -> tuple[dict[tuple[str, str], float], list[str]]:
    """(line, where) -> its value, and every where: a round of a seed."""
    rounds = range(next(iter(lines.values())).shape[1])
    where = {f"round {t + 1}, seed {seed}": (i, t) for i, seed in enumerate(seeds) for t in rounds}
    return {(name, at): float(v[place]) for name, v in lines.items() for at, place in where.items()}, list(where)
