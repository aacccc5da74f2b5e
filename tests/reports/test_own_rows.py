"""Tables that name a user's own files: read from their folder, and mistakes told in one line with their place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fedbench.errors import FedbenchError
from fedbench.reports import table as tables
from fedbench.reports.status.cells import find
from fedbench.reports.status.index import State
from fedbench.specs import DatasetSpec
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
    (tmp_path / "b" / "idea.py").open("a").write("\n# thought over\n")
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
