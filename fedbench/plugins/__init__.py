"""A user's own Python files: read with what they import from their folder, and run apart from each other (`load`).
Whose mistake an exception is, is said here: one in such a file by its file, line and message, not by our stack."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from fedbench.errors import FedbenchError

#: The files of the plug-ins of this process, as they stand in tracebacks.
FILES: set[str] = set()


class PluginError(FedbenchError):
    """A mistake in a plug-in's code; its cause is the exception itself, with the whole stack."""


@contextlib.contextmanager
def reported(cannot: str = "") -> Iterator[None]:
    """Raise what a plug-in's code lets escape in the block as a PluginError, SystemExit too: else sys.exit(0) in a hook
    would end the command as if all were well. What is no plug-in's doing passes as it is, unless `cannot` says what the
    block does for a plug-in ("cannot make Mine"); an interrupt and a FedbenchError, which is one line already, always
    do."""
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
    """Such as "mine.py, line 12, in local: ZeroDivisionError: division by zero": the plug-in's line that was at work
    last. None if none was."""
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
    """The exception's type and the first line of its message."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__


def shown(file: str | Path) -> str:
    """A file as the user would write it: from the working folder on if it lies there."""
    with contextlib.suppress(ValueError, OSError):
        return str(Path(file).relative_to(Path.cwd()))
    return str(file)
