"""Arithmetic with the same last bits on every x86-64 processor of the last ten years (AVX2 and FMA).

Libraries choose their kernels by the processor: by its vendor, its instructions and the size of its caches. Told to
take one kernel everywhere, they are slower and give the same bits: MKL its COMPATIBLE branch (the only one that is
promised for other vendors), OpenBLAS Haswell's, PyTorch and NumPy those of AVX2; oneDNN and NNPACK, which cut their
work by caches, are left out. The variables are read where a library is loaded, so this needs a process of its own.

Even that branch of MKL begins some functions from the processor's approximations of 1/x and 1/sqrt(x), which are
others on an AMD and on an Intel: those are computed by NumPy.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import Tensor

ENVIRONMENT = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4,AVX512_ICL,AVX512_SPR",
    "OMP_NUM_THREADS": "1",
}
#: Of PyTorch's functions that go to MKL, those with other bits on a real EPYC than on a processor whose approximations
#: are exact (emulated); the other elementwise ones, decompositions and norms have the same.
APPROXIMATED = ("acos", "asin", "atan", "log", "sqrt", "tan")


def begin() -> None:
    """Make this process compute so. Raises RuntimeError where it was not begun in `ENVIRONMENT`."""
    import torch

    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        raise RuntimeError("its libraries may have been loaded otherwise: begin it with portable.ENVIRONMENT")
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    torch.backends.nnpack.set_flags(False)
    _by_numpy()


@cache  # registered once, and held for as long as the process lives
def _by_numpy() -> Any:
    """Compute the approximated functions of CPU tensors by NumPy, wherever PyTorch asks for them."""
    import numpy
    import torch

    def computed(name: str, x: Tensor) -> Tensor:
        floating = x if x.is_floating_point() else x.to(torch.get_default_dtype())
        return torch.from_numpy(numpy.asarray(getattr(numpy, name)(floating.detach().numpy())))

    def into(name: str, x: Tensor, out: Tensor) -> Tensor:
        return out.resize_(x.shape).copy_(computed(name, x))

    def in_place(name: str, x: Tensor) -> Tensor:
        return x.copy_(computed(name, x))

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")  # that it has a kernel already
        for name in APPROXIMATED:
            for form, kernel in ((name, computed), (f"{name}.out", into), (f"{name}_", in_place)):
                library.impl(form, partial(kernel, name), "CPU")
    return library


def here() -> dict[str, str]:
    """What the bits depend on in such a process."""
    import numpy
    import torch

    cpu = torch.backends.cpu.get_cpu_capability()
    versions = {"torch": torch.__version__, "numpy": numpy.__version__}
    return {**versions, "by_numpy": " ".join(APPROXIMATED), "cpu": cpu, "machine": platform.machine()}


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
