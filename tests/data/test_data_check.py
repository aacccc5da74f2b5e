"""`check` and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fedbench.cli import context
from fedbench.cli.data import data_app
from fedbench.data import check, load
from fedbench.errors import FedbenchError
from fedbench.store import Store
from tests.support.data_makers import idx_toy, with_checksums


def states(name: str, store: Store, *roots: Path) -> list[str]:
    return [finding.state for finding in check(name, store, roots)]


def test_check_tells_good_missing_damaged_and_undeclared(tmp_path: Path, store: Store) -> None:
    path = str(with_checksums(tmp_path))
    assert states(path, store) == ["good"] * 4
    spec = load(path, store).spec
    assert states(path, store) == ["good"] * 5
    (tmp_path / "toy/test-images.gz").unlink()
    (tmp_path / "toy/test-labels.gz").write_bytes(b"x")
    (store.path("dataset", spec.id) / "classes.parquet").write_bytes(b"x")
    assert states(path, store) == ["good", "good", "missing", "damaged", "damaged"]
    other, _, _ = idx_toy(tmp_path / "plain")
    assert states(str(other), Store(tmp_path / "empty")) == ["no checksum"] * 4


@pytest.mark.parametrize(("old", "new"), [('"toy"', '"tox"'), ('"content": "', '"content": "0'), ('"spec"', '"spek"')])
def test_check_finds_an_altered_manifest(tmp_path: Path, store: Store, old: str, new: str) -> None:
    path = str(with_checksums(tmp_path))
    spec = load(path, store).spec
    load("digits", store)
    manifest = store.path("dataset", spec.id) / "artifact.json"
    assert old in manifest.read_text()
    manifest.write_text(manifest.read_text().replace(old, new))
    assert states(path, store) == ["good"] * 4 + ["damaged"]
    assert check(path, store)[-1].what == f"artifact {spec.id}"
    assert states("digits", store) == ["good", "damaged"]  # whose it is cannot be told any more
    manifest.write_text(manifest.read_text().replace(new, old).replace('"files"', '"filed"'))
    assert states(path, store) == ["good"] * 4 + ["damaged"]
    assert states("digits", store) == ["good"]


def run(store: Store, *arguments: str, root: Path | None = None) -> Result:
    context.configure(store.home, str(root) if root else "", False)
    return CliRunner().invoke(data_app, list(arguments))


def test_list_names_every_recipe(store: Store) -> None:
    load("digits", store)
    rows = {row["name"]: row for row in json.loads(run(store, "list", "--json").stdout)}
    assert rows["digits"]["at_hand"] == "scikit-learn"
    assert len(rows["digits"]["built"]) == 1
    assert rows["cifar10"]["at_hand"] is None
    assert rows["cifar10"]["fetchable"] is True
    assert rows["usps"]["fetchable"] is False
    assert rows["cifar20"]["classes"] == 20
    text = run(store, "list").stdout
    assert all(name in text for name in rows)


def test_list_says_which_source_is_at_hand(tmp_path: Path, store: Store) -> None:
    for name in ("train", "test"):
        (tmp_path / "cifar10").mkdir(exist_ok=True)
        (tmp_path / f"cifar10/{name}.parquet").touch()
    rows = {row["name"]: row for row in json.loads(run(store, "list", "--json", root=tmp_path).stdout)}
    assert rows["cifar10"]["at_hand"] == "parquet"


def test_show_before_and_after_building(store: Store) -> None:
    assert json.loads(run(store, "show", "digits", "--json").stdout)["class_counts"] is None
    load("digits", store)
    shown = json.loads(run(store, "show", "digits", "--json").stdout)
    assert shown["class_counts"]["0"] == {"train": 178, "test": 0}
    assert shown["id"] == shown["built"][0]
    text = run(store, "show", "digits").stdout
    assert "CC BY 4.0" in text
    assert "178 train" in text
    assert "cifar-10-binary.tar.gz" in run(store, "show", "cifar10").stdout


def test_check_command_ends_in_an_error_if_something_is_damaged(tmp_path: Path, store: Store) -> None:
    path = str(with_checksums(tmp_path))
    assert run(store, "check", path).exit_code == 0
    (tmp_path / "toy/test-labels.gz").write_bytes(b"x")
    result = run(store, "check", path, "--json")
    assert isinstance(result.exception, FedbenchError)
    assert "1 of 4 checked are damaged: toy, idx: toy/test-labels.gz" in str(result.exception)
    assert [row["state"] for row in json.loads(result.stdout)] == ["good", "good", "good", "damaged"]


def test_fetch_command(store: Store) -> None:
    assert json.loads(run(store, "fetch", "digits", "--json").stdout) == {"digits": []}
    with pytest.raises(FedbenchError, match="did you mean 'digits'"):
        raise run(store, "fetch", "digits", "digts").exception or AssertionError("no error")
