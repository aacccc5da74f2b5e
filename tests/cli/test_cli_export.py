"""`export` and `partition --from` as a user types them: back and forth between the store and other tools."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.support.cli_user import fedbench, good


def bad(*arguments: str | Path) -> str:
    """The one line of a command that must fail."""
    said = fedbench(*arguments)
    assert said.code == 2
    assert "Traceback" not in said.err
    return said.line


def test_a_file_of_rows_there_and_back(ready: Path, tmp_path: Path) -> None:
    (id,) = [path.name for path in (ready / "partition").iterdir()]
    for name in ("rows.csv", "rows.parquet"):
        said = good("export", id, "-o", tmp_path / name)
        assert f"read it again with: fedbench partition digits --from {tmp_path / name} --shift high" in said.err
    said = good("partition", "digits", "--from", tmp_path / "rows.csv", "--shift", "high", "--json")
    again = json.loads(said.out)
    assert again["spec"]["rows"] == hashlib.sha256((tmp_path / "rows.csv").read_bytes()).hexdigest()
    before = json.loads(good("partition", "digits", "--dir", "0.3", "--protocol", "feddrm", "--json").out)
    for name in ("train_counts", "test_counts", "shift"):
        assert [one[name] for one in again["clients"]] == [one[name] for one in before["clients"]]
    same = json.loads(good("partition", "digits", "--from", tmp_path / "rows.parquet", "--shift", "high", "--json").out)
    assert (same["id"], same["made"]) == (again["id"], False)
    plain = json.loads(good("partition", "digits", "--from", tmp_path / "rows.csv", "--json").out)
    assert plain["spec"]["shift"] == "none"  # no default of the paper's


@pytest.mark.parametrize("form", ["pflib", "leaf"])
def test_a_folder_there_and_back(ready: Path, tmp_path: Path, form: str) -> None:
    (id,) = [path.name for path in (ready / "partition").iterdir()]
    good("export", id, "--format", form, "--output", tmp_path / "clients")
    again = json.loads(good("partition", "--from", tmp_path / "clients", "--json").out)
    before = json.loads(good("partition", "digits", "--dir", "0.3", "--protocol", "feddrm", "--json").out)
    for name in ("train_counts", "test_counts"):
        assert [one[name] for one in again["clients"]] == [one[name] for one in before["clients"]]
    good("data", "show", tmp_path / "clients")


def test_what_cannot_be_is_one_line(ready: Path, tmp_path: Path) -> None:
    (id,) = [path.name for path in (ready / "partition").iterdir()]
    assert "does not say in which format; give --format, one of csv, parquet" in bad("export", id, "-o", tmp_path / "x")
    assert "did you mean 'parquet'?" in bad("export", id, "-o", tmp_path / "x", "--format", "parqet")
    assert "cannot write" in bad("export", id, "-o", tmp_path / "none/x.csv")
    assert "a partition of which data set?" in bad("partition", "--dir", "0.3")
    assert "cannot read" in bad("partition", "digits", "--from", tmp_path / "none.csv")
    (tmp_path / "rows.csv").write_text("client,sample,split\n0,0,train\n0,1797,test\n")
    assert "digits has 1,797 images (0 to 1796)" in bad("partition", "digits", "--from", tmp_path / "rows.csv")
    assert "--dir and --from exclude each other" in bad(
        "partition", "digits", "--dir", "0.3", "--from", tmp_path / "rows.csv"
    )
