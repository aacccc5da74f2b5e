"""Engines, which decide where runs are trained: `here` (this process), `jobs` (worker processes), `ray` (Ray)."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.engine.engines.engine import Engine as Engine
from fedbench.engine.engines.engine import Here
from fedbench.errors import FedbenchError, unknown
from fedbench.options import option
from fedbench.specs import require

if TYPE_CHECKING:
    from fedbench.store import Store

#: A GPU by its number in --device.
_GPU = re.compile(r"cuda:(\d+)")
#: Most worker processes.
MOST_JOBS = 1024
_CLUSTER = re.compile(r"ray://\S+:\d+")


@dataclass(frozen=True)
class Where:
    """The options that select an engine, in every command that can train several runs."""

    device: str = option("auto", "Device: auto, cpu, cuda, or GPUs by number: cuda:0,cuda:1.")
    executor: str = option("auto", "Executor: auto, sequential, cores, stacked, graphed or streams.")
    engine: str = option("here", "Engine: here, ray (RAY_ADDRESS, else local) or ray://HOST:PORT.", metavar="NAME")
    jobs: int | None = option(None, "Number of runs at a time, each in its own process.", metavar="N")
    cpus_per_run: float | None = option(
        None, "Cores of a run, with --jobs (default: an equal share) or Ray (default: 1).", metavar="N"
    )
    gpus_per_run: float | None = option(None, "GPUs of a run on Ray, such as 0.25.", metavar="X")

    @property
    def kind(self) -> str:
        """The kind of device, without GPU numbers."""
        return self.device.partition(":")[0]

    def engine_for(self, store: Store, roots: list[Path], precision: str) -> Engine:
        """Create the engine, without starting it. Raises FedbenchError for an unknown engine, and for options that this
        machine does not support."""
        from fedbench.engine.run import check_place

        name = "ray" if _CLUSTER.fullmatch(self.engine) else self.engine
        if name not in ("here", "ray"):
            raise unknown("engine", self.engine, ("here", "ray", "ray://HOST:PORT"))
        if name == "ray":
            return self._on_ray(store, roots, precision)
        require(self.gpus_per_run is None, "--gpus-per-run goes with --engine ray", "name GPUs: --device cuda:0,cuda:1")
        gpus = self._gpus()
        check_place(self.kind, self.executor, precision)
        if gpus:
            import torch

            there, last = torch.cuda.device_count(), max(gpus)
            require(last < there, f"there is no cuda:{last} here, of {there} GPUs", "name others, from cuda:0 on")
        if self.jobs is None and not gpus:
            require(self.cpus_per_run is None, "--cpus-per-run goes with --jobs or --engine ray", "add --jobs 2")
            return Here(store, roots, self.device, self.executor)
        return self._in_processes(store, roots, gpus)

    def _in_processes(self, store: Store, roots: list[Path], gpus: Sequence[int]) -> Engine:
        import torch

        from fedbench.core.executors import available_cores
        from fedbench.engine.engines.jobs import Jobs

        if self.jobs is not None and not 1 <= self.jobs <= MOST_JOBS:
            bound = "at least 1" if self.jobs < 1 else f"at most {MOST_JOBS:,}"
            raise FedbenchError(f"--jobs must be {bound}, not {self.jobs}")
        count, cores = self.jobs or len(gpus), available_cores()
        few = f"--jobs {count} are too few for {len(gpus)} GPUs"
        require(count >= len(gpus), few, f"--jobs {len(gpus)}, or fewer GPUs")
        share = max(cores // count, 1) if self.cpus_per_run is None else self.cpus_per_run
        if share not in range(1, cores + 1):
            raise FedbenchError(f"--cpus-per-run {share:g} of {cores} cores", f"with --jobs a number from 1 to {cores}")
        if not gpus and self.device != "cpu":
            gpus = range(torch.cuda.device_count())
        return Jobs(store, roots, count, int(share), self.kind, self.executor, gpus)

    def _on_ray(self, store: Store, roots: list[Path], precision: str) -> Engine:
        from fedbench.engine.run import check_place

        cpus, gpus = 1.0 if self.cpus_per_run is None else self.cpus_per_run, self.gpus_per_run or 0.0
        on_cpu = self.device == "cpu"
        require(self.jobs is None, "--jobs does not go with --engine ray", "--cpus-per-run says how many runs fit")
        require(":" not in self.device, f"--device {self.device} does not go with --engine ray", "--gpus-per-run 1")
        require(cpus > 0 and gpus >= 0, "--cpus-per-run and --gpus-per-run are numbers above 0", "such as 2 and 0.25")
        require(not (on_cpu and gpus), "--device cpu does not go with --gpus-per-run", "leave one of them out")
        check_place("cpu", self.executor, precision if on_cpu else "fp32")
        address = self.engine if "//" in self.engine else os.environ.get("RAY_ADDRESS") or "local"
        if address == "local" and "ray" not in sys.modules:  # keep other users out of a local cluster
            os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray (2.52 and later) reads it at import
        try:
            from fedbench.engine.engines.on_ray import Ray
        except ImportError as error:
            line = f"--engine ray needs Ray, which is not installed ({error})"
            raise FedbenchError(line, "pip install 'fedbench-fl[ray]'") from error
        return Ray(store, roots, address, cpus, self.gpus_per_run, self.device, self.executor)

    def _gpus(self) -> list[int]:
        """The numbers of the GPUs in --device; empty if it names none."""
        if ":" not in self.device:
            return []
        names = self.device.split(",")
        numbers = [int(hit[1]) for name in names if (hit := _GPU.fullmatch(name.strip()))]
        if len(numbers) < len(names) or len({*numbers}) < len(numbers):
            raise FedbenchError(f"--device cannot be '{self.device}'", "auto, cpu, cuda, or GPUs: cuda:0,cuda:1")
        return numbers
