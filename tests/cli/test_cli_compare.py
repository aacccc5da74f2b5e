"""`fedbench compare` at the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli_user import SMOKE, fedbench, good


@pytest.fixture
def two(ready: Path) -> Path:
    """A store with FedAvg and Local on one partition."""
    good("train", "--method", "local", *SMOKE)
    return ready


def test_two_methods_side_by_side(two: Path) -> None:
    said = good("compare")
    assert said.out.startswith("compare  2 runs on digits, Dir-0.3")
    assert "FedAvg" in said.out
    assert "Local" in said.out
    assert "One run a row, so no ±" in said.out
    assert "paired over the clients of common partitions" in " ".join(good("compare", "--test").out.split())
    compared, tests = json.loads(good("compare", "--test", "--json").out)
    assert [cell["row"] for cell in compared["cells"] if cell["metric"] == "average_accuracy"] == ["FedAvg", "Local"]
    assert tests["cells"][0]["keys"]["second"] == "Local"


def test_a_file_of_any_format(two: Path, tmp_path: Path) -> None:
    page = tmp_path / "runs.html"
    said = good("compare", "method=local", "-o", page)
    assert said.err.endswith(f"compare written to {page}\n")
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["method=locl"], "no run is method=locl"),
        (["arena/mnist"], "'arena/mnist' is no run and no filter; of a table: fedbench report --table arena/mnist"),
        (["metod=local"], "unknown key of runs 'metod'; did you mean 'method'"),
        (["--metric", "acuracy"], "unknown metric 'acuracy'"),
        (["--sort", "lrr"], "unknown key to sort by 'lrr'"),
        (["--over", "clients"], "--over goes with --test only"),
        (["--test", "--over", "rounds"], "unknown pairing 'rounds'"),
        (["--test", "method=local"], "no two rows are on the same data"),
        (["--json", "-f", "csv"], "--json or --format csv"),
        (["--test-augmentation", "none"], "unknown test augmentation 'none'"),
    ],
)
def test_bad_input_is_one_line(two: Path, words: list[str], text: str) -> None:
    said = fedbench("compare", *words)
    assert said.code == 2
    assert text in said.line
    assert len(said.err.splitlines()) == 1


def test_an_empty_store(home: Path) -> None:
    said = fedbench("compare")
    assert said.code == 2
    assert "there is no run in" in said.line


def test_neither_torch_nor_pandas_nor_scipy_are_imported(two: Path) -> None:
    script = (
        "import sys\nfrom fedbench.__main__ import main\ntry: main(['compare'])\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'pandas', 'scipy', 'matplotlib'} & set(sys.modules)), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stderr.splitlines()[-1] == "[]"
