"""Entry point of `fedbench` and `python -m fedbench`: errors become one line and an exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

from typer import Abort


def _broken_install(error: ImportError) -> str | None:
    """The message if a module of fedbench is missing or from another distribution; None for other modules."""
    if not str(error.name).startswith("fedbench"):
        return None
    lost = f"fedbench-fl is not whole ({error}); pip uninstall fedbench fedbench-fl; pip install fedbench-fl"
    return str(error) if error.name == "fedbench" else lost


try:
    from fedbench import words
    from fedbench.errors import FedbenchError
    from fedbench.words import plain
except ImportError as error:
    if (text := _broken_install(error)) is None:
        raise
    print(f"fedbench: {text}", file=sys.stderr)
    sys.exit(2)

#: Option of the application -> number of values. These options can be anywhere on the command line.
_GLOBAL_OPTIONS = {"--home": 1, "--data": 1, "--debug": 0}


def hoist(arguments: list[str]) -> list[str]:
    """Move the application's options to the front, so that `fedbench list --home X` works too."""
    front: list[str] = []
    rest: list[str] = []
    i = 0
    while i < len(arguments):
        name = arguments[i].split("=", 1)[0]
        if name in _GLOBAL_OPTIONS:
            width = 1 if "=" in arguments[i] else 1 + _GLOBAL_OPTIONS[name]
            if i + width > len(arguments):
                raise FedbenchError(f"{name} needs a value")
            front += arguments[i : i + width]
            i += width
        elif name == "--":
            rest += arguments[i:]
            break
        else:
            rest.append(arguments[i])
            i += 1
    return front + rest


#: Exit code of an interrupted command; the parser returns it on an interrupt.
INTERRUPTED = 130
#: Seconds in which a signal that comes again is the same one: `timeout` sends its signal to the command and to its
#: process group, and the second must not stop the saving that the first has begun.
ONCE = 1.0


def main(arguments: list[str] | None = None) -> None:
    """Run a command. Exit codes: 0, 1 if some of several runs failed, 2 for bad input, 130 if interrupted."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        from fedbench.cli import app

        prepare()
        words.check(given)
        with _interruptible():
            code = app(hoist(given), prog_name="fedbench", standalone_mode=False)
        if code == INTERRUPTED:
            raise Abort
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except (KeyboardInterrupt, Abort):
        print("fedbench: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader (head, less) has ended: drop buffered output
        discard()
        sys.exit(1)
    except Exception as error:
        line = _line(error)
        if line is None:
            raise
        if "--debug" in given:
            traceback.print_exc()
        elif line:
            print(f"fedbench: {plain(line)}", file=sys.stderr)
        sys.exit(2)
    finally:
        settle()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Context in which SIGTERM and SIGHUP stop a command like Ctrl-C, so that it cleans up; a hangup that is ignored
    (nohup) stays ignored. A shell lets the background commands of a script ignore Ctrl-C: here it stops them too."""
    stopped = -ONCE

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopped
        now = time.monotonic()
        if now - stopped >= ONCE:
            stopped = now
            raise KeyboardInterrupt

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, stop)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            before[signal.SIGINT] = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _line(error: Exception) -> str | None:
    """The one-line message for an error that the user can fix, "" if help was printed; None for other errors."""
    if isinstance(error, FedbenchError):
        return str(error)
    if isinstance(error, OSError):  # name too long, no permission, disk full, ...
        where = ascii(str(error.filename))[1:-1] if error.filename else "standard output or a file"
        return f"cannot use {where if len(where) < 120 else where[:100] + '...'} ({error.strerror or error})"
    if isinstance(error, ImportError):
        return _broken_install(error)
    if isinstance(error, MemoryError):
        return f"not enough memory ({error})" if str(error) else "not enough memory"
    # Errors of the command line's parser have this method, and `ctx` for the command. The parser itself would print a
    # panel of many lines. The message is empty if help was printed instead.
    message = getattr(error, "format_message", None)
    if message is None:
        return None
    text = " ".join(message().split())
    context = getattr(error, "ctx", None)
    return f"{text} (see '{context.command_path} --help')" if text and context else text


#: Valid widths of a terminal, in columns.
WIDTHS = range(1, 10_001)


def prepare() -> None:
    """Make printing safe before anything is printed."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed: a file opened later could get its descriptor, and be overwritten
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # escape what cannot be encoded, as stderr does
    for name in ("COLUMNS", "LINES"):
        text = os.environ.get(name, "")
        if text and not (text.isascii() and text.isdigit() and len(text) < 9 and int(text) in WIDTHS):
            del os.environ[name]


def settle() -> None:
    """Flush stdout; output that cannot be written is dropped, so that Python's exit prints no error."""
    try:
        sys.stdout.flush()
    except OSError:
        discard()


def discard() -> None:
    """Redirect stdout to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
