"""Claims in words: a line each, as the terminal and Markdown have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fedbench.reports.claims import Claims, Stand, Tally
from fedbench.reports.render.markdown import escape
from fedbench.reports.render.text import how
from fedbench.reports.table.claims import OPEN

#: State of a claim -> sign and colour.
LOOKS = {
    "holds": ("✓", "green"),
    "holds so far": ("✓", "green"),
    "undecided": ("?", "cyan"),
    "fails": ("✗", "yellow"),
    "not measured": ("·", "dim"),
}


def title(one: Claims) -> str:
    """Its table, at which budget, and whether shipped results are among the numbers."""
    scope = f", {one.scope}" if one.scope else "" if one.table.counted else ", not measured"
    return f"{one.table.id}  {one.table.title}{scope}{' (shipped results among it)' if one.shipped else ''}"


def words(stand: Stand) -> str:
    """A claim, how it stands, and the numbers that decide."""
    numbers = ", ".join(f"{name} {text}" for name, text in stand.numbers.items())
    parts = (stand.verdict.state, how(stand.verdict, stand.reported), numbers)
    return f"{stand.verdict.claim.text}: {'; '.join(part for part in parts if part)}"


def summary(tables: Sequence[Claims]) -> Iterator[str]:
    """How many claims each paper makes, each counted once; and of each budget that has a number, how they stand there
    and how many of the paper's numbers come out."""
    for paper in dict.fromkeys(one.paper for one in tables):
        own = [one for one in tables if one.paper == paper]
        every = {identity for one in own for identity in one.by_identity}
        counted = {identity for one in own if one.table.counted for identity in one.by_identity}
        if every:
            yield f"{paper}: {len(every)} claims{'' if any(one.grid for one in own) else '; none is measured'}."
        for budget in dict.fromkeys(one.budget for one in own if one.grid):
            at = [one for one in own if one.grid and one.budget == budget]
            stands = {identity: stand for one in at for identity, stand in one.by_identity.items()}
            counts = Counter(stand.verdict.state for stand in stands.values())
            counts[OPEN] += len((every - counted if budget else counted) - stands.keys())
            words = ", ".join(f"{n} {_stand(n, state)}" for state in LOOKS if (n := counts[state]))
            tally = sum((one.tally for one in at), Tally())
            parts = [words, str(tally) if tally.measured else ""]
            if any(parts):
                scope = f"budget {budget}" if budget else "counted"
                yield f"{paper}, {scope}: {'; '.join(part for part in parts if part)}."


def _stand(n: int, state: str) -> str:
    """The state's words for so many claims: 1 holds, 2 hold."""
    verb, _, rest = state.partition(" ")
    return state if n == 1 or not verb.endswith("s") else f"{verb.removesuffix('s')} {rest}".strip()


def listed(one: Claims) -> Iterator[str]:
    """The claims of a table as a list in Markdown."""
    yield from (f"- {LOOKS[stand.verdict.state][0]} {escape(words(stand))}" for stand in one.stands)


def markdown(tables: Sequence[Claims]) -> Iterator[str]:
    """The page of all claims."""
    yield "# What the papers claim, and what holds here\n"
    yield from (f"- {escape(line)}" for line in summary(tables))
    for one in (one for one in tables if one.stands):
        yield f"\n## {escape(title(one))}\n"
        yield from listed(one)
