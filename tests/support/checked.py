"""What the conformance suite says of a method or a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedbench.conformance.subject import Subject
from fedbench.conformance.suite import Check, Outcome, checks, outcomes


def checked(given: str, folder: Path, among: Sequence[Check] = ()) -> list[Outcome]:
    """Every check's outcome (or those `among` them), in the suite's order; runs are made in the folder."""
    subject = Subject.of(given, folder / "runs")
    return list(outcomes(subject, among or checks(subject), lambda check: None))
