"""How fast the trainer core is: one table of fixed workloads, each done by our executors and the usual way.

    python tests/bench/speed.py                       the table of this machine; exit code 1 if a target is missed
    python tests/bench/speed.py --only a,c --profile  two workloads, and where the time goes
    python tests/bench/speed.py --device cuda --experiments --json-out results.json
                                                      everything we want to know of a GPU, in one call

Every way of doing a workload runs in a process of its own, ours and the usual one in turn; the figures are
medians. The usual way is eager PyTorch: a DataLoader, one client after another, default threads.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import printed
from measure import Bench
from rows import Row
from station import Failed
from workloads import WORKLOADS

#: Of a call with --experiments, which may be one lease of a machine.
EXPERIMENT_SECONDS = 500.0


RECORD = Path(__file__).with_name("record.csv")
#: Digits of the figures that are recorded.
DIGITS = {"client_steps_s": 5, "images_s": 5, "gflops": 4, "share_of_peak": 3, "peak_mb": 5, "ratio": 3, "parity": 2}
FIELDS = ("date", "device", "cores", "torch", "revision", "precision", "workload", "way", *DIGITS)


def record(bench: Bench, path: Path = RECORD) -> None:
    """Add the rows of a measurement that succeeded, under today's date."""
    new, revision = not path.exists(), bench.facts["revision"]
    same = {name: bench.facts[name] for name in ("device", "cores", "torch")}
    same |= {"date": datetime.date.today().isoformat(), "precision": bench.precision}
    same["revision"] = revision[:10] + ("+" if revision.endswith("+") else "")

    def figure(value: float | None, digits: int) -> str:
        return "" if value is None else f"{value:.0f}" if value >= 10**digits else f"{value:.{digits}g}"

    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if new:
            writer.writeheader()
        for row in bench.rows:
            if not row.error:
                figures = {name: figure(getattr(row, name), digits) for name, digits in DIGITS.items()}
                writer.writerow({**same, "workload": row.workload, "way": row.way, **figures})


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _workloads(text: str) -> list[str]:
    """'a,b' to keys; 'b' stands for both of its federations."""
    keys = [key for name in _names(text) for key in WORKLOADS if key == name or key.rstrip("0123456789") == name]
    if not keys or any(not any(k == n or k.rstrip("0123456789") == n for k in WORKLOADS) for n in _names(text)):
        raise argparse.ArgumentTypeError(f"unknown workload in '{text}'; known: b, {', '.join(WORKLOADS)}")
    return list(dict.fromkeys(keys))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--only", type=_workloads, default=list(WORKLOADS), metavar="KEY,...", help="workloads")
    parser.add_argument("--executors", type=_names, default=[], metavar="NAME,...", help="default: by device")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    parser.add_argument("--experiments", action="store_true", help="the variants of ways.py too, with profiles")
    parser.add_argument("--peers", action="store_true", help="BlazeFL's way too (Python 3.12, blazefl[contrib])")
    parser.add_argument("--profile", action="store_true", help="where the time goes, by operator")
    parser.add_argument("--seconds", type=float, help="begin nothing after so long (experiments: 500)")
    parser.add_argument("--record", action="store_true", help="append to record.csv")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--json-out", type=Path, metavar="FILE", help="write JSON there, after each row")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(sys.argv[1:] if argv is None else argv)

    def tell(bench: Bench, row: Row) -> None:
        print(f"{row.workload} {row.way}: {row.error or f'{row.ratio:.2f}x'}", file=sys.stderr, flush=True)
        if args.json_out:
            args.json_out.write_text(json.dumps(bench.as_dict(), indent=1))

    limit = args.seconds or (EXPERIMENT_SECONDS if args.experiments else float("inf"))
    profile = args.profile or args.experiments
    bench = Bench(
        args.only, args.device, args.precision, args.executors, args.experiments, args.peers, profile, limit, tell
    )
    try:
        bench.run()
    except Failed as error:
        print(f"the measurement stopped: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(bench.as_dict(), indent=1))
    else:
        print(printed.plain(bench))
        if profile:
            print(printed.profiles(bench))
    if args.record:
        record(bench)
    return 1 if bench.missed else 0


if __name__ == "__main__":
    sys.exit(main())
