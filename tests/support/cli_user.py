"""What a user does at the command line, and recipes and methods of one's own."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fedbench.__main__ import main
from fedbench.files import SEAL, sealed
from fedbench.machine import DEBUG
from fedbench.planner import table as tables
from fedbench.resources import TABLES
from fedbench.store import Artifact, Store
from tests.support.data_makers import idx_bytes, recipe_text

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress

SMOKE = ("--budget", "smoke")
DIGITS = ("--dataset", "digits", *SMOKE)


_TABLES = sys.modules[tables.names.__module__]
_read = _TABLES._read
_once = cache(_read)


def tables_once(patch: pytest.MonkeyPatch) -> None:
    """fedbench's own tables are read once a process, as a user's command reads them, and not once a test."""
    patch.setattr(_TABLES, "_read", lambda *of: (_once if of[1].is_relative_to(TABLES) else _read)(*of))


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The last line on standard error."""
        return self.err.splitlines()[-1] if self.err else ""


def fedbench(*arguments: str | Path) -> Said:
    """`fedbench ARGUMENTS` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    os.environ.pop(DEBUG, None)  # a process of its own would end here
    assert isinstance(stop.value.code, int)
    return Said(stop.value.code, out.getvalue(), err.getvalue())


def good(*arguments: str | Path) -> Said:
    """A command that must succeed."""
    said = fedbench(*arguments)
    assert said.code == 0, said.err
    return said


def bad(*arguments: str | Path) -> str:
    """The one line of a command that must be refused."""
    said = fedbench(*arguments)
    assert (said.code, said.out) == (2, ""), said
    assert said.line.startswith("fedbench: "), said.err
    assert said.err.count("fedbench: ") == 1
    assert "Traceback" not in said.err
    assert "│" not in said.err
    return said.line


def denied(*_: object, **__: object) -> Any:
    """In the place of what the system refuses; whoever runs the tests as root may do everything."""
    raise PermissionError(13, "Permission denied")


@contextlib.contextmanager
def listening(listen: Callable[[Progress], object]) -> Iterator[None]:
    """While it is open, every training tells `listen` of its rounds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedbench.observers.bars._lines", lambda *_: listen)
        yield


def interrupted(*arguments: str | Path, after: int = 2) -> Said:
    """A command that Ctrl-C stops after so many rounds."""

    def stop(progress: Progress) -> None:
        if progress.round == after:
            raise KeyboardInterrupt

    with listening(stop):
        said = fedbench(*arguments)
    assert said.code == 130, said.err
    return said


def runs(home: Path) -> list[Artifact]:
    """The store's runs."""
    return list(Store(home).list("run"))


def predictions(home: Path) -> dict[str, bytes]:
    """Run's id -> the bytes of its predictions."""
    return {run.id: run.file("predictions.parquet").read_bytes() for run in runs(home)}


def complete(home: Path) -> dict[str, list[str]]:
    """The store's artifacts with their files, and whatever lies beside them half-written."""
    found: dict[str, list[str]] = {}
    for kind in ("dataset", "partition", "run", "metrics"):
        for path in sorted((home / kind).iterdir()) if (home / kind).is_dir() else ():
            found[f"{kind}/{path.name}"] = sorted(p.name for p in path.iterdir())
    return found


def artifact(home: Path, kind: str) -> Path:
    """The folder of the one artifact of a kind."""
    (found,) = Store(home).list(kind)
    return found.path


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Let an artifact's manifest say something else, and be sealed as fedbench seals it."""
    manifest = json.loads((folder / "artifact.json").read_text())
    del manifest[SEAL]
    change(manifest)
    (folder / "artifact.json").write_text(json.dumps(sealed(manifest)))


def own_recipe(folder: Path, **checksums: str) -> Path:
    """A user's recipe mine.toml of 300 squares in three shades, its files beside it."""
    labels = (np.arange(300) % 3).astype(np.uint8)
    images = np.random.default_rng(0).integers(0, 60, (300, 8, 8), dtype=np.uint8)
    images[labels == 1] += 180
    images[labels == 2, :, :4] += 180
    source = '[[source]]\nname = "idx"\nkind = "idx"\n'
    for role, values in (("images", images), ("labels", labels)):
        data = gzip.compress(idx_bytes(values), mtime=0)
        (folder / f"{role}.gz").write_bytes(data)
        digest = checksums.get(role, hashlib.sha256(data).hexdigest())
        source += f'[[source.file]]\npath = "{role}.gz"\nrole = "{role}"\nsha256 = "{digest}"\n'
    path = folder / "mine.toml"
    path.write_text(recipe_text(source, (8, 8, 1), ("dark", "light", "half")))
    return path


METHOD = '''
"""A user's own method."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.client import Train
from fedbench.methods.base import Method, cross_entropy, hyperparameter


@dataclass(frozen=True)
class MyMethod(Method):
    """FedAvg at half the learning rate."""

    title = "Mine"
    half: float = hyperparameter(0.5, "factor of the learning rate")
    loud: bool = hyperparameter(False, "does nothing")

    def local(self, client):
        {body}
'''


def own_method(folder: Path, body: str = "yield Train(cross_entropy, lr=self.half * client.lr)") -> str:
    """A user's method in mine.py, as --method takes it."""
    (folder / "mine.py").write_text(METHOD.format(body=body))
    return f"{folder / 'mine.py'}:MyMethod"


def slow_method(folder: Path) -> tuple[str, Path]:
    """A user's method whose clients take their time for as long as the file that comes with it is there: its run is
    still under way when a test comes to stop it, however busy the machine is."""
    (slow := folder / "slow").touch()
    wait = f"import os, time; time.sleep(0.2 * os.path.exists({str(slow)!r}))"
    return own_method(folder, f"{wait}; yield Train(cross_entropy, lr=self.half * client.lr)"), slow


def cells(said: Said) -> dict[str, dict[str, Any]]:
    """`report --format json` of one table: row label -> its cells by column."""
    (table,) = json.loads(said.out)
    rows: dict[str, dict[str, Any]] = {}
    for cell in table["cells"]:
        rows.setdefault(cell["row"], {})[cell["column"]] = cell
    return rows
