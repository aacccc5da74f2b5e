"""Faulty TOML and CSV files of a user: one line that says what is wrong, or a table that can be laid out."""

from __future__ import annotations

import copy
import datetime
import math
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command import nodes
from hypothesis import given
from hypothesis import strategies as st

from fedbench import protocol, reader, resources
from fedbench.data import catalogue
from fedbench.errors import FedbenchError
from fedbench.planner import table as tables
from fedbench.planner.table.family import numbers
from fedbench.planner.table.spec import Table
from fedbench.reports.render import FORMATS, render
from fedbench.specs import DatasetSpec
from fedbench.store import Store
from tests.support.figures_lab import build

#: What users' editors and scripts leave in texts.
TEXTS = (
    "",
    " ",
    "x",
    "*",
    "{",
    "{a}",
    "{a.b}",
    "{dataset}",
    "{dataset.id}",
    "[",
    "/",
    "../..",
    "-",
    "1-3",
    "3-1",
    "1-999999999",
    "99999999999-1",
    "run",
    "classes",
    "all",
    "a\nb",
    "tab\t",
    "\x00",
    "\x1b[31m",
    "\x7f",
    "\u2028",
    "\u202e",
    "é",
    "\U0001f600",
    "<script>",
    "\\input{x}",
    "x" * 5000,
    "name in shift",
    "level in half.levels",
    "count",
    "preset",
    "pairs",
    "folds",
    "last_rounds",
    "fedavg",
    "mnist",
    "digits",
    "nan",
    "inf",
)
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    100,
    10**9,
    2**31,
    2**32,
    2**63 - 1,
    -(2**63),
    2**63,
    10**30,
    10**4000,
    0.0,
    -0.0,
    0.5,
    -1.5,
    1e-320,
    1e308,
    -1e308,
    math.inf,
    -math.inf,
    math.nan,
)
OTHERS = (
    True,
    False,
    datetime.date(1979, 5, 27),
    datetime.time(7, 32),
    datetime.datetime(1979, 5, 27, 7, 32),
    [],
    {},
    [[]],
    [{}],
    [["x"]],
    [1],
    ["x"],
    [1, "x"],
    [True],
    {"x": 1},
    {"": {}},
    {"x": {"x": []}},
)
#: Keys, known and unknown ones.
KEYS = (
    "",
    "x",
    "id",
    "path",
    "name",
    "title",
    "label",
    "rows",
    "column",
    "values",
    "tables",
    "axes",
    "own",
    "each",
    "partition",
    "train",
    "budget",
    "small",
    "paper",
    "seeds",
    "seed",
    "decimals",
    "of",
    "spread",
    "hidden",
    "dataset",
    "datasets",
    "methods",
    "models",
    "stages",
    "preset",
    "undefined",
    "claim",
    "notes",
    "stub",
    "costs",
    "smallest",
    "client",
    "clients",
    "a b",
    "a.b",
    "é",
    "\n",
    "\x00",
    "k" * 3000,
)


@dataclass(frozen=True)
class Nested:
    """A list in a list in a list ..."""

    depth: int


def values() -> st.SearchStrategy[Any]:
    """Any value of TOML, plain or nested, harmless or not."""
    leaf = st.sampled_from(TEXTS) | st.sampled_from(NUMBERS) | st.sampled_from(OTHERS) | st.text(max_size=8)
    tree = st.recursive(leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys(), inner, max_size=3))
    return st.one_of(leaf, leaf, tree, st.integers(1, 3000).map(Nested)).map(copy.deepcopy)


@st.composite
def mutated(draw: st.DrawFn, path: Path) -> str:
    """The text of a TOML file after one change of its tree, sometimes two."""
    faulty = tomllib.loads(path.read_text(encoding="utf-8"))
    for _ in range(draw(st.sampled_from((1, 1, 1, 2)))):
        _change(draw, faulty)
    return dumps(faulty)


