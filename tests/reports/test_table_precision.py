"""A table is about runs of one precision, says which if it is not fp32, and never mixes two."""

from __future__ import annotations

import csv
import dataclasses
import html
import io
import json
from pathlib import Path
from typing import Any

import pytest

from fedbench.errors import FedbenchError
from fedbench.reports import table as tables
from fedbench.reports.layout.build import build
from fedbench.reports.layout.grid import Grid
from fedbench.reports.layout.notes import command, elsewhere
from fedbench.reports.render import FORMATS, render
from fedbench.reports.status.cells import Cells, find
from fedbench.reports.status.index import State
from fedbench.reports.status.others import others
from fedbench.specs import PRECISIONS, Setting

DIR = "CIFAR-10/Dir-0.3"


def setting(lab: Any, precision: str, budget: str = "small") -> Setting:
    found: Setting = dataclasses.replace(lab.setting("feddrm/1", DIR, budget), precision=precision)
    return found


def cells(lab: Any, precision: str) -> Cells:
    return find(tables.load("feddrm/1"), "small", lab.store, [], precision=precision)


def grid(lab: Any, precision: str, name: str = "feddrm/1") -> Grid:
    return build(tables.load(name), "small", lab.store, [], precision=precision, extra=True)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_precisions_are_never_mixed(lab: Any, precision: str) -> None:
    run = lab.run(setting(lab, precision), "feddrm", title="FedDRM")
    lab.run(setting(lab, precision), "pfedfda", title="pFedFDA")
    for asked in PRECISIONS:
        found = cells(lab, asked)
        own = asked == precision
        (cell,) = (c for c in found.all if (c.row.label, c.column.key) == ("FedDRM", DIR))
        assert cell.state is (State.DONE if own else State.MISSING)
        assert [r.id for r in cell.records if r] == ([run.id] if own else [])
        assert list(others(found)) == (["pFedFDA"] if own else [])
        assert {job.setting.precision for job in found.runs(*State)} == {asked}


def test_runs_of_all_precisions_side_by_side(lab: Any) -> None:
    for value, precision in enumerate(PRECISIONS, 4):
        lab.run(setting(lab, precision), "feddrm", value=value / 10)
        lab.run(setting(lab, precision), "mine", value=value / 20, title="Mine")
    for value, precision in enumerate(PRECISIONS, 4):
        rows = {line.label: line.entries[0] for line in grid(lab, precision).lines}
        assert (rows["FedDRM"].text, rows["Mine"].text) == (f"{10 * value}.00", f"{5 * value}.00")


@pytest.mark.parametrize("format", [f for f in FORMATS if f not in ("csv", "json")])
def test_a_printed_table_says_so_where_it_states_its_budget(lab: Any, format: str) -> None:
    lab.run(setting(lab, "bf16"), "feddrm", value=0.6385)
    text = render([grid(lab, "bf16")], format)
    assert "63.85" in text
    said = " ".join(html.unescape(text).split())
    assert "Budget small in bf16, not the paper's: 400 rounds of 10 steps" in said
    if format in ("latex", "html"):
        assert "feddrm/1, budget small in bf16" in text.replace("<small>", "")
    usual = render([grid(lab, "fp32")], format)
    assert "63.85" not in usual
    said = " ".join(html.unescape(usual).split())
    assert "Budget small, not the paper's: 400 rounds" in said
    assert "fp32" not in usual
    assert "in bf16" not in usual


def test_programs_read_it_in_every_line(lab: Any) -> None:
    lab.run(setting(lab, "bf16"), "feddrm")
    grids = [grid(lab, "bf16"), grid(lab, "fp32"), grid(lab, "bf16", "pfedfda/8")]
    lines = list(csv.DictReader(io.StringIO(render(grids, "csv"))))
    assert {(x["table"], x["precision"]) for x in lines} == {
        ("feddrm/1", "bf16"), ("feddrm/1", "fp32"), ("pfedfda/8", ""),
    }  # fmt: skip
    assert {x["precision"] for x in lines if x["value"] and x["table"] == "feddrm/1"} == {"bf16"}
    read = json.loads(render(grids, "json"))
    assert [t["precision"] for t in read] == ["bf16", "fp32", None]
    assert {c["precision"] for c in read[0]["cells"]} == {"bf16"}


def test_what_fills_the_cells_names_it(lab: Any) -> None:
    assert command(cells(lab, "bf16")) == "fedbench train --table feddrm/1 --budget small --precision bf16"
    assert command(cells(lab, "fp32")) == "fedbench train --table feddrm/1 --budget small"
    assert "--precision bf16" in grid(lab, "bf16").command


def test_cells_of_another_precision_are_pointed_at(lab: Any) -> None:
    lab.run(setting(lab, "bf16", "paper"), "feddrm")
    said = "1 cells are done at another budget and precision: --budget paper --precision bf16"
    assert elsewhere(cells(lab, "fp32"), []) == said
    lab.run(setting(lab, "bf16"), "feddrm")
    assert elsewhere(cells(lab, "fp32"), []) == "1 cells are done at another precision: --precision bf16"
    lab.run(setting(lab, "tf32", "paper"), "feddrm")
    assert elsewhere(cells(lab, "fp32"), []) == "1 cells are done at another budget: --budget paper"
    assert elsewhere(cells(lab, "bf16"), []) == ""


@pytest.mark.parametrize("where", ['train = { precision = "bf16" }', 'budget = { small = { precision = "bf16" } }'])
def test_a_tables_file_cannot_choose_it(tmp_path: Path, where: str) -> None:
    """Or one column of a table could be of another precision than the rest."""
    head = 'title = "Mine"\nprotocol = "feddrm"\nmetric = "system_accuracy"\nstatistic = "last_rounds"\n'
    rows = 'rows = [{ label = "Mine", method = "fedavgft" }]\n'
    column = '[[column]]\nlabel = "IID"\ndataset = "cifar10"\npartition = { scheme = "iid" }\n'
    path = tmp_path / "mine.toml"
    path.write_text(head + (rows + column + where if where.startswith("train") else where + "\n" + rows + column))
    with pytest.raises(FedbenchError, match="'precision'"):
        tables.load(str(path))
