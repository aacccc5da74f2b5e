"""FedbenchError, the exception for bad input: the command line prints it as one line and exits with 2."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Collection, Iterable
from typing import Any

import fedbench

if "FedbenchError" not in getattr(fedbench, "__all__", ()):  # checked here because every module imports this one
    raise ImportError(
        "fedbench-fl is not whole: another distribution, fedbench, has put its files in place of ours, or has taken "
        "them away; pip uninstall fedbench fedbench-fl; pip install fedbench-fl",
        name="fedbench",
    )


class FedbenchError(Exception):
    """An error that the user can fix. `message`: what is wrong and where; `hint`: what to do; one line each."""

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = _one_line(message)
        self.hint = _one_line(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def __reduce__(self) -> Any:
        """Pickle the error without calling `__init__`, whose arguments differ between subclasses."""
        return _unpickled, (type(self), self.args, self.__dict__)

    def at(self, where: str) -> FedbenchError:
        """The error with a place in the user's file, such as "mine.toml, row 2", before its message."""
        return FedbenchError(f"{where}: {self.message}", self.hint)


class DivergedError(FedbenchError):
    """Numbers of a run are not finite. Training it again elsewhere gives the same, unlike an error about memory."""


def reason(error: Exception | None) -> str:
    """Why something failed, in one line: the text of a FedbenchError, or type and text of another error."""
    return str(error) if isinstance(error, FedbenchError) else f"{type(error).__name__}: {error}"


def _unpickled(kind: type[FedbenchError], args: tuple[Any, ...], values: dict[str, Any]) -> FedbenchError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(values)
    return error


def _one_line(text: str) -> str:
    """The text on one line: line breaks become spaces, control characters become escapes."""
    if text.isascii() and text.isprintable():
        return text
    joined = " ".join(line.strip() for line in text.splitlines() if line.strip())
    return "".join(repr(c)[1:-1] if unicodedata.category(c).startswith("C") else c for c in joined)


def unknown(kind: str, name: str, known: Iterable[Any], listed: str = "") -> FedbenchError:
    """The error for an unknown name. Its hint is the nearest known name, if one is near; else `listed`, the command
    that lists all names; else the names.
    """
    names = sorted(map(str, known))
    near = nearest(name, names)
    every = f"'{listed}' lists them" if listed else f"known: {', '.join(names) or 'none'}"
    return FedbenchError(f"unknown {kind} '{name}'", f"did you mean '{near}'?" if near else every)


def check_known(kind: str, name: str | None, known: Collection[str], listed: str = "") -> None:
    """Raise the error of `unknown` if a name is not known; None is valid."""
    if name is not None and name not in known:
        raise unknown(kind, name, known, listed)


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that a misspelt name probably means; "" if none is similar.

    About one wrong letter in four is allowed, and one in three for names of up to three letters: 'cifr10' gives
    'cifar10' and 'fgo' gives 'fog', but 'scaffold' does not give 'cfl'.
    """
    folded = {one.casefold(): one for one in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.75 if len(name) > 3 else 0.66)
    return folded[near[0]] if near else ""
