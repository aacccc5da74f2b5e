"""What code a result depends on, of which all that a run really loads is part; its fingerprint, and its provenance."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedbench
from fedbench import data, methods, partitions
from fedbench.engine.job import Job
from fedbench.imports import LOOKUPS, PACKAGE, ROOMS, closure
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.store import Store
from fedbench.store import provenance as module
from fedbench.store.provenance import fingerprint, git_revision, other_code, provenance
from tests.support.lab import setting

#: Loaded only because a package's __init__ offers them too; nothing that a run computes goes through them.
BESIDE = {"data/build.py", "data/fetch.py", "partitions/builder.py", "partitions/mixture_file.py"}


def parts(name: str, **changes: Any) -> set[str]:
    return set(Job.of(setting(votes=False, **changes), name, {}).parts)


@pytest.fixture
def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the package that fingerprints are taken of, to be edited."""
    copy = tmp_path / "fedbench"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(module, "PACKAGE", copy)
    fingerprint.cache_clear()
    yield copy
    fingerprint.cache_clear()


def change(package: Path, file: str, old: str, new: str) -> None:
    text = (package / file).read_text()
    assert old in text
    (package / file).write_text(text.replace(old, new, 1))
    fingerprint.cache_clear()


@pytest.mark.slow
def test_all_that_a_run_loads_is_in_its_fingerprint(tmp_path: Path) -> None:
    """One method of each kind: those that import the same files beside their own load the same."""
    imported = {frozenset({*closure(own := methods.file_of(name))} - {own}): name for name in methods.names()}
    names = sorted(imported.values())
    script = [sys.executable, Path(__file__).with_name("loaded.py"), tmp_path, *names]
    run = subprocess.run(script, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert [line["method"] for line in lines] == names, run.stderr
    for line in lines:
        counted = {file for file in line["loaded"] if file in ROOMS or file.split("/")[0] in ROOMS}
        packages = {file for file in counted if file.endswith("__init__.py")}
        assert counted - packages - set(line["parts"]) <= {*LOOKUPS, *BESIDE}, line["method"]
        assert methods.file_of(line["method"]) in line["parts"]


def test_packages_that_do_not_count_only_hand_on_names(edited: Path) -> None:
    """... but for methods/__init__.py, which finds a method's file."""
    packages = [name for name in methods.names() if methods.file_of(name).endswith("__init__.py")]
    counted = parts("fedavg").union(*(parts(name) for name in packages))
    for room in ROOMS:
        for file in (edited / room).rglob("__init__.py") if "/" not in room else ():
            place = file.relative_to(edited).as_posix()
            assert place in counted or place == "methods/__init__.py" or "def " not in file.read_text(), place


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("core/executors.py", "min(fit, CPU_BLOCK)", "min(fit, 1 + CPU_BLOCK)"),
        ("core/usage.py", "CPU_BLOCK = ", "CPU_BLOCK = 1 + "),
        ("core/checkpoint.py", "self.rounds[:t]", "self.rounds[: t + 1]"),
        ("engine/training.py", "len(jobs) > 1", "len(jobs) > 2"),
        ("models/__init__.py", 'seeded(seed, "model")', 'seeded(seed, "network")'),
        ("partitions/schemes/iid.py", "spec.clients)", "spec.clients + 0)"),
        ("data/part.py", "def as_array", "def as_an_array"),
    ],
)
def test_code_that_decides_results_makes_a_run_older(edited: Path, file: str, old: str, new: str) -> None:
    job = Job.of(setting(), "fedavg", {})
    told = {"fingerprint": fingerprint(*job.parts), "fingerprint_parts": job.parts}
    assert not other_code(told)
    before = job.code
    change(edited, file, old, new)
    assert other_code(told)
    assert job.code != before


def test_a_method_and_a_model_count_with_their_own_files_alone() -> None:
    fedavg, flux = parts("fedavg"), parts("flux")
    assert not fedavg & {"reports/build.py", "cli/train.py", "spec.py", "store/folder.py", "data/fetch.py"}
    assert {"methods/flux/__init__.py", "methods/flux/clustering.py", "methods/parts/warm_up.py"} <= flux
    assert not any(file.startswith(("methods/parts", "ratios")) for file in fedavg)
    assert {file for file in fedavg if file.startswith("methods/")} == {"methods/base.py", "methods/fedavg.py"}
    assert "ratios/exact.py" in parts("ftw_erm", steps=1, momentum=0.0)
    of_models = {file for file in fedavg if file.startswith("models/")}
    assert of_models == {"models/__init__.py", "models/base.py", "models/cnn.py"}


