"""Whether a method, a model or a partitioner keeps the rules."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.api.own import name_of, options_of
from fedbench.api.places import Home, store_of
from fedbench.options import checked

if TYPE_CHECKING:
    from fedbench.conformance.suite import Outcome


@dataclass(frozen=True, repr=False)
class Checks:
    """What came of the checks."""

    subject: str
    outcomes: tuple[Outcome, ...]

    @property
    def holds(self) -> bool:
        """Whether none failed."""
        return all(one.holds is not False for one in self.outcomes)

    def __bool__(self) -> bool:
        return self.holds

    def __iter__(self) -> Iterator[Outcome]:
        return iter(self.outcomes)

    def __repr__(self) -> str:
        marks = {True: "✓", False: "✗", None: "-"}
        lines = [f"{marks[one.holds]} {one.check.name}: {one.why or one.check.text}" for one in self.outcomes]
        return "\n".join([f"{self.subject}: {'holds' if self.holds else 'fails'}", *lines])

    def _repr_html_(self) -> str:
        from fedbench.api.pictures import card

        words = {True: "✓", False: "✗", None: "not asked"}
        rows = {one.check.name: f"{words[one.holds]} {one.why or one.check.text}" for one in self.outcomes}
        return card(f"{self.subject} {'holds' if self.holds else 'fails'}", rows)


@checked
def check(what: Any, *, store: Home = None, **options: Any) -> Checks:
    """Run the conformance checks of `fedbench check` on a method, a model or a partitioner: a name, 'FILE.py:Class', a
    class or an object of your own. They train on scikit-learn's digits, a quarter of a minute for a method."""
    from fedbench.conformance.suite import checks, outcomes, subject_of

    name = name_of(what, store_of(store), "method, model or partitioner")
    with tempfile.TemporaryDirectory(prefix="fedbench-check-") as folder:
        subject = subject_of(name, Path(folder), lambda kind: {**options_of(what), **options})
        return Checks(name, tuple(outcomes(subject, checks(subject), lambda check: None)))
