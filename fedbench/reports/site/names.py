"""Names of the files of papers' pages and pictures."""

from __future__ import annotations

import hashlib
import re

from fedbench import resources

#: Other pages, and how their names begin: a user's paper may be called so.
PAGES, PREFIXES = ("index", "runs"), ("method-", "run-", "paper-")


def page_of(paper: str) -> str:
    """The file of a paper's page, which is called as the paper, unless another page or no address is called so."""
    taken = paper in PAGES or paper.startswith(PREFIXES) or paper != _file(paper)
    return f"paper-{_file(paper)}.html" if taken and paper in resources.of_user() else f"{paper}.html"


def picture_of(paper: str, number: str) -> str:
    """The file of a figure of a paper."""
    of_user = paper in resources.of_user()
    return f"figure-{_file(f'{paper}/{number}')}.svg" if of_user else f"{paper}-{number}.svg"


def _file(text: str) -> str:
    """A text as a part of a file's name: other letters than those of addresses are replaced, and texts that then are
    equal, or differ in capitals only, stay apart."""
    safe = re.sub(r"[^a-z0-9_-]+", "-", text.lower())
    return safe if safe == text else f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
