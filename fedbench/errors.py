"""The one exception that bad input raises: the command line prints it as one line and exits with 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedbenchError(Exception):
    """Something the user can mend. `message` says what is wrong and where; `hint` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


def unknown(kind: str, name: str, known: Iterable[str]) -> FedbenchError:
    """The error for a name that does not exist, offering the nearest one that does."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names) or 'none'}"
    return FedbenchError(f"unknown {kind} '{name}'", hint)
