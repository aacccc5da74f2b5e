"""`fedbench` and `python -m fedbench`: errors become one line and an exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

from typer import Abort


def _lost(error: ImportError) -> str | None:
    """What it means that a module of ours is not there, or that the package is another; None for other modules."""
    if not str(error.name).startswith("fedbench"):
        return None
    lost = f"fedbench-fl is not whole ({error}); pip uninstall fedbench fedbench-fl; pip install fedbench-fl"
    return str(error) if error.name == "fedbench" else lost


try:
    from fedbench import words
    from fedbench.errors import FedbenchError
    from fedbench.words import plain
except ImportError as error:
    if (text := _lost(error)) is None:
        raise
    print(f"fedbench: {text}", file=sys.stderr)
    sys.exit(2)

#: Options that may stand anywhere on the line; they belong to the application, not to one command.
_EVERYWHERE = {"--home": 1, "--data": 1, "--debug": 0}


def hoist(arguments: list[str]) -> list[str]:
    """Move the application's options to the front, so that `fedbench list --home X` works too."""
    front: list[str] = []
    rest: list[str] = []
    i = 0
    while i < len(arguments):
        name = arguments[i].split("=", 1)[0]
        if name in _EVERYWHERE:
            width = 1 if "=" in arguments[i] else 1 + _EVERYWHERE[name]
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


#: Exit code of a command that was interrupted; the command line's parser turns an interrupt into it.
INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Entry point: exit 0, 1 if some runs of several failed, 2 on bad input, 130 when interrupted."""
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
    except BrokenPipeError:  # the reader (head, less) has gone, and what is still buffered has nowhere to go
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
    """SIGTERM and SIGHUP stop a command as Ctrl-C does, so that it clears up behind itself; one that is ignored (nohup)
    stays ignored."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _line(error: Exception) -> str | None:
    """What is wrong with the input, in one line; None for an error that is not the user's."""
    if isinstance(error, FedbenchError):
        return str(error)
    if isinstance(error, OSError):  # the system refuses: a name too long, no permission, a full disk, ...
        where = ascii(str(error.filename))[1:-1] if error.filename else "standard output or a file"
        return f"cannot use {where if len(where) < 120 else where[:100] + '...'} ({error.strerror or error})"
    if isinstance(error, ImportError):
        return _lost(error)
    if isinstance(error, MemoryError):
        return f"not enough memory ({error})" if str(error) else "not enough memory"
    # Whatever the command line's parser finds wrong has this method and knows its command; its own message would
    # be a panel of many lines. The text is empty where help was shown instead.
    message = getattr(error, "format_message", None)
    if message is None:
        return None
    text = " ".join(message().split())
    context = getattr(error, "ctx", None)
    return f"{text} (see '{context.command_path} --help')" if text and context else text


# -- streams ---------------------------------------------------------------------------------------------------
# Standard streams as they come: closed, full, of another encoding, or of a nonsensical width.


#: Columns that a terminal or a list can have.
WIDTHS = range(1, 10_001)


def prepare() -> None:
    """Make printing safe before anything is printed."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed: its number must not become that of a file which is then printed into
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # as on standard error: what an encoding lacks is spelt out
    for name in ("COLUMNS", "LINES"):
        text = os.environ.get(name, "")
        if text and not (text.isascii() and text.isdigit() and len(text) < 9 and int(text) in WIDTHS):
            del os.environ[name]


def settle() -> None:
    """Write out what is still to be printed; what cannot be written is dropped, so that Python's exit stays quiet."""
    try:
        sys.stdout.flush()
    except OSError:
        discard()


def discard() -> None:
    """Print nowhere from now on."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
