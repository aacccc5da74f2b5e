"""Words from outside, of the command line, the environment, plug-ins and artifacts: plain text, as it may stand on a
screen or in a document, and the paths that they name; and times and sizes in words."""

from __future__ import annotations

import errno
import os
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from fedbench.errors import FedbenchError

#: Control characters, halves of characters (bytes that were no UTF-8 come as such) and separators of lines.
_NO_TEXT = ("Cc", "Cs", "Zl", "Zp")
#: Joiners, which show nothing but shape letters and emoji.
_JOINERS = "\u200c\u200d"


def one_line(word: str, where: str) -> str:
    """The word, if it is text of one line: messages, manifests and tables can then show it as it is.

    Raises FedbenchError naming `where` it stands.
    """
    for character in word:
        if unicodedata.category(character) in _NO_TEXT:
            what = "bytes that are not UTF-8" if "\ud800" <= character <= "\udfff" else "a control character"
            raise FedbenchError(f"{where} holds {what}: {word[:80]!a}", "give plain text of one line")
    return word


def plain(text: str, keep: str = "") -> str:
    """The text without control characters (a terminal would obey them) or marks that turn the direction of writing.

    Line breaks and tabs become spaces, but for those of `keep`; everything else that cannot be printed is spelt out
    as Python would, such as \\x1b.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _JOINERS or c in keep else _spelt(c) for c in text)


def _spelt(c: str) -> str:
    if c == "\u00a0":
        return c
    return " " if c.isspace() else c.encode("unicode_escape").decode()


def path_of(word: str, where: str) -> Path:
    """The path that a word names, with the home folder for a leading ~. Raises FedbenchError if nobody has that one,
    and if no file can have such a path."""
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
    """The paths of a list that is written as PATH is. Raises FedbenchError as `path_of`."""
    return [path_of(one, where) for one in text.split(os.pathsep) if one]


def check(words: Iterable[str]) -> None:
    """Raise FedbenchError if a word of the command line is no plain text."""
    for word in words:
        one_line(word, "the command line")


def option_of(name: str) -> str:
    """A field as it is typed: --batch-size of batch_size."""
    return f"--{name.replace('_', '-')}"


def counted(number: int, noun: str) -> str:
    """A number of things, such as 1 epoch, or 3,000 steps."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def size(bytes: int) -> str:
    """Bytes in words: 12 kB, 3.4 MB, 1.2 GB."""
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if bytes >= unit:
            return f"{bytes / unit:.1f} {name}"
    return f"{bytes / 1e3:.0f} kB"


def duration(seconds: float) -> str:
    """Seconds in words, roughly and at least one: 45 s, 12 min, 3.5 h, 2.1 days."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"
