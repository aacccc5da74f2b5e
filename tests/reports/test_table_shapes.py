"""Tables and families of the wrong shape: one line with the place, never a traceback, never a computer without end."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbench.errors import FedbenchError
from fedbench.reports import table as tables

HEAD = 'title = "Mine"\nprotocol = "feddrm"\nmetric = "system_accuracy"\nstatistic = "last_rounds"\n'
ROWS = 'rows = [{ label = "Mine", method = "fedavgft" }]\n'
COLUMN = 'column = [{ label = "IID", dataset = "cifar10", partition = { scheme = "iid" } }]\n'
RIGHT = HEAD + ROWS + COLUMN


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (RIGHT + 'notes = [["x"]]', "mine.toml, notes 1 must be text, not ['x']"),
        (RIGHT + "undefined = 1", "mine.toml, undefined must be a list, not 1"),
        (RIGHT + "undefined = [1]", "mine.toml, undefined 1 must be a table of keys, not 1"),
        (RIGHT + "undefined = [{ columns = [1] }]", "undefined 1, columns 1 must be text, not 1"),
        (RIGHT + "claim = { text = 1 }", "mine.toml, claim must be a list, not {'text': 1}"),
        (RIGHT + "stub = 1", "mine.toml, stub must be text, not 1"),
        (RIGHT + 'smallest = { train = "x" }', "smallest.train must be a whole number, not 'x'"),
        (RIGHT + "seeds = [0.5]", "mine.toml, seeds 1 must be a whole number, not 0.5"),
        (RIGHT + "seeds = [-1]", "mine.toml, seeds 1 must lie in 0 to 4,294,967,295, not -1"),
        (RIGHT + "decimals = 2000000000", "mine.toml, decimals must lie in 0 to 15, not 2000000000"),
        (RIGHT + "budget = { small = 1 }", "mine.toml, budget.small must be a table of keys, not 1"),
        (RIGHT + "budget.small.lr = 'x'", "mine.toml, budget.small.lr must be a number, not 'x'"),
        (HEAD.replace('"feddrm"', "[1]") + ROWS + COLUMN, "mine.toml, protocol must be text, not [1]"),
        (HEAD.replace('"feddrm"', "1") + 'rows = "all"\n' + COLUMN, "mine.toml, protocol must be text, not 1"),
        (HEAD + 'rows = "some"\n' + COLUMN, "unknown rows in"),
        (HEAD.replace('"feddrm"', '"../x"') + ROWS + COLUMN, "unknown protocol '../x'"),
        (HEAD + ROWS + COLUMN.replace('"iid"', '"iid", alpha = "x"'), "column 1, partition.alpha must be a number"),
        (HEAD + ROWS + COLUMN.replace('"IID"', '"IID", clients = ["a", 2]'), "column 1, clients 1 must be a whole"),
        (HEAD + ROWS + COLUMN.replace('"IID"', '"IID", of = [1]'), "mine.toml, column 1, of 1 must be text, not 1"),
        (HEAD + ROWS + COLUMN.replace('"IID"', '"IID", stands_in = { x = 1 }'), "stands_in.x must be a table"),
        (HEAD + ROWS.replace('"Mine"', '"Mine", band = ["x", 1]') + COLUMN, "row 1, band 1 must be a number"),
        (HEAD + ROWS.replace('"Mine"', '"Mine", params = { a = [1] }') + COLUMN, "row 1, params.a must be text or"),
    ],
)  # fmt: skip
def test_wrong_shapes(tmp_path: Path, text: str, says: str) -> None:
    assert says in _error(tmp_path / "mine.toml", text)


FAMILY = """
tables = ["1-2"]
axes = ["dataset"]
title = "{dataset.id}"
protocol = "feddrm"
metric = "system_accuracy"
statistic = "last_rounds"
rows = [{ label = "Mine", method = "fedavgft" }]
[values]
dataset = [{ id = "digits", n = ["1"] }, { id = "mnist", n = ["2"] }]
many = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
[[column]]
each = ["n in dataset.n"]
label = "{n}"
dataset = "{dataset.id}"
partition = { scheme = "iid" }
"""
EACH = 'each = ["n in dataset.n"]'
TENFOLD = ", ".join(f'"{name} in many"' for name in "abcdefghijkn")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('tables = ["1-2"]', 'tables = "1-2"', "family.toml, tables must be a list, not '1-2'"),
        ('tables = ["1-2"]', "tables = [1, 2]", "family.toml, tables 1 must be text, not 1"),
        ('tables = ["1-2"]', 'tables = ["1-999999999"]', "has more than 1,000 tables"),
        ('tables = ["1-2"]', 'tables = ["2-1"]', "names 0 tables, but its axes make 2"),
        ('tables = ["1-2"]', f'tables = ["1-{"9" * 5000}"]', "names 1 tables, but its axes make 2"),
        ('axes = ["dataset"]', "axes = 1", "family.toml, axes must be a list, not 1"),
        ('axes = ["dataset"]', "axes = [[1]]", "family.toml, axes 1 must be text, not [1]"),
        ('axes = ["dataset"]', 'axes = ["many", "many"]', "axes holds 'many' twice"),
        ('axes = ["dataset"]', f"axes = {['many', 'dataset']}", "names 2 tables, but its axes make 20"),
        ("[values]", "[[values]]", "family.toml, values must be a table of keys, not [{"),
        ("[values]", "[values]\nother = 1", "family.toml, values.other must be a list, not 1"),
        ('{ id = "mnist"', '{ no = "mnist"', "values.dataset 2 lacks 'id'"),
        ('{ id = "mnist"', "{ id = 1", "values.dataset 2 lacks 'id'"),
        (EACH, "each = 1", "family.toml, each must be a list, not 1"),
        (EACH, "each = [1]", "family.toml, each 1 must be text, not 1"),
        (EACH, 'each = ["n of dataset.n"]', "each = 'n of dataset.n' is neither 'name' nor 'name in other.key'"),
        (EACH, 'each = ["n in dataset.id"]', "each = 'n in dataset.id' needs a list, not 'mnist'"),
        (EACH, f"each = [{TENFOLD}]", "makes too large a table"),
        ('"{dataset.id}"', f'"{"{many}" * 3}"', "{many} is a list, which cannot stand within a text"),
        ('title = "{dataset.id}"', 'title = "{dataset.id}"\nown = 1', "family.toml, own must be a table of keys"),
        ('title = "{dataset.id}"', 'title = "{dataset.id}"\nown.2 = 1', "family.toml, own.2 must be a table of keys"),
        ('title = "{dataset.id}"', 'title = "{dataset.id}"\nown.2.title = ["x"]', "table 2, title must be text"),
        ('title = "{dataset.id}"', 'title = "{dataset.id}"\nown.3.title = "x"', "unknown table in"),
    ],
)  # fmt: skip
def test_wrong_families(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in FAMILY
    assert says in _error(tmp_path / "mine.family.toml", FAMILY.replace(old, new, 1), ":2")


def test_a_placeholder_in_a_value_is_text_and_not_filled_again(tmp_path: Path) -> None:
    path = tmp_path / "mine.family.toml"
    path.write_text(FAMILY.replace('{ id = "digits"', '{ name = "{dataset.name}", id = "digits"', 1))
    assert tables.load(f"{path}:1").title == "digits"
    path = tmp_path / "self.family.toml"
    text = FAMILY.replace('id = "digits"', 'id = "{dataset.id}"', 1)
    assert "unknown dataset '{dataset.id}'" in _error(path, text, ":1")


def test_long_texts_do_not_multiply_without_end(tmp_path: Path) -> None:
    long = FAMILY.replace('id = "digits"', f'id = "{"x" * 10**5}"', 1)
    text = long.replace('title = "{dataset.id}"', f'title = "{"{dataset.id} " * 10**4}"')
    assert "makes too large a table" in _error(tmp_path / "mine.family.toml", text, ":1")


def _error(path: Path, text: str, number: str = "") -> str:
    path.write_text(text)
    with pytest.raises(FedbenchError) as caught:
        tables.load(f"{path}{number}")
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)
