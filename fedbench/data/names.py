"""When two names of classes or groups are the same, by one rule for both.

Text is compared in Unicode's form NFC. Values of a file without types (CSV, lists) that are all whole numbers are these
numbers: 1, 01 and 1.0 are one. One value that is none makes all of them text, and "01" and "1" differ.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_WHOLE = re.compile(r"(-?[0-9]{1,18})(?:\.0*)?")


def composed(name: str) -> str:
    """A name in Unicode's form NFC. The same name may come in another form, such as of a file system's folders."""
    return unicodedata.normalize("NFC", name)


def wholes(values: Iterable[str]) -> dict[str, int] | None:
    """Value -> its number, if every value is a whole number (of 18 digits at most); else None."""
    found = {value: _WHOLE.fullmatch(value.strip()) for value in dict.fromkeys(values)}
    numbers = {value: int(match[1]) for value, match in found.items() if match}
    return numbers if len(numbers) == len(found) else None


def first_number(least: int) -> int:
    """The number of the first class, 0 or 1, if the labels alone tell the classes; `least` is the least of them."""
    return int(least >= 1)
