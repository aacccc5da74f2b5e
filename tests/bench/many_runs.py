"""How long commands take over a store as one's own work fills it: small, complete and evaluated runs.

python -m tests.bench.many_runs         exit code 1 if one takes longer than it may (filling takes minutes)
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedbench import methods
from fedbench.methods import declarations
from fedbench.metrics.evaluate import evaluate
from fedbench.store import Store
from fedbench.store.provenance import MADE_FROM, code_of
from tests.support.make_runs import clients_table, predictions, rounds_table, run_spec

#: Runs of a store, a command, and the seconds that it may take there.
LIMITS = [
    (2000, ("list",), 3.0),
    (2000, ("list", "method=fedavg"), 3.0),
    (500, ("list", "run"), 2.0),
    (500, ("report", "--table", "1"), 2.0),
    (500, ("status",), 2.0),
]
CLIENTS, IMAGES, ROUNDS = 10, 4, 20  #: test images are a client's


def fill(store: Store, number: int) -> None:
    """Write so many runs with their metrics, in manifests as long as a trained run's."""
    rng, names = np.random.default_rng(0), ("fedavg", "fedprox", "ditto", "local", "scaffold")
    every = itertools.product(np.geomspace(0.001, 1, 20), range(20), names)
    for lr, seed, method in itertools.islice(every, number):
        setting = run_spec(CLIENTS, ROUNDS, window=4, seed=seed, lr=float(lr)).setting
        spec = declarations.of(method).run(setting, {})
        code = code_of("engine/training.py", methods.file_of(method), "partitions/schemes/dirichlet.py")
        images = {**code_of("data/build.py"), "digest": "0" * 64}
        part = {**code_of("partitions/builder.py"), "digest": "0" * 64, MADE_FROM: {"dataset": images}}
        rows = [
            {
                "round": t,
                "view": "plain",
                "client": i // IMAGES,
                "label": i % 10,
                "own": i % 10 * int(rng.random() < 0.8),
            }
            for t in setting.evaluated_rounds()
            for i in range(CLIENTS * IMAGES)
        ]
        with store.writing(spec, {"partition": setting.partition.id}) as writer:
            writer.provenance = {
                **code, MADE_FROM: {setting.partition.id: part}, "title": declarations.of(method).title,
                "overrides": {}, "defaults": dict(spec.params), "deviations": [], "train_seconds": 20.0,
                "device": "cpu", "executor": "cores", "measures": [],
            }  # fmt: skip
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
