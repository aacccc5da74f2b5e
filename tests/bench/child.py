"""A workload done in one way, in a process of its own: what it sets for the whole process neither helps nor hurts
another way, and its peak memory is its own."""

from __future__ import annotations

import traceback
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, Self

import machine
from ours import Ours
from usual import Usual
from workloads import WORKLOADS

from fedbench.core.precision import arithmetic, peak_bytes

#: The longest that one command may take, in seconds.
PATIENCE = 240.0


class Failed(Exception):
    """A child raised, died or took too long; the message is one line."""


class Station:
    """The parent's end of a child."""

    def __init__(self, device: str, precision: str, workload: str = "", way: str = "usual") -> None:
        order = (device, precision, workload, way)
        self.pool = ProcessPoolExecutor(1, get_context("spawn"), _begin, order)

    def ask(self, command: str) -> Any:
        """What the child's method of that name returns. Raises Failed."""
        try:
            return self.pool.submit(_answer, command).result(PATIENCE)
        except TimeoutError:
            raise Failed("took too long") from None
        except BrokenExecutor:
            raise Failed("the process died") from None
        except Exception as error:
            traceback.print_exc()
            text = str(error).strip().splitlines() or [""]
            raise Failed(f"{type(error).__name__}: {text[0]}"[:200]) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self.pool._processes or {}).values():
            process.kill()
        self.pool.shutdown()


def _begin(*order: str) -> None:
    global _child
    _child = Child(*order)


def _answer(command: str) -> Any:
    return getattr(_child, command)()


class Child:
    """Answers `facts`, or `prepare`, `repeat`... and `finish`, in this order. `way` is an executor, or "usual"."""

    def __init__(self, device: str, precision: str, workload: str, way: str) -> None:
        self.device, self.precision, self.key, self.way = machine.choose(device), precision, workload, way
        self.arithmetic = arithmetic(precision, self.device)
        self.arithmetic.__enter__()  # for as long as the process lives

    def facts(self) -> dict[str, Any]:
        """Of the machine."""
        return machine.facts(self.device)

    def prepare(self) -> dict[str, Any]:
        """Build the run, warm it up by doing the workload once, and tell what a repeat is."""
        w = self.workload = WORKLOADS[self.key](self.device.type)
        usual = self.way == "usual"
        self.run = Usual(w, self.device, self.precision) if usual else Ours(w, self.device, self.precision, self.way)
        self.run.repeat()
        steps, images = w.work
        if (getattr(self.run, "steps", steps), self.run.images) != (steps, images):
            raise RuntimeError(f"{self.run.images} images instead of {images} were processed, or in other steps")
        return {"steps": steps, "images": images, "repeats": w.repeats, "scale": w.scale}

    def repeat(self) -> float:
        """Seconds of a repeat."""
        seconds: float = self.run.repeat()
        return seconds

    def finish(self) -> dict[str, float]:
        """Peak memory in MB (2**20 bytes), of the GPU's tensors or of this process; and the operations of a repeat."""
        used, w = peak_bytes(self.device) / 2**20, self.workload
        self.run.close()
        return {"peak_mb": used, "flops": machine.flops(w.build(), w.shape, training=not w.answers) * w.work[1]}
