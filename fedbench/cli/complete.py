"""What the shell offers behind a command's options and arguments: names that files tell, and ids of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Completion = Callable[[str], list[str]]


def _offering(names: Callable[[], Iterable[str]]) -> Completion:
    """The names that begin as the word does; nothing where they cannot be told."""

    def complete(incomplete: str) -> list[str]:
        from fedbench.errors import FedbenchError

        try:
            return [name for name in names() if name.startswith(incomplete)]
        except (FedbenchError, OSError):
            return []

    return complete


def _methods() -> Iterable[str]:
    from fedbench import declared

    return declared.names()


def _datasets() -> Iterable[str]:
    from fedbench.resources import RECIPES

    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def _tables() -> Iterable[str]:
    from fedbench.reports import table

    return [*table.headline(), *table.names()]


def _protocols() -> Iterable[str]:
    from fedbench import protocol

    return protocol.names()


def _networks() -> Iterable[str]:
    from fedbench import models

    return models.names()


def _partitioners() -> Iterable[str]:
    from fedbench.partitions import schemes

    return schemes.names()


def _ids(*kinds: str) -> Callable[[], Iterable[str]]:
    """Ids of artifacts of these kinds, in the store of FEDBENCH_HOME."""

    def ids() -> Iterable[str]:
        from fedbench.store import Store

        home = Store().home
        return [path.name for kind in kinds for path in sorted((home / kind).glob("*"))]

    return ids


methods, datasets, tables = map(_offering, (_methods, _datasets, _tables))
protocols, networks, partitioners = map(_offering, (_protocols, _networks, _partitioners))
runs, partitions = _offering(_ids("run")), _offering(_ids("partition"))
artifacts = _offering(_ids("run", "partition", "dataset", "metrics"))
