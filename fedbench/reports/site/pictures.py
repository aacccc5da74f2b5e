"""The pictures on runs' pages: figures of `reports.figures` for some runs, as SVG files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fedbench.errors import FedbenchError
from fedbench.reports import figures
from fedbench.reports.site.page import e
from fedbench.results.frame import Frame
from fedbench.results.packs import Packs
from fedbench.results.run import Run
from fedbench.specs import PartitionSpec
from fedbench.store import Store

#: Most runs with a line each in a picture of their curves; of more seeds it shows mean and standard deviation.
LINES = 10


@dataclass(frozen=True)
class _Request(figures.Request):
    """A request for given runs, which need not be selected."""

    given: Sequence[Run] = ()

    def runs(self) -> list[Run]:
        return [*self.given]


@dataclass(frozen=True)
class Picture:
    """A picture with what it shows in words; without content the words say what is missing."""

    file: str
    title: str
    words: str
    content: str = ""

    @property
    def html(self) -> str:
        image = f'<img src="{e(self.file)}" alt="{e(self.title)}" loading="lazy">' if self.content else ""
        return f"{image}<p>{e(self.words)}</p>"


def of_group(runs: Sequence[Run]) -> Iterator[Picture]:
    """The curves of a group of runs that differ in their seeds only: accuracy and, if there is any, training loss."""
    by = ["seed"] if 1 < len(runs) <= LINES else None
    for title, metric in (("Learning", None), ("Loss", "train_loss")):
        request = _request(runs[0].store, given=runs, metric=metric, by=by)
        yield _picture("curves", f"curve-{runs[0].id}{'-loss' if metric else ''}.svg", title, request)


def of_run(run: Run) -> Picture:
    """The accuracy (else the AUC) of each of its clients."""
    return _picture("clients", f"clients-{run.id}.svg", "Clients", _request(run.store, given=[run]))


def of_partition(spec: PartitionSpec, store: Store) -> Picture:
    """The samples of each class that each client holds."""
    file, title = f"partition-{spec.id}.svg", "Partition"
    if store.get(spec) is None:  # as for a shipped run, whose data are not in its pack
        return Picture(file, title, f"Partition {spec.id} is not in this store.")
    return _picture("partition", file, title, _request(store, partition=spec.id))


def _request(store: Store, **options: object) -> _Request:
    return _Request(Frame(store, Packs([])), **options)  # type: ignore[arg-type]


def _picture(figure: str, file: str, title: str, request: _Request) -> Picture:
    try:
        content = figures.svg(figures.load(figure), request)
    except FedbenchError as error:
        return Picture(file, title, str(error))
    return Picture(file, title, _sentence(request.said), content)


def _sentence(lines: Iterable[str]) -> str:
    return "; ".join(line.strip() for line in lines)
