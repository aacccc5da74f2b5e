"""A store with damaged, half-written, set-aside and leftover files in it."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench import files
from fedbench.errors import FedbenchError
from fedbench.files import intact, scratch, sealed
from fedbench.specs import DatasetSpec
from fedbench.store import MANIFEST, Artifact, DamagedError, Store, claim

DIGITS = DatasetSpec("digits", "sklearn", "0123456789ab")
OTHER = DatasetSpec("digits", "sklearn", "ba9876543210")


def write(store: Store, spec: DatasetSpec = DIGITS, rows: int = 3, replaces: str | None = None) -> Artifact:
    with store.writing(spec, replaces=replaces) as writer:
        writer.table("data", pa.table({"x": range(rows)}))
    return store.open(spec.kind, spec.id)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all keys and entries of a JSON value."""
    if isinstance(value, dict | list):
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        return [place for k, v in inside for place in [(*path, k), *leaves(v, (*path, k))]]
    return []


def test_no_single_edit_of_a_manifest_is_accepted(store: Store) -> None:
    """Neither another value, nor one more, nor one less; whichever spec, file, time or machine it tells of."""
    path = write(store).path / MANIFEST
    whole = json.loads(path.read_text())
    for place in leaves(whole):
        if place == (files.SEAL,):
            continue
        for change in ("replace", "drop", "rename"):
            edited = json.loads(path.read_text())
            at = edited
            for key in place[:-1]:
                at = at[key]
            value = at.pop(place[-1])
            if change != "drop":
                name = place[-1] if change == "replace" or isinstance(at, list) else f"{place[-1]}x"
                value = ("other" if value != "other" else 1) if change == "replace" else value
                at.insert(name, value) if isinstance(at, list) else at.update({name: value})
            if edited == whole:
                continue
            path.write_text(json.dumps(edited))
            with pytest.raises(FedbenchError):
                store.get(DIGITS)
            path.write_text(json.dumps(whole))
    assert store.get(DIGITS) is not None


def test_a_spec_that_is_not_the_ids_is_refused_without_a_seal_too(store: Store) -> None:
    """An older fedbench sealed nothing."""
    path = write(store).path / MANIFEST
    manifest = {k: v for k, v in json.loads(path.read_text()).items() if k != files.SEAL}
    path.write_text(json.dumps(manifest))
    assert store.get(DIGITS) is not None
    manifest["spec"]["content"] = OTHER.content
    path.write_text(json.dumps(manifest))
    with pytest.raises(DamagedError, match=f"is that of dataset {OTHER.id}"):
        store.get(DIGITS)


@pytest.mark.parametrize("origin", [[], {"images": 1}, {"images": {"digest": "0", "fingerprint_parts": [3]}}])
def test_nor_does_an_origin_of_another_form_pass(store: Store, origin: object) -> None:
    """Every list asks which code made what there is."""
    path = write(store).path / MANIFEST
    manifest = {k: v for k, v in json.loads(path.read_text()).items() if k != files.SEAL}
    manifest["provenance"]["made_from"] = origin
    path.write_text(json.dumps(manifest))
    with pytest.raises(DamagedError, match="was altered"):
        store.get(DIGITS)


JSON = st.recursive(st.none() | st.integers() | st.floats(), st.lists)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=3))
@settings(max_examples=50)
def test_what_is_sealed_survives_json(value: dict[str, Any]) -> None:
    value.pop(files.SEAL, None)
    written = json.loads(json.dumps(sealed(value)))
    assert intact(written)
    written["more"] = 1
    assert not intact(written)


def test_one_damaged_artifact_does_not_hide_the_others(store: Store) -> None:
    write(store)
    (write(store, OTHER).path / MANIFEST).write_text("{")
    assert [a.id for a in store.list("dataset")] == [DIGITS.id]
    (error,) = [a for a in store.scan("dataset") if isinstance(a, FedbenchError)]
    assert str(error).startswith(f"dataset {OTHER.id} is damaged: ")
    assert f"fedbench remove {OTHER.id}" in str(error)


def test_a_folder_without_a_manifest_gives_way(store: Store) -> None:
    """Who deleted the damaged manifest alone can have the artifact made again."""
    (write(store).path / MANIFEST).unlink()
    with pytest.raises(DamagedError, match="has no manifest"):
        store.open("dataset", DIGITS.id)
    assert write(store, rows=5).table("data").num_rows == 5
    store.clean()
    assert sorted(p.name for p in (store.home / "dataset").iterdir()) == [DIGITS.id]


@pytest.mark.parametrize("damage", ["no manifest", "manifest", "a file"])
def test_damage_can_be_removed(store: Store, damage: str) -> None:
    path = write(store).path
    if damage == "no manifest":
        (path / MANIFEST).unlink()
    elif damage == "manifest":
        (path / MANIFEST).write_text("[")
    else:
        shutil.rmtree(path)
        path.write_text("not a folder")
    store.remove(*store.locate(DIGITS.id[:4]))
    assert not path.exists()
    write(store)


