"""Specs of schema 1 as specs of schema 2.

Under schema 1 a setting named the budget that its values came from, so two budgets that asked for one training had two
runs. Schema 2 leaves the name out. Ids of data sets and partitions did not change; those of runs and metrics did.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from fedbench.specs.base import to_json

#: Kinds of specs whose ids changed with schema 2.
RENAMED = ("run", "metrics")


def is_former(kind: str, raw: Mapping[str, Any]) -> bool:
    """Whether a spec, as a dictionary, is of schema 1 and has another id now."""
    return kind in RENAMED and "budget" in _setting(kind, raw)


def former_id(kind: str, raw: Mapping[str, Any]) -> str:
    """The id that a spec of schema 1 had."""
    return hashlib.sha256(to_json({"kind": kind, "schema": 1, "spec": raw}).encode()).hexdigest()[:12]


def upgraded(kind: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """A spec of schema 1 as one of schema 2; any other spec as it is."""
    if not is_former(kind, raw):
        return dict(raw)
    if kind == "metrics":
        return {**raw, "run": upgraded("run", raw["run"])}
    return {**raw, "setting": {name: value for name, value in raw["setting"].items() if name != "budget"}}


def _setting(kind: str, raw: Mapping[str, Any]) -> Mapping[str, Any]:
    run = raw.get("run") if kind == "metrics" else raw
    setting = run.get("setting") if isinstance(run, Mapping) else None
    return setting if isinstance(setting, Mapping) else {}
