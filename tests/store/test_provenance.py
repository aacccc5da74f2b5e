"""Where an artifact comes from, and the fingerprint of the code that made it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedbench
from fedbench.store import provenance as module
from fedbench.store.provenance import fingerprint, git_revision, provenance

CODE = '''"""What it is for."""

LIMIT = 3


class Thing:
    """A thing."""

    def double(self, x: int) -> int:
        """Twice x."""
        return 2 * x  # obvious
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of one file in place of fedbench."""
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "a.py").write_text(CODE)
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    anew(fingerprint, "core")
    yield tmp_path
    for cached in (fingerprint, git_revision):
        cached.cache_clear()


def anew(cached: Any, *parts: str) -> Any:
    """What it returns now."""
    cached.cache_clear()
    return cached(*parts)


def edit(package: Path, old: str, new: str) -> None:
    file = package / "core" / "a.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("# obvious", "# not so obvious", False),
        ('"""Twice x."""', '"""Two times x, said better."""', False),
        ('"""A thing."""', '"""Something."""', False),
        ('"""What it is for."""\n', "", False),
        ("2 * x", "(2   *   x)", False),
        ("2 * x", "3 * x", True),
        ("LIMIT = 3", "LIMIT = 4", True),
        ("LIMIT = 3", 'LIMIT = "3"', True),
        ("double", "twice", True),
        ("x: int", "x", True),
        ("3", "None", True),
    ],
)
def test_code_counts_and_words_and_spaces_do_not(package: Path, old: str, new: str, counts: bool) -> None:
    before = fingerprint("core")
    assert before == "5b8a988a0ce7", "the same under every version of Python, or two could not share a store"
    edit(package, old, new)
    assert (anew(fingerprint, "core") != before) == counts


def test_which_files_count(package: Path) -> None:
    before, core = fingerprint("core"), package / "core"
    assert fingerprint("core/a.py") == before, "the folder's only file is the folder's code"
    (core / "notes.txt").write_text("no code")
    assert anew(fingerprint, "core") == before
    (core / "b.py").write_text("")
    assert anew(fingerprint, "core") != before
    (core / "a.py").rename(core / "b.py")
    assert anew(fingerprint, "core") != before


def test_provenance() -> None:
    found = provenance(time.time() - 2)
    assert found["wall_seconds"] >= 2
    assert found["host"] == platform.node()
    assert provenance(0.0)["started"] == "1970-01-01T00:00:00Z"
    known = found["libraries"]
    assert (known["fedbench"], known["python"]) == (fedbench.__version__, platform.python_version())
    for library in ("kneed", "scikit-learn", "torch"):  # another kneed moves one elbow in ten
        assert re.match(r"\d+\.\d+", known[library])


def test_git_revision(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the checkout around the package, with a '+' for changes; nothing outside a checkout."""
    monkeypatch.setattr(module, "PACKAGE", package / "core")
    assert anew(git_revision) is None

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        run = ["git", "-C", str(package), *identity, *arguments]
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("init", "-q")
    except FileNotFoundError:
        pytest.skip("needs git")
    assert anew(git_revision) is None, "no commit yet"
    git("add", ".")
    git("commit", "-q", "-m", "one")
    assert anew(git_revision) == git("rev-parse", "HEAD")
    os.utime(package / "core" / "a.py", (0, 0))  # a status that takes the lock notes it in the index
    index = package / ".git" / "index"
    before = index.read_bytes()
    assert anew(git_revision) == git("rev-parse", "HEAD")
    assert index.read_bytes() == before
    edit(package, "LIMIT = 3", "LIMIT = 4")
    assert anew(git_revision) == git("rev-parse", "HEAD") + "+"
