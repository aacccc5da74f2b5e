"""What has changed between two measurements of the same names, and whether a version says so."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.golden import portable


def compare(before: Mapping[str, str], now: Mapping[str, str]) -> int:
    """Print each name whose value is another, and how many are the same. The exit code: 1 if any has changed."""
    names = dict.fromkeys((*before, *now))
    changed = [name for name in names if before.get(name) != now.get(name)]
    for name in changed:
        print(f"{name}: {before.get(name)} before, {now.get(name)} now")
    print(f"{len(names) - len(changed)} of {len(names)} the same")
    return int(bool(changed))


def unsaid(
    before: Mapping[str, str], now: Mapping[str, str], ids: Mapping[str, str], ids_now: Mapping[str, str]
) -> list[str]:
    """The names whose value is another though their id, in which all versions stand, is the same."""
    return [n for n in now if n in before and n in ids and (now[n] != before[n]) and ids_now.get(n) == ids[n]]


def command(
    what: str, file: Path, keys: tuple[str, str], measured: Sequence[Mapping[str, str]], asked: Callable[[str], bool]
) -> int:
    """`compare` (ids, sums) of the names that are asked for with those that the file holds under these keys, or `write`
    them to it: not a sum that is another under the same id. The exit code."""
    golden, here, (ids, sums), (found_ids, found) = json.loads(file.read_text()), portable.here(), keys, measured
    if golden["where"] != here and what != "write":
        print(f"made on {golden['where']}, and this is {here}: write one here before the change", file=sys.stderr)
    if what != "write":
        return compare({name: value for name, value in golden[sums].items() if asked(name)}, found)
    if golden["where"] == here and (names := unsaid(golden[sums], found, golden[ids], found_ids)):
        print(f"changed, and no version says so: {', '.join(names)}", file=sys.stderr)
        return 1
    new = {"where": here}
    for key, values in zip(keys, measured, strict=True):
        new[key] = {n: v for n, v in golden[key].items() if n in values or not asked(n)} | values
    file.write_text(json.dumps(new, indent=1) + "\n")
    return 0
