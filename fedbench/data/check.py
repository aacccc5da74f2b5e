"""Is what is at hand whole? Source files against their recipe's checksums, artifacts against their manifests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbench.data.build import verify
from fedbench.data.catalogue import parts_of, recipe
from fedbench.data.locate import find, places
from fedbench.errors import FedbenchError
from fedbench.files import read_json
from fedbench.specs import DatasetSpec
from fedbench.store import MANIFEST, Artifact, DamagedError, Store

GOOD, UNDECLARED, MISSING, DAMAGED = "good", "no checksum", "missing", "damaged"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: a source file or a built artifact."""

    dataset: str
    what: str  #: source and path of the file, or the artifact's id
    state: str  #: GOOD, UNDECLARED, MISSING or DAMAGED
    detail: str  #: where it lies, or what is wrong


def check(name: str, store: Store, roots: Sequence[Path] = ()) -> list[Finding]:
    """Verify every file of every source of a data set, of all parts of a union, and its artifacts. Reads them whole."""
    chosen = recipe(name)
    folders = places(chosen, store, roots)
    findings = []
    for source in chosen.sources:
        for part in parts_of(source):
            findings += check(part.name, store, roots)
        for file in source.file:
            what, path = f"{source.name}: {file.path}", find(file, folders)
            if path is None:
                findings.append(Finding(chosen.name, what, MISSING, ""))
                continue
            wrong = _complaint(verify, file, path)
            state = DAMAGED if wrong else GOOD if file.checksum else UNDECLARED
            findings.append(Finding(chosen.name, what, state, wrong or str(path)))
    for artifact in store.scan("dataset"):
        if isinstance(artifact, DamagedError) and _owner(store.path("dataset", artifact.id)) in (chosen.name, None):
            findings.append(Finding(chosen.name, f"artifact {artifact.id}", DAMAGED, str(artifact)))
        elif isinstance(artifact, Artifact) and artifact.manifest["spec"].get("name") == chosen.name:
            wrong = _complaint(lambda a: [a.file(name) for name in a.manifest["files"]], artifact)
            state = DAMAGED if wrong else GOOD
            findings.append(Finding(chosen.name, f"artifact {artifact.id}", state, wrong or str(artifact.path)))
    return findings


def _owner(path: Path) -> str | None:
    """The data set whose artifact this folder holds, by the spec in its manifest if that still is the id's; else None,
    and it may be anyone's."""
    try:
        spec = DatasetSpec.shared(read_json(path / MANIFEST)["spec"])
    except (FedbenchError, OSError, KeyError):
        return None
    return spec.name if spec.id == path.name else None


def _complaint(act: Callable[..., object], *arguments: object) -> str:
    try:
        act(*arguments)
    except FedbenchError as error:
        return str(error)
    return ""
