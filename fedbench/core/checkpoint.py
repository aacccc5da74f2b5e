"""Checkpoints of an unfinished run: safetensors and Parquet, no pickle.

    work/ID/state-ROUND.safetensors     the server's tensors
    work/ID/predictions-ROUND.parquet   predictions, one file per evaluated round
    work/ID/models-ROUND.safetensors    with --keep model, the models of the last evaluation (core/kept.py)
    work/ID/checkpoint.json             the valid files with their checksums; written last, then renamed into place

If the process is killed, checkpoint.json is either the old or the new one. The next start deletes files that it does
not list.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.core.state import State, tensors_of, write
from fedbench.errors import FedbenchError
from fedbench.files import disk_errors, intact, read_json, sealed, sha256_of, write_json
from fedbench.store import CHECKPOINT, writing

if TYPE_CHECKING:
    import pyarrow as pa

    from fedbench.core.kept import Models


#: Fields that are stored in checkpoint.json unchanged.
_LASTING = ("code", "run", "round", "rounds", "notes", "written")


@dataclass
class Checkpoint:
    """A run's progress in its work folder."""

    folder: Path
    code: str = ""  #: fingerprint of code and libraries; a checkpoint with another fingerprint is discarded
    run: dict[str, Any] = field(default_factory=dict)  #: what is trained (`Trainer`); that of another is refused
    round: int = 0  #: last completed round on disk
    rounds: list[dict[str, Any]] = field(default_factory=list)  #: one row per round: loss, seconds, bytes
    notes: dict[str, dict[str, float]] = field(default_factory=dict)  #: client -> metrics at the last evaluation
    #: File -> checksum, of predictions and models.
    written: dict[str, str] = field(default_factory=dict)
    #: What to store beyond predictions (`--keep`); for a resumed run also what the checkpoint lists.
    keep: frozenset[str] = frozenset()
    #: Called before each write. Raises FedbenchError if another process has taken over the run.
    guard: Callable[[], None] = lambda: None

    @property
    def index(self) -> Path:
        return self.folder / CHECKPOINT

    def save_tables(self, kind: str, t: int, tables: Iterable[pa.Table]) -> None:
        """Write a table ('predictions') of round t in parts; the next `save` lists the file."""
        self._write(f"{kind}-{t:06d}.parquet", lambda path: writing.write(path, tables))

    def save_models(self, t: int, models: Models) -> None:
        """Write the models of the evaluation after round t; the next `save` lists the file."""
        self._write(f"models-{t:06d}.safetensors", models.write)

    def _write(self, name: str, write: Callable[[Path], Any]) -> None:
        self.guard()
        with disk_errors(f"saving {name.split('-')[0]}", self.folder):
            write(self.folder / name)
        self.written[name] = sha256_of(self.folder / name)

    def save(self, t: int, tensors: State) -> None:
        """Save the state after round t, from which a restart resumes, and drop entries of later rounds."""
        self.guard()
        self.round, self.rounds = t, self.rounds[:t]
        self.written = {name: digest for name, digest in self.written.items() if _round_of(name) <= t}
        name = f"state-{self.round:06d}.safetensors"
        part = self.folder / f"{name}.part"
        with disk_errors("saving a checkpoint", self.folder):
            # By rename, because after an interrupt the same round may be saved again while the index lists this file.
            write(part, tensors)
            part.replace(self.folder / name)
            entry = {name: getattr(self, name) for name in _LASTING} | {"keep": sorted(self.keep)}
            entry["state"] = {name: sha256_of(self.folder / name)}
            write_json(self.index, sealed(entry))
        self._clear(name)

    def load(self) -> State | None:
        """Resume: return the saved tensors, or None for a fresh start. Raises FedbenchError for a damaged file, and for
        a checkpoint of another run.

        A checkpoint of another code version is deleted, so that one version computes a whole run.
        """
        if not self.index.exists():
            self._clear(None)
            return None
        from safetensors import SafetensorError, safe_open

        entry = read_json(self.index)
        remedy = f"delete the folder {self.folder} to begin this run again"
        if not entry.keys() >= {"round", "rounds", "notes", "state"}:
            raise FedbenchError(f"{self.index} is no checkpoint of a run", remedy)
        if not intact(entry):
            raise FedbenchError(f"{self.index} was altered after it was written", remedy)
        if entry.get("code") != self.code:
            self.index.unlink()
            self._clear(None)
            return None
        self.run = json.loads(json.dumps(self.run))
        if (difference := _difference(entry.get("run", {}), self.run)) is not None:
            raise FedbenchError(f"the checkpoint {self.index} is of another run: {difference}", remedy)
        for name, digest in {**entry["written"], **entry["state"]}.items():
            path = self.folder / name
            if not path.is_file() or sha256_of(path) != digest:
                raise FedbenchError(f"the checkpoint {path} is missing or damaged (checksum differs)", remedy)
        (name,) = entry["state"]
        try:
            with safe_open(self.folder / name, "pt") as file:
                tensors = tensors_of(file)
        except (SafetensorError, OSError, KeyError) as error:
            raise FedbenchError(f"cannot read the checkpoint {self.folder / name} ({error})", remedy) from error
        for key in _LASTING:
            setattr(self, key, entry[key])
        self.keep |= {*entry["keep"]}
        self._clear(name)
        return tensors

    def parts(self, kind: str) -> Iterator[pa.Table]:
        """All 'predictions' so far, by round, part by part; empty if there are none."""
        return writing.read(self.files(kind))

    def files(self, kind: str) -> list[Path]:
        """Files of the 'predictions' or 'models' so far, by round."""
        return [self.folder / name for name in sorted(self.written) if name.startswith(f"{kind}-")]

    def read(self, kind: str) -> pa.Table | None:
        """All 'predictions' so far as one table; None if there are none."""
        import pyarrow as pa

        parts = list(self.parts(kind))
        return pa.concat_tables(parts) if parts else None

    def models(self) -> Path | None:
        """The file of the last evaluation's models, or None."""
        files = self.files("models")
        return files[-1] if files else None

    def _clear(self, state: str | None) -> None:
        keep = {state, *self.written}
        for pattern in ("state-*", "predictions-*", "models-*"):
            for path in self.folder.glob(pattern):
                if path.name not in keep:
                    with contextlib.suppress(FileNotFoundError):
                        path.unlink()


def _difference(there: Any, here: Any, what: str = "") -> str | None:
    """The first value in which two descriptions of a run, of JSON values, differ, in words; None if they are equal."""
    if isinstance(there, dict) and isinstance(here, dict):
        each = (_difference(there.get(k), here.get(k), f"{what} {k}".strip()) for k in {**here, **there})
        return next((words for words in each if words is not None), None)
    return None if there == here else f"{what} is {_shown(there)} there and {_shown(here)} here"


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value)


def _round_of(name: str) -> int:
    return int(name.partition("-")[2].partition(".")[0])
