"""Where an artifact comes from: versions, machine, time, and a fingerprint of the code that made it."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import time
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import fedbench
from fedbench.files import process
from fedbench.imports import PACKAGE, closure, code

if TYPE_CHECKING:
    from fedbench.store.artifact import Artifact

#: Key of a provenance: name or kind of each input artifact -> its `origin`.
MADE_FROM = "made_from"
#: Key of a run's provenance: how many test images are training images of other clients, in words.
LEAKAGE = "leakage"
_LIBRARIES = ("kneed", "numpy", "pillow", "pyarrow", "scikit-learn", "scipy", "torch", "torchvision")


@cache
def libraries() -> dict[str, str]:
    """Versions of fedbench and of the libraries that can change a number, without importing them."""
    from importlib import metadata  # slow to import, and commands that only read need no versions

    versions = {"fedbench": fedbench.__version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


@cache
def git_revision() -> str | None:
    """The git revision from which fedbench runs ('+' marks uncommitted changes), or None."""
    root = PACKAGE.parent
    if not (root / ".git").exists():
        return None
    try:
        run = ["git", "--no-optional-locks", "-C", str(root)]  # so that the user's git does not find the index locked
        revision = subprocess.run([*run, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5)
        changed = subprocess.run([*run, "status", "--porcelain", "-uno"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if revision.returncode:
        return None
    return revision.stdout.strip() + ("+" if changed.stdout.strip() else "")


def provenance(started: float) -> dict[str, Any]:
    """The basic provenance of an artifact begun at `started` (Unix seconds): times, machine, versions."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "wall_seconds": round(time.time() - started, 3),
        "host": platform.node(),
        "process": process(),
        "platform": platform.platform(),
        "git": git_revision(),
        "libraries": libraries(),
    }


@cache
def fingerprint(*parts: str) -> str:
    """Digest of the code (not comments or docstrings) under package paths such as 'core' or 'methods/fedavg.py'.

    The same version number with another fingerprint means that the code has changed: checkpoints are not continued, and
    `--again` repeats the results. A deleted file changes the fingerprint.
    """
    digest = hashlib.sha256()
    for part in parts:
        path = PACKAGE / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.exists() else []:
            digest.update(file.relative_to(PACKAGE).as_posix().encode())
            digest.update(code(file.read_bytes()))
    return digest.hexdigest()[:12]


def code_of(*files: str) -> dict[str, Any]:
    """The part of a provenance about the present code: these files of the package and all files that can change what
    they compute (see imports.closure), and their fingerprint."""
    parts = closure(*files)
    return {"fingerprint": fingerprint(*parts), "fingerprint_parts": parts}


def origin(artifact: Artifact) -> dict[str, Any]:
    """The part of a provenance about an input artifact: its digest and the code that made it."""
    keys = ("fingerprint", "fingerprint_parts", MADE_FROM)
    return {"digest": artifact.digest, **{k: artifact.provenance[k] for k in keys if k in artifact.provenance}}


def other_code(provenance: Mapping[str, Any]) -> bool:
    """Whether the code (comments aside) that made an artifact or one of its inputs has changed since.

    Its numbers may still be the same: versions tell when they are not (results/run.py). False if the provenance does
    not name the code.
    """
    if any(other_code(source) for source in provenance.get(MADE_FROM, {}).values()):
        return True
    parts = provenance.get("fingerprint_parts")
    return fingerprint(*parts) != provenance.get("fingerprint") if parts else False
