"""All pages of a lab notebook, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fedbench.reports.compare.comparison import compare
from fedbench.reports.runs import Run
from fedbench.reports.site import index, pictures, run
from fedbench.reports.site.run import Told


def pages(runs: Sequence[Run], tell: Callable[[Run], Told]) -> Iterator[tuple[str, str]]:
    """(name of the file, HTML) of the index and of each run's page: 1 + len(runs) of them.

    `tell` gives what rooms above know of a run. Runs whose metrics cannot be had have pages that say why.
    """
    side = compare(runs)
    yield "index.html", index.page(side)
    partitions: dict[str, str] = {}
    for group in side.groups:
        for one in group:
            spec = one.spec.setting.partition
            if spec.id not in partitions:
                partitions[spec.id] = pictures.partition(spec, one.store)
            yield run.name(one), run.page(side, group, one, tell(one), partitions[spec.id])
