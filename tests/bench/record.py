"""The record of measurements: dated lines in record.csv."""

from __future__ import annotations

import csv
import datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from measure import Bench

RECORD = Path(__file__).with_name("record.csv")
FIELDS = (
    "date", "device", "cores", "torch", "revision", "precision", "workload", "way", "client_steps_s", "images_s",
    "gflops", "share_of_peak", "peak_mb", "ratio", "parity",
)  # fmt: skip
_DIGITS = {"client_steps_s": 5, "images_s": 5, "gflops": 4, "share_of_peak": 3, "peak_mb": 5, "ratio": 3, "parity": 2}


def append(bench: Bench, path: Path = RECORD) -> None:
    """Add the rows of a measurement that succeeded, under today's date."""
    new = not path.exists()
    same = {name: bench.facts[name] for name in ("device", "cores", "torch")}
    same |= {"date": datetime.date.today().isoformat(), "precision": bench.precision}
    same["revision"] = _short(bench.facts["revision"])
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if new:
            writer.writeheader()
        for row in bench.rows:
            if not row.error:
                figures = {name: _figure(getattr(row, name), digits) for name, digits in _DIGITS.items()}
                writer.writerow({**same, "workload": row.workload, "way": row.way, **figures})


def read(path: Path = RECORD) -> list[dict[str, str | float | None]]:
    """The lines: figures as numbers, None where there is none."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {name: (float(text) if text else None) if name in _DIGITS else text for name, text in line.items()}
            for line in csv.DictReader(file)
        ]


def _short(revision: str) -> str:
    return revision[:10] + ("+" if revision.endswith("+") else "")


def _figure(value: float | None, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 10**digits else f"{value:.{digits}g}"
