"""Faulty TOML and CSV files of a user: one line that says what is wrong, or a table that can be laid out."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutate_toml import dumps, mutated

from fedbench import protocol, reader, resources
from fedbench.data import parse
from fedbench.errors import FedbenchError
from fedbench.reports import table as tables
from fedbench.reports.layout.build import build
from fedbench.reports.render import FORMATS, render
from fedbench.reports.table.family import numbers
from fedbench.reports.table.spec import Table
from fedbench.specs import DatasetSpec
from fedbench.store import Store

TABLES = [p for p in sorted(resources.TABLES.glob("*/*.toml")) if p.name != "protocol.toml"]
PROTOCOLS = sorted(resources.TABLES.glob("*/protocol.toml"))
RECIPES = sorted(resources.RECIPES.glob("*.toml"))


def _trees(paths: list[Path]) -> st.SearchStrategy[tuple[Path, str]]:
    """(a shipped file, its text after a change)."""
    return st.sampled_from(paths).flatmap(lambda path: st.tuples(st.just(path), mutated(path)))


def one_line(attempt: Callable[[], Any]) -> Any:
    """What the attempt makes, or None if it ends in an error of one line; anything else fails the test."""
    try:
        return attempt()
    except FedbenchError as error:
        text = str(error)
        assert len(text.splitlines()) == 1, text
        assert text.isprintable() or "\u00a0" in text, text
        return None


@given(case=_trees(TABLES))
def test_tables(case: tuple[Path, str], tmp_path: Path, store: Store) -> None:
    shipped, text = case
    folder = Path(tempfile.mkdtemp(dir=tmp_path))  # of each case: what is read is kept as long as the file is the same
    path = folder / shipped.name
    path.write_text(text, encoding="utf-8")
    if (printed := shipped.with_name("reported.csv")).exists():  # not of tables that no paper has
        shutil.copy(printed, folder)
    for name in one_line(lambda: named(path)) or []:
        if (table := one_line(lambda n=name: tables.load(n))) is not None:
            one_line(lambda t=table: lay_out(t, store))
            one_line(lambda t=table: lay_out(t.for_dataset("digits"), store))
            one_line(lambda t=table: t.only([t.columns[-1].key, "*1*"]))


def named(path: Path) -> list[str]:
    """The first two tables of a file."""
    raw = reader.toml(path)
    return [f"{path}:{number}" for number in numbers(raw, path)[:2]] if "tables" in raw else [str(path)]


def lay_out(table: Table, store: Store) -> None:
    """Print the table over an empty store, with what the paper has."""
    budget = next(iter(protocol.load(table.protocol).budgets)) if table.protocol else "small"
    grid = build(table, budget, store, [], compare=True)
    for form in FORMATS:
        assert render([grid], form)


@pytest.fixture
def protocols(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of protocols in place of fedbench's own."""
    monkeypatch.setattr(protocol, "TABLES", tmp_path)
    protocol.load.cache_clear()
    (tmp_path / "mine").mkdir()
    yield tmp_path / "mine" / "protocol.toml"
    protocol.load.cache_clear()


@given(case=_trees(PROTOCOLS))
def test_protocols(case: tuple[Path, str], protocols: Path) -> None:
    protocols.write_text(case[1], encoding="utf-8")
    protocol.load.cache_clear()
    rules = one_line(lambda: protocol.load("mine"))
    if rules is None:
        return
    for budget in rules.budgets:
        one_line(lambda b=budget: rules.seeds(b))
        one_line(lambda b=budget: rules.method_params("flux", b, "digits"))
    for preset in (None, *rules.presets):
        for name in ("cifar100", "digits"):
            spec = one_line(lambda la=preset, n=name: rules.partition_spec(DatasetSpec(n, "", ""), 10, preset=la))
            for budget in rules.budgets if spec else ():
                one_line(lambda b=budget, s=spec: rules.setting(s, b))


@given(case=_trees(RECIPES))
def test_recipes(case: tuple[Path, str], tmp_path: Path) -> None:
    path = tmp_path / case[0].name
    path.write_text(case[1], encoding="utf-8")
    if (found := one_line(lambda: parse.read(path))) is not None:
        assert found.sources
        assert found.columns is not None


LINES = ["1,FedAvg,,IID,0.5,0.1", "1,FedAvg,,IID,0.5,", "mine,Mine,,IID,1,2"]
PIECES = ["mine", "Mine", "IID", "", "1", "0.5", "nan", "inf", "-1e400", "x", '"', '"a\nb"', ",", "\n", "\x00", "é",
          "table", "row", "group", "column", "value", "std", "\r", "1_0", " 1 ", "\ufeff"]  # fmt: skip


@given(pieces=st.lists(st.lists(st.sampled_from(PIECES), max_size=7), max_size=4), headed=st.booleans())
def test_reported_values(pieces: list[list[str]], headed: bool, tmp_path: Path) -> None:
    head = "table,row,group,column,value,std\n" if headed else ""
    (tmp_path / "reported.csv").write_text(head + "\n".join(map(",".join, pieces)), encoding="utf-8", newline="")
    (tmp_path / "mine.toml").write_text(dumps(MINE))
    table = tables.load(str(tmp_path / "mine.toml"))
    assert one_line(lambda: table.reported) in (None, {}) or set(table.reported) == {("Mine", "IID")}


MINE = {
    "title": "Mine", "protocol": "feddrm", "metric": "system_accuracy", "statistic": "last_rounds",
    "rows": [{"label": "Mine", "method": "fedavgft"}],
    "column": [{"label": "IID", "dataset": "cifar10", "partition": {"scheme": "iid"}}],
}  # fmt: skip
