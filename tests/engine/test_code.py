"""What code a result depends on: derived from the imports, and all that a run really loads is in it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedbench import data, methods, partitions
from fedbench.engine.job import Job
from fedbench.imports import LOOKUPS, PACKAGE, ROOMS, closure
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.store import Store, provenance
from fedbench.store.provenance import fingerprint, other_code
from tests.support.lab import setting

#: Loaded only because a package's __init__ offers them too; nothing that a run computes goes through them.
BESIDE = {"data/build.py", "data/fetch.py", "partitions/builder.py"}


def parts(name: str, **changes: Any) -> set[str]:
    return set(Job.of(setting(votes=False, **changes), name, {}).parts)


@pytest.fixture
def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the package that fingerprints are taken of, to be edited."""
    copy = tmp_path / "fedbench"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(provenance, "PACKAGE", copy)
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
        ("core/precision.py", "CPU_BLOCK = ", "CPU_BLOCK = 1 + "),
        ("core/checkpoint.py", "self.rounds[:t]", "self.rounds[: t + 1]"),
        ("engine/training.py", "len(jobs) > 1", "len(jobs) > 2"),
        ("models/build.py", 'seeded(seed, "model")', 'seeded(seed, "network")'),
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
    assert of_models == {"models/__init__.py", "models/base.py", "models/build.py", "models/cnn.py"}


def test_partitions_and_data_sets_tell_their_code(store: Store, edited: Path) -> None:
    spec = partition_spec(data.resolve("digits", store), "iid", 3, 1, 0.7)
    partitions.build(spec, store)
    artifacts = {kind: next(iter(store.list(kind))) for kind in ("dataset", "partition")}
    of = {kind: set(artifact.provenance["fingerprint_parts"]) for kind, artifact in artifacts.items()}
    assert {"data/build.py", "data/readers.py"} <= of["dataset"]
    assert not any(file.startswith(("core/", "partition/")) for file in of["dataset"])
    assert {"partitions/scheme.py", "partitions/schemes/iid.py", "partitions/split.py"} <= of["partition"]
    assert of["dataset"] <= of["partition"] <= parts("fedavg")
    change(edited, "partitions/scheme.py", "def draw", "def drawn")
    assert other_code(artifacts["partition"].provenance)
    assert not other_code(artifacts["dataset"].provenance)
