"""The one exception that bad input raises: the command line prints it as one line and exits with 2."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Collection, Iterable
from typing import Any

import fedbench

if "FedbenchError" not in getattr(fedbench, "__all__", ()):  # every module of ours comes past here
    raise ImportError(
        "fedbench-fl is not whole: another distribution, fedbench, has put its files in place of ours, or has taken "
        "them away; pip uninstall fedbench fedbench-fl; pip install fedbench-fl",
        name="fedbench",
    )


class FedbenchError(Exception):
    """Something the user can mend. `message` says what is wrong and where; `hint` says what to do; one line each."""

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = _one_line(message)
        self.hint = _one_line(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def __reduce__(self) -> Any:
        """So that it can be sent to another process, whatever its class asks for."""
        return _again, (type(self), self.args, self.__dict__)

    def at(self, where: str) -> FedbenchError:
        """The error with the place in the user's file that it is about, such as "mine.toml, row 2", before it."""
        return FedbenchError(f"{where}: {self.message}", self.hint)


class DivergedError(FedbenchError):
    """Numbers of a run are not finite any more. It ends so wherever it is trained, unlike one that wants memory."""


def reason(error: Exception | None) -> str:
    """Why something failed, in one line: an error of ours as it is, any other with its type."""
    return str(error) if isinstance(error, FedbenchError) else f"{type(error).__name__}: {error}"


def _again(kind: type[FedbenchError], args: tuple[Any, ...], values: dict[str, Any]) -> FedbenchError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(values)
    return error


def _one_line(text: str) -> str:
    """The text on one line, whatever it quotes: line breaks become blanks, control characters their escapes."""
    if text.isascii() and text.isprintable():
        return text
    joined = " ".join(line.strip() for line in text.splitlines() if line.strip())
    return "".join(repr(c)[1:-1] if unicodedata.category(c).startswith("C") else c for c in joined)


def unknown(kind: str, name: str, known: Iterable[Any], listed: str = "") -> FedbenchError:
    """The error for a name that does not exist; it offers the nearest one that does, if any is near, else all,
    or where there are too many for a line the command that lists them (`listed`).
    """
    names = sorted(map(str, known))
    near = nearest(name, names)
    every = f"'{listed}' lists them" if listed else f"known: {', '.join(names) or 'none'}"
    return FedbenchError(f"unknown {kind} '{name}'", f"did you mean '{near}'?" if near else every)


def check_known(kind: str, name: str | None, known: Collection[str], listed: str = "") -> None:
    """Raise the error of `unknown` for a name that is not among the known ones; None is no name, and right."""
    if name is not None and name not in known:
        raise unknown(kind, name, known, listed)


def nearest(name: str, known: Iterable[str]) -> str:
    """The name that is meant by a misspelt one, "" if none is near.

    Near is what one slip in four letters makes, and one in three of a name that has no more: 'cifr10' of 'cifar10' and
    'fgo' of 'fog', but not 'scaffold' of 'cfl'.
    """
    folded = {one.casefold(): one for one in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.75 if len(name) > 3 else 0.66)
    return folded[near[0]] if near else ""
