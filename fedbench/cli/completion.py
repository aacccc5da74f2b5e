"""Shell completion of options and arguments: names from files, and ids from the store."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable

from fedbench.errors import FedbenchError
from fedbench.resources import RECIPES
from fedbench.store import Store

Completion = Callable[[str], list[str]]


def _offering(names: Callable[[], Iterable[str]]) -> Completion:
    """A completion function: the names that begin with the typed text; no names if they cannot be read."""

    def complete(incomplete: str) -> list[str]:
        try:
            return [name for name in names() if name.startswith(incomplete)]
        except (FedbenchError, OSError):
            return []

    return complete


def _names_in(module: str) -> Completion:
    """Completion with what the module's function `names` returns; the module is imported only when the shell asks."""
    return _offering(lambda: importlib.import_module(module).names())


def _ids(*kinds: str) -> Completion:
    """Completion with ids of artifacts of these kinds in the store of FEDBENCH_HOME."""
    return _offering(lambda: [path.name for kind in kinds for path in sorted((Store().home / kind).glob("*"))])


def _tables() -> Iterable[str]:
    from fedbench.planner import table

    return [*table.headline(), *table.names()]


datasets, tables = _offering(lambda: sorted(path.stem for path in RECIPES.glob("*.toml"))), _offering(_tables)
methods, protocols = _names_in("fedbench.methods"), _names_in("fedbench.protocol")
networks, partitioners = _names_in("fedbench.models"), _names_in("fedbench.partitions.schemes")
runs, partitions = _ids("run"), _ids("partition")
artifacts = _ids("run", "partition", "dataset", "metrics")
#: Name of an option -> its completion.
OF_OPTIONS = {
    "model": networks,
    "scheme": partitioners,
    "method": methods,
    "protocol": protocols,
    "dataset": datasets,
    "table": tables,
    "partition": partitions,
}
