"""What a user passes for a method, a model or a partitioner: a name, 'FILE.py:Class', a class or an object of it."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedbench.store import Store


def name_of(what: Any, store: Store) -> str:
    """The name or 'FILE.py:Class' that commands know it by. Raises FedbenchError where its source cannot be told."""
    if isinstance(what, str):
        return what
    kind: Any = what if isinstance(what, type) else type(what)
    place = kind.__module__
    if place.startswith(("fedbench.methods.", "fedbench.partitions.schemes.")):
        return str(kind.name) if place.startswith("fedbench.methods.") else place.rpartition(".")[2]
    from fedbench.plugins.session import reference

    return reference(kind, store.home / "sources")


def options_of(what: Any) -> dict[str, Any]:
    """The values of an object that are not its class's defaults; none of a name or a class."""
    if isinstance(what, str | type):
        return {}
    values = {f.name.rstrip("_"): (getattr(what, f.name), f.default) for f in dataclasses.fields(what)}
    return {name: value for name, (value, default) in values.items() if value != default}
