"""A paper of one's own: a folder that every command takes where it takes a paper or a table; and one of results."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fedbench import resources
from fedbench.resources import TABLES
from tests.support.cli_user import bad, good

pytestmark = pytest.mark.usefixtures("brief")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(resources, "_given", {})


def test_from_new_to_its_page(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = good("new", "paper", "mine").out.splitlines()
    assert said[0] == "wrote mine"
    for line in said[1:]:  # what it says comes next
        good(*line.split()[1:])
    printed = good("report", "--table", "./mine/1", "--compare").out
    assert printed.startswith("mine/1  Average accuracy under label shift, in %")
    assert "2 of 2 reported numbers measured" in " ".join(printed.split())
    assert "Ditto is best: " in good("claims", "./mine").out
    assert good("tables", "./mine").out.startswith("mine/1  ██████████  2/2  small")
    good("train", "digits", "--protocol", "./mine", "-m", "fedavg", "--dir", "0.3", "--dry-run")
    good("results", "export", "paper=./mine", "--by", "me", "-o", "mine/results/mine.parquet")
    assert "2 runs by me" in good("results", "page", "./mine").out
    monkeypatch.setattr(resources, "_given", {})  # another process, elsewhere, with a store of its own
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path / "other"))
    assert "--table ../mine/1" in good("report", "--table", "../mine/1", "--budget", "paper").out
    monkeypatch.setattr(resources, "_given", {})
    monkeypatch.setenv(resources.PAPERS, str(tmp_path / "mine"))
    (table,) = json.loads(good("tables", "mine", "--json").out)
    assert (table["states"]["small"], table["shipped"]["small"]) == ({"done": 2}, 2)
    good("site", "pages", "mine")
    assert "Ditto is best" in Path("pages/mine.html").read_text()
    assert not Path("pages/flux.html").exists()


@pytest.mark.shipped
def test_fedbenchs_own_papers_are_such_folders(home: Path, tmp_path: Path) -> None:
    """Under another name with the same settings the runs have the same ids."""
    shutil.copytree(TABLES / "ftw_erm", tmp_path / "copy")
    theirs, ours = (json.loads(good("report", "--table", t, "--budget", "paper", "--format", "json").out)[0]
                    for t in ("ftw_erm/3", "./copy/3"))  # fmt: skip
    assert ours["table"] == "copy/3"
    assert [cell["runs"] for cell in ours["cells"]] == [cell["runs"] for cell in theirs["cells"]]
    assert all(cell["value"] is not None for cell in ours["cells"])


def test_a_repository_of_results_verifies_what_a_contribution_brings(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workflow's step run by bash, with a fedbench that only notes what it is called with."""
    assert good("new", "repository", "ours").out.splitlines()[2] == "  fedbench results import ./ours"
    (job,) = yaml.safe_load(Path("ours/.github/workflows/verify.yml").read_text())["jobs"].values()
    step, notes = job["steps"][-1], tmp_path / "notes"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/fedbench").write_text(f'#!/bin/sh\necho "$@" >> {notes}\n')
    (tmp_path / "bin/fedbench").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    for name, value in {**job["env"], "GITHUB_STEP_SUMMARY": tmp_path / "summary", "BASE": "main"}.items():
        monkeypatch.setenv(name, str(value))

    def call(*words: str) -> None:
        subprocess.run(words, cwd="ours", check=True, capture_output=True)

    call("git", "init", "-b", "main")
    for name in ("packs/old.parquet", "packs/mine; rm *.parquet"):
        Path("ours", name).touch()
        call("git", "add", ".")
        call("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", name)
        call("git", "checkout", "-B", "contribution")
    call("bash", "-eo", "pipefail", "-c", step["run"])
    assert step["env"] == {"BASE": "origin/${{ github.base_ref }}"}
    assert notes.read_text().splitlines() == [
        "results import packs/mine; rm *.parquet",
        "compare pack=*/mine; rm * --format markdown",
        "results verify pack=*/mine; rm * --sample 3 --minutes 10",
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("report", "--table", "./nowhere/1"), "unknown table './nowhere/1'"),
        (("claims", "./nowhere"), "unknown table './nowhere'"),
        (("tables", "./feddrm"), "the paper feddrm is called as fedbench's own feddrm"),
        (("results", "page", "./nowhere"), "unknown paper './nowhere'"),
        (("new", "paper", "there"), "there is there already"),
    ],
)
def test_what_is_no_paper_is_one_line(home: Path, tmp_path: Path, words: tuple[str, ...], line: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "feddrm").mkdir()
    (tmp_path / "feddrm" / "1.toml").write_text("")
    assert line in bad(*words)


def test_a_variable_that_names_no_paper_is_one_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(resources.PAPERS, "/nowhere")
    assert "FEDBENCH_PAPERS names /nowhere, which is no folder of tables" in bad("tables", "flux")
