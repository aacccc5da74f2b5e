"""What the commands that only read print from the shipped runs: a redesign proves by it that it changed no word.

    python -m tests.golden.prints write FILE      before a change (some 20 minutes of a core; --quick: a tenth of it)
    python -m tests.golden.prints compare FILE    after it: every print that differs, and how

FILE is gzipped JSON: command -> [exit code, standard output, standard error]. Nothing is trained, no image read.
"""

from __future__ import annotations

import difflib
import gzip
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import typer

from fedbench.cli import app
from tests.support.cli_user import fedbench

FORMATS = ("console", "latex", "markdown", "csv", "json", "html")
WAYS: tuple[tuple[str, ...], ...] = ((), ("--compare",), ("--compare", "--notes", "full"))
FIGURES = ("--json", "--csv", "--text")
#: Times of day, seconds taken, and folders of this run.
PASSING = re.compile(r"/tmp/[^\s'\"]+|\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?|\b\d+(\.\d+)? (ms|s|min)\b")


def commands(quick: bool) -> Iterator[tuple[str, ...]]:
    """Every command, or of tables and figures every tenth."""
    step = 10 if quick else 1
    yield ("--help",)
    for name, command in typer.main.get_command(app).commands.items():
        yield (name, "--help")
        yield from ((name, below, "--help") for below in getattr(command, "commands", ()))
    for what in ("methods", "tables", "metrics"):
        yield (what,)
    yield ("tables", "--json")
    yield ("claims",)
    yield ("claims", "--json")
    for paper in ("feddrm", "pfedfda", "flux", "ftw_erm"):
        yield ("claims", paper, "--json")
        yield ("tables", paper)
        yield ("compare", f"paper={paper}")
    yield ("results", "list")
    yield ("list", "run")
    tables = [one["table"] for one in json.loads(fedbench("tables", "--json").out)]
    for name in tables[::step]:
        yield ("tables", name)
        yield from (("report", "--table", name, "--format", form, *way) for form in FORMATS for way in WAYS)
    known = fedbench("figure", "nothing").err.split("known: ")[1].strip().split(", ")
    yield from (("figure", name, form) for name in known[::step] for form in FIGURES)


def prints(quick: bool) -> dict[str, tuple[int, str, str]]:
    os.environ |= {"COLUMNS": "160", "OMP_NUM_THREADS": "1"}
    os.environ.pop("FEDBENCH_DATA", None)
    answers = {}
    with tempfile.TemporaryDirectory() as home:
        os.environ["FEDBENCH_HOME"] = home
        for command in commands(quick):
            said = fedbench(*command)
            answers[" ".join(command)] = (said.code, PASSING.sub("~", said.out), PASSING.sub("~", said.err))
    return answers


def main(what: str, file: str, *options: str) -> int:
    now, path = prints("--quick" in options), Path(file)
    if what == "write":
        path.write_bytes(gzip.compress(json.dumps(now).encode()))
        print(f"{len(now):,} prints in {path}")
        return 0
    before = {k: tuple(v) for k, v in json.loads(gzip.decompress(path.read_bytes())).items()}
    differ = [k for k in {**before, **now} if k in now and before.get(k) != now[k]]
    for key in differ:
        print(f"== fedbench {key}")
        old, new = (("\n".join(map(str, of.get(key, ()))).splitlines()) for of in (before, now))
        print(*list(difflib.unified_diff(old, new, "before", "now", lineterm="", n=0))[2:12], sep="\n")
    print(f"{len(now) - len(differ):,} of {len(now):,} the same")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
