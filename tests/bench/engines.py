"""How long a sweep of small MNIST runs takes: one after another, with `--jobs 2`, and on Ray.

    python tests/bench/engines.py                      # 20 runs, three times each way in turn, on a quiet machine
    python tests/bench/engines.py --runs 4 --rounds 2 --repeats 1 --dataset digits

Each sweep is a command of its own with all that it starts (processes, a Ray cluster), into a fresh copy of a store
that holds images and partition. The predictions of all ways must be the same bytes. Exit code 1 if Ray takes more than
`MOST` times as long as worker processes of our own.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fedbench.store import Store

MOST = 1.15
WAYS = {"here": (), "jobs 2": ("--jobs", "2"), "ray": ("--engine", "ray")}


def seconds(dataset: str, runs: int, rounds: int, repeats: int, ways: Sequence[str] = tuple(WAYS)) -> dict[str, float]:
    """Way -> the median of its seconds. Raises AssertionError if predictions differ."""
    rates = ",".join(f"{0.01 + 0.001 * k:.3f}" for k in range(runs))
    sweep = ("sweep", dataset, "-m", "fedavg", "--dir", "0.3", "--clients", "10", "--protocol", "plain", "--lr", rates)
    sweep += ("--rounds", str(rounds), "--every", str(rounds), "--executor", "cores", "--device", "cpu")
    times: dict[str, list[float]] = {way: [] for way in ways}
    answers = set()
    with tempfile.TemporaryDirectory() as folder:
        ready, home = Path(folder) / "ready", Path(folder) / "store"
        _fedbench(ready, *sweep, "--dry-run")  # makes images and partition
        for _ in range(repeats):
            for way in ways:
                shutil.copytree(ready, home)
                began = time.perf_counter()
                _fedbench(home, *sweep, *WAYS[way])
                times[way].append(time.perf_counter() - began)
                answers.add(_answers(home, runs))
                shutil.rmtree(home)
    assert len(answers) == 1, "the ways disagree"
    return {way: statistics.median(of) for way, of in times.items()}


def _fedbench(home: Path, *words: str) -> None:
    command = [sys.executable, "-m", "fedbench", "--home", str(home), *words]
    usual = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    subprocess.run(command, check=True, env=usual, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _answers(home: Path, runs: int) -> str:
    """Checksum of all predictions."""
    files = [run.file("predictions.parquet") for run in sorted(Store(home).list("run"), key=lambda run: run.id)]
    assert len(files) == runs
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dataset", default="mnist")
    for name, value in (("runs", 20), ("rounds", 10), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    medians = seconds(asked.dataset, asked.runs, asked.rounds, asked.repeats)
    print(f"{asked.runs} runs of {asked.rounds} rounds on {asked.dataset}, {asked.repeats} times each way:")
    for way, median in medians.items():
        print(f"{way:8} {median:7.1f} s   {median / medians['jobs 2']:.2f} of --jobs 2")
    return int(medians["ray"] >= MOST * medians["jobs 2"])


if __name__ == "__main__":
    sys.exit(main())
