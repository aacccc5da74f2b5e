"""A process that does one workload in one way, at its parent's word: a command a line in, a JSON line back.

Each way has a process of its own, so that what one of them sets for the whole process neither helps nor hurts
another, and its peak memory is its own.

    python child.py '{"device": "cpu", "precision": "fp32", "workload": "a", "way": {"title": "usual", ...}}'
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


class Child:
    """Answers the commands; `load` comes first, then `facts` and `peak`, or `prepare`, `repeat`... and `finish`."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.run: Any = None

    def load(self) -> str:
        """Import what takes long, and find the device."""
        import machine
        import ours
        import usual  # noqa: F401

        from fedbench.core.precision import arithmetic

        self.device = machine.choose(self.order["device"])
        self.arithmetic = arithmetic(self.order["precision"], self.device)
        self.arithmetic.__enter__()  # for as long as the process lives
        self.reference = ours.REFERENCE
        return self.device.type

    def facts(self) -> dict[str, Any]:
        import machine

        return machine.facts(self.device)

    def peak(self) -> dict[str, float]:
        import peak

        return peak.measure(self.device, self.order["precision"])

    def prepare(self) -> dict[str, Any]:
        """Build the run, warm it up by doing the workload once, and tell what a repeat is."""
        from workloads import WORKLOADS

        self.workload = WORKLOADS[self.order["workload"]](self.device.type)
        self.run = self._run(self.workload)
        seconds = self.run.repeat()
        steps, images = self.workload.work
        if (getattr(self.run, "steps", steps), self.run.images) != (steps, images):
            raise RuntimeError(f"{self.run.images} images instead of {images} were processed, or in other steps")
        return {
            "warm_up": seconds, "steps": steps, "images": images, "repeats": self.workload.repeats,
            "scale": self.workload.scale,
        }  # fmt: skip

    def repeat(self) -> dict[str, float | None]:
        """Seconds of a repeat, and the share of the cores that other processes had meanwhile."""
        import machine

        others = machine.Others()
        return {"seconds": self.run.repeat(), "others": others.share()}

    def finish(self) -> dict[str, Any]:
        """Peak memory of the repeats; then, out of the clock, operations and the difference from the reference."""
        import machine

        w = self.workload
        flops = machine.flops(w.build(), w.shape, training=not w.answers) * w.work[1]
        told = {"peak_mb": machine.peak_mb(self.device)}
        self.run.close()
        self.run = None  # what follows needs room of its own
        return {**told, "parity": self._parity(), "flops": flops}

    def profile(self) -> dict[str, Any]:
        """Where the time goes."""
        import machine

        from fedbench.core.executors import available_cores

        run = self._run(self.workload.sample())
        run.repeat()
        # Operators of the usual way are seen in the one thread that calls them; ours run one thread a core.
        single = self.order["way"]["executor"] in (None, self.reference)
        lanes = 1 if single or self.device.type != "cpu" else available_cores()
        return machine.profile(run.repeat, self.device, lanes)

    def _run(self, workload: Any) -> Any:
        from ours import Ours
        from usual import Usual

        how, precision = self.order["way"], self.order["precision"]
        if how["peer"] == "blazefl":
            from blaze import Blaze

            return Blaze(workload, self.device, **how["options"])
        if how["executor"] is None:
            return Usual(workload, self.device, precision)
        return Ours(workload, self.device, precision, how["executor"], how["options"])

    def _parity(self) -> float | None:
        from ours import difference, outcome

        how, precision = self.order["way"], self.order["precision"]
        if how["executor"] is None:
            return None
        if how["executor"] == self.reference:
            return 0.0
        reference = outcome(self.workload, self.device, precision, self.reference)
        return difference(outcome(self.workload, self.device, precision, how["executor"], how["options"]), reference)


def main() -> None:
    # What libraries print goes to standard error: the channel to the parent is ours alone.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    child = Child(json.loads(sys.argv[1]))
    commands: dict[str, Callable[[], Any]] = {
        name: getattr(child, name) for name in ("load", "facts", "peak", "prepare", "repeat", "finish", "profile")
    }
    for line in sys.stdin:
        try:
            reply = {"ok": commands[line.strip()]()}
        except Exception as error:
            traceback.print_exc()
            text = str(error).strip().splitlines() or [""]
            reply = {"error": f"{type(error).__name__}: {text[0]}"[:200]}
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(reply), file=channel, flush=True)


if __name__ == "__main__":
    main()
