"""Figure 2 of pFedFDA: clients' last beta, by image corruption."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.metrics.statistics import Summary, across_clients
from fedbench.planner.table.claims import judge
from fedbench.reports.figures import source
from fedbench.reports.figures.kind import Kind, Request, Row
from fedbench.reports.figures.output import claims_of
from fedbench.reports.figures.style import DOT, colour, handle, subplots, titled
from fedbench.specs import RunSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.store import Artifact


CLEAN, CORRUPTED = "clean", "corrupted"
#: Column of a run's table `clients` -> its label. pFedFDA with `betas` = 1 writes the first, with 2 the other two.
BETAS = {"beta": "β", "beta_0": "β of the means", "beta_1": "β of the covariance"}


def summary(rows: Iterable[Row]) -> Summary:
    """Mean and standard deviation (ddof 1) of beta over clients."""
    return across_clients(row["beta"] for row in rows)


def by_corruption(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Corruption -> its clients by severity. CLEAN comes first, then the others in ascending order of mean beta."""
    ordered = sorted(rows, key=lambda row: (row["severity"] or 0, row["client"]))
    groups = by_key((row["corruption"], row) for row in ordered)
    return dict(sorted(groups.items(), key=lambda g: (g[0] != CLEAN, summary(g[1]).mean, g[0])))


class Beta(Kind):
    """A bar per corruption and a dot per client: beta."""

    names = ("beta",)
    needs = "cells"
    options = ("run", "budget", "seed")
    columns = ("panel", "run", "dataset", "partition", "column", "client", "corruption", "severity", "beta")
    of_panel = ("run", "budget", "dataset", "partition", "column", "mean_corrupted", "groups")
    apart = ("panel", "column")
    one_column = False

    def rows(self, request: Request) -> list[Row]:
        """A row per client, a panel for each beta of the run. Raises FedbenchError if the run is missing or has no
        beta."""
        if request.run is not None:
            rows = of_run(request.run_itself(), request)
        else:
            assert self.spec.cells is not None
            name, column = self.spec.cells.row, self.spec.cells.column
            run = source.run_of(self.spec, self.spec.cells, request)
            rows = of_run(run, request, f"{name}, {column.replace('/', ', ')}")
        numbers: dict[tuple[str, str], float] = {}
        panels = self.panels(rows)
        for panel in panels:
            of = panel[0]
            means = {name: group["mean"] for name, group in of["groups"].items()}
            means |= {CORRUPTED: of["mean_corrupted"]} if of["mean_corrupted"] is not None else {}
            numbers |= {(name, of["column"]): mean for name, mean in means.items()}
            counts = {CLEAN: sum(row["corruption"] == CLEAN for row in panel)}
            counts[CORRUPTED] = len(panel) - counts[CLEAN]
            parts = [f"{means[k]:.3f} of {n} {k} clients" for k, n in counts.items() if n]
            request.say(f"{of['panel']}: mean {BETAS[of['column']]} {', '.join(parts)}; run {of['run']}")
        columns = [panel[0]["column"] for panel in panels]
        claims = [
            judge(claim, numbers, [*claim.rows, *claim.than], columns, {}, noises={}) for claim in self.spec.claims
        ]
        return [row | claims_of(claims) for row in rows]

    def paint(self, figure: Figure, rows: list[Row]) -> None:
        """Stack the panels. Shades show the severity; the legend is on the right."""
        from matplotlib.patches import Patch

        panels = self.panels(rows)
        for axes, panel in titled(subplots(figure, len(panels), 1, tall=2.6), panels):
            _bars(axes, panel)
            axes.set_ylabel(f"{BETAS[panel[0]['column']]} (0 global … 1 local)")
        severities = sorted({row["severity"] for row in rows if row["severity"] is not None})
        dot = {**DOT, "markersize": 4}
        handles = [
            Patch(color=_BAR, label="mean over clients"),
            handle("± sd over clients", color="0.2"),
            handle("clean client", color=_colour(None), **dot),
            *(handle(f"severity {s}", color=_colour(s), **dot) for s in severities),
        ]
        figure.legend(handles=handles, loc="outside right upper")


def of_run(run: Artifact, request: Request, name: str = "") -> list[Row]:
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
        raise FedbenchError(f"run {run.id} ({spec.method}) stored no beta of its clients", "choose a run of pfedfda")
    transforms = partitions.build(setting.partition, request.store, request.roots, request.notify).transforms
    if len(table) != len(transforms):
        raise broken(run, f"table clients has {len(table)} clients, its partition {len(transforms)}")
    # A colour shift is not a corruption, but its images are not clean either.
    kinds = [one.corruption or (CLEAN if one == Transform() else "other shift") for one in transforms]
    about, rows = source.of_run(run, name), []
    title = f"{about['panel']} (budget {about['budget']}, {setting.rounds} rounds)"
    for column in columns:
        clients: list[Row] = [
            {"client": c, "corruption": kinds[c], "severity": transforms[c].severity, "beta": float(value)}
            for c, value in enumerate(table.column(column).to_pylist())
            if value is not None
        ]
        if not clients or not all(0 <= client["beta"] <= 1 for client in clients):
            raise broken(run, f"column '{column}' of table clients must hold numbers in 0..1")
        over = {key: summary(group) for key, group in by_corruption(clients).items()}
        corrupted = [client for client in clients if client["corruption"] != CLEAN]
        facts: Row = {
            **about,
            "panel": title,
            "column": column,
            "mean_corrupted": summary(corrupted).mean if corrupted else None,
            "groups": {key: {"mean": of.mean, "std": of.std if of.count > 1 else None} for key, of in over.items()},
        }
        rows += [facts | client for client in clients]
    return rows


_BAR, _GAP = "0.87", 0.2
#: How many dots fit side by side into a bar of width 1.
_DOTS_PER_BAR = 15
#: Shades of orange for severities 1 to 5.
_SHADES = ("#F7C6A3", "#EF9A5F", "#D55E00", "#963F00", "#4F2100")


def _bars(axes: Axes, panel: list[Row]) -> None:
    """Draw each group as a bar (mean ± standard deviation) with a dot per client; large groups get wider bars."""
    middles, end, groups = [], 0.0, by_corruption(panel)
    for group in groups.values():
        over, wide = summary(group), min(3.0, max(1.0, len(group) / _DOTS_PER_BAR))
        middle, end = end + wide / 2, end + wide
        middles.append(middle)
        axes.bar(middle, over.mean, wide - _GAP, color=_BAR, zorder=1)
        places = middle + (wide - _GAP) * ((np.arange(len(group)) + 0.5) / len(group) - 0.5)
        axes.scatter(
            places,
            [row["beta"] for row in group],
            s=14,
            color=[_colour(row["severity"]) for row in group],
            edgecolor="white",
            linewidth=0.3,
            zorder=3,
            clip_on=False,
        )
        if over.count > 1:
            axes.errorbar(middle, over.mean, over.std, color="0.2", linewidth=1.0, capsize=3, zorder=2)
    names = [f"{name.replace('_', ' ')} ({len(group)})" for name, group in groups.items()]
    axes.set_xticks(middles, names, rotation=35, ha="right", rotation_mode="anchor")
    axes.set_xlim(-_GAP / 2, end + _GAP / 2)
    axes.set_ylim(0, 1)
    axes.tick_params(axis="x", length=0)


def _colour(severity: int | None) -> str:
    """Blue for images without corruption, else an orange that is darker for a higher severity."""
    return colour(0) if severity is None else _SHADES[severity - 1]
