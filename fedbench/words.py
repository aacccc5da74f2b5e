"""Make texts from the command line, the environment, plug-ins and artifacts safe to print; convert them to paths; and
format numbers, times and sizes."""

from __future__ import annotations

import errno
import os
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedbench.errors import FedbenchError

#: Unicode categories: control characters, surrogates (from bytes that are not UTF-8) and line separators.
_NO_TEXT = ("Cc", "Cs", "Zl", "Zp")
#: Joiners, which are invisible but shape letters and emoji.
_JOINERS = "\u200c\u200d"


def one_line(word: str, where: str) -> str:
    """Return the word if it is one line of text, which messages, manifests and tables can print unchanged.

    Otherwise raises FedbenchError, which names the origin `where`.
    """
    for character in word:
        if unicodedata.category(character) in _NO_TEXT:
            what = "bytes that are not UTF-8" if "\ud800" <= character <= "\udfff" else "a control character"
            raise FedbenchError(f"{where} holds {what}: {word[:80]!a}", "give plain text of one line")
    return word


def plain(text: str, keep: str = "") -> str:
    """The text without control characters (a terminal would execute them) and marks that change the writing direction.

    Line breaks and tabs become spaces, unless they are in `keep`; other unprintable characters become Python escapes,
    such as \\x1b.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _JOINERS or c in keep else _spelt(c) for c in text)


def _spelt(c: str) -> str:
    if c == "\u00a0":
        return c
    return " " if c.isspace() else c.encode("unicode_escape").decode()


def path_of(word: str, where: str) -> Path:
    """Convert a word to a path; a leading ~ is a home folder. Raises FedbenchError for an unknown user's home folder or
    an impossible path."""
    if not word:
        raise FedbenchError(f"{where} is empty", "give a path, such as . for this folder")
    try:
        path = Path(one_line(word, where)).expanduser()
        path.lstat()
        return path
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            return path
        raise FedbenchError(f"cannot use {where} {word[:100]}... ({error.strerror})", "give a shorter one") from error
    except RuntimeError as error:
        raise FedbenchError(
            f"{where} {word}: no home folder is known for {word.split('/')[0]}", "name it in full"
        ) from error


def folders_of(text: str, where: str) -> list[Path]:
    """The paths in a list in the format of the variable PATH. Raises FedbenchError like `path_of`."""
    return [path_of(path, where) for path in text.split(os.pathsep) if path]


def check(words: Iterable[str]) -> None:
    """Raise FedbenchError if a word of the command line is not one line of text."""
    for word in words:
        one_line(word, "the command line")


def option_of(name: str) -> str:
    """The command-line option of a field: --batch-size for batch_size."""
    return f"--{name.replace('_', '-')}"


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 epoch, 3,000 steps."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def first_of(names: Sequence[str], most: int = 3) -> str:
    """The first names, and "..." where there are more: a, b, c, ..."""
    return ", ".join(names[:most]) + (", ..." if names[most:] else "")


def listed(words: Iterable[str]) -> str:
    """Words as a sentence lists them: a, b and c."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def size(bytes: int) -> str:
    """Format a number of bytes: 12 kB, 3.4 MB, 1.2 GB."""
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if bytes >= unit:
            return f"{bytes / unit:.1f} {name}"
    return f"{bytes / 1e3:.0f} kB"


def duration(seconds: float) -> str:
    """Format seconds, rounded, at least 1 s: 45 s, 12 min, 3.5 h, 2.1 days."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"
