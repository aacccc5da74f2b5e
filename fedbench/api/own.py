"""What a user passes for a method, a model or a partitioner: a name, 'FILE.py:Class', a class or an object of it."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from fedbench.errors import FedbenchError
from fedbench.reader import shown
from fedbench.specs.base import native
from fedbench.store import Store

#: What each is derived from. (Its name, since importing most of them takes torch.)
_BASES = {
    "method": "fedbench.methods.base.Method", "model": "fedbench.models.base.FLModel",
    "partitioner": "fedbench.partitions.scheme.Scheme",
}  # fmt: skip


def name_of(what: Any, store: Store, called: str = "method") -> str:
    """The name or 'FILE.py:Class' that commands know it by. Raises FedbenchError for what is no method (or what else
    is `called` for), and where its source cannot be told."""
    if isinstance(what := native(what), str | os.PathLike):
        return str(what)
    kind: Any = what if isinstance(what, type) else type(what)
    bases = [base for name, base in _BASES.items() if name in called]
    if not {f"{one.__module__}.{one.__name__}" for one in kind.__mro__} & {*bases}:
        such = f"a name, FILE.py:Class, or a class derived from {' or '.join(bases)}"
        raise FedbenchError(f"{shown(what)} is no {called}", f"give {such}")
    place = kind.__module__
    if place.startswith(("fedbench.methods.", "fedbench.partitions.schemes.")):
        return str(kind.name) if place.startswith("fedbench.methods.") else place.rpartition(".")[2]
    from fedbench.plugins.session import reference

    return reference(kind, store.home / "sources")


def options_of(what: Any) -> dict[str, Any]:
    """The values of an object that are not its class's defaults; none of a name or a class."""
    if isinstance(what, type) or not dataclasses.is_dataclass(what):
        return {}
    values = {f.name.rstrip("_"): (getattr(what, f.name), f.default) for f in dataclasses.fields(what)}
    return {name: value for name, (value, default) in values.items() if value != default}
