"""What is so of a table's cells at a budget, by which it is told which remarks hold for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fedbench import protocol
from fedbench.partitions import schemes
from fedbench.remark import Remark
from fedbench.reports.status.settings import sketch
from fedbench.reports.table.spec import Row, Table
from fedbench.specs import Setting


def holding(
    remarks: Iterable[Remark], table: Table, budget: str, rows: Sequence[Row] = (), precision: str = ""
) -> list[str]:
    """The texts of those that hold for a cell of the table (of these rows; else of all) at the budget and a precision
    (default: the budget's)."""
    remarks = list(remarks)
    cells = list(facts(table, budget, rows)) if any(r.where for r in remarks) else []
    cells = [{**cell, "precision": precision} for cell in cells] if precision else cells
    return [r.text for r in remarks if r.holds(cells)]


def departures(table: Table, budget: str, rows: Sequence[Row] = (), precision: str = "") -> list[str]:
    """Where the table's protocol differs from the paper's at the budget and precision, for all methods alike."""
    # Pairs of snapshots compare no methods, and a table of one's own has no paper to differ from.
    if table.counted or table.statistic == "pairs" or not table.of_paper:
        return []
    remarks = protocol.load(table.protocol).deviates
    return [f"{text[0].upper()}{text[1:]}." for text in holding(remarks, table, budget, rows, precision)]


def facts(table: Table, budget: str, rows: Sequence[Row] = ()) -> Iterator[dict[str, Any]]:
    """Of each cell that runs stand in (of these rows; else of all), as far as it can be told without the images."""
    if table.counted:
        return
    for column in table.measured:
        shared = None
        for row in (r for r in rows or table.rows if not table.undefines(r.label, column.key)):
            own = row if row.own(budget) else None
            if own or shared is None:
                setting = sketch(table, column, budget, own)
                shared = shared if own else setting
            else:
                setting = shared
            read = row.reads(column)
            yield {
                **schemes.facts(setting.partition),
                **{f.name: getattr(setting, f.name) for f in dataclasses.fields(Setting)},
                "dataset": column.dataset, "method": row.method, "metric": read.metric, "statistic": read.statistic,
            }  # fmt: skip
