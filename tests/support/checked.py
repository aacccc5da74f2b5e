"""What the conformance suite says of a method or a network."""

from __future__ import annotations

from pathlib import Path

from fedbench.conformance.subject import Subject
from fedbench.conformance.suite import Outcome, checks, outcomes


def checked(given: str, folder: Path) -> list[Outcome]:
    """Every check's outcome, in the suite's order; runs are made in the folder."""
    subject = Subject.of(given, folder / "runs")
    return list(outcomes(subject, checks(subject), lambda check: None))
