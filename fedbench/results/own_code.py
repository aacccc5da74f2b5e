"""Runs of users' code in result packs: taken where the code lies in the folder of the pack's paper.

A paper's folder is whole: its tables, the files of its methods, networks and partitioners, and in `results/` packs of
its runs. A run names its code by a digest, so it can be made again from a file in that folder that has the digest,
wherever the folder lies. A pack alone cannot bring such runs. Files are read for this, and no code is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from fedbench import resources
from fedbench.errors import FedbenchError
from fedbench.plugins.named import AT, DIGITS
from fedbench.plugins.source import read
from fedbench.specs import RunSpec


class Part(NamedTuple):
    """A part of a run that is a user's class."""

    what: str  #: "method", "network" or "partitioner"
    name: str  #: of a method its name, else its class
    digest: str  #: of its source, or the first digits


def parts(spec: RunSpec) -> Iterator[Part]:
    """The parts of a run that are users' code."""
    if spec.source is not None or AT in spec.method:
        name, _, rest = spec.method.partition(AT)
        yield Part("method", name, spec.source or rest)
    for what, name in (("network", spec.setting.model), ("partitioner", spec.setting.partition.scheme)):
        if AT in name:
            cls, _, rest = name.partition(AT)
            yield Part(what, cls, rest[:DIGITS])


@dataclass(frozen=True)
class Code:
    """The Python files of papers' folders."""

    folders: Sequence[Path]

    @cached_property
    def _digests(self) -> dict[Path, str]:
        """File -> digest of its code; without hidden files, and those that are no Python."""
        found: dict[Path, str] = {}
        for folder in self.folders:
            for file in sorted(folder.rglob("*.py")):
                if not any(part.startswith((".", "__")) for part in file.relative_to(folder).parts):
                    try:
                        found[file] = read(file).digest
                    except FedbenchError:
                        continue
        return found

    def file(self, part: Part) -> Path | None:
        """The file that has the code of a part; None if none has."""
        return next((file for file, digest in self._digests.items() if digest.startswith(part.digest)), None)

    def lacks(self, spec: RunSpec) -> str:
        """Why a run cannot be made again from these folders, in words; "" if it can."""
        missing = next((part for part in parts(spec) if self.file(part) is None), None)
        if missing is None:
            return ""
        whose = f"its {missing.what} {missing.name} is a user's code (source {missing.digest[:DIGITS]})"
        where = " or ".join(str(folder) for folder in self.folders[:3])
        return f"{whose}, and no file in {where} has it" if where else f"{whose}, which is in no paper's folder"


#: No code: of runs that any fedbench can make again.
NONE = Code(())


def beside(pack: Path) -> Code:
    """The code that goes with a pack: of the paper in whose folder, or folder `results`, the pack lies."""
    places = [pack.absolute().parent, pack.absolute().parent.parent]
    return Code(
        [folder for folder in places[: 2 if places[0].name == "results" else 1] if resources.holds_tables(folder)]
    )


def at_hand(pack: Path) -> Code:
    """The code that goes with a pack, and that of all the user's papers."""
    return Code([*beside(pack).folders, *resources.of_user().values()])


def refuse(pack: Path, specs: Iterable[RunSpec]) -> None:
    """Raise FedbenchError for a run of a pack whose code does not lie beside the pack."""
    code = beside(pack)
    for spec in specs:
        if why := code.lacks(spec):
            raise FedbenchError(
                f"run {spec.id} of {pack} cannot be made again: {why}",
                "a pack brings such runs in its paper's folder, PAPER/results/NAME.parquet, with the files of the code",
            )
