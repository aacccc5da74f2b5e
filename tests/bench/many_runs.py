"""How long commands take over a store as one's own work fills it: small, complete and evaluated runs.

python -m tests.bench.many_runs         exit code 1 if one takes longer than it may (filling takes minutes)
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedbench import declared, methods
from fedbench.metrics.evaluate import evaluate
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.specs import DatasetSpec, RunSpec, Setting
from fedbench.store import Store
from fedbench.store.provenance import MADE_FROM, code_of
from tests.support.make_runs import clients_table, predictions, rounds_table

#: Runs of a store, a command, and the seconds that it may take there.
LIMITS = [
    (2000, ("list",), 3.0),
    (2000, ("list", "method=fedavg"), 3.0),
    (500, ("list", "run"), 2.0),
    (500, ("report", "--table", "1"), 2.0),
    (500, ("status",), 2.0),
]
CLIENTS, IMAGES, ROUNDS = 10, 4, 20  #: test images are a client's


def specs() -> Iterator[RunSpec]:
    """Runs in the order of their making: method by method, then seeds, learning rates, partitions, data sets."""
    for dataset, alpha, lr, seed in itertools.product(
        ("mnist", "fmnist", "cifar10", "cifar100"), (0.1, 0.3, 0.5, 1.0), (0.3, 0.1, 0.03, 0.01, 0.003), range(5)
    ):
        images = DatasetSpec(dataset, "made up", "0123456789ab")
        part = partition_spec(images, "dirichlet", CLIENTS, seed, 0.7, alpha=alpha, min_size=2)
        setting = Setting(part, "custom", "lenet5", ROUNDS, 64, lr, seed, epochs=1, every=5, votes=False)
        for method in ("fedavg", "fedprox", "ditto", "local", "scaffold"):
            yield declared.of(method).run(setting, {})


def fill(store: Store, number: int) -> None:
    """Write the first `number` runs of `specs` with their metrics, in manifests as long as a trained run's."""
    rng = np.random.default_rng(0)
    for spec in itertools.islice(specs(), number):
        code = code_of("engine/training.py", methods.file_of(spec.method), "partitions/schemes/dirichlet.py")
        images = {**code_of("data/build.py"), "digest": "0" * 64}
        part = {**code_of("partitions/builder.py"), "digest": "0" * 64, MADE_FROM: {"dataset": images}}
        how: dict[str, Any] = {
            **code, MADE_FROM: {spec.setting.partition.id: part}, "title": declared.of(spec.method).title,
            "overrides": {}, "defaults": dict(spec.params), "deviations": [], "train_seconds": 20.0, "device": "cpu",
            "executor": "cores", "measures": [],
        }  # fmt: skip
        label = np.arange(CLIENTS * IMAGES) % 10
        rows = [
            {"round": t, "view": "plain", "client": i // IMAGES, "label": int(right), "own": int(own)}
            for t in spec.setting.evaluated_rounds()
            for i, (right, own) in enumerate(zip(label, np.where(rng.random(label.size) < 0.8, label, 0), strict=True))
        ]
        with store.writing(spec, {"partition": spec.setting.partition.id}) as writer:
            writer.provenance = how
            writer.table("predictions", predictions(rows, classes=10))
            writer.table("rounds", rounds_table(ROUNDS, loss=np.geomspace(2, 0.1, ROUNDS)))
            writer.table("clients", clients_table([60] * CLIENTS, [IMAGES] * CLIENTS))
        evaluate(store.open("run", spec.id), store)


def seconds(home: Path, *command: str) -> float:
    """The best of three times."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "fedbench", "--home", home, *command], check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> int:
    late = False
    with tempfile.TemporaryDirectory() as folder:
        for number, command, limit in LIMITS:
            home = Path(folder) / str(number)
            if not home.exists():
                fill(Store(home), number)
            took = seconds(home, *command)
            late |= took >= limit
            print(f"{' '.join(command)} over {number} runs: {took:.2f} s, of {limit} s at most", flush=True)
    return int(late)


if __name__ == "__main__":
    sys.exit(main())
