"""Plug-ins: the user's Python files, loaded with what they import from their folder, isolated from each other (`load`).
This module reports an exception in such a file by its file, line and message instead of by fedbench's stack."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from fedbench.errors import FedbenchError

#: The files of the plug-ins of this process, by their names in tracebacks.
FILES: set[str] = set()


class PluginError(FedbenchError):
    """A mistake in a plug-in's code; its `__cause__` is the original exception, with the whole stack."""


@contextlib.contextmanager
def reported(cannot: str = "") -> Iterator[None]:
    """Convert an exception from a plug-in's code in the block to a PluginError. This includes SystemExit, because
    sys.exit(0) in a hook would end the command with success. Other exceptions pass unchanged, unless `cannot` describes
    what the block does for a plug-in ("cannot make Mine"). KeyboardInterrupt and FedbenchError, whose message is
    one line already, always pass."""
    try:
        yield
    except (KeyboardInterrupt, FedbenchError):
        raise
    except BaseException as error:
        line = mistake(error)
        if cannot:
            raise PluginError(f"{cannot}: {line or in_words(error)}") from error
        if line is None:
            raise
        raise PluginError(line) from error


def mistake(error: BaseException) -> str | None:
    """The innermost plug-in line of the traceback and the error, such as "mine.py, line 12, in local:
    ZeroDivisionError: division by zero". None if no plug-in line is in the traceback."""
    if isinstance(error, SyntaxError) and error.filename in FILES:
        return f"{shown(error.filename)}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    own = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename in FILES
    ]
    if not own:
        return None
    file, line, function = own[-1]
    within = "" if function == "<module>" else f", in {function}"
    return f"{shown(file)}, line {line}{within}: {in_words(error)}"


def in_words(error: BaseException) -> str:
    """The exception's type and the first non-empty line of its message."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__


def shown(file: str | Path) -> str:
    """A file's path as the user would write it: relative to the working folder if it is in there."""
    with contextlib.suppress(ValueError, OSError):
        return str(Path(file).relative_to(Path.cwd()))
    return str(file)
