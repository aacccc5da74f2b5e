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

#: Key of a provenance: name or kind of each artifact that went in -> its `origin`.
MADE_FROM = "made_from"
_LIBRARIES = ("kneed", "numpy", "pillow", "pyarrow", "scikit-learn", "scipy", "torch", "torchvision")


@cache
def libraries() -> dict[str, str]:
    """Versions of fedbench and of the libraries that can change a number, without importing them."""
    from importlib import metadata  # slow to load, and what only reads needs no versions

    versions = {"fedbench": fedbench.__version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


@cache
def git_revision() -> str | None:
    """The revision of the checkout fedbench runs from ('+' marks uncommitted changes), or None."""
    root = PACKAGE.parent
    if not (root / ".git").exists():
        return None
    try:
        run = ["git", "--no-optional-locks", "-C", str(root)]  # a user's own git must not find the index locked
        revision = subprocess.run([*run, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5)
        changed = subprocess.run([*run, "status", "--porcelain", "-uno"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if revision.returncode:
        return None
    return revision.stdout.strip() + ("+" if changed.stdout.strip() else "")


def provenance(started: float) -> dict[str, Any]:
    """What the manifest of an artifact begun at `started` (Unix seconds) says about its making."""
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

    Same version number but another fingerprint means that the code was written otherwise: a checkpoint of it is not
    continued, and `--again` makes its results anew. Without a file that is gone it is another.
    """
    digest = hashlib.sha256()
    for part in parts:
        path = PACKAGE / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.exists() else []:
            digest.update(file.relative_to(PACKAGE).as_posix().encode())
            digest.update(code(file.read_bytes()))
    return digest.hexdigest()[:12]


def code_of(*files: str) -> dict[str, Any]:
    """What an artifact's provenance says of the code behind it, now: files of the package and all that can change what
    they compute (see imports.closure), and their fingerprint."""
    parts = closure(*files)
    return {"fingerprint": fingerprint(*parts), "fingerprint_parts": parts}


def origin(artifact: Artifact) -> dict[str, Any]:
    """What an artifact's provenance says of one that it is made from: which making of it, and by which code."""
    keys = ("fingerprint", "fingerprint_parts", MADE_FROM)
    return {"digest": artifact.digest, **{k: artifact.provenance[k] for k in keys if k in artifact.provenance}}


def other_code(provenance: Mapping[str, Any]) -> bool:
    """Whether the code that made an artifact, or what that was made from, has changed since in any letter that counts.

    Its numbers may well be the same: what says that they are not is a version (results/frame.py). An artifact
    whose provenance does not name its code is taken as it is.
    """
    if any(other_code(one) for one in provenance.get(MADE_FROM, {}).values()):
        return True
    parts = provenance.get("fingerprint_parts")
    return fingerprint(*parts) != provenance.get("fingerprint") if parts else False