def test_replaced_in_one_step(store: Store) -> None:
    """The former one is there until the new one is complete."""
    first = write(store, rows=1)
    assert write(store, rows=2).digest == first.digest, "without being asked nothing is replaced"
    with pytest.raises(ZeroDivisionError), store.writing(DIGITS, replaces=first.digest):
        raise ZeroDivisionError
    assert store.open("dataset", DIGITS.id).digest == first.digest
    second = write(store, rows=2, replaces=first.digest)
    assert second.table("data").num_rows == 2
    assert write(store, rows=3, replaces=first.digest).digest == second.digest, "somebody else was faster"
    assert sorted(p.name for p in (store.home / "dataset").iterdir()) == [DIGITS.id]


def test_killed_between_the_two_renames(store: Store) -> None:
    """The former artifact has made room and the new one is not there: whoever looks first puts it back."""
    for look in (
        lambda: store.get(DIGITS), lambda: store.has(DIGITS), lambda: [*store.list("dataset")], store.clean,
        lambda: store.open("dataset", DIGITS.id),
    ):  # fmt: skip
        final = write(store).path
        final.rename(scratch(final, "aside"))
        assert look() or look == store.clean
        assert (final / MANIFEST).exists()


def dead(path: Path) -> Path:
    """A scratch name of a process of this machine that is gone."""
    return path.with_name(f".{path.name}.part-{files.machine()}-{2**22 + 1}-0")


def test_clean_takes_what_the_dead_have_left(store: Store) -> None:
    artifact = write(store)
    theirs = [dead(artifact.path), dead(store.home / "current.json"), dead(store.work("abc") / "checkpoint.json")]
    store.work("abc").mkdir(parents=True)
    theirs[0].mkdir()
    (theirs[0] / "data.parquet").write_text("half")
    for path in theirs[1:]:
        path.write_text("{}")
    mine, elsewhere = scratch(artifact.path), artifact.path.with_name(f".{DIGITS.id}.part-00000000-1-0")
    mine.mkdir()
    elsewhere.mkdir()
    gone = store.clean()
    assert {*theirs, store.work("abc")} == set(gone)
    assert mine.exists()
    assert elsewhere.exists(), "of another machine nobody can tell"
    os.utime(elsewhere, (time.time() - files.ABANDONED_SECONDS - 1,) * 2)
    assert store.clean() == (elsewhere,)
    assert store.get(DIGITS) is not None


def test_clean_leaves_checkpoints_and_the_living(store: Store) -> None:
    for name in ("saved", "held"):
        store.work(name).mkdir(parents=True)
    (store.work("saved") / "checkpoint.json").write_text("{}")
    with store.claim("held"):
        assert store.clean() == ()
        assert store.claimed("held")
    assert (store.work("saved") / "checkpoint.json").exists()


@pytest.mark.parametrize(
    "text",
    ['{"partition": 3}', '{"partition": ["a"]}', "[]", "{", "\x00", '{"a": ' * 3000],
)
def test_a_damaged_current(store: Store, text: str) -> None:
    store.prepare()
    (store.home / "current.json").write_text(text)
    with pytest.raises(FedbenchError, match=r"current\.json is damaged") as caught:
        store.current  # noqa: B018
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ['{"schema": "1"}', '{"schema": null}', "[1]", "\xff"])
def test_a_damaged_marker(store: Store, text: str) -> None:
    store.prepare()
    (store.home / "store.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(FedbenchError, match=r"store.json is damaged"):
        Store(store.home)


@pytest.mark.parametrize("name", ["store.json", "current.json"])
def test_a_folder_where_a_file_should_be(store: Store, name: str) -> None:
    (store.home / name).mkdir(parents=True)
    with pytest.raises(FedbenchError, match=f"cannot read .*{name} .Is a directory"):
        Store(store.home).current  # noqa: B018


def test_no_permission_to_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared store with a strict umask: what is not ours to read is not called damaged."""
    path = write(store).path / MANIFEST

    def refuse(self: Path) -> bytes:
        if self == path:
            raise PermissionError(13, "Permission denied", str(self))
        return self.open("rb").read()

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(FedbenchError, match=r"cannot read .*Permission denied") as caught:
        store.get(DIGITS)
    assert not isinstance(caught.value, DamagedError)
    assert [*store.list("dataset")] == []


# -- claims ---------------------------------------------------------------------------------------------------


def plant(store: Store, age: float = 0.0, **told: Any) -> None:
    path = store.work("abc") / claim.FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"host": "here", "pid": os.getpid(), "token": "x", **told}))
    os.utime(path, (time.time() - age,) * 2)


def test_a_claim_from_the_future_is_none(store: Store) -> None:
    plant(store, age=-3600, machine=files.machine())
    assert store.claimed("abc") is None
    plant(store, age=-5, machine=files.machine())
    assert store.claimed("abc") is not None, "clocks differ by seconds"


@pytest.mark.parametrize("pid", ["7", None, 1.5, [7], True, 0, -1, 10**30, -(10**30)])
def test_a_claim_with_a_senseless_process(store: Store, pid: Any) -> None:
    plant(store, pid=pid, machine=files.machine())
    with store.claim("abc") as mine:
        assert mine.held()


def test_process_ids_count_on_their_own_machine_only(store: Store) -> None:
    """Two containers of one host name: the other's living process may have a number that is nobody's here."""
    import socket

    plant(store, host=socket.gethostname(), pid=2**22 + 1, machine="00000000")
    with pytest.raises(claim.HeldError, match=f"process {2**22 + 1} on "), store.claim("abc"):
        pass
    plant(store, host=socket.gethostname(), pid=2**22 + 1, machine=files.machine())
    with store.claim("abc"):
        pass
