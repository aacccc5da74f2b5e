"""Titles, names and paths that look like markup or would act on a terminal: printed as they stand, by every command."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from fedbench.cli import context
from fedbench.core.trainer import Progress
from fedbench.observers import Training
from fedbench.observers.bars import Bars
from fedbench.screen import Screen
from fedbench.specs import RunSpec
from fedbench.store import Store
from tests.support.cli_user import SMOKE, fedbench, good, own_method

TITLES = [
    "[/x]",
    "[bold]",
    "[link=x]y[/link]",
    ":skull:",
    "one\ntwo",
    "\x1b[31mred\x1b]0;own\x07",
    "a\x9b2Jb",
    "\u202eback",
]


def titled(folder: Path, title: str) -> str:
    """A user's method of that title."""
    method = own_method(folder, "yield Train(cross_entropy)")
    path = folder / "mine.py"
    path.write_text(path.read_text().replace('title = "Mine"', f"title = {title!r}"))
    return method


def shown(text: str) -> bool:
    """Whether nothing in the text acts on a terminal."""
    return all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize("title", ["[/x]", "[bold]:skull:"])
def test_a_method_of_any_title_goes_through_all_commands(ready: Path, tmp_path: Path, brief: None, title: str) -> None:
    method = titled(tmp_path, title)
    trained = good("train", "--method", method, *SMOKE)
    run = json.loads(good("evaluate", "--json").out)[0]["run"]
    said = [
        trained,
        good("list"),
        good("show", run),
        good("evaluate", run),
        good("methods", method),
        good("report", "--table", "feddrm/1", "--extra", "--dataset", "digits", *SMOKE),
        good("report", "--table", "feddrm/1", "--extra", "--dataset", "digits", *SMOKE, "-f", "markdown"),
    ]
    assert all(shown(one.out) and shown(one.err) for one in said)
    assert title in trained.err
    assert title in said[4].out
    assert title in said[5].out


@pytest.mark.parametrize("title", ["one\ntwo", "\x1b[31m", "\u202e"])
def test_a_title_that_is_no_line_of_text_is_an_error(ready: Path, tmp_path: Path, title: str) -> None:
    said = fedbench("train", "--method", titled(tmp_path, title), *SMOKE)
    assert said.code == 2
    assert said.line.endswith("a title is one line of text")
    assert shown(said.err)


@pytest.mark.parametrize("name", ["[/x]", "a b", "x\ny", "\x1b", "a/b", ""])
def test_a_name_that_is_no_identifier_is_an_error(ready: Path, tmp_path: Path, name: str) -> None:
    method = own_method(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(path.read_text().replace('title = "Mine"', f"name = {name!r}"))
    said = fedbench("train", "--method", method, *SMOKE)
    if name:
        assert said.code == 2
        assert said.err.count("\n") == 1
        assert f"is {name!r}; a name is letters, digits and _" in said.line
    else:  # no name: the class's
        assert said.code == 0


@pytest.mark.parametrize("name", ["[/x]", "[bold]", "\x1b[31m", "a\nb"])
def test_older_runs_of_any_name_are_listed(ready: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(ready)
    (made,) = store.list("run")
    spec = made.spec
    assert isinstance(spec, RunSpec)
    with store.writing(RunSpec(spec.setting, name, {"[/]": "[/x]"})) as writer:
        writer.table("rounds", made.table("rounds"))
        writer.provenance = {k: made.provenance[k] for k in ("train_seconds", "device", "executor")}
    id = RunSpec(spec.setting, name, {"[/]": "[/x]"}).id
    for command in (["list"], ["list", "run"], ["show", id]):
        said = good(*command)
        assert id in said.out
        assert shown(said.out)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))  # nobody answers
    said = fedbench("remove", id)
    assert (said.code, shown(said.out), shown(said.err)) == (2, True, True)


def test_a_folder_of_any_name(home: Path, tmp_path: Path) -> None:
    odd = tmp_path / "[bold]x[/y]"
    odd.mkdir(parents=True)
    assert "[bold]x[/y]" in good("list", "--home", odd / "store").out
    assert "[bold]x[/y]" in good("evaluate", "--all", "--home", odd / "store").err


def test_an_error_has_no_control_characters(home: Path) -> None:
    said = fedbench("methods", "no\x1b[31m\nsuch")
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert shown(said.err)


@pytest.mark.parametrize("title", TITLES)
def test_a_progress_bar_of_any_title(title: str) -> None:
    out = io.StringIO()
    console = Screen(file=out, force_terminal=True, color_system=None, width=200, legacy_windows=False)
    with Bars(console) as bars:
        bars.on_start(Training(("a",), title, 3, {}))
        bars.on_round(Progress(1, 3, 0.5, 0.25))
        bars.on_round(Progress(2, 3, 0.5, 0.25, doing=title))
    text = out.getvalue()
    for harmful in ("\x1b[31m", "\x1b]", "\x07", "\x9b", "\u202e"):
        assert harmful not in text
    if title.isprintable():
        assert title in text


def test_the_consoles_take_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    context.out().print("[/x] [bold]a[/] :skull:")
    context.err().print("[/x]")
    assert capsys.readouterr() == ("[/x] [bold]a[/] :skull:\n", "[/x]\n")
