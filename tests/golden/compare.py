"""What has changed between two measurements of the same names."""

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
