"""`fedbench new`: each template works as it is, through the commands that it names itself."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedbench.store import Store
from tests.support.cli_user import SMOKE, Said, fedbench, good


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def told(said: Said) -> list[list[str]]:
    """The commands that `new` names as the next ones."""
    return [shlex.split(line)[1:] for line in said.out.splitlines() if line.startswith("  fedbench ")]


@pytest.mark.usefixtures("ready")
def test_a_partitioner_passes_the_checks_and_deals() -> None:
    check, partition = told(good("new", "partitioner", "bright"))
    assert "✗" not in good(*check).out
    assert "Bright bands 2" in good(*partition).out


@pytest.mark.usefixtures("ready", "brief")
@pytest.mark.parametrize(("what", "cls"), [("method", "MyIdea"), ("model", "MyIdea")])
def test_a_method_and_a_model_pass_the_checks_and_train_at_once(what: str, cls: str, home: Path) -> None:
    before = len(list(Store(home).list("run")))
    check, train = told(good("new", what, "my_idea"))
    assert check == ["check", f"./my_idea.py:{cls}"]
    assert "✗" not in good(*check).out
    good(*train, *SMOKE)
    assert len(list(Store(home).list("run"))) == before + 1


def test_a_data_set_is_read_when_its_images_are_there(home: Path) -> None:
    (partition,) = told(good("new", "dataset", "pets"))
    said = fedbench(*partition)
    assert said.code == 2
    assert "pets" in said.line
    for number, folder in enumerate(f"pets/{split}/{label}" for split in ("train", "test") for label in ("cat", "dog")):
        Path(folder).mkdir(parents=True)
        for i in range(20):
            pixels = np.random.default_rng(100 * number + i).integers(0, 256, (40, 40, 3), np.uint8)
            Image.fromarray(pixels).save(Path(folder) / f"{i}.png")
    good(*partition, "--clients", "2")
    assert [a.spec.to_dict()["name"] for a in Store(home).list("dataset")] == ["pets"]


@pytest.mark.usefixtures("ready", "brief")
def test_a_table_prints_before_and_after_it_is_trained() -> None:
    train, report = told(good("new", "table", "ours"))
    assert "Local" in good(*report, *SMOKE).out
    good(*train, *SMOKE)
    printed = good(*report, *SMOKE).out
    assert "missing" not in printed
    assert "FedAvg" in printed


def test_the_row_that_a_table_has_in_a_comment_is_the_method_that_new_writes() -> None:
    good("new", "table", "ours")
    good("new", "method", "mine")
    table = Path("ours.toml")
    table.write_text(table.read_text().replace('# { method = "./mine.py', '{ method = "./mine.py'))
    states = good("tables", "./ours.toml", *SMOKE).out
    assert "Mine (mu = 0.1)  missing  missing" in states
    assert "6 missing" in states


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 1\n")
    said = fedbench("new", "method", "mine")
    assert (said.code, said.line) == (
        2,
        "fedbench: mine.py is there already; choose another name, or another folder with -o",
    )
    assert (tmp_path / "mine.py").read_text() == "x = 1\n"


def test_on_a_full_disk_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    said = fedbench("new", "method", "mine")
    line = "fedbench: cannot write mine.py (No space left on device); choose a folder with -o FOLDER"
    assert (said.code, said.line) == (2, line)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_only_a_file_or_a_folder_here_has_is_free(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    good("new", "method", "mine")
    good("new", "table", "json")


def test_in_another_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    said = good("new", "method", "mine", "-o", "sub")
    assert told(said)[0] == ["check", "./sub/mine.py:Mine"]
    assert (tmp_path / "sub" / "mine.py").is_file()
    assert str(tmp_path / "sub" / "m.toml") in good("new", "table", "m", "-o", tmp_path / "sub").out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("methode", "mine"), "unknown kind of file 'methode'; did you mean 'method'?"),
        (("method", "my-idea"), "'my-idea' is no name for a method; small letters, digits and _, such as my_idea"),
        (("method", "../mine"), "'../mine' is no name for a method"),
        (("method", "class"), "'class' is no name for a method"),
        (("method", "torch"), "torch.py would hide the module torch from files beside it; choose another name"),
        (("model", "json"), "json.py would hide the module json"),
        (("partitioner", "fedbench"), "fedbench.py would hide the module fedbench"),
        (("method", "mine", "-o", "nowhere"), "cannot write nowhere/mine.py (No such file or directory)"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], line: str) -> None:
    said = fedbench("new", *arguments)
    assert said.code == 2
    assert said.line.startswith(f"fedbench: {line}")
