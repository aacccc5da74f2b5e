"""Tables as text, HTML, LaTeX, Markdown, CSV and JSON, or as data frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.api.results import Run, chosen
from fedbench.api.shared import Home, roots, store_of
from fedbench.files import write_whole
from fedbench.metrics.read import VIEW
from fedbench.options import checked
from fedbench.reports import render
from fedbench.reports.layout.grid import Grid
from fedbench.reports.render.style import Style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Tables:
    """Tables that print as text (`print(tables)`) and show as HTML in a notebook."""

    grids: tuple[Grid, ...]

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each cell, as in CSV: table, row, column, value in the printed unit, std, the paper's number."""
        import pandas as pd

        from fedbench.reports.render.data import records

        return pd.DataFrame([record for grid in self.grids for record in records(grid)])

    @checked
    def text(
        self,
        format: str = "console",
        *,
        notes: str = "brief",
        standalone: bool = False,
        width: str = "",
        spread: str = "",
    ) -> str:
        """The text of the tables: console, latex, markdown, csv, html or json; `notes` below them: none, brief, full.
        For LaTeX: `standalone`, `width` and `spread`, as the options of `fedbench report`."""
        style = Style(standalone, width=width, spread=spread)
        return render.render(self.grids, render.choose(format, None), notes, style)

    @checked
    def save(
        self,
        path: str | Path,
        *,
        notes: str = "brief",
        standalone: bool = False,
        width: str = "",
        spread: str = "",
    ) -> None:
        """Write the tables to a file, in the format that its suffix names; the rest is that of `text`."""
        path = Path(path)
        text = self.text(render.choose(None, path), notes=notes, standalone=standalone, width=width, spread=spread)
        write_whole(path, text.encode())

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        from fedbench.reports.render.html import fragment

        return fragment(self.grids)


class Runs(tuple[Run, ...]):
    """Runs that differ in their seeds, in this order: a tuple that shows their mean ± standard deviation."""

    @property
    def table(self) -> Tables:
        """The runs side by side, which is one row."""
        return compare(*self)

    def plot(self, **options: Any) -> Figure:
        """Their learning curve (`figure("curves", ...)`), with a band over the seeds."""
        from fedbench.api.figures import figure

        return figure("curves", *self, **options)

    def __repr__(self) -> str:
        return self.table.text()

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


@checked
def report(
    *tables: str | int,
    budget: str | None = None,
    dataset: str | None = None,
    columns: Sequence[str] = (),
    seeds: Sequence[int] = (),
    precision: str | None = None,
    compare: bool = False,
    only_done: bool = False,
    view: str | None = None,
    shipped: bool = True,
    yours: bool = True,
    store: Home = None,
) -> Tables:
    """Tables of measured results, by number (1 or "1"), name ("feddrm/1") or TOML file; none: the headline tables.
    The options are those of `fedbench report`. This never trains.

    >>> table = report("5", dataset="digits", budget="smoke")
    >>> table.frame.columns[:4].tolist()
    ['table', 'budget', 'precision', 'row']
    """
    from fedbench.reports.layout.tables import grids_of

    grids = grids_of(
        [str(one) for one in tables],
        store_of(store),
        roots(),
        budget=budget,
        dataset=dataset,
        columns=columns,
        seeds=seeds,
        precision=precision,
        compare=compare,
        only_done=only_done,
        view=view,
        shipped=shipped,
        yours=yours,
    )
    return Tables(tuple(grids))


@checked
def compare(
    *filters: str | Run,
    metrics: str | Sequence[str] = (),
    sort: str | None = None,
    test: bool = False,
    over: str | None = None,
    view: str = VIEW,
    round: str = "last",
    shipped: bool = True,
    store: Home = None,
) -> Tables:
    """Tables of runs side by side (`fedbench compare`): in what they differ, and mean ± standard deviation over seeds.

    A filter is one of `runs`, or a `Run`. `test` adds a table of significance tests for every two rows on the same
    data, over seeds or clients. `round`: last, best (by validation) or mean:10. `metrics` replace the usual columns;
    `shipped=False` leaves out shipped runs.

    >>> compare("dataset=digits").frame["metric"].iloc[0]
    'average_accuracy'
    """
    from fedbench.planner.runs import named_values, spelt_out
    from fedbench.reports.compare.layout import side_by_side

    names = [metrics] if isinstance(metrics, str) else metrics
    runs = chosen(filters, store, shipped)
    words = [one if isinstance(one, str) else one.id for one in filters]
    named = named_values(spelt_out(words))
    grids = side_by_side(runs, names, sort=sort, test=test, over=over, view=view, round=round, named=named)
    return Tables(tuple(grids))
