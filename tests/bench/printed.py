"""The table of a measurement as plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rows import Row
from workloads import TITLES

if TYPE_CHECKING:
    from measure import Bench

HEADS = (
    "way", "client-steps/s", "images/s", "GFLOP/s", "of peak", "peak MB", "others", "x usual", "parity", "target",
    "met",
)  # fmt: skip


def cells(row: Row) -> list[str]:
    """The row's cells under HEADS."""

    def show(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    if row.error:
        return [row.way, row.error, *[""] * 7, row.target, _met(row)]
    return [
        row.way + ("" if not row.best else " *"),
        show(row.client_steps_s, ",.1f"), show(row.images_s, ",.0f"), show(row.gflops, ",.1f"),
        show(row.share_of_peak, ".1%"), show(row.peak_mb, ",.0f"), show(row.others, ".0%"), show(row.ratio, ".2f"),
        show(row.parity, ".1e") if row.parity else ("" if row.parity is None else "0"), row.target, _met(row),
    ]  # fmt: skip


def _met(row: Row) -> str:
    return "" if row.met is None else "yes" if row.met else "NO"


def caption(bench: Bench) -> list[str]:
    """Where and how it was measured."""
    f, p = bench.facts, bench.peak
    name, peak = bench.highest
    return [
        f"{f['device']}, {f['cores']} cores, torch {f['torch']}, {bench.precision}",
        f"measured peak: {peak:,.0f} GFLOP/s ({name.replace('_', ' ')}); matrix product {p['product']:,.0f}, "
        f"of convolutions' size {p['conv_product']:,.0f}, 3x3 convolution {p['convolution']:,.0f}; "
        f"copy {p['copy']:,.0f} GB/s",
        "others: what other processes had of the cores at most during a repeat; *: the fastest of ours, for the target",
    ]


def sections(bench: Bench) -> list[tuple[str, list[Row]]]:
    """(title with scale, rows) a workload."""
    out = []
    for key in bench.workloads:
        rows = [row for row in bench.rows if row.workload == key]
        scale = next((row.scale for row in rows if row.scale), "")
        out.append((TITLES[key] + (f" [{scale}]" if scale not in ("", "whole") else ""), rows))
    return [(title, rows) for title, rows in out if rows]


def plain(bench: Bench) -> str:
    """The table as text."""
    parts = [(title, [cells(row) for row in rows]) for title, rows in sections(bench)]
    # An error is longer than a column and stands alone in its line.
    regular = [list(HEADS), *(line for _, lines in parts for line in lines if line[2])]
    widths = [max(len(line[i]) for line in regular) for i in range(len(HEADS))]
    widths[0] = max(widths[0], *(len(line[0]) for _, lines in parts for line in lines))

    def join(line: list[str]) -> str:
        if not line[2] and line is not regular[0]:
            return "  ".join(cell for cell in (line[0].ljust(widths[0]), *line[1:]) if cell)
        first, *rest = (c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        return "  ".join([first, *rest]).rstrip()

    text = [*caption(bench), "", join(regular[0])]
    for title, lines in parts:
        text += ["", title, *map(join, lines)]
    return "\n".join(text)


def profiles(bench: Bench) -> str:
    """Where the time of the fastest executor goes, by workload."""
    out = []
    for title, rows in sections(bench):
        for row in rows:
            if row.profile and (row.best or row.way != "usual"):
                out += ["", f"{title}, {row.way}: computing {row.profile['busy']:.0%} of the time; of that"]
                out += [f"  {share:6.1%}  {name}" for name, share in row.profile["shares"]]
    return "\n".join(out)
