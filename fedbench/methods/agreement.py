"""How near the methods come to other projects' code on the same tensors: what `python -m tests.agreement --record`
measured, from agreement.json in this folder. AGREEMENT.md beside it is its page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import ceil, floor, log10
from pathlib import Path

from fedbench.methods import declarations
from fedbench.partitions import schemes

FILE = Path(__file__).with_name("agreement.json")
#: A difference up to this is one of rounding: float32 has 7 digits, of which rounds of training cost some.
ROUNDING = 2e-5
#: Most names of tensors in a line about a method.
MOST = 4


@dataclass(frozen=True)
class Difference:
    """The largest absolute difference between tensors of fedbench and of another project that should be equal."""

    method: str  #: fedbench's name; also of a partitioner, whose draws are compared
    theirs: str  #: the project's name of it
    case: str  #: sizes of clients, and who takes part
    quantity: str  #: which tensors
    largest: float
    reason: str = ""  #: where it is more than rounding; several are separated by "; "
    condition: str = ""  #: a change without which there is a difference, made in memory to prove its reason

    @property
    def equal(self) -> bool:
        """Whether only rounding differs."""
        return self.largest <= ROUNDING


@dataclass(frozen=True)
class Project:
    """A project at one commit, and what was compared."""

    title: str
    repository: str
    commit: str
    changes: Sequence[str]  #: to its code, in memory, so that it runs beside fedbench
    versions: Mapping[str, int]  #: fedbench's methods (or partitioners) that were compared, and their versions then
    differences: Sequence[Difference]
    #: Name -> options with which fedbench's method follows the project's rule, where its defaults do not.
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Title and commit."""
        return f"{self.title} {self.commit[:7]}"


def recorded(file: Path = FILE) -> dict[str, Project]:
    """Return the projects of a record by their options' names."""
    documents = json.loads(file.read_text(encoding="utf-8"))
    return {
        key: Project(**{**raw, "differences": [Difference(**one) for one in raw["differences"]]})
        for key, raw in documents.items()
    }


@cache
def summary(method: str) -> str:
    """Say in one line how near a built-in method comes to other projects; empty if it was compared with none."""
    return "; ".join(filter(None, (in_words(project, method) for project in recorded().values())))


def version(name: str) -> int:
    """Return today's version of a built-in method or partitioner."""
    return schemes.load(name).version if name in schemes.names() else declarations.of(name).version


def outdated(project: Project, name: str) -> str:
    """Say so where what was compared has another version now; else empty."""
    then, now = project.versions[name], version(name)
    return "" if then == now else f"recorded for version {then}, now {now}: run nox -s agreement"


def in_words(project: Project, method: str) -> str:
    """Say how near a method comes to a project; empty if they were not compared."""
    mine = [one for one in project.differences if one.method == method]
    if not mine:
        return ""
    as_is, changed = ([one for one in mine if bool(one.condition) is there] for there in (False, True))
    equal, others = ([one for one in as_is if one.equal is whether] for whether in (True, False))
    how = f" with {options}" if (options := project.options.get(method)) else ""
    parts = [f"equals {project.name} to {most(equal)} ({quantities(equal)}){how}"] if equal else []
    if others:
        words = "else" if equal else f"from {project.name}"
        parts.append(f"differs {words} by up to {most(others)}: {', and '.join(reasons(others))}")
    mended = ""
    for condition in dict.fromkeys(one.condition for one in changed):
        under = [one for one in changed if one.condition == condition]
        if all(one.equal for one in under):
            mended += f" ({condition} equal to {most(under)})"
    old = outdated(project, method)
    return ", ".join(parts) + mended + (f", {old}" if old else "")


def quantities(differences: Iterable[Difference]) -> str:
    """Return the names of what was compared, at most MOST of them."""
    names = list(dict.fromkeys(one.quantity for one in differences))
    more = len(names) - MOST
    return ", ".join(names[:MOST]) + (f" and {more} more" if more > 0 else "")


def reasons(differences: Iterable[Difference]) -> list[str]:
    """Return the reasons, each once."""
    return list(dict.fromkeys(reason for one in differences for reason in one.reason.split("; ")))


def most(differences: Iterable[Difference]) -> str:
    """Return the largest difference in words."""
    return rounded_up(max(one.largest for one in differences))


def rounded_up(difference: float) -> str:
    """A difference with one digit, rounded up, such as 2e-7."""
    if difference == 0:
        return "0"
    power = floor(log10(difference))
    digit = ceil(round(difference / 10**power, 6))
    digit, power = (1, power + 1) if digit == 10 else (digit, power)
    return f"{digit}e{power}"
