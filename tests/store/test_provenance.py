"""Where an artifact comes from, and the fingerprint of the code that made it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedbench
from fedbench.store import provenance as module
from fedbench.store.provenance import fingerprint, git_revision, libraries, provenance

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
    for cached in (fingerprint, git_revision):
        cached.cache_clear()
    yield tmp_path
    for cached in (fingerprint, git_revision):
        cached.cache_clear()


def again(*parts: str) -> str:
    fingerprint.cache_clear()
    return fingerprint(*parts)


def edit(package: Path, old: str, new: str) -> None:
    file = package / "core" / "a.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# obvious", "# not so obvious"),
        ('"""Twice x."""', '"""Two times x, said better."""'),
        ('"""A thing."""', '"""Something."""'),
        ('"""What it is for."""\n', ""),
        ("2 * x", "(2   *   x)"),
    ],
)
def test_words_and_spaces_do_not_count(package: Path, old: str, new: str) -> None:
    before = fingerprint("core")
    edit(package, old, new)
    assert again("core") == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2 * x", "3 * x"),
        ("LIMIT = 3", "LIMIT = 4"),
        ("LIMIT = 3", 'LIMIT = "3"'),
        ("double", "twice"),
        ("x: int", "x"),
        ("3", "None"),
    ],
)
def test_code_counts(package: Path, old: str, new: str) -> None:
    before = fingerprint("core")
    edit(package, old, new)
    assert again("core") != before


def test_files_count(package: Path) -> None:
    before = fingerprint("core")
    assert fingerprint("core/a.py") == before, "the folder's only file is the folder's code"
    (package / "core" / "notes.txt").write_text("no code")
    assert again("core") == before
    (package / "core" / "a.py").rename(package / "core" / "b.py")
    assert again("core") != before
    (package / "core" / "b.py").rename(package / "core" / "a.py")
    (package / "core" / "b.py").write_text("")
    assert again("core") != before


def test_pinned_fingerprint(package: Path) -> None:
    """The same under every version of Python, or one store could not be shared by two of them."""
    assert fingerprint("core") == "5b8a988a0ce7"


def test_fingerprint_of_fedbench() -> None:
    assert re.fullmatch("[0-9a-f]{12}", fingerprint("core"))
    assert fingerprint("core") != fingerprint("models")


def test_fingerprint_is_the_same_in_another_process() -> None:
    """Workers compare it: no hash seed, clock or path may enter."""
    code = "from fedbench.store.provenance import fingerprint; print(fingerprint('core', 'methods/base.py'))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == fingerprint("core", "methods/base.py")


def test_libraries_without_importing_them() -> None:
    code = "import sys; from fedbench.store.provenance import libraries; libraries(); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False"
    found = libraries()
    assert found["fedbench"] == fedbench.__version__
    assert found["python"] == platform.python_version()
    assert re.match(r"\d+\.\d+", found["torch"])


def test_provenance() -> None:
    found = provenance(time.time() - 2)
    assert found["wall_seconds"] >= 2
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found["started"])
    assert found["host"] == platform.node()
    assert provenance(0.0)["started"] == "1970-01-01T00:00:00Z"


def test_git_revision(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the checkout around the package, with a '+' for changes; nothing outside a checkout."""
    monkeypatch.setattr(module, "PACKAGE", package / "core")
    assert git_revision() is None

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        run = ["git", "-C", str(package), *identity, *arguments]
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("init", "-q")
    except FileNotFoundError:
        pytest.skip("needs git")
    git_revision.cache_clear()
    assert git_revision() is None, "no commit yet"
    git("add", ".")
    git("commit", "-q", "-m", "one")
    git_revision.cache_clear()
    assert git_revision() == git("rev-parse", "HEAD")
    os.utime(package / "core" / "a.py", (0, 0))  # a status that takes the lock notes it in the index
    index = package / ".git" / "index"
    before = index.read_bytes()
    git_revision.cache_clear()
    assert git_revision() == git("rev-parse", "HEAD")
    assert index.read_bytes() == before
    edit(package, "LIMIT = 3", "LIMIT = 4")
    git_revision.cache_clear()
    assert git_revision() == git("rev-parse", "HEAD") + "+"
