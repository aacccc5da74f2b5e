"""A measured row: one workload done in one way."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workloads import SHARES, TARGETS


@dataclass
class Row:
    """Speeds are of the median repeat; None stands for what does not apply."""

    workload: str
    way: str
    scale: str = ""
    seconds: tuple[float, ...] = ()  #: of the repeats
    client_steps_s: float | None = None
    images_s: float | None = None
    gflops: float | None = None  #: GFLOP/s
    share_of_peak: float | None = None
    peak_mb: float | None = None
    others: float | None = None  #: most that other processes had of the cores during a repeat, as a share
    ratio: float | None = None  #: median over pairs of the usual way's time over this one's
    parity: float | None = None  #: difference from the reference executor (see ours.difference)
    experiment: bool = False  #: a variant that was tried, or another framework: no target is for it
    best: bool = False  #: the fastest executor of its workload, which the target is for
    target: str = ""
    met: bool | None = None
    error: str = ""
    profile: dict[str, Any] | None = None


def measured(
    workload: str,
    way: str,
    prepared: Mapping[str, Any],
    repeats: Sequence[Mapping[str, Any]],
    finished: Mapping[str, Any],
    usual: Sequence[Mapping[str, Any]] = (),
) -> Row:
    """The row of these repeats; `usual` are the usual way's, each measured right after one of ours (as many), or
    at another time, when their median counts."""
    seconds, theirs = [r["seconds"] for r in repeats], [r["seconds"] for r in usual]
    typical = statistics.median(seconds)
    pairs = zip(seconds, theirs, strict=True) if len(theirs) == len(seconds) else ()
    ratios = [b / a for a, b in pairs] or ([statistics.median(theirs) / typical] if theirs else [])
    return Row(
        workload, way, prepared["scale"], tuple(seconds),
        client_steps_s=prepared["steps"] / typical or None,
        images_s=prepared["images"] / typical,
        gflops=finished["flops"] / typical / 1e9,
        peak_mb=finished["peak_mb"],
        others=max((r["others"] for r in (*repeats, *usual) if r["others"] is not None), default=None),
        ratio=statistics.median(ratios) if ratios else 1.0,
        parity=finished["parity"],
        profile=finished.get("profile"),
    )  # fmt: skip


def judge(rows: Iterable[Row], kind: str, peak: float, conv_product: float) -> None:
    """Say what share of the `peak` each row reaches, which way is the best of its workload, and whether that one
    meets the workload's target. `conv_product`: the speed of convolution-sized products, of which some targets ask
    a share. Both in GFLOP/s.
    """
    of_workload: dict[str, list[Row]] = {}
    for row in rows:
        row.best, row.target, row.met = False, "", None
        row.share_of_peak = row.gflops and row.gflops / peak
        if row.way != "usual" and not row.experiment:
            of_workload.setdefault(row.workload, []).append(row)
    for workload, ours in of_workload.items():
        # A failure of all of them still must show as a target missed.
        best = max(ours, key=lambda row: row.ratio or 0.0)
        best.best = best.ratio is not None
        target, share = TARGETS[kind].get(workload), SHARES[kind].get(workload)
        if target is None:
            continue
        best.met = (best.ratio or 0.0) >= target
        best.target = f"{target:g}x"
        if share is not None:
            best.met &= (best.gflops or 0.0) >= share * conv_product
            best.target += f", {share:.0%} of products"
