"""Bring a store of schema 1 to schema 2: its runs and metrics get the ids that their specs have now.

Every artifact is renamed by itself, and the store says that it is of schema 2 only when all are: an upgrade that is
killed is continued by the next one, and no artifact is ever incomplete. Tables stay the same bytes, so checksums of
predictions do; a manifest's provenance keeps the former id.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbench.errors import FedbenchError
from fedbench.files import SEAL, alone, disk_errors, erase, intact, json_at_hand, scratch, sealed, write_json
from fedbench.specs import SCHEMA, SPECS
from fedbench.specs.upgrade import RENAMED, former_id, is_former, upgraded
from fedbench.store.artifact import MANIFEST, opened
from fedbench.store.claim import HeldError, holder
from fedbench.store.folder import MARKER, SPEC, schema_of

#: Key in a run's provenance: its id under schema 1.
FORMER_ID = "former_id"
#: Folder in a store: runs of schema 1 of a training that another run in the store is of, too.
FORMER = "former"


@dataclass
class Upgraded:
    """What an upgrade did."""

    renamed: dict[str, str] = field(default_factory=dict)  #: former id -> id of a run
    same: dict[str, str] = field(default_factory=dict)  #: former id -> id of a run with the same files, now one
    aside: dict[str, str] = field(default_factory=dict)  #: former id -> id of another run of the same training
    left: list[str] = field(default_factory=list)  #: damaged artifacts, which stay as they are


def upgrade(home: Path) -> Upgraded:
    """Bring the store in this folder to the present schema; one of the present schema stays as it is.

    Raises FedbenchError if there is no store, if it is of a newer schema, or if a process trains one of its runs.
    """
    if (schema := schema_of(home)) is None:
        raise FedbenchError(f"there is no store in {home}", "--home names another")
    done = Upgraded()
    if schema >= SCHEMA:
        return done
    with disk_errors("upgrading the store", home), alone(home):
        for path in (home / "run").glob("*"):  # an upgrade that was killed has renamed these
            if isinstance(former := json_at_hand(path / MANIFEST).get("provenance", {}).get(FORMER_ID), str):
                done.renamed[former] = path.name
        for folder in (home / "work").glob("*"):
            if (process := holder(folder)) is not None:
                raise HeldError(f"run {folder.name}", f"process {process['pid']} on {process['host']}")
        for kind in RENAMED:
            for path, manifest in _former(home / kind, kind, done):
                _rename(home, path, manifest, done)
        _rename_work(home)
        _rename_failures(home)
        current = json_at_hand(home / "current.json")
        if isinstance(run := current.get("run"), str):
            write_json(home / "current.json", {**current, "run": done.renamed.get(run, run)})
        write_json(home / MARKER, {"schema": SCHEMA})
    return done


def _former(folder: Path, kind: str, done: Upgraded) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The folders and manifests of a kind's artifacts of schema 1; damaged ones are noted and left out."""
    for path in sorted(folder.glob("*")):
        manifest = json_at_hand(path / MANIFEST)
        spec = manifest.get("spec")
        if path.name.startswith(".") or (isinstance(spec, dict) and not is_former(kind, spec)):
            continue
        if not isinstance(spec, dict) or not intact(manifest) or former_id(kind, spec) != path.name:
            done.left.append(f"{kind} {path.name}")
            continue
        yield path, manifest


def _rename(home: Path, path: Path, manifest: dict[str, Any], done: Upgraded) -> None:
    """Give an artifact of schema 1 its new id, unless another artifact has it already."""
    kind, former = manifest["kind"], path.name
    raw = upgraded(kind, manifest["spec"])
    id = SPECS[kind].shared(raw).id
    final, folder = home / kind / id, scratch(home / kind / id)
    if not (final / MANIFEST).exists():
        new = {
            **{key: value for key, value in manifest.items() if key != SEAL},
            "schema": SCHEMA,
            "id": id,
            "spec": raw,
            "inputs": {name: done.renamed.get(of, of) for name, of in manifest["inputs"].items()},
            "provenance": {**manifest["provenance"], FORMER_ID: former},
        }
        folder.mkdir(parents=True)
        try:
            for name in manifest["files"]:
                _link(path / name, folder / name)
            write_json(folder / MANIFEST, sealed(new))
            shutil.copystat(path / MANIFEST, folder / MANIFEST)  # lists are sorted by its time
            folder.rename(final)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    there = opened(final, kind, id)
    if kind == "run":
        done.renamed[former] = id
    if there.provenance.get(FORMER_ID) == former or kind != "run":
        erase(path)
    elif there.manifest["files"] == manifest["files"]:
        done.same[former] = id
        erase(path)
    else:
        done.aside[former] = id
        (home / FORMER).mkdir(exist_ok=True)
        path.rename(home / FORMER / former)


def _rename_work(home: Path) -> None:
    """Unfinished runs: their checkpoints go on under the new ids."""
    for path in sorted((home / "work").glob("*")):
        begun = json_at_hand(path / SPEC)
        if isinstance(raw := begun.get("run"), dict) and is_former("run", raw):
            new = upgraded("run", raw)
            final = path.with_name(SPECS["run"].shared(new).id)
            if final.exists():
                erase(path)
            else:  # the spec first: a folder of another name is no run's, and is found again
                write_json(path / SPEC, {**begun, "run": new})
                path.rename(final)
        elif isinstance(raw, dict) and path.name != (id := SPECS["run"].shared(raw).id):
            path.rename(path.with_name(id))


def _rename_failures(home: Path) -> None:
    for path in sorted((home / "failed").glob("*.json")):
        failed = json_at_hand(path)
        if isinstance(raw := failed.get("spec"), dict) and is_former("run", raw):
            new = upgraded("run", raw)
            write_json(path.with_name(f"{SPECS['run'].shared(new).id}.json"), {**failed, "spec": new})
            path.unlink()


def _link(source: Path, target: Path) -> None:
    """The same file under another name; a copy where the disk has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
