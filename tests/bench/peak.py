"""What this device can do at most, measured: matrix products, convolution-sized products, a copy, a convolution.

On a CPU all cores work at once, each with one thread on its own data, as the executor `cores` computes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import torch
from machine import wait
from torch import Tensor
from torch.nn import functional as F

from fedbench.core.executors import available_cores
from fedbench.core.precision import layout

#: (channels in, channels out, side of the map) of ResNet-18's 3x3 convolutions on 32x32 images, one a stage.
CONVOLUTIONS = ((64, 64, 32), (128, 128, 16), (256, 256, 8), (512, 512, 4))
COPY_BYTES = {"cpu": 2**27, "cuda": 2**31}
SQUARES = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096, 8192)}
#: Images of a convolution: a client's batch on a GPU; enough of it to be as fast on a core.
BATCH = {"cpu": 16, "cuda": 128}

#: Made anew in each thread: a function to be timed.
Work = Callable[[], Callable[[], object]]


def measure(device: torch.device, precision: str, seconds: float = 0.25) -> dict[str, float]:
    """GFLOP/s of `product` (square), `conv_product` (products of the size of ResNet-18's convolutions, the best of
    them), `convolution` (3x3, the best), and GB/s read and written of `copy`. `seconds` are given to each size."""
    kind = device.type
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    def product(m: int, k: int, n: int) -> Work:
        def work() -> Callable[[], object]:
            a, b, out = normal(m, k), normal(k, n), normal(m, n)
            return lambda: torch.mm(a, b, out=out)

        return work

    def convolution(inputs: int, outputs: int, side: int) -> Work:
        def work() -> Callable[[], object]:
            order = layout(precision, device)
            x = normal(BATCH[kind], inputs, side, side).to(memory_format=order)
            weight = normal(outputs, inputs, 3, 3).to(memory_format=order)
            return lambda: F.conv2d(x, weight, padding=1)

        return work

    def copy() -> Callable[[], object]:
        a = torch.empty(COPY_BYTES[kind], dtype=torch.uint8, device=device).zero_()
        b = torch.zeros_like(a)
        return lambda: b.copy_(a)

    def best(sizes: Iterator[tuple[float, Work]]) -> float:
        return max(operations * _rate(work, device, seconds) for operations, work in sizes) / 1e9

    def rows(side: int) -> int:
        return BATCH[kind] * side * side

    return {
        "product": best((2.0 * n**3, product(n, n, n)) for n in SQUARES[kind]),
        "conv_product": best(
            (2.0 * rows(s) * 9 * i * o, product(rows(s), 9 * i, o)) for i, o, s in CONVOLUTIONS
        ),
        "convolution": best((2.0 * rows(s) * 9 * i * o, convolution(i, o, s)) for i, o, s in CONVOLUTIONS),
        "copy": best((2.0 * COPY_BYTES[kind], w) for w in (copy,)),
    }  # fmt: skip


@torch.no_grad()
def _rate(work: Work, device: torch.device, seconds: float) -> float:
    """Calls a second, of all cores together."""
    if device.type == "cuda":
        return _of_one(work(), device, seconds)
    count = available_cores()
    rates, together = [0.0] * count, threading.Barrier(count, timeout=60)

    def run(i: int) -> None:
        torch.set_num_threads(1)  # a property of the thread
        with torch.no_grad():
            call = work()
            together.wait()
            rates[i] = _of_one(call, device, seconds)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates)


def _of_one(call: Callable[[], object], device: torch.device, seconds: float) -> float:
    call()
    wait(device)
    started, calls = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        for _ in range(4):  # a GPU is kept busy between two waits
            call()
        wait(device)
        calls += 4
    return calls / (time.perf_counter() - started)
