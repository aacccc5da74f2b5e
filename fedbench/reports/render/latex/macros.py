r"""Numbers of tables as LaTeX macros, so that a sentence and its table cannot part.

A macro's name is made of the names of table, row and column alone: `\fedbenchFeddrmOneFedDRMCifarTenDirPointThree`. It
stays the same when other rows and columns come or go. A table of compared runs is named after its file or filters.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence

import fedbench
from fedbench.reports.layout.grid import Entry, Grid
from fedbench.reports.render.latex.characters import escape
from fedbench.words import plain

_ONES = (
    *("Zero", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve"),
    *("Thirteen", "Fourteen", "Fifteen", "Sixteen", "Seventeen", "Eighteen", "Nineteen"),
)
_TENS = ("", "", "Twenty", "Thirty", "Forty", "Fifty", "Sixty", "Seventy", "Eighty", "Ninety")
#: What follows the name of a number in that of its ±.
_SPREAD = "Spread"


def document(grids: Sequence[Grid]) -> str:
    r"""A \newcommand for each number, and for its ±, with the ids of its runs in a comment."""
    taken: Counter[str] = Counter()
    parts = []
    for grid in grids:
        scope = f", {grid.scope}" if grid.scope else ""
        about = f"% {plain(f'fedbench {fedbench.__version__}, {grid.id}{scope}: {grid.caption}')}"
        parts.append(
            "\n".join([about, *(line for name, entry in _named(grid, taken) for line in _macros(name, entry))])
        )
    return "\n\n".join(parts) + "\n"


def _named(grid: Grid, taken: Counter[str]) -> Iterator[tuple[str, Entry]]:
    """(name, entry) of each number of the grid; names that are `taken` get a letter."""
    for line in grid.lines:
        for head, entry in zip(grid.heads, line.entries, strict=True):
            if entry.text and line.kind != "reported":
                name = "".join(map(words, (grid.name or grid.id, line.label, head.group, head.label)))
                taken[name] += 1
                yield name + ("" if taken[name] == 1 else _letters(taken[name] - 1)), entry


def _macros(name: str, entry: Entry) -> Iterator[str]:
    runs = plain(f" % {'run' if len(entry.runs) == 1 else 'runs'} {', '.join(entry.runs)}") if entry.runs else ""
    yield rf"\newcommand{{\fedbench{name}}}{{{escape(entry.text)}}}{runs}"
    if entry.spread:
        yield rf"\newcommand{{\fedbench{name}{_SPREAD}}}{{{escape(entry.spread)}}}"


def words(text: str) -> str:
    """A text in letters alone, each word with a capital: CIFAR-10/Dir-0.3 is CifarTenDirPointThree."""
    decomposed = unicodedata.normalize("NFKD", "".join(_letter(c) for c in plain(text)))
    known = "".join(c for c in decomposed if not unicodedata.combining(c))
    parts = re.findall(r"\d+(?:\.\d+)?|[A-Za-z]+", known)
    return "".join(_number(part) if part[0].isdigit() else _capital(part) for part in parts)


def _letter(c: str) -> str:
    """A character, a letter of another alphabet by its name, or by its number if it has none."""
    name = unicodedata.name(c, str(ord(c)))
    return f" {name.split()[-1]} " if not c.isascii() and c.isalpha() and not name.startswith("LATIN") else c


def _capital(word: str) -> str:
    return word.title() if word.isupper() else word[0].upper() + word[1:]


def _number(digits: str) -> str:
    whole, _, rest = digits.partition(".")
    point = "Point" + "".join(_ONES[int(digit)] for digit in rest) if rest else ""
    return ("" if point and whole == "0" else _whole(whole)) + point


def _whole(digits: str) -> str:
    number = int(digits)
    if number >= 10_000 or (digits[0] == "0" and number):
        return "".join(_ONES[int(digit)] for digit in digits)
    thousands, rest = divmod(number, 1000)
    hundreds, rest = divmod(rest, 100)
    words = (_ONES[thousands] + "Thousand") * bool(thousands) + (_ONES[hundreds] + "Hundred") * bool(hundreds)
    if rest >= 20:
        return words + _TENS[rest // 10] + (_ONES[rest % 10] if rest % 10 else "")
    return words + (_ONES[rest] if rest or not words else "")


def _letters(number: int) -> str:
    """1 -> A, 26 -> Z, 27 -> AA."""
    return ("" if number <= 26 else _letters((number - 1) // 26)) + chr(ord("A") + (number - 1) % 26)
