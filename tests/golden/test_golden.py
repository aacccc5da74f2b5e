"""What changes results has a version that says so: the golden predictions, partitions and networks are as recorded, or
their ids, in which all versions stand, are others. With another torch or NumPy the bits are others too: skipped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench import methods
from fedbench.models import registry
from fedbench.partitions import schemes
from fedbench.store import Store
from tests.golden import ids, networks, portable, predictions
from tests.golden.compare import unsaid
from tests.support.cases import CASES

RAISE = (
    "{} changed, so that stored and shipped results are stale, and no version says so. Was it meant? Then raise {}, "
    "record it (python -m tests.golden.{} write) and say why in the changelog, marked **numbers**."
)


def golden(module: Any) -> Mapping[str, Any]:
    return json.loads(module.FILE.read_text())


@pytest.fixture(scope="session")
def apart() -> Iterator[ProcessPoolExecutor]:
    """A process whose bits do not hang on the processor."""
    with portable.process() as pool:
        yield pool


def recorded_here(module: Any, apart: ProcessPoolExecutor) -> Mapping[str, Any]:
    """What is recorded, if it was with these libraries."""
    found, here = golden(module), apart.submit(portable.here).result()
    if found["where"] != here:
        pytest.skip(f"recorded with {found['where']}, and this is {here}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted({name for name, _ in CASES}))
def test_predictions(method: str, apart: ProcessPoolExecutor) -> None:
    recorded = recorded_here(predictions, apart)
    sums, now = apart.submit(predictions.measure, [method]).result()
    names = unsaid(recorded["predictions"], sums, recorded["runs"], now)
    assert not names, RAISE.format(f"The predictions of {', '.join(names)}", f"version of {method}", "predictions")


@pytest.mark.slow
def test_networks(apart: ProcessPoolExecutor) -> None:
    recorded = recorded_here(networks, apart)
    sums, versions = apart.submit(networks.measure).result()
    names = unsaid(recorded["networks"], sums, recorded["versions"], versions)
    assert not names, RAISE.format(f"What {', '.join(names)} computes", "_VERSIONS of models/registry.py", "networks")


@pytest.mark.slow
def test_partitions(store: Store) -> None:
    """Drawn by NumPy alone: the same on every machine."""
    before, now = golden(ids), dict(ids.drawn(store))
    drawn, drawn_now = ({place: text.split()[1:5] for place, text in one.items()} for one in (before, now))
    said, said_now = ({place: text.split()[0] for place, text in one.items()} for one in (before, now))
    names = unsaid(drawn, drawn_now, said, said_now)
    assert not names, RAISE.format(f"The clients of {', '.join(names)}", "version of the partitioner", "ids")


def test_every_run_is_recorded_with_the_versions_of_today() -> None:
    """Trains nothing: the ids alone."""
    _, now = predictions.measure(train=False)
    before = golden(predictions)["runs"]
    others = sorted(place for place in {*now, *before} if now.get(place) != before.get(place))
    assert not others, f"record them anew: python -m tests.golden.predictions write METHOD ({', '.join(others[:5])})"


def test_every_method_partitioner_and_network_is_recorded() -> None:
    trained = {name for name in methods.names() if methods.load(name)[0].trains}
    assert {place.split("/")[1] for place in golden(predictions)["runs"]} == trained
    versions = golden(networks)["versions"]
    assert versions == {name: str(registry.version(name)) for name in registry.names()}
    drawn = {chosen.get("scheme", "" if chosen else "colored") for _, chosen in ids.PARTITIONS}
    assert {*schemes.names()} - drawn <= {"file", "mixture", "presplit"}  # which read a file


def roots() -> list[np.ndarray]:
    """Of whole numbers, in the forms in which PyTorch asks for them."""
    x = torch.arange(1.0, 5001)
    forms = x.sqrt(), x.clone().sqrt_(), torch.sqrt(x, out=torch.empty(0)), torch.vmap(torch.sqrt)(x)
    return [found.numpy() for found in forms]


@pytest.mark.slow
def test_roots_are_rounded_correctly_and_so_are_those_of_every_processor(apart: ProcessPoolExecutor) -> None:
    expected = np.sqrt(np.arange(1.0, 5001, dtype=np.float64)).astype(np.float32)
    assert all(np.array_equal(found, expected) for found in apart.submit(roots).result())


def test_a_change_without_another_version_is_found_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, ids_before = {"a": "1", "b": "2", "c": "3"}, {"a": "x", "b": "y", "c": "z"}
    now, ids_now = {"a": "1", "b": "5", "c": "6", "d": "7"}, {"a": "x", "b": "y", "c": "zz", "d": "w"}
    assert unsaid(before, now, ids_before, ids_now) == ["b"]
    file = tmp_path / "predictions.json"
    recorded = {"where": portable.here(), "runs": {"votes/fedavg": "x"}, "predictions": {"votes/fedavg": "1"}}
    file.write_text(json.dumps(recorded))
    monkeypatch.setattr(predictions, "FILE", file)
    monkeypatch.setattr(predictions, "measure", lambda only: ({"votes/fedavg": "2"}, {"votes/fedavg": "x"}))
    assert predictions.main("write", "fedavg") == 1
    assert "changed, and no version says so: votes/fedavg" in capsys.readouterr().err
    assert json.loads(file.read_text()) == recorded
    monkeypatch.setattr(predictions, "measure", lambda only: ({"votes/fedavg": "2"}, {"votes/fedavg": "y"}))
    assert predictions.main("write", "fedavg") == 0
    assert json.loads(file.read_text())["predictions"] == {"votes/fedavg": "2"}


def test_the_golden_runs_of_schema_1_are_told_with_their_ids_of_today() -> None:
    """Schema 2 took the budget's name out of a run's spec; the predictions of these runs did not move."""
    table = json.loads(Path(__file__).with_name("schema2.json").read_text())
    assert sorted(table.values()) == sorted(golden(predictions)["runs"].values())
    assert not table.keys() & {*table.values()}
