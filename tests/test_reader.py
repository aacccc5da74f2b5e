"""The reader of what users write: strict at every depth, one line that says where."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from fedbench import reader
from fedbench.errors import FedbenchError
from fedbench.reader import Between, Some
from tests.support.cli_user import denied, refused


@dataclass(frozen=True)
class Inner:
    label: str
    band: list[float] = field(default_factory=list)
    shape: tuple[int, int, int] = (1, 1, 1)


@dataclass(frozen=True)
class Outer:
    title: str
    id: str = ""
    rows: list[Inner] = field(default_factory=list)
    one: Inner | None = None
    seeds: tuple[Annotated[int, Between(0, 9)], ...] = ()
    seed: int | Literal["run"] = 0
    best: bool | None = None
    sizes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    any: Any = None
    some: Annotated[Mapping[str, Any], Some(Inner, ("label",), {"more": str})] = field(default_factory=dict)


def read(raw: Any) -> Outer:
    return reader.read(Outer, raw, "m.toml", id="own")


def test_a_right_table() -> None:
    raw = {
        "title": "a", "rows": [{"label": "x", "band": [1, 2.5], "shape": [1, 2, 3]}], "one": {"label": "y"},
        "seeds": [1, 2], "seed": "run", "best": True, "sizes": {"a": {"b": 1}}, "any": [{"x": [1]}],
        "some": {"band": [1], "more": "text"},
    }  # fmt: skip
    assert read(raw) == Outer(
        "a", "own", [Inner("x", [1.0, 2.5], (1, 2, 3))], Inner("y"), (1, 2), "run", True, {"a": {"b": 1}},
        [{"x": [1]}], {"band": [1], "more": "text"},
    )  # fmt: skip
    assert repr(read(raw).rows[0].band) == "[1.0, 2.5]", "whole numbers are numbers"
    assert repr(read(raw).some["band"]) == "[1]", "some of a dataclass's fields stay as they are written"


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ([], "m.toml must be a table of keys, not []"),
        ({}, "m.toml lacks 'title'"),
        ({"title": 1}, "m.toml, title must be text, not 1"),
        ({"title": "a", "titel": 1}, "unknown key in m.toml 'titel'; did you mean 'title'?"),
        ({"title": "a", "id": "b"}, "m.toml: unknown key 'id'; the file's place and name say it"),
        ({"title": "a", "rows": {}}, "m.toml, rows must be a list, not {}"),
        ({"title": "a", "rows": [{"label": "x"}, 1]}, "m.toml, row 2 must be a table of keys, not 1"),
        ({"title": "a", "rows": [{"label": "x", "band": [1, "x"]}]}, "m.toml, row 1, band 2 must be a number, not 'x'"),
        ({"title": "a", "rows": [{"label": "x", "band": [True]}]}, "m.toml, row 1, band 1 must be a number, not True"),
        ({"title": "a", "rows": [{"label": "x", "shape": [1, 2]}]}, "m.toml, row 1, shape must have 3 entries, not 2"),
        ({"title": "a", "rows": [{"lable": "x"}]}, "unknown key in m.toml, row 1 'lable'; did you mean 'label'?"),
        ({"title": "a", "one": {"label": "x", "bnad": 1}}, "unknown key in m.toml, one 'bnad'; did you mean 'band'?"),
        ({"title": "a", "one": {"label": None}}, "m.toml, one.label must be text, not None"),
        ({"title": "a", "one": [1]}, "m.toml, one must be a table of keys, not [1]"),
        ({"title": "a", "seeds": [1, 1.0]}, "m.toml, seeds 2 must be a whole number, not 1.0"),
        ({"title": "a", "seeds": [1, 10]}, "m.toml, seeds 2 must lie in 0 to 9, not 10"),
        ({"title": "a", "seed": "walk"}, "m.toml, seed must be a whole number or 'run', not 'walk'"),
        ({"title": "a", "best": 1}, "m.toml, best must be true or false, not 1"),
        ({"title": "a", "sizes": {"a": 1}}, "m.toml, sizes.a must be a table of keys, not 1"),
        ({"title": "a", "sizes": {"a": {"b": "c"}}}, "m.toml, sizes.a.b must be a whole number, not 'c'"),
        ({"title": "a", "some": {"label": "x"}}, "unknown key in m.toml, some 'label'; known: band, more, shape"),
        ({"title": "a", "some": {"band": ["x"]}}, "m.toml, some.band 1 must be a number, not 'x'"),
        ({"title": "a", "any": {"x": [float("nan")]}}, "m.toml, any.x 1 must be a number, not nan"),
        ({"title": "a", "any": 2**63}, "m.toml, any must have 64 bits at most, unlike 9223372036854775808"),
        ({"title": "a", "any": "\x1b[31m"}, r"m.toml, any cannot hold the control character '\x1b'"),
        ({"title": "a", "any": "\ud800"}, r"m.toml, any cannot hold the control character '\ud800'"),
    ],
)  # fmt: skip
def test_what_is_wrong_and_where(raw: Any, says: str) -> None:
    assert refused(lambda: read(raw)) == says


def test_a_long_value_is_shortened() -> None:
    assert len(refused(lambda: read({"title": list("x" * 10**5)}))) < 200


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a = ", "is not valid TOML: Invalid value (at end of document)"),
        (b"a = '\xff'", "is not UTF-8 text (at byte 5); save it as UTF-8"),
        (b"a = 1979-05-27", ", a cannot be a date or a time; for a text put it in quotes: \"1979-05-27\""),
        (b"a = " + b"[" * 10**4 + b"]" * 10**4, "is nested more than 20 deep"),
        (b"a = " + b"[" * 30 + b"]" * 30, "is nested more than 20 deep"),
        (b".".join([b"a"] * 50) + b" = 1", "is nested more than 20 deep"),
        (b".".join([b"a"] * 500000) + b" = 1", "is nested more than 20 deep"),
        (b"a = 1" + b"0" * 5000, "is not valid TOML: Exceeds the limit"),
        (b"#" * (2**20 + 1), "has more than 1 MiB, too much for a recipe"),
    ],
)  # fmt: skip
def test_broken_files(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    line = refused(lambda: reader.toml(path, "recipe"))
    assert str(path) in line
    assert says in line
    assert len(line) < 400


def test_what_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, says in (
        (tmp_path, f"{tmp_path} is a folder, where a recipe should be; look there"),
        (tmp_path / "pipe", f"{tmp_path}/pipe is no regular file, where a recipe should be; look there"),
        (tmp_path / "none", f"there is no recipe {tmp_path}/none; look there"),
        (tmp_path / ("x" * 5000), "(File name too long); look there"),
        (Path("/proc/self/mem"), "cannot read /proc/self/mem (Input/output error); look there"),
    ):
        assert refused(partial(reader.toml, path, "recipe", "look there")).endswith(says)
    (tmp_path / "mine.toml").touch()
    monkeypatch.setattr(Path, "open", denied)
    assert f"cannot read {tmp_path}/mine.toml (Permission denied)" in refused(
        lambda: reader.toml(tmp_path / "mine.toml")
    )


def test_the_mark_that_windows_editors_put_first_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("a = 1", encoding="utf-8-sig")
    assert reader.toml(tmp_path / "mine.toml") == {"a": 1}


def test_errors_are_one_line_whatever_they_quote() -> None:
    error = FedbenchError("no file 'a\n  b\r\nc\u2028d\x85e\x1b[31m\u202e'", "try\nthis\x00")
    assert str(error) == r"no file 'a b c d e\x1b[31m\u202e'; try this\x00"
    assert str(FedbenchError("5 % of Müller’s\u00a0data")) == "5 % of Müller’s\u00a0data"
