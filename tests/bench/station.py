"""The parent's end of a child process."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from ways import Way

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: The longest that one command may take, in seconds.
PATIENCE = 240.0


class Failed(Exception):
    """A child raised, died or took too long; the message is one line."""


class Station:
    """A child process for one workload done in one way. Starting does not wait: the child loads by itself."""

    def __init__(
        self, device: str, precision: str, workload: str = "", way: Way | None = None, deadline: float = float("inf")
    ) -> None:
        order = {"device": device, "precision": precision, "workload": workload, "way": way and asdict(way)}
        # From a checkout that is not installed too.
        paths = [p for p in (os.environ.get("PYTHONPATH"), str(ROOT)) if p]
        self.deadline = deadline  #: seconds of time.monotonic() after which no command is waited for
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "child.py"), json.dumps(order)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip
        self.replies: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self._send("load")

    def loaded(self) -> str:
        """Wait until the child is ready for commands: its kind of device."""
        return self._receive()

    def ask(self, command: str) -> Any:
        """The child's answer. Raises Failed."""
        self._send(command)
        return self._receive()

    def close(self) -> None:
        """End the child."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, command: str) -> None:
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise Failed(f"the process died: {self._last_words()}") from error

    def _receive(self) -> Any:
        patience = min(PATIENCE, self.deadline - time.monotonic())
        try:
            line = self.replies.get(timeout=max(patience, 0.01))
        except queue.Empty:
            raise Failed("took too long" if patience == PATIENCE else "out of time") from None
        if not line:
            raise Failed(f"the process died: {self._last_words()}")
        reply = json.loads(line)
        if "error" in reply:
            raise Failed(reply["error"])
        return reply["ok"]

    def _listen(self) -> None:
        for line in self.process.stdout:
            self.replies.put(line)
        self.replies.put("")  # the end

    def _last_words(self) -> str:
        self.log.seek(0)
        lines = self.log.read().strip().splitlines()
        return lines[-1][:200] if lines else f"exit status {self.process.poll()}"
