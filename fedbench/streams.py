"""Standard streams as they come: closed, full, of another encoding, or of a nonsensical width."""

from __future__ import annotations

import os
import sys

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
