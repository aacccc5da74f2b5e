"""A paper's folder is whole: runs of its own method, network and partitioner travel in packs beside their code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.cli_user import SMOKE, bad, good, own_method

TABLE = """
title = "Mine"
protocol = "plain"
metric = "average_accuracy"
statistic = "last"
unit = "percent"
seeds = [0]

[[rows]]
label = "Ours"
method = "./mine.py:MyMethod"
train = { model = "./net.py:Net" }

[[column]]
label = "By brightness"
dataset = "digits"
partition = { scheme = "./bright.py:Bright", bands = 2, clients = 2 }
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another user's store."""
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A paper with its runs in a pack, made in a store that is no more."""
    folder, home = tmp_path / "here" / "ours", tmp_path / "first"
    (folder / "results").mkdir(parents=True)
    monkeypatch.chdir(folder)
    own_method(folder)
    good("new", "model", "net")
    good("new", "partitioner", "bright")
    (folder / "1.toml").write_text(TABLE)
    good("--home", home, "train", "./1.toml", *SMOKE)
    alone = ("--home", home, "results", "export", "--by", "Ada", "-o")
    assert "its method MyMethod is a user's code" in bad(*alone, tmp_path / "alone.parquet")
    said = good(*alone, folder / "results" / "ours.parquet").err
    assert f" of them need code of yours: share {folder}.\n" in said
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(home)
    return folder


@pytest.mark.usefixtures("home")
def test_it_prints_and_is_verified_elsewhere(paper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = shutil.copytree(paper.parent, tmp_path / "there")
    monkeypatch.setenv("FEDBENCH_PAPERS", str(there))  # a folder of papers
    (cell,) = json.loads(good("report", "ours/1", *SMOKE, "--json").out)[0]["cells"]
    assert (cell["state"], cell["shipped"]) == ("done", True)
    (checked,) = json.loads(good("results", "verify", "ours/1", "--json").out)
    assert (checked["verdict"], checked["trained"]) == ("same", True)
    monkeypatch.setenv("FEDBENCH_PAPERS", str(there / "ours"))  # the paper itself
    assert "ours/1" in good("tables", "ours").out


@pytest.mark.usefixtures("home")
def test_its_packs_are_read_where_it_is_named_by_its_path(paper: Path, tmp_path: Path) -> None:
    there = shutil.copytree(paper.parent, tmp_path / "there") / "ours"
    (cell,) = json.loads(good("report", f"{there}/1", *SMOKE, "--json").out)[0]["cells"]
    assert (cell["state"], cell["shipped"]) == ("done", True)
    (checked,) = json.loads(good("results", "verify", f"paper={there}", "--json").out)
    assert checked["verdict"] == "same"


@pytest.mark.usefixtures("home")
def test_it_is_taken_in_with_its_code_and_refused_without(
    paper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = paper / "results" / "ours.parquet"
    assert "1 run by Ada" in good("results", "import", paper).err
    why = "its method MyMethod is a user's code"
    assert why in bad("results", "verify", "pack=home/ours"), "its folder is not named"
    monkeypatch.setenv("FEDBENCH_PAPERS", str(paper))
    (checked,) = json.loads(good("results", "verify", "pack=home/ours", "--json").out)
    assert checked["verdict"] == "same"
    monkeypatch.delenv("FEDBENCH_PAPERS")
    alone = shutil.copy(pack, tmp_path / "alone.parquet")
    assert why in (line := bad("results", "import", alone))
    assert "a pack brings such runs in its paper's folder" in line
    assert why in bad("results", "merge", pack, "-o", tmp_path / "merged.parquet")
    for file, what in (("net.py", "network Net"), ("bright.py", "partitioner Bright"), ("mine.py", "method MyMethod")):
        text = (paper / file).read_text()
        (paper / file).write_text(f"{text}\nCHANGED = True\n")
        assert f"its {what} is a user's code" in bad("results", "import", pack)
        (paper / file).write_text(f"{text}\n# a comment changes nothing\n")
        assert "1 run by Ada" in good("results", "import", pack).err
