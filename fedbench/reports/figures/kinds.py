"""The kinds of figures by name."""

from __future__ import annotations

from typing import Any

from fedbench.reports.figures.beta import Beta
from fedbench.reports.figures.bubbles import Bubbles
from fedbench.reports.figures.clients import Clients
from fedbench.reports.figures.confusion import Confusion
from fedbench.reports.figures.descriptors import Descriptors
from fedbench.reports.figures.drift import Drift
from fedbench.reports.figures.epochs import Epochs
from fedbench.reports.figures.kind import Kind
from fedbench.reports.figures.learning import Learning
from fedbench.reports.figures.ranks import Ranking
from fedbench.reports.figures.rounds import Rounds
from fedbench.reports.figures.series import Series, Sweep
from fedbench.reports.figures.spec import FigureSpec, names, of_paper, of_user
from fedbench.reports.figures.spectra import Ratio, Spectra
from fedbench.reports.figures.views import Images

_HOLDINGS = "Samples of each class that each client holds"
#: The figures of any partitions or runs by their names.
FREE = {
    figure.id: figure
    for figure in (
        FigureSpec("curves", "Learning curves of runs", "curves"),
        FigureSpec("clients", "Accuracies of single clients", "clients"),
        FigureSpec("confusion", "Which classes are taken for which", "confusion"),
        FigureSpec("ranks", "Average ranks over data sets and partitions", "ranks"),
        FigureSpec("partition", _HOLDINGS, "bubbles"),
        FigureSpec("bubbles", _HOLDINGS, "bubbles"),
        FigureSpec("images", "Images as clients see them", "images"),
        FigureSpec("ratio", "Test against training eigenvalues of every client", "ratio"),
        FigureSpec("spectrum", "Singular values of training and test images", "spectrum"),
    )
}

KINDS: dict[str, Kind[Any]] = {
    "ratio": Ratio(),
    "spectrum": Spectra(),
    "beta": Beta(),
    "bubbles": Bubbles(),
    "images": Images(),
    "epochs": Epochs(),
    "series": Series(),
    "sweep": Sweep(),
    "rounds": Rounds(),
    "descriptors": Descriptors(),
    "drift": Drift(),
    "curves": Learning(),
    "clients": Clients(),
    "confusion": Confusion(),
    "ranks": Ranking(),
}


def load(name: str) -> FigureSpec:
    """The figure of that name, such as 'ftw_erm/2', one of a user's file ('./figures.toml:2'), or one of FREE, which
    shows what the user names.

    Raises FedbenchError for an unknown one, offering the nearest, and for a faulty file.
    """
    if name in FREE:
        return FREE[name]
    if ".toml" in name:
        return of_user(name)
    return of_paper(name, (*names(), *FREE))


def kind_of(figure: FigureSpec) -> Kind[Any]:
    """The figure's kind."""
    return KINDS[figure.kind]
