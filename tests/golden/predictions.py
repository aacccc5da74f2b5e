"""Checksums of what every method predicts, so that a redesign can prove that it changed nothing.

    python -m tests.golden.predictions compare    before and after a change that is to change nothing
    python -m tests.golden.predictions write      after one that is to change predictions: say why in the commit
    python -m tests.golden.predictions compare ditto ifca     these methods alone

Every method runs on the embedded digits by the sequential executor in each setting that suits it: clients that take
part at times and vote; true groups with validation images, late clients, drift and a test phase; clients that never
train; one gradient a round. The bits are those of one processor and one torch: on others a comparison says so.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from fedbench import data, protocol
from fedbench.engine.job import Job
from fedbench.engine.run import execute
from fedbench.errors import FedbenchError
from fedbench.specs import PartitionSpec, Setting
from fedbench.store import Store
from tests.golden.compare import compare
from tests.support.cases import CASES

FILE = Path(__file__).with_name("predictions.json")


def settings(store: Store) -> Iterator[tuple[str, Setting]]:
    """Name and setting of each scenario."""

    def setting(paper: str, chosen: dict[str, Any], **train: Any) -> Setting:
        rules = protocol.load(paper)
        part: PartitionSpec = rules.partition_spec(data.resolve("digits", store), 10, **chosen)
        base: dict[str, Any] = {
            "model": "digits_cnn",
            "rounds": 3,
            "batch_size": 16,
            "window": 1,
            "seed": 5,
            "lr": 0.05,
        }
        return rules.setting(part, "smoke", **{"lr": 0.05, **base, **train})

    voting = {"scheme": "dirichlet", "alpha": 0.3, "clients": 6}
    yield "votes", setting("feddrm", voting, epochs=1, participation=0.8)
    groups = {"scheme": "equal", "shift": "pxy", "level": 5, "clients": 8}
    yield "groups", setting("flux", groups, rounds=6, epochs=1, participation=0.8)
    yield "drift", setting("flux", {**groups, "shift": "py", "level": 2, "phases": 2}, rounds=6, epochs=1, drifts=[4])
    joining = {"scheme": "dirichlet", "alpha": 0.5, "clients": 6, "unseen": 2, "unseen_as": ["fog-3"]}
    yield "newcomers", setting("pfedfda", joining, epochs=1)
    yield "gradients", setting("ftw_erm", {"preset": "toy"} if "toy" in protocol.load("ftw_erm").presets else voting)


def digest(run: Any) -> str:
    """SHA-256 of a run's predictions: the columns in order of their names, whatever the Parquet file around them."""
    table = run.table("predictions")
    columns = {name: table[name].to_pylist() for name in sorted(table.column_names)}
    return hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:16]


def measure(only: Sequence[str] = ()) -> dict[str, str]:
    """Scenario and method -> checksum, or why they do not go together; of some methods `only`."""
    sums: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        for scenario, setting in settings(store):
            for name, chosen in ((n, c) for n, c in CASES if not only or n in only):
                place = "/".join((scenario, name, *(f"{option}={value}" for option, value in chosen.items())))
                try:
                    run = execute(Job.of(setting, name, chosen), store, [], device="cpu", executor="sequential")
                    sums[place] = digest(run)
                except FedbenchError as error:
                    sums[place] = f"refused: {error.message}"
                print(place, sums[place], file=sys.stderr)
    return sums


def here() -> dict[str, str]:
    """What the bits depend on."""
    return {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability(), "machine": platform.machine()}


def main(command: str, *only: str) -> int:
    if command == "write":
        FILE.write_text(json.dumps({"where": here(), "predictions": measure()}, indent=1) + "\n")
        return 0
    golden = json.loads(FILE.read_text())
    if golden["where"] != here():
        print(f"made on {golden['where']}, and this is {here()}: write one here before the change", file=sys.stderr)
    before = {name: sum for name, sum in golden["predictions"].items() if not only or name.split("/")[1] in only}
    return compare(before, measure(only))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
