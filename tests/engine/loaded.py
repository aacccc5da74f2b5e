"""Which of fedbench's files a short run of each method loads, and which are parts of its fingerprint.

Run as `python loaded.py STORE METHOD...`: a line of JSON a method. Each method runs in a process of its own, forked
after what is slow to import and is not fedbench's, and after all code has been read.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path


def look(store_folder: str, name: str) -> dict[str, object]:
    from fedbench import methods
    from fedbench.data.locate import resolve
    from fedbench.engine.job import Job
    from fedbench.engine.run import execute_all
    from fedbench.errors import FedbenchError
    from fedbench.imports import PACKAGE
    from fedbench.partitions.schemes import spec as partition_spec
    from fedbench.specs import Setting
    from fedbench.store import Store

    store = Store(Path(store_folder))
    kind = methods.load(name)[0]
    partition = partition_spec(resolve("digits", store), "dirichlet", 3, 1, 0.7, alpha=0.5, subsample=0.2)
    setting = Setting(
        partition=partition,
        model="digits_cnn",
        rounds=2,
        steps=1,
        batch_size=8,
        lr=0.05,
        seed=1,
        votes=kind.takes_votes,
        test_phase=True,
        window=1,
    )
    try:
        job = Job.of(setting, name, {})
    except FedbenchError:  # one whose local work has two parts
        job = Job.of(replace(setting, steps=2), name, {})
    parts = job.parts
    execute_all([job], store, [], device="cpu", executor="sequential")
    files = [getattr(module, "__file__", None) for key, module in sys.modules.items() if key.startswith("fedbench.")]
    loaded = sorted(Path(file).relative_to(PACKAGE).as_posix() for file in files if file)
    return {"method": name, "loaded": loaded, "parts": parts}


if __name__ == "__main__":
    for slow in ("pyarrow.parquet", "safetensors.torch", "sklearn.cluster", "sklearn.datasets", "torch"):
        importlib.import_module(slow)
    from fedbench.imports import PACKAGE, closure, code

    closure(*(file.relative_to(PACKAGE).as_posix() for file in PACKAGE.rglob("*.py")))
    for file in PACKAGE.rglob("*.py"):
        code(file.read_bytes())
    for name in sys.argv[2:]:
        child = os.fork()
        if child == 0:
            print(json.dumps(look(sys.argv[1], name)), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
