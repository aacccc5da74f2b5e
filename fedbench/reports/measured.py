"""A paper's page of what was measured: its tables as its result packs fill them, and a few sentences of ours.

The sentences stand in tables/PAPER/measured.toml, each beside a table or before all of them. Neither images nor a store
go into the page, so that everybody makes the same one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedbench import reader, resources
from fedbench.errors import unknown
from fedbench.reports import table as tables
from fedbench.reports.claims import Claims, claims
from fedbench.reports.claims_in_words import listed, summary
from fedbench.reports.layout.grid import Grid, only_done
from fedbench.reports.render import render
from fedbench.reports.status.index import Index
from fedbench.results.shelf import Shelf, with_fedbench
from fedbench.results.shelf import summary as of_pack
from fedbench.store import Store
from fedbench.words import counted, duration

#: The sentences, and the page.
SENTENCES, PAGE = "measured.toml", "measured.md"


@dataclass(frozen=True)
class Note:
    """A paragraph of ours, in Markdown."""

    text: str
    table: str = ""  #: below which it stands; before all of them if empty
    budget: str = ""  #: of the numbers that it is about; below the table at each if empty


@dataclass(frozen=True)
class _File:
    note: list[Note]


def page(paper: str) -> str:
    """The page in Markdown. Raises FedbenchError for an unknown paper, a faulty file of sentences, and one that names a
    table without numbers."""
    papers = {name.partition("/")[0] for name in tables.names()}
    if paper not in papers:
        raise unknown("paper", paper, papers)
    shelf = Shelf(with_fedbench())
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        every = list(claims([paper], store, [], Index(store, shelf)))
    there = [one for one in every if one.grid is not None and one.shipped]
    notes = _sentences(paper, {one.table.id for one in there})
    own = [of_pack(pack) for pack in shelf.packs if pack.path.parent.parent.name == paper]
    lines = [
        f"# {paper}: what was measured", "",
        f"Made by `fedbench results page {paper}` from the result packs and `{SENTENCES}`: change these, not the page.",
        "", *(f"- {text}" for text in (*map(_pack, own), *summary(every))),
        *_paragraphs(notes, ""), *(line for one in there for line in _of_table(one, notes)),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _sentences(paper: str, there: set[str]) -> Sequence[Note]:
    path = resources.TABLES / paper / SENTENCES
    notes = reader.read(_File, reader.toml(path, "file of sentences"), str(path)).note if path.exists() else []
    for note in notes:
        if note.table and note.table not in there:
            raise unknown(f"table with numbers in {path}", note.table, there)
    return notes


def _pack(pack: dict[str, object]) -> str:
    days = " to ".join(dict.fromkeys(str(pack[end])[:10] for end in ("first", "last")))
    by, machines = (", ".join(map(str, pack[key])) for key in ("by", "machines"))  # type: ignore[call-overload]
    runs = counted(int(str(pack["runs"])), "run")
    return f"{runs} by {by}, {days}, {duration(float(str(pack['seconds'])))} of training on {machines}."


def _of_table(one: Claims, notes: Sequence[Note]) -> Iterator[str]:
    """A table as it is printed beside the paper's numbers, without what has none; its claims, and what we say of it."""
    assert one.grid is not None
    yield from ("", render([_bare(one.grid)], "markdown").rstrip().replace("### ", "## ", 1))
    if one.tally.measured:
        yield f"- {str(one.tally)[0].upper()}{str(one.tally)[1:]}."
    yield from listed(one)
    yield from _paragraphs([note for note in notes if note.budget in ("", one.budget)], one.table.id)


def _bare(grid: Grid) -> Grid:
    """The grid without what is said to whoever could fill it, and without its claims, which stand below."""
    whole = only_done(grid)
    return replace(
        whole,
        about=tuple(text for text in whole.about if not text.startswith("No images of")),
        command="",
        notes=(),
        footnotes=(),
        verdicts=(),
    )


def _paragraphs(notes: Sequence[Note], table: str) -> Iterator[str]:
    for note in notes:
        if note.table == table:
            yield from ("", note.text.strip())
