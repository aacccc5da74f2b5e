"""`fedbench ARGUMENTS` in this process, under the promise that it never ends in a traceback."""

from __future__ import annotations

import contextlib
import io
import signal
from pathlib import Path

from fedbench.__main__ import main
from tests.support.cli_user import Said

#: Signals that commands handle, and must hand back.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def fedbench(*arguments: str | Path, codes: tuple[int, ...] = (0, 1, 2)) -> Said:
    """Run a command. Fails on another exit code, or where an error is not one last line that says what is wrong.

    What a traceback would be is raised as it is.
    """
    out, err = io.StringIO(), io.StringIO()
    code: object = None
    before = [signal.getsignal(number) for number in SIGNALS]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main([str(a) for a in arguments])
    except SystemExit as stop:
        code = stop.code
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
    words = " ".join(map(str, arguments))
    assert code in codes, f"fedbench {words}: exit code {code!r}\n{err.getvalue()}"
    lines = err.getvalue().splitlines()
    if "--debug" in arguments:  # which shows the traceback
        return Said(int(str(code)), out.getvalue(), err.getvalue())
    assert "Traceback" not in err.getvalue(), f"fedbench {words}:\n{err.getvalue()}"
    assert code == 0 or lines, f"fedbench {words}: exit code {code} without a word"
    own = [line for line in lines if line.startswith("fedbench: ")]
    assert own in ([], lines[-1:]), f"fedbench {words}: more than one line of error\n{err.getvalue()}"
    return Said(int(str(code)), out.getvalue(), err.getvalue())
