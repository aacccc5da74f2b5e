"""Who asks the federation for answers, and how it stands to it."""

from __future__ import annotations

from dataclasses import dataclass

#: A client that may take part in training; one that has labelled images but joins after the last round; one whose
#: images have no labels (the test phase).
MEMBER, UNSEEN, UNLABELLED = "member", "unseen", "unlabelled"


@dataclass(frozen=True)
class Who:
    """A client that is to answer: its number, and one of MEMBER, UNSEEN, UNLABELLED."""

    index: int
    kind: str = MEMBER
