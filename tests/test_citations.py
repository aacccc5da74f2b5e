"""Citations name sources that a reader can open: a paper's section or table, or a page beside the tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [p for room in ("fedbench", "tests", "tables", "data_recipes") for p in sorted((ROOT / room).rglob("*"))]
TEXTS = {p: p.read_text() for p in SOURCES if p.suffix in {".py", ".toml", ".md", ".txt"} and p != Path(__file__)}

CITED = re.compile(r"\b(\w+)/protocol\.md((?:(?:,| and|;)? ?#[\w-]+)*)")
#: "protocol 4.1": a section of notes that the repository does not hold.
NOWHERE = re.compile(r"\bprotocols? [0-9]|\baddendum\b", re.IGNORECASE)


def sections(paper: str) -> set[str]:
    """The anchors of a paper's page, as GitHub makes them of its headings."""
    page = (ROOT / "tables" / paper / "protocol.md").read_text()
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.+)$", page, re.MULTILINE)}


def cited() -> list[tuple[str, str, str]]:
    """(file, paper, section) of each citation of a page beside the tables."""
    return [
        (str(path.relative_to(ROOT)), m[1], section)
        for path, text in TEXTS.items()
        for m in CITED.finditer(text)
        for section in re.findall(r"#([\w-]+)", m[2])
    ]


@pytest.mark.parametrize(("file", "paper", "section"), cited())
def test_a_cited_section_exists(file: str, paper: str, section: str) -> None:
    assert section in sections(paper), f"{file} cites {paper}/protocol.md#{section}, which is not there"


@pytest.mark.parametrize("paper", ["feddrm", "flux", "ftw_erm", "pfedfda"])
def test_each_page_is_cited(paper: str) -> None:
    assert paper in {p for _, p, _ in cited()}


def test_no_citation_of_notes_that_nobody_has() -> None:
    lost = [(str(p.relative_to(ROOT)), m[0]) for p, text in TEXTS.items() for m in NOWHERE.finditer(text)]
    assert lost == []
