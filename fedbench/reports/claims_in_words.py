"""Claims in words: a line each, as the terminal and Markdown have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fedbench.reports.claims import Claims, Stand, Tally
from fedbench.reports.render.markdown import escape
from fedbench.reports.render.text import how

#: State of a claim -> sign and colour.
LOOKS = {
    "holds": ("✓", "green"),
    "holds so far": ("✓", "green"),
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
    """How many claims of each paper stand how, and how many of its numbers come out at each budget that has one."""
    for paper in dict.fromkeys(one.paper for one in tables):
        own = [one for one in tables if one.paper == paper]
        counts = Counter(stand.verdict.state for one in own for stand in one.stands)
        words = ", ".join(f"{n} {_stand(n, state)}" for state in LOOKS if (n := counts[state]))
        if counts:
            yield f"{paper}: {counts.total()} claims; {words}."
        for budget in dict.fromkeys(one.budget for one in own if one.budget):
            tally = sum((one.tally for one in own if one.budget == budget), Tally())
            if tally.measured:
                yield f"{paper}, budget {budget}: {tally}."


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
