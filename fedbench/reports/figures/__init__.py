"""Figures of the papers and of any runs.

`kind` defines a figure (`FigureSpec`, read from tables/PAPER/figures.toml) and what a kind of figure implements;
`source` finds the data; `kinds` lists all kinds and the figures of any partition or run (`FREE`), and writes pictures,
CSV and JSON. The other modules are the kinds: spectra of images (`spectra`, from the numbers of `eigenvalues`), clients
x classes (`bubbles`), images as clients see them (`views`), pFedFDA's beta by corruption (`beta`), FedDRM's simulated
gradient drift (`drift`), table cells along an axis or by round (`series`), FLUX's descriptors in the plane
(`descriptors`), average ranks (`ranks`), and of any runs learning curves (`learning`, in a terminal by `text`), single
clients (`clients`) and confusion matrices (`confusion`). matplotlib is imported only when a figure is drawn.
"""

from __future__ import annotations

from fedbench.reports.figures.kind import Kind, Request
from fedbench.reports.figures.kinds import FREE, KINDS, kind_of, load
from fedbench.reports.figures.panel import Content, Panel
from fedbench.reports.figures.spec import FigureSpec, PanelSpec, names
from fedbench.reports.figures.spectra import ClientSpectra, curves, findings

__all__ = [
    "FREE",
    "KINDS",
    "ClientSpectra",
    "Content",
    "FigureSpec",
    "Kind",
    "Panel",
    "PanelSpec",
    "Request",
    "curves",
    "findings",
    "kind_of",
    "load",
    "names",
]
