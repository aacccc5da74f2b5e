"""Headless Chromium over its own pipe: opens pages, runs scripts in them, and hears what their consoles say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

#: The program, where there is one.
PROGRAM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
_SWITCHES = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run")


class Browser:
    """One page. Chromium reads commands from its file 3 and writes answers and events to its file 4, each a JSON object
    that a zero byte ends (https://chromedevtools.github.io/devtools-protocol/)."""

    def __init__(self) -> None:
        self.errors: list[str] = []  #: exceptions, refusals and other errors in the console
        self._count = 0
        self._session: str | None = None
        self._loads = 0

    def __enter__(self) -> Self:
        theirs, commands = os.pipe()
        answers, ours = os.pipe()
        self._folder = tempfile.TemporaryDirectory()
        words = [PROGRAM, *_SWITCHES, f"--user-data-dir={self._folder.name}", "about:blank"]
        shell = ["bash", "-c", f'exec "$@" 3<&{theirs} 4>&{ours}', "bash", *words]
        self._process = subprocess.Popen(
            shell, pass_fds=(theirs, ours), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for fd in (theirs, ours):
            os.close(fd)
        self._commands, self._answers = os.fdopen(commands, "wb", 0), os.fdopen(answers, "rb")
        self._buffer = b""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        self._commands.close()
        self._answers.close()
        shutil.rmtree(self._folder.name, ignore_errors=True)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command's result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        self._commands.write(
            json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0"
        )
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        """The next message, an event or an answer."""
        while b"\0" not in self._buffer:
            piece = os.read(self._answers.fileno(), 1 << 16)
            assert piece, "the browser has ended"
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(str(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(str(parameters["entry"]))
        elif method == "Page.loadEventFired":
            self._loads += 1
        return message

    def _loaded(self, before: int) -> None:
        while self._loads == before:
            self._next()

    def open(self, path: Path) -> None:
        """A file, once it has loaded."""
        before = self._loads
        self.send("Page.navigate", url=path.as_uri())
        self._loaded(before)

    def do(self, script: str, *, opens: bool = False) -> Any:
        """The value of a JavaScript expression; with `opens`, after the page that it leads to has loaded."""
        before = self._loads
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        if opens:
            self._loaded(before)
        return answer["result"].get("value")

    def look(self, width: int, theme: str) -> None:
        """The page in a window of so many pixels, for a reader who prefers `light` or `dark`."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
