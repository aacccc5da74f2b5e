"""Run other projects' code and fedbench on the same tensors, and print how near they come.

    python -m tests.agreement --pflib PATH --fl-bench PATH

Each option names the folder of a checkout, which is not written to; --flower is an installed package. Ends with 1 where
a difference is more than rounding and no reason is known. --record alone writes the page anew from agreement.json.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedbench.errors import FedbenchError
from fedbench.methods import names
from fedbench.methods.agreement import FILE, Difference, Project, recorded, version
from fedbench.partitions import schemes
from tests.agreement.foreign import commit, installed
from tests.agreement.record import PAGE, page, write

#: Modules of this folder, by their options.
PROJECTS = ("pflib", "fl_bench", "pfedfda", "flux", "fedrc", "feddrift", "atp", "feddrm", "ftw_erm", "flower")
#: That are no checkouts, but installed; the module.
INSTALLED = {"flower": "flwr"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    given = _parser().parse_args(arguments)
    chosen = given.only or [*names(), *schemes.names()]
    folders = {name: folder for name in PROJECTS if (folder := getattr(given, name))}
    if not folders and not given.record:
        print("no project is named; name the folder of a checkout, such as --pflib PATH", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    out = sys.stdout  # theirs is silenced
    unexplained = 0
    try:
        commits = {
            name: installed(INSTALLED[name]) if name in INSTALLED else commit(folder)
            for name, folder in folders.items()
        }
        for name, folder in folders.items():
            adapter = importlib.import_module(f"tests.agreement.{name}")
            print(f"{adapter.TITLE} {commits[name]}", *adapter.CHANGES, sep="\n  changed: ", file=out)
            found: list[Difference] = []
            for one in adapter.differences(folder, chosen):
                print(line(one), file=out, flush=True)
                found.append(one)
            unexplained += sum(not one.equal and not one.reason for one in found)
            if given.record:
                versions = {name: version(name) for name in sorted({one.method for one in found})}
                about = (adapter.TITLE, adapter.REPOSITORY, commits[name], adapter.CHANGES, versions)
                measured = Project(*about, found, getattr(adapter, "OPTIONS", {}))
                keep = recorded() if FILE.is_file() else {}
                write({key: {**keep, name: measured}[key] for key in PROJECTS if key in {**keep, name: measured}})
        if given.record:
            PAGE.write_text(page(), encoding="utf-8")
    except FedbenchError as error:
        print(error, file=sys.stderr)
        return 2
    return int(unexplained > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tests.agreement", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in PROJECTS:
        kind: dict[str, Any] = {"metavar": "PATH", "type": lambda path: Path(path).resolve()}
        if name in INSTALLED:
            kind = {"action": "store_true", "help": f"{INSTALLED[name]}, where it is installed"}
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, **kind)
    which = parser.add_mutually_exclusive_group()
    both = [*names(), *schemes.names()]
    of_one = "only this method or partitioner; may be repeated"
    which.add_argument("--only", action="append", choices=both, metavar="NAME", help=of_one)
    which.add_argument("--record", action="store_true", help="keep what is measured in agreement.json, and its page")
    return parser


def line(one: Difference) -> str:
    """Method, case, quantity, difference and reason."""
    what = f"{one.condition} {one.quantity}" if one.condition else one.quantity
    return f"  {one.method:14} {one.case:24} {one.largest:7.1e}  {what}{one.reason and f': {one.reason}'}"


if __name__ == "__main__":
    sys.exit(main())
