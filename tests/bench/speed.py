"""How fast the trainer core is: one table of fixed workloads, each done by our executors and the usual way.

    python tests/bench/speed.py                       the table of this machine; exit code 1 if a target is missed
    python tests/bench/speed.py --only a,c            two workloads

Every way of doing a workload runs in a process of its own, ours and the usual one in turn; the figures are
medians. The usual way is eager PyTorch: a DataLoader, one client after another, default threads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from child import Failed, Station
from tabulate import tabulate
from workloads import TARGETS, TITLES, WORKLOADS

USUAL = "usual"
#: Executors measured unless others are named: those that could win on the device.
EXECUTORS = {"cpu": ("cores", "stacked"), "cuda": ("sequential", "stacked", "graphed")}
#: On a CPU these keep each core busy with one client; stacks of them take only longer and more memory.
LARGE = ("c", "d")


@dataclass
class Row:
    """A workload done in one way. Speeds are of the median repeat; None stands for what does not apply."""

    workload: str
    way: str
    error: str = ""
    scale: str = ""
    client_steps_s: float | None = None
    images_s: float | None = None
    gflops: float | None = None  #: GFLOP/s
    peak_mb: float | None = None
    ratio: float | None = None  #: median over pairs of the usual way's time over this one's
    target: str = ""  #: of the fastest executor of its workload
    met: bool | None = None


def measured(workload: str, way: str, told: Mapping[str, Any], seconds: Sequence[float], usual: Sequence[float]) -> Row:
    """The row of repeats of so many `seconds`; `usual` are the usual way's, each measured right after one of ours.
    `told` is what the child says of them."""
    typical = median(seconds)
    return Row(
        workload, way, scale=told["scale"], client_steps_s=told["steps"] / typical or None,
        images_s=told["images"] / typical, gflops=told["flops"] / typical / 1e9, peak_mb=told["peak_mb"],
        ratio=median(b / a for a, b in zip(seconds, usual, strict=True)),
    )  # fmt: skip


def judge(rows: Sequence[Row], target: float | None) -> None:
    """Whether the fastest executor of a workload meets its target; all having failed, it is missed."""
    ours = [row for row in rows if row.way != USUAL]
    if target is not None and ours:
        best = max(ours, key=lambda row: row.ratio or 0.0)
        best.target, best.met = f"{target:g}x", (best.ratio or 0.0) >= target


def measure(args: argparse.Namespace, facts: Mapping[str, Any]) -> Iterator[Row]:
    """The rows, workload by workload: the usual way's first."""
    kind = facts["kind"]
    for key in args.only:
        worth = [n for n in EXECUTORS[kind] if not (kind == "cpu" and key in LARGE and n == "stacked")]
        try:
            rows = in_turn(key, args.executors or worth, (kind, args.precision))
        except Failed as error:
            rows = [Row(key, USUAL, str(error), met=False)]
        judge(rows, TARGETS[kind].get(key))
        for row in rows:
            print(f"{row.workload} {row.way}: {row.error or f'{row.ratio:.2f}x'}", file=sys.stderr, flush=True)
        yield from rows


def in_turn(key: str, ways: Sequence[str], where: tuple[str, str]) -> list[Row]:
    """The rows of a workload: repeats of each way and of the usual one in turn. Raises Failed where that one fails."""
    rows: list[Row] = []
    theirs: list[float] = []

    with Station(*where, key, USUAL) as rival:
        usual = rival.ask("prepare")
        for way in ways:
            try:
                with Station(*where, key, way) as station:
                    told = station.ask("prepare")
                    turns = [(station.ask("repeat"), rival.ask("repeat")) for _ in range(told["repeats"])]
                    told |= station.ask("finish")
            except Failed as error:
                rows.append(Row(key, way, str(error)))
                continue
            mine, beside = zip(*turns, strict=True)
            theirs += beside
            rows.append(measured(key, way, told, mine, beside))
        theirs = theirs or [rival.ask("repeat") for _ in range(usual["repeats"])]
        return [measured(key, USUAL, usual | rival.ask("finish"), theirs, theirs), *rows]


HEADS = ("way", "client-steps/s", "images/s", "GFLOP/s", "peak MB", "x usual", "target", "met")


def table(rows: Sequence[Row], facts: Mapping[str, Any], precision: str) -> str:
    """The rows as text, under where and how they were measured."""

    def cells(row: Row) -> list[str]:
        forms = {"client_steps_s": ",.1f", "images_s": ",.0f", "gflops": ",.1f",
                 "peak_mb": ",.0f", "ratio": ".2f"}  # fmt: skip
        values = [(getattr(row, name), form) for name, form in forms.items()]
        shown = ["" if value is None else format(value, form) for value, form in values]
        return [row.way, *shown, row.target, "" if row.met is None else "yes" if row.met else "NO"]

    text = [
        f"{facts['device']}, {facts['cores']} cores, torch {facts['torch']}, {precision}",
    ]
    for key in dict.fromkeys(row.workload for row in rows):
        own = [row for row in rows if row.workload == key]
        scale = next((f" [{row.scale}]" for row in own if row.scale not in ("", "whole")), "")
        aligned = ("left", *["right"] * (len(HEADS) - 1))
        lines = tabulate(map(cells, own), HEADS, "plain", colalign=aligned, disable_numparse=True)
        text += ["", TITLES[key] + scale, lines, *(f"{row.way}: {row.error}" for row in own if row.error)]
    return "\n".join(text)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _workloads(text: str) -> list[str]:
    """'a,b' to keys; 'b' stands for both of its federations."""
    found = {name: [key for key in WORKLOADS if name in (key, key.rstrip("0123456789"))] for name in _names(text)}
    if not found or not all(found.values()):
        raise argparse.ArgumentTypeError(f"unknown workload in '{text}'; known: b, {', '.join(WORKLOADS)}")
    return list(dict.fromkeys(key for keys in found.values() for key in keys))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--only", type=_workloads, default=list(WORKLOADS), metavar="KEY,...", help="workloads")
    parser.add_argument("--executors", type=_names, default=[], metavar="NAME,...", help="default: by device")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    args = parser.parse_args()
    try:
        with Station(args.device, args.precision) as station:
            facts = station.ask("facts")
    except Failed as error:
        print(f"the device does not work: {error}", file=sys.stderr)
        return 2
    rows = list(measure(args, facts))
    print(table(rows, facts, args.precision))
    return int(any(row.met is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
