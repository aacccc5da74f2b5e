"""CSV files of users as spreadsheets write them: in UTF-8 or UTF-16, separated by commas, semicolons or tabs.

A spreadsheet whose country writes 0,5 separates values by semicolons. 8-bit encodings (Latin-1, Windows-1252, ...)
cannot be told from each other, so they are refused.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedbench.data import guard
from fedbench.errors import FedbenchError
from fedbench.specs import require

#: Separators, the most usual first, and their names.
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
#: Bytes from which the separator is told.
_HEAD = 1 << 20
#: Bytes from which UTF-16 without its mark is told: every other one is 0.
_FEW = 32


@dataclass(frozen=True)
class Form:
    """How a CSV file is written."""

    encoding: str  #: "utf-8-sig" (UTF-8 with or without byte order mark) or "utf-16"
    separator: str  #: one of SEPARATORS
    heads: tuple[str, ...]  #: names of the columns

    def said(self, decimal: str = ".") -> str:
        """A note for the user; "" for the usual form."""
        notes = [] if self.encoding == "utf-8-sig" else [self.encoding.upper()]
        if self.separator != ",":
            notes.append(f"{SEPARATORS[self.separator]} between the values")
        if decimal != ".":
            notes.append("commas as decimal points")
        return ", ".join(notes)


def form(path: Path) -> Form:
    """The form of a CSV file, from its first two lines. Raises FedbenchError if it is in another encoding."""
    with guard.reading(path, "is damaged or not a CSV file"):
        with guard.regular(path).open("rb") as file:
            start = bytes(guard.at_most(file, _HEAD))
        encoding = "utf-16" if start.startswith(_UTF16) else "utf-8-sig"
        decoder = codecs.getincrementaldecoder(encoding)()  # the last character may be cut off
        try:
            text = decoder.decode(start)
        except UnicodeDecodeError as error:
            raise undecodable(path, start, error) from error
        for odd in (0, 1):
            unmarked = len(start) > 3 and not any(start[odd:_FEW:2])
            require(not unmarked, f"{path} is in UTF-16 without its mark", "save it as UTF-8")
        separator = _separator(text)
        return Form(encoding, separator, tuple(next(_lines(text, separator), [])))


def lines(path: Path, how: Form, limit: int | None = None) -> Iterator[list[str]]:
    """The values of each line of a CSV file, of that with the names of the columns and of empty ones too.

    Raises FedbenchError for a file of more than `limit` bytes, in another encoding or with an unfinished quote.
    """
    text = decoded(path, how, limit)
    with guard.reading(path, "is damaged or not a CSV file"):
        yield from _lines(text, how.separator, strict=True)


def decoded(path: Path, how: Form, limit: int | None = None) -> str:
    """The text of a file.

    Raises FedbenchError for a file of more than `limit` bytes, and, with the line, for another encoding than its own.
    """
    data = guard.content(path, limit)
    try:
        return data.decode(how.encoding)
    except UnicodeDecodeError as error:
        raise undecodable(path, data, error) from error


def undecodable(path: Path, data: bytes | bytearray, error: UnicodeDecodeError) -> FedbenchError:
    """The error message for text that is not in the encoding that its first bytes say."""
    hint = "save it as UTF-8 ('CSV UTF-8' in a spreadsheet)"
    if data.startswith(_UTF16):
        return FedbenchError(f"{path} is damaged or not a CSV file: it is not UTF-16, as its first bytes say", hint)
    line = data.count(b"\n", 0, error.start) + 1
    said = f"{path}, line {line} is not UTF-8 (byte 0x{data[error.start]:02x})"
    return FedbenchError(f"{said}: the file may be in Latin-1 or Windows-1252", hint)


def _separator(text: str) -> str:
    """The separator that makes most columns, equally many in the first two lines; a comma if none does."""
    best, most = ",", 1
    for separator in SEPARATORS:
        first = list(itertools.islice((row for row in _lines(text, separator) if row), 2))
        if first and len(first[0]) > most and len(first[-1]) == len(first[0]):
            best, most = separator, len(first[0])
    return best


def _lines(text: str, separator: str, strict: bool = False) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=strict)