def _change(draw: st.DrawFn, tree: dict[str, Any]) -> None:
    if not tree:  # the change before took all there was
        tree["x"] = draw(values())
        return
    node, last = _place(draw, tree)
    old = node[last] if isinstance(node, list) else node.get(last)
    action = draw(st.sampled_from(("like", "like", "like", "value", "value", "wrap", "drop", "key", "repeat", "swap")))
    if action == "drop":
        del node[last]
    elif action == "wrap":
        node[last] = draw(st.sampled_from(([old], {"x": old}, [old, old], [[old]])))
    elif action == "key" and isinstance(node, dict):
        node[draw(_keys())] = node.pop(last, draw(values()))
    elif action == "repeat" and isinstance(node, list):
        node.insert(0, copy.deepcopy(old))
    elif action == "swap":
        elsewhere, other = _place(draw, tree)
        node[last] = copy.deepcopy(elsewhere[other])
    elif action == "like" and isinstance(old, str | int | float):
        node[last] = draw(st.sampled_from([v for v in (*TEXTS, *NUMBERS, True, False) if type(v) is type(old)]))
    else:
        node[last] = draw(values())


def _place(draw: st.DrawFn, tree: dict[str, Any]) -> tuple[Any, Any]:
    found = list(nodes(tree))
    return found[draw(st.integers(0, len(found) - 1))]


def _keys() -> st.SearchStrategy[str]:
    return st.sampled_from(KEYS) | st.text(max_size=5)


def dumps(tree: dict[str, Any]) -> str:
    """TOML of a tree, all below its first level inline. Texts are written as they are, allowed in TOML or not."""
    return "".join(f"{_text(key)} = {_inline(value)}\n" for key, value in tree.items())


def _inline(value: Any) -> str:
    if isinstance(value, Nested):
        return "[" * value.depth + "]" * value.depth
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)} = {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _text(value)
    return str(value)


def _text(value: str) -> str:
    """A quoted text, with what TOML cannot hold escaped (and so allowed)."""
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in value) + '"'


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
    grid = build(table, budget, store, compare=True)
    for form in FORMATS:
        assert render([grid], form)


@pytest.fixture
def protocols(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of protocols in place of fedbench's own."""
    monkeypatch.setattr(resources, "TABLES", tmp_path)
    protocol._read.cache_clear()
    (tmp_path / "mine").mkdir()
    yield tmp_path / "mine" / "protocol.toml"
    protocol._read.cache_clear()


@given(case=_trees(PROTOCOLS))
def test_protocols(case: tuple[Path, str], protocols: Path) -> None:
    protocols.write_text(case[1], encoding="utf-8")
    protocol._read.cache_clear()
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
    if (found := one_line(lambda: catalogue.read(path))) is not None:
        assert found.sources
        assert found.columns is not None


PIECES = [
    "mine",
    "Mine",
    "IID",
    "",
    "1",
    "0.5",
    "nan",
    "inf",
    "-1e400",
    "x",
    '"',
    '"a\nb"',
    ",",
    "\n",
    "\x00",
    "é",
    "table",
    "row",
    "group",
    "column",
    "value",
    "std",
    "\r",
    "1_0",
    " 1 ",
    "\ufeff",
]


@given(pieces=st.lists(st.lists(st.sampled_from(PIECES), max_size=7), max_size=4), headed=st.booleans())
def test_reported_values(pieces: list[list[str]], headed: bool, tmp_path: Path) -> None:
    head = "table,row,group,column,value,std\n" if headed else ""
    (tmp_path / "reported.csv").write_text(head + "\n".join(map(",".join, pieces)), encoding="utf-8", newline="")
    (tmp_path / "mine.toml").write_text(dumps(MINE))
    table = tables.load(str(tmp_path / "mine.toml"))
    assert one_line(lambda: table.reported) in (None, {}) or set(table.reported) == {("Mine", "IID")}


MINE = {
    "title": "Mine",
    "protocol": "feddrm",
    "metric": "system_accuracy",
    "statistic": "last_rounds",
    "rows": [{"label": "Mine", "method": "fedavgft"}],
    "column": [{"label": "IID", "dataset": "cifar10", "partition": {"scheme": "iid"}}],
}
