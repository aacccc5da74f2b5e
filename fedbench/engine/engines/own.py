"""Users' files on their way to another process: where they lie here, and their text for a machine that lacks them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.errors import FedbenchError
from fedbench.files import write_whole
from fedbench.models import plugin as networks
from fedbench.partitions import schemes
from fedbench.plugins.classes import is_file, place
from fedbench.plugins.source import Plugin, read

if TYPE_CHECKING:
    from fedbench.specs import RunSpec


@dataclass(frozen=True)
class Own:
    """A user's class: a `method`, `network` or `partitioner`."""

    kind: str
    file: Path
    name: str | None
    digest: str  #: of the file and of all that it imports from its folder
    texts: Mapping[str, bytes]  #: their texts by their places in the file's folder

    @classmethod
    def of(cls, kind: str, file: Path, name: str | None, plugin: Plugin) -> Own:
        modules = [one for one in plugin.modules.values() if one.file.is_file()]
        texts = {one.file.relative_to(file.parent).as_posix(): one.text for one in modules}
        return cls(kind, file, name, plugin.digest, texts)

    def reference(self) -> str:
        """FILE.py:Class on this machine: the user's file if it is the same here, else a copy.

        Raises FedbenchError where no copy can be written.
        """
        file = self.file
        if not file.is_file() or read(file).digest != self.digest:
            try:
                folder = Path(_copies().name) / self.digest
                for place, text in self.texts.items():
                    path = folder / place
                    path.parent.mkdir(parents=True, exist_ok=True)
                    if not path.exists():
                        write_whole(path, text)
            except OSError as error:
                where = tempfile.gettempdir()
                raise FedbenchError(f"cannot copy {file.name} into {where} ({error.strerror})", "set TMPDIR") from error
            file = folder / self.file.name
        return f"{file}:{self.name}" if self.name else str(file)


@cache
def _copies() -> tempfile.TemporaryDirectory[str]:
    """A folder of this process alone, which goes with it: what lies there is run."""
    return tempfile.TemporaryDirectory(prefix="fedbench-own-")


def of_run(method: str, spec: RunSpec) -> Iterator[Own]:
    """The users' files that a run is made of; `method` is its name, or FILE.py:Class. Of a partitioner whose file is
    not at hand the partition is."""
    if is_file(method):
        at = place(method, "method")
        yield Own.of("method", at.file, at.name, read(at.file))
    if networks.is_plugin(model := spec.setting.model):
        at, source = networks.known(model)
        yield Own.of("network", at.file, at.name, source)
    if (known := schemes.file_of(spec.setting.partition.scheme)) is not None:
        at, source = known
        yield Own.of("partitioner", at.file, at.name, source)


def of_runs(runs: Iterable[tuple[str, RunSpec]]) -> list[Own]:
    """Those of several runs, each once."""
    return list({(one.kind, one.digest, one.name): one for run in runs for one in of_run(*run)}.values())


def taken(own: Own) -> str:
    """Make a user's class known to this process, and return its FILE.py:Class here.

    Raises FedbenchError if the file does not load here.
    """
    reference = own.reference()
    if own.kind == "method":
        from fedbench import methods

        methods.load(reference)
        return reference
    name = networks.named(reference) if own.kind == "network" else schemes.named(reference)
    if own.kind == "network":
        networks.class_of(name)
    else:
        schemes.load(name)
    return reference
