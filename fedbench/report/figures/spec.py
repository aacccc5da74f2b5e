"""Which figures there are, and what stands in each of their panels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedbench.errors import unknown


@dataclass(frozen=True)
class PanelSpec:
    """One panel: the clients of one partition."""

    title: str
    dataset: str
    layout: str  #: named layout of the protocol
    clients: tuple[int, ...] | None = None  #: counted from 0; None is all


@dataclass(frozen=True)
class FigureSpec:
    """One figure of a paper."""

    id: str
    title: str
    kind: Literal["ratio", "spectrum"]  #: what is drawn over the rank: test against training, or both
    protocol: str
    panels: tuple[PanelSpec, ...]


_FASHION = PanelSpec("Fashion-MNIST", "fashion_mnist", "five")
#: With all of client 1's images: the 500 that it trains on in Table 3 have fewer rows than pixels.
_COLORED = PanelSpec("Colored MNIST", "mnist", "colored_whole")

FIGURES = {
    figure.id: figure
    for figure in (
        FigureSpec(
            "ftw_erm/2", "Test against training eigenvalues of every client", "ratio", "ftw_erm", (_FASHION, _COLORED)
        ),
        FigureSpec(
            "ftw_erm/3",
            "Singular values of training and test images",
            "spectrum",
            "ftw_erm",
            (_FASHION, PanelSpec(_COLORED.title, _COLORED.dataset, _COLORED.layout, clients=(0,))),
        ),
    )
}


def load(name: str) -> FigureSpec:
    """The figure of that name, such as 'ftw_erm/2'. Raises FedbenchError for an unknown one, offering the nearest."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    return FIGURES[name]
