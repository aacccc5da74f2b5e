"""Checksums of what every method predicts, so that a redesign can prove that it changed nothing.

    python -m tests.golden.predictions compare    before and after a change that is to change nothing
    python -m tests.golden.predictions write      after one that is to change predictions: say why in the commit
    python -m tests.golden.predictions compare ditto ifca     these methods alone (write, too)

Predictions that change make stored and shipped results stale, so a version must say it, which every run's id holds:
that of the method (`version` of its class), the partitioner (`version` of its class), the network
(`models/registry.py:_VERSIONS`) or, where all methods change, the trainer (`Setting.version`). `write` refuses
predictions that have changed under the same id, and test_golden.py finds them.

Every method runs on a part of the embedded digits by the sequential executor in each setting that suits it: clients
that take part at times and vote; true groups with validation images, late clients, drift and a test phase; clients that
never train; one gradient a round. A method's hyper-parameters that switch on more of it run in one setting that tells
them from the defaults (`ONCE`). The bits are those of every x86-64 processor (`portable.py`), with one torch and one
NumPy: with others a comparison says so.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedbench import data, protocol
from fedbench.engine.job import Job
from fedbench.engine.run import execute_all
from fedbench.errors import FedbenchError
from fedbench.specs import PartitionSpec, Setting
from fedbench.store import Store
from tests.golden import portable
from tests.golden.compare import command
from tests.support.cases import CASES

FILE = Path(__file__).with_name("predictions.json")
#: Where variants of a method run, which in few rounds are not told from it elsewhere; the others in the first setting.
#: FedBN's needs a norm, of which these networks have none; APFL's learned share turns no answer in so few rounds.
ONCE = {
    ("apfl_flux", "adaptive"): "",
    ("fedavgft", "finetune_rounds"): "drift",
    ("fedbn", "affine"): "",
    ("fedpac", "score"): "newcomers",
    ("fedprox", "finetune_rounds"): "drift",
    ("fedsam", "finetune_rounds"): "drift",
    ("flux", "clustering"): "drift",
    ("ftw_erm", "ratios"): "gradients",
    ("pfedfda", "betas"): "newcomers",
    ("pfedme", "beta"): "drift",
}


def settings(store: Store) -> Iterator[tuple[str, Setting]]:
    """Name and setting of each scenario."""

    def setting(paper: str, chosen: dict[str, Any], **train: Any) -> Setting:
        rules = protocol.load(paper)
        part: PartitionSpec = rules.partition_spec(data.resolve("digits", store), 10, **chosen)
        base: dict[str, Any] = {"model": "digits_cnn", "rounds": 2, "batch_size": 16, "window": 1, "seed": 5}
        return rules.setting(part, "smoke", **{**base, "lr": 0.05, **train})

    voting = {"scheme": "dirichlet", "alpha": 0.3, "clients": 6, "subsample": 0.4}
    yield "votes", setting("feddrm", voting, epochs=1, participation=0.8)
    groups = {"scheme": "equal", "shift": "pxy", "level": 5, "clients": 8, "data_share": 0.05}
    yield "groups", setting("flux", groups, rounds=3, epochs=1, participation=0.8)
    drifting = {**groups, "data_share": 0.1, "shift": "py", "level": 2, "phases": 2}
    yield "drift", setting("flux", drifting, rounds=4, epochs=1, drifts=[2])
    joining = {"scheme": "dirichlet", "alpha": 0.5, "clients": 6, "unseen": 2, "unseen_as": ["fog-3"]}
    yield "newcomers", setting("pfedfda", joining, epochs=1)
    yield "gradients", setting("ftw_erm", {"preset": "toy"} if "toy" in protocol.load("ftw_erm").presets else voting)


def digest(run: Any) -> str:
    """SHA-256 of a run's predictions: the columns in order of their names, whatever the Parquet file around them."""
    table = run.table("predictions")
    columns = {name: table[name].to_pylist() for name in sorted(table.column_names)}
    return hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:16]


def measure(only: Sequence[str] = (), train: bool = True) -> tuple[dict[str, str], dict[str, str]]:
    """Scenario and method -> checksum, or why they do not go together; and -> the run's id. Of some methods `only`."""
    sums: dict[str, str] = {}
    ids: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        for scenario, setting in settings(store):
            for name, chosen in ((n, c) for n, c in CASES if not only or n in only):
                if chosen and ONCE.get((name, next(iter(chosen))), "votes") != scenario:
                    continue
                place = "/".join((scenario, name, *(f"{option}={value}" for option, value in chosen.items())))
                try:
                    job = Job.of(setting, name, chosen)
                    if train:
                        (run,) = execute_all([job], store, [], device="cpu", executor="sequential")
                        sums[place] = digest(run)
                    ids[place] = job.spec.id
                except FedbenchError as error:
                    sums[place] = f"refused: {error.message}"
                print(place, sums.get(place, ""), file=sys.stderr)
    return sums, ids


def main(what: str, *only: str) -> int:
    asked = measure(only)[::-1]
    return command(what, FILE, ("runs", "predictions"), asked, lambda name: not only or name.split("/")[1] in only)


if __name__ == "__main__":
    portable.again("tests.golden.predictions")
    sys.exit(main(*sys.argv[1:]))
