"""What has changed between two measurements of the same names, and whether a version says so."""

from __future__ import annotations

from collections.abc import Mapping


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
