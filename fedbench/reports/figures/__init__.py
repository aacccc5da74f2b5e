"""Figures of the papers and of any runs: which there are (`spec`, tables/PAPER/figures.toml; `kinds.FREE`), whence they
come (`source`), and a file a kind.

A kind gathers the marks of panels (`panel`) and draws them (`kind`, `kinds`): spectra of images (`curves`, `spectra`),
clients and classes (`bubbles`), images as clients see them (`views`), pFedFDA's beta by corruption (`beta`), cells of
tables along an axis (`points`, `series`, `epochs`) or by round (`rounds`), FLUX's descriptors in the plane
(`descriptors`), FedDRM's simulated drift of gradients (`drift`); of any runs their learning curves (`learning`, in a
terminal `text`), single clients (`clients`) and confusion matrices (`confusion`). `draw` makes the file of any of them,
`data` its CSV and JSON. matplotlib is imported when something is drawn.
"""

from __future__ import annotations

from fedbench.reports.figures.kind import Ask, Content, FigureSpec, Kind, Panel, PanelSpec, names
from fedbench.reports.figures.kinds import FREE, KINDS, kind_of, load
from fedbench.reports.figures.spectra import Curve, curves, findings

__all__ = [
    "FREE", "KINDS", "Ask", "Content", "Curve", "FigureSpec", "Kind", "Panel", "PanelSpec", "curves", "findings",
    "kind_of", "load", "names",
]  # fmt: skip
