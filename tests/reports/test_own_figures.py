"""Kinds of figures of one's own: written by `new`, checked, drawn, mistaken."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from string import Template

import pytest

from fedbench.cli import new
from fedbench.errors import FedbenchError
from fedbench.plugins import mistake
from fedbench.reports import figures
from fedbench.reports.figures.checks import CHECKS, FigureSubject
from fedbench.results.frame import Frame
from fedbench.store import Store
from tests.reports.conftest import Draws, Lab, of_csv
from tests.support.frames import refused

KIND = """
from fedbench.reports.figures import Kind

class Mine(Kind):
    '''How many rounds runs have.'''

    def rows(self, request):
        {rows}
        return [{{"line": run.spec.method, "rounds": {value}}} for run in request.runs()]

    def paint(self, figure, rows):
        axes = figure.subplots()
        axes.bar([row["line"] for row in rows], [row["rounds"] for row in rows])
        {paint}
"""


def written(rows: str = "", value: str = "run.spec.setting.rounds", paint: str = "") -> str:
    Path("mine.py").write_text(KIND.format(rows=rows or "pass", value=value, paint=paint or "pass"))
    return "./mine.py:Mine"


@pytest.fixture
def trained(lab: Lab, draws: Draws) -> list[str]:
    """Ids of two runs, in a store of the folder's own."""
    setting = lab.setting("feddrm/1", "CIFAR-10/Dir-0.3")
    clients = {0: 0.5, 1: 0.7, 2: 0.6}
    return [lab.run(setting, method, clients=clients, views=("plain",)).id for method in ("fedavg", "feddrm")]


def verdicts(reference: str, store: Store, empty: Path, filters: list[str]) -> dict[str, str]:
    """Name of a check -> why it does not hold; "" if it does."""
    subject = FigureSubject(figures.kind_of(figures.load(reference)), Frame(store), Store(empty), filters)
    whys = {}
    for proves, _ in CHECKS:
        try:
            proves(subject)
        except Exception as error:
            whys[proves.__name__] = str(error) if isinstance(error, FedbenchError) else mistake(error) or str(error)
        else:
            whys[proves.__name__] = ""
    return whys


def test_the_template_holds_and_is_drawn(lab: Lab, trained: list[str], draws: Draws, tmp_path: Path) -> None:
    text = (new.TEMPLATES / "figure.py.txt").read_text()
    Path("spread.py").write_text(Template(text).substitute(NAME="spread", CLASS="Spread"))
    assert set(verdicts("./spread.py:Spread", lab.store, tmp_path / "empty", trained).values()) == {""}
    answer = draws("./spread.py:Spread", "method=fedavg,feddrm", "-o", "spread.pdf")
    assert answer.stdout == "6 clients of 2 runs\n"
    assert (tmp_path / "spread.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "spread.pdf.txt").read_text().startswith("Spread: Final accuracy of each client, best first\n")
    rows = of_csv(draws("./spread.py", "method=fedavg", "--csv").stdout)
    assert [(row["figure"], row["x"], float(row["accuracy"])) for row in rows] == [
        ("Spread", str(place), value) for place, value in enumerate((0.7, 0.6, 0.5), 1)
    ]
    (panel,) = json.loads(draws("./spread.py", "method=fedavg", "--json").stdout)["panels"]
    assert panel["title"] == "cifar10, Dir-0.3"
    assert [row["accuracy"] for row in panel["rows"]] == [0.7, 0.6, 0.5]
    setting = lab.setting("feddrm/1", "CIFAR-10/Dir-0.3")
    other = replace(setting.partition, options={**setting.partition.options, "alpha": 0.1})
    lab.run(replace(setting, partition=other), "fedavg", clients={0: 0.5, 2: 0.6}, views=("plain",))  # 1 has no images
    panels = json.loads(draws("./spread.py", "method=fedavg", "--json").stdout)["panels"]
    assert {panel["title"]: len(panel["rows"]) for panel in panels} == {"cifar10, Dir-0.3": 3, "cifar10, Dir-0.1": 2}


def test_a_figure_of_one_s_own_file_can_be_of_one_s_own_kind(trained: list[str], draws: Draws, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    written()
    Path("mine.py").rename("sub/mine.py")
    Path("sub/figures.toml").write_text('[[figure]]\ntitle = "Rounds"\nkind = "./mine.py:Mine"\n')
    told = json.loads(draws("sub/figures.toml", "method=fedavg", "--json").stdout)
    assert (told["title"], told["panels"][0]["rows"]) == ("Rounds", [{"line": "fedavg", "rounds": 400}])


@pytest.mark.parametrize(
    ("fault", "check", "why"),
    [
        (
            {"rows": "import numpy as np", "value": "np.int64(3)"},
            "rows_are_plain_values",
            "row 1 has a value of type numpy",
        ),
        ({"value": "float('nan')"}, "rows_are_plain_values", "a number that is not finite (nan) in 'rounds'"),
        ({"rows": "return {}"}, "rows_are_plain_values", "rows returns no list of dictionaries"),
        ({"rows": "return []"}, "rows_are_plain_values", "rows returns nothing for these runs"),
        ({"rows": "import random", "value": "random.random()"}, "the_same_rows_again", "the rows of two calls differ"),
        ({"paint": "1 / 0"}, "the_painter_draws", "mine.py, line 14, in paint: ZeroDivisionError"),
        ({"paint": "rows.pop()"}, "the_rows_are_all_that_is_drawn", "paint changes the rows"),
        (
            {"paint": "import random; axes.set_title(str(random.random()))"},
            "the_rows_are_all_that_is_drawn",
            "the picture of the same rows differs",
        ),
        ({"rows": "return [{'rounds': 1, 'line': 'a'}]"}, "an_empty_request_is_one_line", "has no run, and yet 1 row"),
        ({"rows": "1 / 0"}, "rows_are_plain_values", "mine.py, line 8, in rows: ZeroDivisionError"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_each_fault_fails_its_check(
    lab: Lab, trained: list[str], tmp_path: Path, fault: dict[str, str], check: str, why: str
) -> None:
    found = verdicts(written(**fault), lab.store, tmp_path / "empty", trained)
    assert why in found[check]
    assert "\n" not in found[check]


def test_a_mistake_is_one_line_with_its_place(trained: list[str], draws: Draws) -> None:
    refused("mine.py, line 8, in rows: ZeroDivisionError", draws, written(rows="1 / 0"), "--csv")
    refused("mine.py, line 14, in paint: ZeroDivisionError", draws, written(paint="1 / 0"))
    refused("unknown kind of figure class in ./mine.py:Mein 'Mein'; did you mean 'Mine'", draws, "./mine.py:Mein")
    refused("no file ./none.py to take the kind of figure from", draws, "./none.py:Mine")
    refused("Mine has no rows; choose runs that it shows", draws, written(rows="return []"), "--csv")
    refused("--metric does not go with Mine; it takes FILTER", draws, written(), "--metric", "loss")
