"""Figure 2 of pFedFDA: clients' last beta, by image corruption."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.metrics.statistics import Summary, across_clients
from fedbench.planner.table.claims import judge
from fedbench.protocol import budgets_of
from fedbench.reports.figures import panel as about
from fedbench.reports.figures import source
from fedbench.reports.figures.kind import Kind, Request
from fedbench.reports.figures.panel import Content, Panel
from fedbench.reports.figures.spec import FigureSpec
from fedbench.reports.figures.style import COLOURS, DOT, handle, subplots, titled
from fedbench.specs import RunSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.store import Artifact


CLEAN, CORRUPTED = "clean", "corrupted"
#: Column of a run's table `clients` -> its label. pFedFDA with `betas` = 1 writes the first, with 2 the other two.
BETAS = {"beta": "β", "beta_0": "β of the means", "beta_1": "β of the covariance"}


@dataclass(frozen=True)
class ClientBeta:
    """One client; `severity` is None if its images are not corrupted."""

    client: int  #: from 0
    corruption: str  #: its name, CLEAN, or "other shift"
    severity: int | None
    beta: float


@dataclass(frozen=True)
class Betas:
    """One of BETAS, for all clients of a run."""

    column: str  #: one of BETAS
    clients: tuple[ClientBeta, ...]

    @cached_property
    def groups(self) -> dict[str, list[ClientBeta]]:
        """Corruption -> its clients by severity. CLEAN comes first, then the others in ascending order of mean beta."""
        ordered = sorted(self.clients, key=lambda c: (c.severity or 0, c.client))
        groups = by_key((client.corruption, client) for client in ordered)
        return dict(sorted(groups.items(), key=lambda g: (g[0] != CLEAN, summary(g[1]).mean, g[0])))

    @cached_property
    def means(self) -> dict[str, float]:
        """Mean beta of each group, and (CORRUPTED) of all clients that are not clean."""
        means = {name: summary(group).mean for name, group in self.groups.items()}
        corrupted = [c for c in self.clients if c.corruption != CLEAN]
        return {**means, **({CORRUPTED: summary(corrupted).mean} if corrupted else {})}


def summary(clients: Iterable[ClientBeta]) -> Summary:
    """Mean and standard deviation (ddof 1) of beta over clients."""
    return across_clients(client.beta for client in clients)


class Beta(Kind[Betas]):
    """A bar per corruption and a dot per client: beta."""

    needs = "cells"
    options = ("run", "budget", "seed")
    columns = ("panel", "run", "dataset", "partition", "column", "client", "corruption", "severity", "beta")

    def gather(self, figure: FigureSpec, request: Request) -> Content[Betas]:
        """A panel for each beta of the run. Raises FedbenchError if the run is missing or has no beta."""
        if request.run is not None:
            panels = of_run(request.run_itself(), request)
        else:
            assert figure.cells is not None
            row, column = figure.cells.row, figure.cells.column
            panels = of_run(
                source.run_of(figure, figure.cells, request), request, f"{row}, {column.replace('/', ', ')}"
            )
        numbers = {(name, p.marks.column): mean for p in panels for name, mean in p.marks.means.items()}
        columns = [panel.marks.column for panel in panels]
        claims = [judge(claim, numbers, [*claim.rows, *claim.than], columns, {}) for claim in figure.claims]
        return Content(panels, claims=claims)

    def rows(self, marks: Betas) -> Iterator[Mapping[str, Any]]:
        """One row per client."""
        yield from map(asdict, marks.clients)

    def summary(self, marks: Betas) -> Mapping[str, Any]:
        """Mean and standard deviation (ddof 1) by corruption, and the mean of the corrupted clients."""
        over = {name: summary(group) for name, group in marks.groups.items()}
        groups = {name: {"mean": of.mean, "std": of.std if of.count > 1 else None} for name, of in over.items()}
        return {"mean_corrupted": marks.means.get(CORRUPTED), "groups": groups}

    def words(self, figure: FigureSpec, content: Content[Betas]) -> Iterable[str]:
        for panel in content.panels:
            marks = panel.marks
            counts = {CLEAN: len(marks.groups.get(CLEAN, ())), CORRUPTED: 0}
            counts[CORRUPTED] = len(marks.clients) - counts[CLEAN]
            parts = [f"{marks.means[k]:.3f} of {n} {k} clients" for k, n in counts.items() if n]
            yield f"{panel.title}: mean {BETAS[marks.column]} {', '.join(parts)}; run {panel.about['run']}"

    def paint(self, figure: FigureSpec, content: Content[Betas]) -> Figure:
        """Stack the panels. Shades show the severity; the legend is on the right."""
        from matplotlib.patches import Patch

        panels = content.panels
        groups = max(len(panel.marks.groups) for panel in panels)
        picture, grid = subplots((max(4.2, 2.0 + 0.55 * groups), 3.2 * len(panels)), len(panels), 1)
        for axes, panel in titled(grid, panels):
            _bars(axes, panel.marks)
            axes.set_ylabel(f"{BETAS[panel.marks.column]} (0 global … 1 local)")
        severities = sorted({c.severity for panel in panels for c in panel.marks.clients if c.severity is not None})
        dot = {**DOT, "markersize": 4}
        handles = [
            Patch(color=_BAR, label="mean over clients"),
            handle("± sd over clients", color="0.2"),
            handle("clean client", color=_colour(None), **dot),
            *(handle(f"severity {s}", color=_colour(s), **dot) for s in severities),
        ]
        picture.legend(handles=handles, loc="outside right upper")
        return picture


def of_run(run: Artifact, request: Request, name: str = "") -> list[Panel[Betas]]:
    """A panel for each beta that the run recorded for its clients in the last evaluation.

    Raises FedbenchError if the run has no beta, or if its clients are not those of its partition.
    """
    from fedbench import partitions
    from fedbench.metrics.predictions import broken
    from fedbench.partitions.transforms import Transform

    spec = run.spec
    assert isinstance(spec, RunSpec)
    setting, table = spec.setting, run.table("clients")
    columns = [column for column in BETAS if column in table.column_names]
    if not columns:
        raise FedbenchError(f"run {run.id} ({spec.method}) noted no beta of its clients", "choose a run of pfedfda")
    transforms = partitions.build(setting.partition, request.store, request.roots, request.notify).transforms
    if len(table) != len(transforms):
        raise broken(run, f"table clients has {len(table)} clients, its partition {len(transforms)}")
    # A colour shift is not a corruption, but its images are not clean either.
    kinds = [one.corruption or (CLEAN if one == Transform() else "other shift") for one in transforms]
    panels = []
    for column in columns:
        values = table.column(column).to_pylist()
        clients = tuple(
            ClientBeta(c, kinds[c], transforms[c].severity, float(value))
            for c, value in enumerate(values)
            if value is not None
        )
        if not clients or not all(0 <= client.beta <= 1 for client in clients):
            raise broken(run, f"column '{column}' of table clients must hold numbers in 0..1")
        panel = about.of_run(run, Betas(column, clients), name)
        title = f"{panel.title} (budget {budgets_of(setting)}, {setting.rounds} rounds)"
        panels.append(replace(panel, title=title, about={**panel.about, "column": column}))
    return panels


_BAR, _GAP = "0.87", 0.2
#: How many dots fit side by side into a bar of width 1.
_DOTS_PER_BAR = 15
#: Shades of COLOURS[1] for severities 1 to 5.
_SHADES = ("#F7C6A3", "#EF9A5F", "#D55E00", "#963F00", "#4F2100")


def _bars(axes: Axes, marks: Betas) -> None:
    """Draw each group as a bar (mean ± standard deviation) with a dot per client; large groups get wider bars."""
    middles, end = [], 0.0
    for group in marks.groups.values():
        over, wide = summary(group), min(3.0, max(1.0, len(group) / _DOTS_PER_BAR))
        middle, end = end + wide / 2, end + wide
        middles.append(middle)
        axes.bar(middle, over.mean, wide - _GAP, color=_BAR, zorder=1)
        places = middle + (wide - _GAP) * ((np.arange(len(group)) + 0.5) / len(group) - 0.5)
        axes.scatter(
            places,
            [c.beta for c in group],
            s=14,
            color=[_colour(c.severity) for c in group],
            edgecolor="white",
            linewidth=0.3,
            zorder=3,
            clip_on=False,
        )
        if over.count > 1:
            axes.errorbar(middle, over.mean, over.std, color="0.2", linewidth=1.0, capsize=3, zorder=2)
    names = [f"{name.replace('_', ' ')} ({len(group)})" for name, group in marks.groups.items()]
    axes.set_xticks(middles, names, rotation=35, ha="right", rotation_mode="anchor")
    axes.set_xlim(-_GAP / 2, end + _GAP / 2)
    axes.set_ylim(0, 1)
    axes.tick_params(axis="x", length=0)


def _colour(severity: int | None) -> str:
    """Blue for images without corruption, else an orange that is darker for a higher severity."""
    return COLOURS[0] if severity is None else _SHADES[severity - 1]
