"""Figures of the papers and of any runs: which there are (`kind.FigureSpec`, tables/PAPER/figures.toml; `kinds.FREE`),
whence they come (`source`), and what each kind shows: panels of marks (`kind.Content`), their numbers as rows, and how
they are painted.

Spectra of images (`spectra`), clients and classes (`bubbles`), images as clients see them (`views`), pFedFDA's beta by
corruption and FedDRM's simulated drift of gradients (`beta`), cells of tables along an axis or by round (`series`),
FLUX's descriptors in the plane (`descriptors`), average ranks (`ranks`); of any runs their learning curves (`learning`,
in a terminal `text`), single clients (`clients`) and confusion matrices (`confusion`). `kinds` makes the file of any of
them, its CSV and JSON. matplotlib is imported when something is drawn.
"""

from __future__ import annotations

from fedbench.reports.figures.kind import Content, FigureSpec, Kind, Panel, PanelSpec, Request, names
from fedbench.reports.figures.kinds import FREE, KINDS, kind_of, load
from fedbench.reports.figures.spectra import Curve, curves, findings

__all__ = [
    "FREE", "KINDS", "Content", "Curve", "FigureSpec", "Kind", "Panel", "PanelSpec", "Request", "curves", "findings",
    "kind_of", "load", "names",
]  # fmt: skip
