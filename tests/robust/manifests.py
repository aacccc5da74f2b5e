"""A small store that has everything, and what may happen to one of its files."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

#: What an edit is: its name, and what it does to the file.
Edit = tuple[str, Callable[[Path], None]]

#: Positions are drawn as shares of what a file happens to hold: times make it some bytes longer or shorter.
_SHARES = st.floats(0, 1, exclude_max=True)
_VALUES = st.one_of(
    st.sampled_from([None, True, -1, 0, 2**63, 10**400, 1.5, float("nan"), float("inf"), "", "x", "../..", "[/x]"]),
    st.sampled_from([[], {}, [[]], {"": None}, "\ud800", "\x1b[2J", "x\ny", "fedavg", "local", 2027, "0" * 12, 1e400]),
    st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda s: st.lists(s, max_size=3), max_leaves=5),
)


def files(home: Path) -> list[str]:
    """All files of a store, relative to it, but for locks."""
    return sorted(str(p.relative_to(home)) for p in home.rglob("*") if p.is_file() and p.name != ".lock")


@st.composite
def edits(draw: st.DrawFn, home: Path) -> tuple[str, Edit]:
    """One file of the store, and one edit; JSON is drawn three times as often as Parquet."""
    names = files(home)
    texts = [name for name in names if name.endswith(".json")]
    name = draw(st.one_of(*[st.sampled_from(texts)] * 3, st.sampled_from(names)))
    bytewise = [partial(_bytes, how) for how in _BYTEWISE]
    kinds = [*bytewise, _replaced, _swapped, _touched, *([_value, _key, *[_plausible] * 4] if name in texts else [])]
    return name, draw(draw(st.sampled_from(kinds))(home, name))


# -- bytes ------------------------------------------------------------------------------------------------------------


#: Name -> values to draw from, and what one of them does to the content at a place.
_BYTEWISE: dict[str, tuple[Sequence[int], Callable[[bytearray, int, int], object]]] = {
    "bit {} flipped": (range(8), lambda content, at, bit: content.__setitem__(at, content[at] ^ (1 << bit))),
    "byte {:#x} put": ([0, 0xFF, 0x0A, *b'0159"{}[],:ex'], lambda content, at, value: content.__setitem__(at, value)),
    "byte {:#x} inserted": ([0, 0xFF, 0x0A, *b'01 "{[,'], lambda content, at, value: content.insert(at, value)),
    "byte deleted": ([0], lambda content, at, _: content.__delitem__(at)),
    "truncated": ([0], lambda content, at, _: content.__delitem__(slice(at, None))),
    "repeated": ([0], lambda content, at, _: content.extend(content[at:])),
}


def _bytes(how: str, home: Path, name: str) -> st.SearchStrategy[Edit]:
    values, change = _BYTEWISE[how]

    def edit(value: int, share: float) -> Edit:
        def apply(path: Path) -> None:
            content = bytearray(path.read_bytes())
            change(content, int(share * len(content)), value)
            path.write_bytes(bytes(content))

        return f"{how.format(value)} at {share:.6f} of it", apply

    return st.builds(edit, st.sampled_from(values), _SHARES)


# -- the whole file ---------------------------------------------------------------------------------------------------


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link(target: str) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        path.unlink()
        path.symlink_to(target.format(name=path.name))

    return apply


#: chmod stops nobody who is root; a link to itself stops everybody.
WHOLE: dict[str, Callable[[Path], None]] = {
    "empty": lambda path: path.write_bytes(b"") and None,
    "not UTF-8": lambda path: path.write_bytes(b'{"sch\xff\xfeema": 1}') and None,
    "UTF-16": lambda path: path.write_bytes('{"schema": 1}'.encode("utf-16")) and None,
    "no object": lambda path: path.write_text("[]") and None,
    "an empty object": lambda path: path.write_text("{}") and None,
    "deep": lambda path: path.write_text("[" * 100_000) and None,
    "gone": Path.unlink,
    "a folder": _folder,
    "a link to itself": _link("{name}"),
    "a link to nowhere": _link("nowhere"),
    "a link to a device": _link("/dev/null"),
    "unreadable": lambda path: path.chmod(0),
}


def _replaced(home: Path, name: str) -> st.SearchStrategy[Edit]:
    return st.sampled_from([(f"{what} in its place", apply) for what, apply in WHOLE.items()])


def _swapped(home: Path, name: str) -> st.SearchStrategy[Edit]:
    """Change places with, or become a copy of, another file, of the same ending if there is one."""
    others = [other for other in files(home) if other != name]
    others = [other for other in others if Path(other).suffix == Path(name).suffix] or others

    def edit(other: str, both: bool) -> Edit:
        def apply(path: Path) -> None:
            there = path.parents[len(Path(name).parts) - 1] / other
            mine, theirs = path.read_bytes(), there.read_bytes()
            path.write_bytes(theirs)
            if both:
                there.write_bytes(mine)

        return f"{'swapped with' if both else 'a copy of'} {other}", apply

    return st.builds(edit, st.sampled_from(others), st.booleans())


def _touched(home: Path, name: str) -> st.SearchStrategy[Edit]:
    def edit(seconds: float) -> Edit:
        return f"dated {seconds:g} s from now", lambda path: os.utime(path, (time.time() + seconds,) * 2)

    return st.builds(edit, st.sampled_from([-1e9, -1e4, 1e4, 1e9]))


# -- JSON -------------------------------------------------------------------------------------------------------------


def _nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a JSON value: (container, key or index)."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _nodes(inner)


def _json(name: str, change: Callable[[Any, Any], None]) -> st.SearchStrategy[Edit]:
    def edit(share: float) -> Edit:
        def apply(path: Path) -> None:
            value = json.loads(path.read_text())
            places = list(_nodes(value))
            if places:
                change(*places[int(share * len(places))])
            path.write_text(json.dumps(value, indent=1, sort_keys=True))

        return f"{name} at {share:.6f} of its places", apply

    return st.builds(edit, _SHARES)


def _value(home: Path, name: str) -> st.SearchStrategy[Edit]:
    return _VALUES.flatmap(lambda new: _json(f"{new!r} put", lambda box, key: box.__setitem__(key, new)))


def _plausible(home: Path, name: str) -> st.SearchStrategy[Edit]:
    """Another value of its kind: another method, seed, id or checksum of this store, or a number's next."""
    leaves: dict[type, list[Any]] = {}
    for path in sorted(home.rglob("*.json")):
        for box, key in _nodes(json.loads(path.read_text())):
            leaves.setdefault(type(box[key]), []).append(box[key])

    def change(at: int) -> Callable[[Any, Any], None]:
        def put(box: Any, key: Any) -> None:
            old = box[key]
            if isinstance(old, int | float) and not isinstance(old, bool) and at % 2:
                box[key] = old + 1
            elif others := [leaf for leaf in leaves.get(type(old), ()) if leaf != old]:
                box[key] = others[at % len(others)]

        return put

    return st.integers(0, 999).flatmap(lambda at: _json(f"another value of its kind ({at})", change(at)))


def _key(home: Path, name: str) -> st.SearchStrategy[Edit]:
    def renamed(box: Any, key: Any) -> None:
        if isinstance(box, dict):
            box["renamed"] = box.pop(key)

    return st.one_of(
        _json("left out", lambda box, key: box.__delitem__(key)),
        _json("renamed", renamed),
    )


# -- what older fedbenches wrote --------------------------------------------------------------------------------------


def unseal(home: Path) -> None:
    """Take the checksums of themselves out of the manifests and of the checkpoint, as they were before."""
    for path in (*home.glob("*/*/artifact.json"), *home.glob("work/*/checkpoint.json")):
        value = json.loads(path.read_text())
        value.pop("sha256", None)
        path.write_text(json.dumps(value, indent=1, sort_keys=True))


def copy(home: Path, to: Path) -> Path:
    """A fresh copy of the store at `to`, in place of whatever a former case left there."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(home, to)
    return to