def test_partitions_and_data_sets_tell_their_code(store: Store, edited: Path) -> None:
    partitions.build(partition_spec(data.resolve("digits", store), "iid", 3, 1, 0.7), store)
    artifacts = {kind: next(iter(store.list(kind))) for kind in ("dataset", "partition")}
    of = {kind: set(artifact.provenance["fingerprint_parts"]) for kind, artifact in artifacts.items()}
    assert {"data/build.py", "data/readers.py"} <= of["dataset"]
    assert not any(file.startswith(("core/", "partition/")) for file in of["dataset"])
    assert {"partitions/scheme.py", "partitions/schemes/iid.py"} <= of["partition"]
    assert of["dataset"] <= of["partition"] <= parts("fedavg")
    change(edited, "partitions/scheme.py", "def draw", "def drawn")
    assert other_code(artifacts["partition"].provenance)
    assert not other_code(artifacts["dataset"].provenance)


CODE = '''"""What it is for."""

LIMIT = 3


class Thing:
    """A thing."""

    def double(self, x: int) -> int:
        """Twice x."""
        return 2 * x  # obvious
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of one file in place of fedbench."""
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "a.py").write_text(CODE)
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    anew(fingerprint, "core")
    yield tmp_path
    for cached in (fingerprint, git_revision):
        cached.cache_clear()


def anew(cached: Any, *parts: str) -> Any:
    """What it returns now."""
    cached.cache_clear()
    return cached(*parts)


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("# obvious", "# not so obvious", False),
        ('"""Twice x."""', '"""Two times x, said better."""', False),
        ('"""A thing."""', '"""Something."""', False),
        ('"""What it is for."""\n', "", False),
        ("2 * x", "(2   *   x)", False),
        ("2 * x", "3 * x", True),
        ("LIMIT = 3", "LIMIT = 4", True),
        ("LIMIT = 3", 'LIMIT = "3"', True),
        ("double", "twice", True),
        ("x: int", "x", True),
        ("3", "None", True),
    ],
)
def test_code_counts_and_words_and_spaces_do_not(package: Path, old: str, new: str, counts: bool) -> None:
    before = fingerprint("core")
    assert before == "5b8a988a0ce7", "the same under every version of Python, or two could not share a store"
    change(package, "core/a.py", old, new)
    assert (anew(fingerprint, "core") != before) == counts


def test_which_files_count(package: Path) -> None:
    before, core = fingerprint("core"), package / "core"
    assert fingerprint("core/a.py") == before, "the folder's only file is the folder's code"
    (core / "notes.txt").write_text("no code")
    assert anew(fingerprint, "core") == before
    (core / "b.py").write_text("")
    assert anew(fingerprint, "core") != before
    (core / "a.py").rename(core / "b.py")
    assert anew(fingerprint, "core") != before


def test_provenance() -> None:
    found = provenance(time.time() - 2)
    assert found["wall_seconds"] >= 2
    assert found["host"] == platform.node()
    assert provenance(0.0)["started"] == "1970-01-01T00:00:00Z"
    known = found["libraries"]
    assert (known["fedbench"], known["python"]) == (fedbench.__version__, platform.python_version())
    for library in ("kneed", "scikit-learn", "torch"):  # another kneed moves one elbow in ten
        assert re.match(r"\d+\.\d+", known[library])


def test_git_revision(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the checkout around the package, with a '+' for changes; nothing outside a checkout."""
    monkeypatch.setattr(module, "PACKAGE", package / "core")
    assert anew(git_revision) is None

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        run = ["git", "-C", str(package), *identity, *arguments]
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("init", "-q")
    except FileNotFoundError:
        pytest.skip("needs git")
    assert anew(git_revision) is None, "no commit yet"
    git("add", ".")
    git("commit", "-q", "-m", "one")
    assert anew(git_revision) == git("rev-parse", "HEAD")
    os.utime(package / "core" / "a.py", (0, 0))  # a status that takes the lock notes it in the index
    index = package / ".git" / "index"
    before = index.read_bytes()
    assert anew(git_revision) == git("rev-parse", "HEAD")
    assert index.read_bytes() == before
    change(package, "core/a.py", "LIMIT = 3", "LIMIT = 4")
    assert anew(git_revision) == git("rev-parse", "HEAD") + "+"
