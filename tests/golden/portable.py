"""Arithmetic with the same last bits on every x86-64 processor of the last ten years (AVX2 and FMA).

Libraries choose their kernels by the processor: by its vendor, its instructions and the size of its caches. Told to
take one kernel everywhere, they are slower and give the same bits: MKL its COMPATIBLE branch (the only one that is
promised for other vendors), OpenBLAS Haswell's, PyTorch and NumPy those of AVX2; oneDNN and NNPACK, which cut their
work by caches, are left out. The variables are read where a library is loaded, so this needs a process of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import pytest

ENVIRONMENT = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4,AVX512_ICL,AVX512_SPR",
    "OMP_NUM_THREADS": "1",
}


def begin() -> None:
    """Make this process compute so. Raises RuntimeError where it was not begun in `ENVIRONMENT`."""
    import torch

    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        raise RuntimeError("its libraries may have been loaded otherwise: begin it with portable.ENVIRONMENT")
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    torch.backends.nnpack.set_flags(False)


def here() -> dict[str, str]:
    """What the bits depend on in such a process."""
    import numpy
    import torch

    cpu = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "numpy": numpy.__version__, "cpu": cpu, "machine": platform.machine()}


@contextmanager
def process() -> Iterator[ProcessPoolExecutor]:
    """A process that computes so, which calls functions of modules for this one."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), begin) as pool:
            pool.submit(here).result()  # it is begun in this environment
            yield pool


def again(module: str) -> None:
    """Run the module anew in such a process, unless this is one; what it is told stays."""
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], {**os.environ, **ENVIRONMENT})
    begin()
