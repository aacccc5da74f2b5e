"""Figures of the papers: what they show (`spec`), the numbers (`curves`), the drawing (`draw`), other forms (`data`).

matplotlib is imported by `draw` alone, when something is drawn.
"""

from __future__ import annotations

from fedbench.report.figures.curves import Curve, Panel, curves, findings
from fedbench.report.figures.spec import FIGURES, FigureSpec, PanelSpec, load

__all__ = ["FIGURES", "Curve", "FigureSpec", "Panel", "PanelSpec", "curves", "findings", "load"]
