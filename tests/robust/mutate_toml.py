"""Faulty TOML files: what fedbench ships, with one value, key or type changed at random anywhere in the tree."""

from __future__ import annotations

import copy
import datetime
import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

#: A place in a tree: keys of tables and positions in lists, from the root.
Place = tuple[str | int, ...]

#: What users' editors and scripts leave in texts.
TEXTS = ("", " ", "x", "*", "{", "{a}", "{a.b}", "{dataset}", "{dataset.id}", "[", "/", "../..", "-", "1-3", "3-1",
         "1-999999999", "99999999999-1", "run", "classes", "all", "a\nb", "tab\t", "\x00", "\x1b[31m", "\x7f", "\u2028",
         "\u202e", "é", "\U0001f600", "<script>", "\\input{x}", "x" * 5000, "name in shift", "level in half.levels",
         "count", "preset", "pairs", "folds", "last_rounds", "fedavg", "mnist", "digits", "nan", "inf")  # fmt: skip
NUMBERS = (0, 1, -1, 2, 3, 7, 100, 10**9, 2**31, 2**32, 2**63 - 1, -(2**63), 2**63, 10**30, 10**4000, 0.0, -0.0, 0.5,
           -1.5, 1e-320, 1e308, -1e308, math.inf, -math.inf, math.nan)  # fmt: skip
OTHERS = (True, False, datetime.date(1979, 5, 27), datetime.time(7, 32), datetime.datetime(1979, 5, 27, 7, 32), [], {},
          [[]], [{}], [["x"]], [1], ["x"], [1, "x"], [True], {"x": 1}, {"": {}}, {"x": {"x": []}})  # fmt: skip
#: Keys, known and unknown ones.
KEYS = ("", "x", "id", "path", "name", "title", "label", "rows", "column", "values", "tables", "axes", "own", "each",
        "partition", "train", "budget", "small", "paper", "seeds", "seed", "decimals", "of", "spread", "hidden",
        "dataset", "datasets", "methods", "models", "stages", "preset", "undefined", "claim", "notes", "stub", "costs",
        "smallest", "client", "clients", "a b", "a.b", "é", "\n", "\x00", "k" * 3000)  # fmt: skip


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
    *above, last = draw(st.sampled_from(list(places(tree))))
    node: Any = tree
    for step in above:
        node = node[step]
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
        *way, other = draw(st.sampled_from(list(places(tree))))
        elsewhere: Any = tree
        for step in way:
            elsewhere = elsewhere[step]
        node[last] = copy.deepcopy(elsewhere[other])
    elif action == "like" and isinstance(old, str | int | float):
        node[last] = draw(st.sampled_from([v for v in (*TEXTS, *NUMBERS, True, False) if type(v) is type(old)]))
    else:
        node[last] = draw(values())


def places(node: Any, above: Place = ()) -> Iterator[Place]:
    """Every place of the tree but its root."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for step, value in inner:
        yield (*above, step)
        yield from places(value, (*above, step))


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
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else _escaped(c) for c in value) + '"'


def _escaped(character: str) -> str:
    return f"\\U{ord(character):08X}"
