"""Tables that name a user's own files: read from their folder, and mistakes told in one line with their place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedbench.errors import FedbenchError
from fedbench.reports import table as tables
from fedbench.reports.layout.build import build
from fedbench.reports.layout.grid import Grid
from fedbench.reports.status.cells import find
from fedbench.reports.status.index import State
from fedbench.specs import DatasetSpec, RunSpec
from tests.support.own_table import own_images, own_table

MINE = 'label = "Mine", method = "./idea.py:Idea"'


def specs(path: Path, lab: Any) -> list[str]:
    """Ids of all runs that the table needs."""
    return [spec.id for cell in find(tables.load(str(path)), "smoke", lab.store, []).all for spec in cell.specs]


def test_files_are_seen_from_the_tables_folder(lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = own_table(tmp_path)
    there = specs(path, lab)
    monkeypatch.chdir(tmp_path)
    assert specs(Path("mine.toml"), lab) == there
    assert len(set(there)) == 6


def test_the_same_text_elsewhere_is_the_same_method_network_and_partitioner(lab: Any, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    assert specs(own_table(tmp_path / "a"), lab) == specs(own_table(tmp_path / "b"), lab)
    (tmp_path / "b" / "idea.py").open("a").write("\nOVER = 1\n")
    changed = specs(tmp_path / "b" / "mine.toml", lab)
    same = [a == b for a, b in zip(specs(tmp_path / "a" / "mine.toml", lab), changed, strict=True)]
    assert same == [True, True, False, False, False, False], "FedAvg's runs know nothing of that file"


def test_a_data_set_of_ones_own_is_its_recipe(lab: Any, tmp_path: Path) -> None:
    own_images(tmp_path)
    path = own_table(tmp_path, ('"digits"', '"./pets.toml"'))
    cells = find(tables.load(str(path)), "smoke", lab.store, [])
    assert cells.absent == {}
    assert {c.column.dataset for c in cells.all} == {"pets"}
    assert all(isinstance(s.setting.partition.dataset, DatasetSpec) for c in cells.all for s in c.specs)


def test_a_planned_row_is_not_built_until_its_method_is_there(lab: Any, tmp_path: Path) -> None:
    path = own_table(tmp_path, ('method = "fedavg"', 'method = "fedsplendid", planned = true'))
    states = {c.row.label: c.state for c in find(tables.load(str(path)), "smoke", lab.store, []).all}
    assert states == {"FedAvg": State.NOT_BUILT, "Mine": State.MISSING, "Mine, 0.1": State.MISSING}
    path = own_table(tmp_path, ('method = "fedavg"', 'method = "fedavg", planned = true'))
    states = {c.row.label: c.state for c in find(tables.load(str(path)), "smoke", lab.store, []).all}
    assert states["FedAvg"] is State.MISSING


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('"fedavg"', '"fedavgg"'), "unknown method in {0}, row FedAvg 'fedavgg'; did you mean 'fedavg'?"),
        (("mu = 0.1", "nu = 0.1"), "{0}, row Mine, 0.1: unknown option of idea 'nu'; known: mu"),
        (("mu = 0.1", 'mu = "x"'), "{0}, row Mine, 0.1: --mu of idea takes a number, not 'x'"),
        ((MINE, MINE.replace(":Idea", ":Ideal")), "{0}, row Mine: unknown method class in .*'Ideal'; did you mean"),
        ((MINE, MINE.replace("idea.py", "nowhere.py")), "{0}, row Mine: no file .*nowhere.py to take the method from"),
        (("net.py:Net", "net.py:Nett"), "{0}, column Net: unknown model class in .* 'Nett'; did you mean 'Net'"),
        (("net.py", "nowhere.py"), "{0}, column Net: no file .*nowhere.py to take the model from"),
        (("Bright", "Brigt"), "{0}, column Bands: unknown partitioner class in .*'Brigt'; did you mean 'Bright'?"),
        (("bands = 2", "bnds = 2"), "{0}, column Bands: unknown option of partitioner Bright 'bnds'; did you mean"),
        (("bands = 2", "bands = 0"), "{0}, column Bands: --bands of Bright must be at least 1, not 0"),
        (('"digits"', '"digts"'), "{0}, column Net: unknown dataset 'digts'; did you mean 'digits'?"),
        (('"digits"', '"./pts.toml"'), "{0}, column Net: there is no recipe file .*pts.toml; give the path of"),
    ],
)
def test_a_mistake_is_told_with_its_row_or_column(change: tuple[str, str], told: str, lab: Any, tmp_path: Path) -> None:
    path = own_table(tmp_path, change)
    with pytest.raises(FedbenchError) as raised:
        specs(path, lab)
    assert re.match(told.format(re.escape(str(path))), str(raised.value))


def test_a_recipe_that_is_called_as_another_is_refused(lab: Any, tmp_path: Path) -> None:
    recipe = own_images(tmp_path)
    (tmp_path / "digits.toml").write_text(recipe.read_text())
    path = own_table(tmp_path, ('"digits"', '"./digits.toml"'))
    with pytest.raises(FedbenchError, match=r"column Net: .* has the name of fedbench's own data set digits; rename"):
        specs(path, lab)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "pets.toml").write_text(recipe.read_text())
    text = path.read_text().replace("./digits.toml", "./pets.toml", 1).replace("./digits.toml", "./more/pets.toml")
    path.write_text(text)
    with pytest.raises(FedbenchError, match=r"column Bands: two data sets are called pets: .*; rename one"):
        specs(path, lab)


def stored(path: Path, lab: Any, row: str, column: str, value: float) -> RunSpec:
    """A run of a cell in the store, as if it had been trained by the file as it is."""
    cells = find(tables.load(str(path)), "smoke", lab.store, [])
    (cell,) = (c for c in cells.all if (c.row.label, c.column.key) == (row, column))
    (spec,) = cell.specs
    with lab.store.writing(spec) as writer:
        writer.table("rounds", pa.table({"round": [1]}))
        writer.provenance = {"overrides": dict(cell.row.params), "defaults": {"mu": 0.01}, "title": "Idea"}
    run = lab.store.open("run", spec.id)
    lab.metrics(run, value, {"system_accuracy": lambda _: value}, {}, {}, {}, ("crop", "plain"))
    return spec


def grid(path: Path, lab: Any) -> Grid:
    return build(tables.load(str(path)), "smoke", lab.store, [], extra=True)


def printed(path: Path, lab: Any) -> dict[str, list[str]]:
    return {line.label: [e.text for e in line.entries] for line in grid(path, lab).lines}


def test_after_the_file_changed_earlier_runs_are_rows_of_their_own(lab: Any, tmp_path: Path) -> None:
    path = own_table(tmp_path)
    source = stored(path, lab, "Mine", "Net", 0.5).source
    stored(path, lab, "Mine, 0.1", "Bands", 0.25)
    assert printed(path, lab) == {"FedAvg": ["", ""], "Mine": ["50.0", ""], "Mine, 0.1": ["", "25.0"]}
    (tmp_path / "idea.py").open("a").write("\nOVER = 1\n")
    assert source is not None
    earlier = f"file {source[:8]}"
    assert printed(path, lab) == {
        "FedAvg": ["", ""], "Mine": ["", ""], "Mine, 0.1": ["", ""],
        f"Idea ({earlier})": ["50.0", ""], f"Idea (mu = 0.1, {earlier})": ["", "25.0"],
    }  # fmt: skip
    assert f"{earlier}: another text of idea.py than it has now." in grid(path, lab).about
    path = own_table(tmp_path, ('label = "Mine", ', 'label = "Idea", '))
    assert printed(path, lab)[f"Idea ({earlier})"] == ["50.0", ""]


def test_an_extra_row_says_what_it_has_otherwise_than_the_row_of_its_title(lab: Any, tmp_path: Path) -> None:
    before = own_table(tmp_path)
    stored(before, lab, "Mine", "Net", 0.5)
    only = [(f"  {{ {MINE} }},\n", ""), ('"Mine, 0.1"', '"Idea"')]
    assert printed(own_table(tmp_path, *only), lab)["Idea (mu = default)"] == ["50.0", ""]


def test_a_row_without_a_label_is_called_as_its_method_is_titled(lab: Any, tmp_path: Path) -> None:
    path = own_table(tmp_path, *((f'label = "{old}", ', "") for old in ("FedAvg", "Mine", "Mine, 0.1")))
    assert [row.label for row in tables.load(str(path)).rows] == ["FedAvg", "Idea", "Idea (mu = 0.1)"]
    text = (tmp_path / "idea.py").read_text()
    (tmp_path / "idea.py").write_text(text.replace('title = "Idea"', 'title = "FedIdea"') + "\nraise SystemExit\n")
    assert tables.load(str(path)).rows[1].label == "FedIdea", "read from its source, which is not run"
    planned = own_table(tmp_path, ('label = "FedAvg", method = "fedavg"', 'method = "fedsplendid", planned = true'))
    assert tables.load(str(planned)).rows[0].label == "fedsplendid"
    for change, told in (
        (('label = "FedAvg", method = "fedavg"', ""), "row 1 lacks 'label'"),
        (('label = "FedAvg", method = "fedavg"', 'method = "fedavgg"'), "row 1: unknown method 'fedavgg'; did you"),
    ):
        with pytest.raises(FedbenchError) as raised:
            tables.load(str(own_table(tmp_path, change)))
        assert told in str(raised.value)


def test_a_folder_of_clients_is_a_data_set_beside_the_table(lab: Any, tmp_path: Path) -> None:
    for side in ("train", "test"):
        (tmp_path / "fed" / side).mkdir(parents=True)
        for client in range(4):
            x, y = np.zeros((12, 1, 8, 8), np.float32), np.arange(12) % 3
            np.savez_compressed(tmp_path / "fed" / side / f"{client}.npz", x=x, y=y)
    path = own_table(tmp_path, ('"digits"', '"./fed"'))
    spec = stored(path, lab, "Mine", "Net", 0.5)
    assert spec.setting.partition.dataset.name == "fed"
    assert printed(path, lab)["Mine"] == ["50.0", ""]


def test_a_folder_of_the_hubs_form_and_its_options_are_a_data_set_too(lab: Any, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    own_images(tmp_path)
    path = own_table(tmp_path, ('"digits"', '"hf:./pets,size=8"'))
    stored(path, lab, "Mine", "Net", 0.5)
    only = ("  { " + MINE + " },\n", "")
    assert printed(path, lab)["Mine"] == ["50.0", ""]
    assert printed(own_table(tmp_path, ('"digits"', '"hf:./pets,size=8"'), only), lab)["Idea"] == ["50.0", ""]
    assert printed(own_table(tmp_path, ('"digits"', '"hf:./pets,size=9"')), lab)["Mine"] == ["", ""]
