"""A paper's page of measured results: counts, claims, and our remarks. 'report --compare' prints the numbers.

tables/PAPER/measured.toml has the remarks, each about one table or all. The page uses neither images nor a store, so
that everybody makes the same one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbench import reader, resources
from fedbench.errors import check_known, unknown
from fedbench.planner.counts import done as numbered
from fedbench.planner.table.claims import OPEN
from fedbench.reports.claims import Claims, as_table, claims, summary
from fedbench.reports.claims import lines as lines_of
from fedbench.reports.numbers.agreement import POINTS
from fedbench.results.frame import Frame
from fedbench.results.packs import Packs, of_papers, with_fedbench
from fedbench.results.packs import summary as of_pack
from fedbench.store import Store
from fedbench.words import counted, duration

#: File of remarks, and of the page.
SENTENCES, PAGE = "measured.toml", "measured.md"


@dataclass(frozen=True)
class Note:
    """A remark, a paragraph in Markdown."""

    text: str
    table: str = ""  #: its table; empty: all


@dataclass(frozen=True)
class _File:
    note: list[Note]


def page(paper: str) -> str:
    """The page in Markdown. Raises FedbenchError for an unknown paper, an invalid file of remarks, and a remark about a
    table without numbers."""
    paper, papers = resources.named(paper), resources.papers()
    check_known("paper", paper, papers)
    packs = Packs([*of_papers(), *with_fedbench()])
    with tempfile.TemporaryDirectory() as folder:
        frame = Frame(Store(Path(folder)), packs)
        every = list(claims([paper], frame, [], every=True))
        at_one_budget = lines_of([*claims([paper], frame, [])])  # the budget that the command takes
    measured = [table for table in every if table.grid is not None and table.shipped]
    decided = [line for line in at_one_budget if line.state != OPEN]
    notes = _sentences(paper, {table.table.id for table in measured})
    packs_ = [of_pack(pack) for pack in packs.whole if pack.path.parent.parent.name == paper]
    paragraphs = [
        f"# {paper}: what was measured",
        f"Made by `fedbench results page {paper}` from the result packs and `{SENTENCES}`: change these, not the page. "
        "`fedbench report --table NAME --compare` prints a table's numbers beside the paper's.",
        "\n".join(f"- {text}" for text in (*map(_pack, packs_), *summary(every))),
        *(note.text.strip() for note in notes if not note.table),
        "\n".join(_counts(measured)),
        "\n".join(as_table(decided)) if decided else "",
        *(f"**{note.table}**: {note.text.strip()}" for note in notes if note.table),
    ]
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def _sentences(paper: str, known: set[str]) -> Sequence[Note]:
    path = resources.papers()[paper] / SENTENCES
    notes = reader.read(_File, reader.toml(path, "file of sentences"), str(path)).note if path.exists() else []
    for note in notes:
        if note.table and note.table not in known:
            raise unknown(f"table with numbers in {path}", note.table, known)
    return notes


def _pack(pack: dict[str, object]) -> str:
    days = " to ".join(dict.fromkeys(str(pack[end])[:10] for end in ("first", "last")))
    by, machines = (", ".join(map(str, pack[key])) for key in ("by", "machines"))  # type: ignore[call-overload]
    runs = counted(int(str(pack["runs"])), "run")
    return f"{runs} by {by}, {days}, {duration(float(str(pack['seconds'])))} of training on {machines}."


def _counts(tables: Sequence[Claims]) -> Iterator[str]:
    """One line per table and budget: its cells, and the paper's numbers."""
    heads = (
        "table",
        "budget",
        "cells",
        "reported",
        "measured",
        "all seeds",
        "difference",
        f"{POINTS:g} points",
        "2 errors",
    )
    yield f"| {' | '.join(heads)} |"
    yield "|:--|:--|--:|--:|--:|--:|--:|--:|--:|"
    for table in tables:
        assert table.grid is not None
        counts, tally = table.grid.counts, table.tally
        cells = f"{numbered(counts)} of {sum(counts.values())}"
        numbers = (tally.reported, tally.measured, tally.whole, *tally.three) if tally.reported else ("",) * 6
        cell = (table.table.id, table.budget, cells, *numbers)
        yield f"| {' | '.join(map(str, cell))} |"
