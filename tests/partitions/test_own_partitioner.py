"""A partitioner of one's own: in a command, through training to the report; its mistakes in one line. (In a table:
tests/cli/test_cli_own_table.py.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbench import data, partitions
from fedbench.partitions import schemes
from fedbench.specs import DatasetSpec, PartitionSpec, RunSpec
from fedbench.store import Store
from tests.support.cli_user import fedbench, good

MINE = '''
from dataclasses import dataclass

import numpy as np

from fedbench.options import option
from fedbench.partitions import Densities, Scheme


@dataclass(frozen=True)
class Mine(Scheme):
    """Parts by brightness."""

    noise: float = option(0.0, "how much of the order is chance", least=0, most=1)

    def deal(self, dataset, spec, rng):
        light = dataset.images.mean(axis=(1, 2, 3)) / 255 + self.noise * rng.random_sample(len(dataset.labels))
        return np.array_split(np.argsort(light, kind="stable"), spec.clients)

    def densities(self, partition):
        even = np.full((partition.clients, 10), 0.1)
        return Densities(partition.label.astype(np.int64), even, even)
'''
DIGITS = DatasetSpec("digits", "a", "b")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    return file


OWN = ("partition", "digits", "--scheme", "./mine.py:Mine")


def test_from_the_partition_to_the_report_without_its_file(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Mine noise 0.5" in good(*OWN, "--noise", "0.5", "--clients", "3", "--shift", "none").out
    mine.unlink()
    monkeypatch.setattr(schemes._own, "_known", {})  # as a new process, which was given no file
    good("train", "--method", "fedavg", "--rounds", "1", "--steps", "1")
    (made,) = Store(mine.parent / "home").list("run")
    assert isinstance(made.spec, RunSpec)
    part = made.spec.setting.partition
    assert part.scheme.startswith("Mine@")
    assert part.options == {"noise": 0.5}
    monkeypatch.setenv("COLUMNS", "200")
    assert "fedavg  digits    Mine         3  " in good("list").out
    assert "Mine" in good("evaluate", made.id).out


def test_densities_are_written_down(mine: Path, digits: data.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(mine.parent / "home")
    spec = schemes.spec(data.load("digits", store).spec, f"{mine}:Mine", 4, 1, 0.7)
    drawn = partitions.build(spec, store)
    mine.unlink()
    monkeypatch.setattr(schemes._own, "_known", {})
    read = partitions.build(spec, store)
    assert read.densities.train.tolist() == drawn.densities.train.tolist() == [[0.1] * 10] * 4
    assert read.densities.strata.tolist() == drawn.label.tolist()


def test_the_identity_is_class_source_and_options(mine: Path) -> None:
    one = schemes.spec(DIGITS, f"{mine}:Mine", 3, 1, 0.7)
    copy = mine.with_name("copy.py")
    copy.write_text(MINE)
    assert schemes.spec(DIGITS, f"{copy}:Mine", 3, 1, 0.7).id == one.id
    assert schemes.spec(DIGITS, f"{mine}:Mine", 3, 1, 0.7, noise=0.1).id != one.id
    copy.write_text(MINE + "OVER = 1\n")
    assert schemes.spec(DIGITS, f"{copy}:Mine", 3, 1, 0.7).id != one.id
    assert PartitionSpec.from_dict(one.to_dict()).id == one.id


@pytest.mark.parametrize(
    ("words", "old", "new", "says"),
    [
        ("--noise 2", "", "", "--noise of Mine must be in [0, 1], not 2"),
        ("--noise much", "", "", "--noise of Mine takes a number, not 'much'"),
        ("--level 3", "", "", "partitioner Mine has no level: only equal can have it"),
        ("--nois 1", "", "", "unknown option of partition by Mine '--nois'; did you mean '--noise'?"),
        ("--phases 2", "", "", "a Mine partition has no phases"),
        ("--shift px", "", "", "a Mine partition has no shift px: equal can have it"),
        (
            "", "@dataclass(frozen=True)\n", "",
            "noise of ./mine.py:Mine is no option, as the class is no dataclass",
        ),
        ("", "noise", "clients", "./mine.py:Mine cannot call an option clients: any partition has one"),
        ("", "light = ", "light = 1 / 0 + ", "mine.py, line 17, in deal: ZeroDivisionError"),
        ("", "class Mine(Scheme)", "class Mine", "./mine.py:Mine is no partitioner; derive it from"),
        ("", "class Mine", "class Yours", "unknown partitioner class in ./mine.py:Mine 'Mine'"),
    ],
)  # fmt: skip
def test_bad_options_and_files(mine: Path, words: str, old: str, new: str, says: str) -> None:
    mine.write_text(MINE.replace(old, new) if old else MINE)
    said = fedbench(*OWN, *words.split())
    assert said.code == 2
    assert says in said.line


@pytest.mark.parametrize(
    ("old", "new", "check", "why"),
    [
        ("rng.random_sample", "np.random.default_rng().random", "same seed same draw", "differ in who holds which"),
        ("spec.clients)", "1) * spec.clients", "no leak", "are in a training and in a test split"),
        ("spec.clients)", "spec.clients + 1)[1:]", "draws", ""),
    ],
)
def test_checks_find_what_is_wrong(mine: Path, old: str, new: str, check: str, why: str) -> None:
    mine.write_text(MINE.replace(old, new))
    said = fedbench("check", "./mine.py:Mine", "--noise", "0.5")
    text = " ".join(said.out.split())
    assert why in text
    assert (said.code == 1) == bool(why)
    assert (f"✗ {check}" in text) == bool(why)


def test_help_has_its_options(mine: Path) -> None:
    text = " ".join(good("partition", "--scheme", "./mine.py:Mine", "--help").out.split())
    assert "Options of Mine" in text
    assert "how much of the order is chance" in text
