"""The store: whole artifacts or none, each verified; what is damaged, half-written, set aside or left over; tables in
parts."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from fedbench import data, files, partitions
from fedbench.errors import FedbenchError
from fedbench.files import scratch, write_json
from fedbench.metrics import evaluate, read
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.specs import SCHEMA, SPECS, DatasetSpec, PartitionSpec, RunSpec, Spec
from fedbench.specs.upgrade import upgraded
from fedbench.store import CHECKPOINT, KINDS, MANIFEST, Artifact, DamagedError, Store
from fedbench.store import claim as module
from fedbench.store import writing as rows
from fedbench.store.claim import HeldError
from fedbench.store.folder import PROGRESS, SPEC
from fedbench.store.unfinished import UnfinishedState, discard, ids, unfinished
from fedbench.store.upgrade import upgrade
from tests.support.frames import few
from tests.support.make_runs import run_spec, small_run
from tests.support.waiting import until

DIGITS = DatasetSpec("digits", "sklearn", "0123456789ab")
OTHER = DatasetSpec("digits", "sklearn", "another")
PARTITION = partition_spec(DIGITS, "iid", 3, 1, 0.5)
FILES = {"store.json", f"dataset/{DIGITS.id}/{MANIFEST}", f"dataset/{DIGITS.id}/data.parquet"}


def table(rows: int = 100) -> pa.Table:
    return pa.table({"label": pa.array(range(rows), pa.int32()), "name": [f"row {i}" for i in range(rows)]})


def write(store: Store, spec: Spec = DIGITS, rows: int = 100, replaces: str | None = None, **inputs: str) -> Artifact:
    with store.writing(spec, inputs, replaces) as writer:
        writer.table("data", table(rows))
    return store.get(spec)


def tree(store: Store) -> set[str]:
    """Every file below the store's home, hidden ones and leftovers included, but for the locks."""
    return {p.relative_to(store.home).as_posix() for p in store.home.rglob("*") if p.is_file() and p.name != ".lock"}


def refused(attempt: Callable[[], object], *says: str, kind: type[FedbenchError] = FedbenchError) -> None:
    """One clear line that says all this."""
    with pytest.raises(kind) as caught:
        attempt()
    line = str(caught.value)
    assert "\n" not in line
    for words in says:
        assert words in line


def failing(code: int, when: str = "") -> Any:
    """Stands in for a call of the operating system, of files of that name; after their bytes were (partly) written."""
    real = os.fsync

    def call(*given: Any, **_: Any) -> None:
        if not when or when in os.readlink(f"/proc/self/fd/{given[0]}"):
            raise OSError(code, os.strerror(code))
        real(*given)

    return call


def test_write_and_read(store: Store) -> None:
    assert store.get(PARTITION) is None
    assert not store.has(PARTITION)
    made = write(store, PARTITION, dataset=DIGITS.id)
    assert store.has(PARTITION)
    assert (made.kind, made.id, made.spec) == ("partition", PARTITION.id, PARTITION)
    assert made.table("data").equals(table())
    assert made.table("data", ["name"]).column_names == ["name"]
    assert made.frame("data").to_dict("list") == table().to_pydict()
    assert made.manifest["inputs"] == {"dataset": DIGITS.id}
    assert made.provenance["libraries"]["fedbench"]
    assert made.provenance["wall_seconds"] >= 0
    # A file that was copied away from its manifest still says what it is.
    metadata = json.loads(pq.read_schema(made.file("data.parquet")).metadata[b"fedbench"])
    assert PartitionSpec.from_dict(metadata["spec"]) == PARTITION
    assert (metadata["schema"], metadata["kind"], metadata["id"]) == (SCHEMA, "partition", PARTITION.id)
    assert metadata["inputs"] == {"dataset": DIGITS.id}
    assert "pyarrow" in metadata["libraries"]
    with store.writing(DIGITS) as writer:
        writer.table("data", table().replace_schema_metadata({b"classes": b"10"}))
    assert store.open("dataset", DIGITS.id).table("data").schema.metadata[b"classes"] == b"10"


def test_same_spec_same_bytes_and_of_two_the_first_stays(tmp_path: Path, store: Store) -> None:
    first, second = (write(Store(tmp_path / name), PARTITION, dataset=DIGITS.id) for name in ("a", "b"))
    assert first.file("data.parquet").read_bytes() == second.file("data.parquet").read_bytes()
    assert first.manifest["files"] == second.manifest["files"]
    before = write(store, rows=10).file("data.parquet").stat().st_ino
    again = write(store, rows=20)
    assert again.table("data").num_rows == 10
    assert again.file("data.parquet").stat().st_ino == before
    assert tree(store) == FILES


def test_an_exception_leaves_nothing_and_what_is_replaced_is_so_in_one_step(store: Store) -> None:
    """The former one is there until the new one is complete."""
    with pytest.raises(ZeroDivisionError), store.writing(DIGITS) as writer:
        writer.table("data", (table(1 // k) for k in (1, 0)))
    assert tree(store) == {"store.json"}
    first = write(store, rows=1)
    with pytest.raises(KeyboardInterrupt), store.writing(DIGITS, replaces=first.digest):
        raise KeyboardInterrupt
    assert store.open("dataset", DIGITS.id).digest == first.digest
    second = write(store, rows=2, replaces=first.digest)
    assert second.table("data").num_rows == 2
    assert write(store, rows=3, replaces=first.digest).digest == second.digest, "somebody else was faster"
    assert sorted(p.name for p in (store.home / "dataset").iterdir()) == [DIGITS.id]


def test_list_oldest_first_and_remove(store: Store) -> None:
    assert list(store.list("dataset")) == []
    made = [write(store, spec) for spec in (OTHER, DIGITS)]
    for age, artifact in zip((100, 200), made, strict=True):
        os.utime(artifact.path / MANIFEST, (time.time() - age,) * 2)
    assert [a.id for a in store.list("dataset")] == [DIGITS.id, OTHER.id]
    assert list(store.list("partition")) == []
    store.remove("dataset", OTHER.id)
    assert store.get(OTHER) is None
    assert tree(store) == FILES
    assert made[1].table("data").num_rows == write(store, OTHER).table("data").num_rows == 100


def test_find(store: Store) -> None:
    write(store)
    write(store, PARTITION)
    assert DIGITS.id[0] != PARTITION.id[0], "choose other specs: this test needs two beginnings"
    assert store.find(DIGITS.id[:3]).spec == DIGITS
    assert store.find(PARTITION.id, ("partition",)).spec == PARTITION
    for prefix, kinds in ((DIGITS.id[:3], ("partition",)), ("x", ("run", "dataset")), ("", ("dataset",))):
        refused(lambda: store.find(prefix, kinds), f"no {' or '.join(kinds)} '{prefix}'", "fedbench list")  # noqa: B023
    twin = store.home / "partition" / (DIGITS.id[:4] + "00000000")
    twin.mkdir(parents=True)
    refused(lambda: store.find(DIGITS.id[:4]), "ambiguous", f"dataset {DIGITS.id}", f"partition {twin.name}")


def test_of_a_symbolic_link_the_link_goes(store: Store) -> None:
    """Removed, made again, or swept: what it leads to is somebody else's."""
    made = write(store)
    kept = store.home.parent / "kept"
    made.path.rename(kept)
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    made.path.symlink_to(kept)
    store.remove(made.kind, made.id)
    assert tree(store) == {"store.json"}
    made.path.symlink_to(kept)
    with store.writing(DIGITS, replaces=made.digest) as out:
        out.table("data", pa.table({"x": [1]}))
    assert not made.path.is_symlink()
    (store.home / "work").mkdir()
    (store.home / "work" / "one").symlink_to(kept)
    assert store.clean() == (store.home / "work" / "one",)
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before


def test_home_and_current(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path / "from the environment"))
    assert Store().home == tmp_path / "from the environment"
    monkeypatch.delenv("FEDBENCH_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Store().home == tmp_path / ".fedbench"
    assert store.current == {}
    store.set_current(partition="a", protocol="feddrm")
    store.set_current(partition="b")
    assert Store(store.home).current == {"partition": "b", "protocol": "feddrm"}
    store.forget_current("protocol", "run")
    assert store.current == {"partition": "b"}
    names = {f"name{k}" for k in range(40)}
    with ThreadPoolExecutor(40) as terminals:  # none undoes another's choice
        list(terminals.map(lambda name: Store(tmp_path / "many").set_current(**{name: "x"}), names))
    assert set(Store(tmp_path / "many").current) == names
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.ENOSPC))
        refused(lambda: store.set_current(partition="c"), "no space left")
    assert store.current == {"partition": "b"}
    assert tree(store) == {"store.json", "current.json"}


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc to know which file is flushed")
@pytest.mark.parametrize("name", ["data.parquet", MANIFEST])
@pytest.mark.parametrize(("code", "says"), [(errno.ENOSPC, "no space left"), (errno.EROFS, "cannot write")])
def test_disk_refuses_in_the_middle(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str, code: int, says: str
) -> None:
    store.prepare()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(code, name))
        refused(lambda: write(store), says, str(store.home), "--home")
    assert tree(store) == {"store.json"}
    assert write(store).table("data").num_rows == 100


@pytest.mark.parametrize(
    ("error", "says"),
    [
        # Arrow's own error carries the reason in its text only.
        (OSError("Error writing bytes to file. Detail: [errno 28] No space left on device"), "no space left"),
        (OSError(errno.EIO, "Input/output error"), None),  # a failing disk is no bad input: its traceback must be seen
    ],
)
def test_errors_of_arrow(store: Store, monkeypatch: pytest.MonkeyPatch, error: OSError, says: str | None) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(pq.ParquetWriter, "write_table", broken)
    with pytest.raises(FedbenchError if says else OSError, match=says or "Input/output error"):
        write(store)
    assert tree(store) == {"store.json"}


@pytest.mark.parametrize("below", ["", "store"], ids=["the home is a file", "the home is below a file"])
def test_store_that_cannot_be(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    store = Store(file / below)
    assert list(store.list("run")) == []
    for attempt in (lambda: write(store), lambda: store.set_current(run="x"), lambda: store.claim("x").__enter__()):
        refused(attempt, "cannot write in", str(file), "FEDBENCH_HOME")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda raw: raw[:-1], "truncated"),
        (lambda raw: raw[:4] + bytes([raw[4] ^ 1]) + raw[5:], "altered"),  # in a page
        (lambda raw: raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:], "altered"),  # in the footer
        (None, "no file data.parquet"),
    ],
)
def test_damaged_files(store: Store, change: Callable[[bytes], bytes] | None, says: str) -> None:
    made = write(store)
    path = made.path / "data.parquet"
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    refused(lambda: made.table("data"), says, str(path) if change else "", f"fedbench remove {DIGITS.id}")
    refused(lambda: made.table("rounds"), "no file rounds.parquet", f"fedbench remove {DIGITS.id}")
    refused(lambda: write(store, OTHER).table("data", ["writer"]), "writer")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *((text, "damaged") for text in ("", '{"schema": 1, "kind": "data', "[1, 2]", "\x00\x01")),
        ("{}", "altered"),
    ],
)
def test_damaged_manifest(store: Store, text: str, says: str) -> None:
    path = write(store).path / MANIFEST
    write(store, OTHER)
    path.write_text(text)
    for attempt in (lambda: store.get(DIGITS), lambda: store.find(DIGITS.id)):
        refused(attempt, says, str(path), f"fedbench remove {DIGITS.id}", kind=DamagedError)
    assert [a.id for a in store.list("dataset")] == [OTHER.id]
    (error,) = [a for a in store.scan("dataset") if isinstance(a, FedbenchError)]
    assert str(error).startswith(f"dataset {DIGITS.id} is damaged: ")


def test_manifests_of_others_and_of_a_newer_fedbench(store: Store) -> None:
    path = write(store).path / MANIFEST
    shutil.copy(write(store, OTHER).path / MANIFEST, path)
    refused(lambda: store.get(DIGITS), "describes dataset", DIGITS.id)
    path.write_text(json.dumps({"schema": SCHEMA + 1, "name": DIGITS.id}))  # which may look quite different
    refused(lambda: store.get(DIGITS), "newer fedbench", DIGITS.id, "upgrade")
    (store.home / "store.json").write_text(json.dumps({"schema": SCHEMA + 1}))
    refused(lambda: Store(store.home), "newer fedbench", f"schema {SCHEMA + 1}", "upgrade")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((name, text) for name in ("store.json", "current.json") for text in ("{", "3", "\x00", "[1]")),
        *(("store.json", text) for text in ('{"schema": "1"}', '{"schema": null}', "\xff")),
        *(("current.json", text) for text in ('{"partition": 3}', '{"partition": ["a"]}', '{"a": ' * 3000)),
    ],
)
def test_damaged_files_of_the_store(store: Store, name: str, text: str) -> None:
    store.set_current(partition="x")
    (store.home / name).write_bytes(text.encode("latin-1"))
    refused(lambda: Store(store.home).current, f"{name} is damaged", "delete ")
    (store.home / name).unlink()
    (store.home / name).mkdir()
    refused(lambda: Store(store.home).current, "cannot read ", name, "Is a directory")


def edits(value: Any) -> Iterator[Any]:
    """A JSON value with one of its keys or entries, however deep, left out, renamed or with something else in it."""
    for key, inside in value.items() if isinstance(value, dict) else ():
        rest = {k: v for k, v in value.items() if k != key}
        yield from (rest, {**rest, f"{key}x": inside})
        yield from ({**value, key: other} for other in ("other", 1, *edits(inside)))
    for k, inside in enumerate(value) if isinstance(value, list) else ():
        yield value[:k] + value[k + 1 :]
        yield from ([*value[:k], other, *value[k + 1 :]] for other in ("other", 1, *edits(inside)))


def test_no_single_edit_of_a_manifest_is_accepted(store: Store) -> None:
    path = write(store).path / MANIFEST
    whole = json.loads(path.read_text())
    seal = {files.SEAL: whole.pop(files.SEAL)}
    for edited in edits(whole):
        if edited != whole:
            path.write_text(json.dumps({**edited, **seal}))
            with pytest.raises(FedbenchError):
                store.get(DIGITS)
    path.write_text(json.dumps({**whole, **seal}))
    assert store.get(DIGITS) is not None


def test_without_a_seal_the_spec_is_the_ids_and_an_origin_has_its_form(store: Store) -> None:
    """An older fedbench sealed no manifest; every list reads which code made what there is."""
    path = write(store).path / MANIFEST
    whole = {k: v for k, v in json.loads(path.read_text()).items() if k != files.SEAL}
    path.write_text(json.dumps(whole))
    assert store.get(DIGITS) is not None
    path.write_text(json.dumps({**whole, "spec": {**whole["spec"], "content": OTHER.content}}))
    refused(lambda: store.get(DIGITS), f"is that of dataset {OTHER.id}", kind=DamagedError)
    for origin in ([], {"images": 1}, {"images": {"digest": "0", "fingerprint_parts": [3]}}):
        path.write_text(json.dumps({**whole, "provenance": {**whole["provenance"], "made_from": origin}}))
        refused(lambda: store.get(DIGITS), "was altered", kind=DamagedError)


def test_what_is_damaged_is_removed_and_a_folder_without_a_manifest_gives_way(store: Store) -> None:
    """Whoever deleted the damaged manifest alone can have the artifact made again."""
    path = write(store).path
    (path / MANIFEST).unlink()
    refused(lambda: store.open("dataset", DIGITS.id), "has no manifest", kind=DamagedError)
    assert write(store, rows=5).table("data").num_rows == 5
    store.clean()
    assert sorted(p.name for p in path.parent.iterdir()) == [DIGITS.id]
    (path / MANIFEST).unlink()
    store.remove(*store.locate(DIGITS.id[:4]))
    path.write_text("not a folder")
    store.remove(*store.locate(DIGITS.id[:4]))
    assert not path.exists()


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


def test_killed_between_the_two_renames(store: Store) -> None:
    """The former artifact has made room and the new one is not there: whoever looks first puts it back."""
    for look in (
        lambda: store.get(DIGITS),
        lambda: store.has(DIGITS),
        lambda: [*store.list("dataset")],
        store.clean,
        lambda: store.open("dataset", DIGITS.id),
    ):
        final = write(store).path
        final.rename(scratch(final, "aside"))
        assert look() or look == store.clean
        assert (final / MANIFEST).exists()


def test_clean_takes_what_the_dead_have_left_and_neither_checkpoints_nor_what_the_living_are_at(store: Store) -> None:
    artifact, work = write(store), {name: store.work(name) for name in ("empty", "saved", "held")}
    for name in ("empty", "saved"):
        work[name].mkdir(parents=True)
    (work["saved"] / "checkpoint.json").write_text("{}")
    theirs = [
        path.with_name(f".{path.name}.part-{files.machine()}-{2**22 + 1}-0")  # of a process that is gone
        for path in (artifact.path, store.home / "current.json", work["empty"] / "checkpoint.json")
    ]
    theirs[0].mkdir()
    (theirs[0] / "data.parquet").write_text("half")
    for path in theirs[1:]:
        path.write_text("{}")
    mine, elsewhere = scratch(artifact.path), artifact.path.with_name(f".{DIGITS.id}.part-00000000-1-0")
    mine.mkdir()
    elsewhere.mkdir()
    with store.claim("held"):
        assert {*theirs, work["empty"]} == set(store.clean())
        assert store.claimed("held")
    assert mine.exists()
    assert elsewhere.exists(), "of another machine nobody can tell"
    assert (work["saved"] / "checkpoint.json").exists()
    os.utime(elsewhere, (time.time() - files.ABANDONED_SECONDS - 1,) * 2)
    assert store.clean() == (elsewhere,)
    assert store.get(DIGITS) is not None


def part_of(first: int, n: int, words: str = "ab") -> pa.Table:
    view = pa.array([words[k % len(words)] for k in range(n)], pa.string()).dictionary_encode()
    return pa.table({"x": pa.array(range(first, first + n), pa.int32()), "view": view})


@few(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6), many=st.integers(1, 400), examples=30)
def test_the_rows_come_back_in_their_order(
    sizes: list[int], many: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("rows") / "table.parquet"
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    # words in another order in each part: their dictionaries differ
    parts = [part_of(a, n, "abcd"[k % 3 :] + "ab") for k, (a, n) in enumerate(zip(starts, sizes, strict=True))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "BYTES", many)
        rows.write(path, iter(parts), {b"who": b"me"})
    whole = pa.concat_tables(parts)
    read = pq.read_table(path)
    assert read.schema.metadata[b"who"] == b"me"
    assert read.to_pydict() == whole.to_pydict()
    assert pa.concat_tables(rows.read([path, path])).to_pydict() == pa.concat_tables([whole, whole]).to_pydict()


def test_no_more_is_held_than_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BYTES", 1)
    path, copy, seen = tmp_path / "table.parquet", tmp_path / "copy.parquet", []
    rows.write(path, (part_of(10 * k, 10) for k in range(4)))
    assert pq.ParquetFile(path).num_row_groups == 4
    rows.write(copy, (seen.append(len(part)) or part for part in rows.read([path])))
    assert seen == [10, 10, 10, 10]
    assert pq.read_table(copy).equals(pq.read_table(path))


def test_a_column_that_a_file_lacks_is_missing_in_its_rows(tmp_path: Path) -> None:
    rows.write(tmp_path / "1", [pa.table({"x": [1, 2]})])
    rows.write(tmp_path / "2", [pa.table({"x": [3], "y": pa.array([7], pa.uint16())})])
    both = pa.concat_tables(rows.read([tmp_path / "1", tmp_path / "2"]))
    assert both.to_pydict() == {"x": [1, 2, 3], "y": [None, None, 7]}
    assert both.schema.field("y").type == pa.uint16()
    assert list(rows.read([])) == []


#: Kind -> id. The store of schema 1 was written by hand, column by column, and is to stay; its run and metrics had the
#: ids db88390db31d and 0087c38b9ac1.
IDS = {"dataset": "94b6fee866c7", "partition": "80d68cde158f", "run": "331e53001a41", "metrics": "e12566a8321c"}


@pytest.fixture
def old(tmp_path: Path) -> Store:
    """A copy of the store of schema 1, brought up to date."""
    shutil.copytree(Path(__file__).parents[1] / "fixtures" / "schema1", tmp_path / "old")
    upgrade(tmp_path / "old")
    return Store(tmp_path / "old")


def the(store: Store, kind: str) -> Artifact:
    return store.find(IDS[kind][:6], (kind,))


def test_what_an_old_store_holds_is_read(old: Store) -> None:
    """The spec in a manifest still hashes to the id that names its folder, or the artifact would be orphaned."""
    assert set(IDS) == set(KINDS), "add an artifact of a new kind to the fixtures"
    for kind in KINDS:
        artifact = the(old, kind)
        assert artifact.id == artifact.path.name == artifact.spec.id == IDS[kind]
        assert old.get(artifact.spec) is not None
        assert [a.id for a in old.list(kind)] == [IDS[kind]]
        assert artifact.provenance["started"].startswith("2026-")
        for name in artifact.manifest["files"]:
            table = artifact.table(name.removesuffix(".parquet"))
            assert table.num_rows > 0
            about = json.loads(table.schema.metadata[b"fedbench"])
            assert SPECS[kind].from_dict(upgraded(kind, about["spec"])).id == IDS[kind]
    spec = the(old, "metrics").spec
    chain = (spec.run, spec.run.setting.partition, spec.run.setting.partition.dataset)
    assert [old.has(s) for s in chain] == [True, True, True]
    assert the(old, "metrics").manifest["inputs"] == {"run": IDS["run"]}
    assert the(old, "run").manifest["inputs"] == {"partition": IDS["partition"]}
    assert old.current == {"partition": IDS["partition"], "protocol": "feddrm", "run": IDS["run"]}
    spec = the(old, "dataset").spec
    found = data.load(spec, old)  # type: ignore[arg-type]
    assert found.images.shape == (12, 2, 2, 1)
    assert found.images[3].ravel().tolist() == [10, 3, 200, 203]
    assert found.labels.tolist() == [0, 1] * 6
    assert found.split.tolist() == [0] * 8 + [1] * 4
    assert found.column("writer").tolist() == [0] * 6 + [1] * 6
    assert found.classes == ("above", "below")
    found = partitions.build(the(old, "partition").spec, old)
    assert found.sample.tolist() == list(range(12))
    assert found.test.tolist() == [False] * 4 + [True] * 2 + [False] * 4 + [True] * 2
    assert [(t.gamma, t.hue, t.posterize) for t in found.transforms] == [(0.6, None, None), (1.4, 0.1, 3)]


def test_predictions_still_give_the_same_metrics(old: Store) -> None:
    """Every number of the old metrics artifact, which were worked out by hand, comes out of the old predictions."""
    artifact = the(old, "metrics")
    found = read.load(artifact)
    assert found.series("system_accuracy", "crop") == {2: 1.0}
    assert found.per_client("client_accuracy", "plain").tolist() == [0.5, 1.0]
    assert found.whole_run("bytes_up") == 2000
    before = artifact.table("metrics").to_pylist()
    after = evaluate(the(old, "run"), old, again=True).table("metrics").to_pylist()
    key = ("metric", "view", "round", "client")
    measured = {tuple(row[k] for k in key): row["value"] for row in after}
    assert len(before) == 23
    for row in before:
        assert np.isclose(measured[tuple(row[k] for k in key)], row["value"], rtol=1e-12), row


HOLD = """
import sys
from pathlib import Path
from fedbench.store import Store
with Store(Path(sys.argv[1])).claim("abc"):
    print("held", flush=True)
    sys.stdin.readline()
"""
NOBODY = 2**22 + 1  #: above the kernel's largest pid


def plant(store: Store, age: float = 0.0, **claim: Any) -> Path:
    path = store.work("abc") / module.FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(claim))
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_claim_and_release_and_a_holder_that_has_lost_it_notices(store: Store) -> None:
    assert store.claimed("abc") is None
    with store.claim("abc") as claim:
        claim.beat()
        holder = store.claimed("abc")
        assert (holder["host"], holder["pid"]) == (socket.gethostname(), os.getpid())
        with pytest.raises(HeldError, match=f"by process {os.getpid()} .*wait for it"), store.claim("abc"):
            pass
        assert claim.held(), "the refused one must not release it"
        with store.claim("another"):
            pass
    assert store.claimed("abc") is None
    assert not store.work("abc").exists()
    with store.claim("abc"):
        (store.work("abc") / "checkpoint").write_text("round 3")
    assert [p.name for p in store.work("abc").iterdir()] == ["checkpoint"]  # which release keeps
    with store.claim("abc") as claim:
        plant(store, host="elsewhere", pid=1, token=1)
        with pytest.raises(FedbenchError, match="taken this run over"):
            claim.beat()
    assert (store.work("abc") / module.FILE).exists(), "the new holder's claim must stay"


def test_a_killed_process_has_lost_its_claim(store: Store) -> None:
    command = [sys.executable, "-c", HOLD, store.home]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(HeldError, match=f"by process {holder.pid} "), store.claim("abc"):
            pass
        holder.kill()
    assert (store.work("abc") / module.FILE).exists()
    assert store.claimed("abc") is None
    with store.claim("abc") as claim:
        assert claim.held()


def test_of_many_threads_one_gets_a_stale_claim(store: Store) -> None:
    """Threads meet more closely than processes do: none may take away a claim made after it looked."""
    for turn in range(10):
        path = plant(store, machine=files.machine(), pid=NOBODY, token=turn)
        barrier, done, held = threading.Barrier(6), threading.Barrier(6), []

        def attempt(_: int, barrier: Any = barrier, done: Any = done, held: list[bool] = held) -> None:
            barrier.wait()
            try:
                with store.claim("abc") as claim:
                    done.wait()
                    held.append(claim.held())
                    done.wait()
            except HeldError:
                done.wait()
                done.wait()

        with ThreadPoolExecutor(6) as threads:
            list(threads.map(attempt, range(6)))
        assert held == [True]
        shutil.rmtree(path.parent, ignore_errors=True)


HERE = {"host": socket.gethostname(), "machine": files.machine(), "token": "x"}


@pytest.mark.parametrize(
    ("age", "claim", "by"),
    [
        (0, HERE, "process "),
        (-5, HERE, "process "),  # clocks differ by seconds
        (-3600, HERE, None),
        # Of a process on another machine only the heartbeat can tell, also where two containers have one host name.
        (module.STALE_SECONDS - 30, {"host": "elsewhere", "pid": 1, "token": 1}, "process 1 on elsewhere"),
        (module.STALE_SECONDS + 1, {"host": "elsewhere", "pid": 1, "token": 1}, None),
        (0, {**HERE, "pid": NOBODY, "machine": "00000000"}, f"process {NOBODY} on "),
        (0, {**HERE, "pid": NOBODY}, None),
        *((0, {**HERE, "pid": pid}, None) for pid in ("7", None, 1.5, [7], True, 0, -1, 10**30, -(10**30))),
        *((0, text, None) for text in ("", "{", "[]")),
    ],
)
def test_whose_claim_counts(store: Store, age: float, claim: Any, by: str | None) -> None:
    path = plant(store, age, **({"pid": os.getpid(), **claim} if isinstance(claim, dict) else {}))
    if isinstance(claim, str):
        path.write_text(claim)
    assert (store.claimed("abc") is None) == (by is None)
    with pytest.raises(HeldError, match=by) if by else nullcontext(), store.claim("abc") as mine:
        assert mine.held()


def test_a_long_round_does_not_lose_the_claim(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round may take longer than a claim stays fresh: the heartbeat does not wait for it."""
    monkeypatch.setattr(module, "STALE_SECONDS", 0.2)  # it beats four times as often
    with store.claim("abc"):
        path = store.work("abc") / "claim.json"
        for _ in range(2):
            os.utime(path, (0, 0))
            assert until(lambda: path.stat().st_mtime > 0, seconds=60)  # however busy the machine is
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_full_disk_while_claiming(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stays that would keep others from the run."""
    store.prepare()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.ENOSPC))
        with pytest.raises(FedbenchError, match="no space left"), store.claim("abc"):
            pass
    assert not [path for path in store.home.rglob("*") if path.is_file() and path.name not in ("store.json", ".lock")]
    assert store.claimed("abc") is None
    with store.claim("abc") as claim:
        assert claim.held()


RUN = run_spec(2, 10)


def begun(store: Store, spec: RunSpec = RUN, saved: int | None = 4, **note: Any) -> None:
    """A work folder as a killed process leaves it."""
    folder = store.work(spec.id)
    folder.mkdir(parents=True)
    write_json(folder / SPEC, {"run": spec.to_dict(), "overrides": {}})
    if saved is not None:
        write_json(folder / CHECKPOINT, {"round": saved})
    if note:
        write_json(folder / PROGRESS, note)


def test_interrupted_and_running(store: Store) -> None:
    begun(store, round=7, accuracy=0.5, round_seconds=2.0, time=time.time())
    (run,) = unfinished(store)
    assert (run.id, run.state, run.round, run.accuracy) == (RUN.id, UnfinishedState.INTERRUPTED, 4, 0.5), (
        "what is saved counts"
    )
    assert run.holder is None
    assert run.seconds_left is None, "nobody is at it"
    assert run.bytes == sum(p.stat().st_size for p in store.work(RUN.id).iterdir())
    with store.claim(RUN.id):
        (run,) = unfinished(store)
        assert (run.state, run.round, run.holder["pid"]) == (UnfinishedState.RUNNING, 7, os.getpid())
        assert 0 < run.seconds_left <= (10 - 7) * 2
        with pytest.raises(HeldError, match=f"run {RUN.id} is being trained by process {os.getpid()}"):
            discard(store, RUN.id)
    assert unfinished(store)[0].state is UnfinishedState.INTERRUPTED


@pytest.mark.parametrize("note", [None, {"round": "x", "accuracy": "y", "time": None}, {"accuracy": True}, {}])
def test_notes_that_say_nothing(store: Store, note: dict[str, Any] | None) -> None:
    begun(store, saved=None if note is None else 4)
    if note is not None:
        (store.work(RUN.id) / PROGRESS).write_text(json.dumps(note))
    with store.claim(RUN.id):
        (run,) = unfinished(store)
    assert (run.state, run.round, run.accuracy, run.seconds_left) == (UnfinishedState.RUNNING, 0, None, None)


def test_failed_with_and_without_a_checkpoint(store: Store) -> None:
    other = run_spec(2, 10, seed=1)
    begun(store)
    for spec in (RUN, other):
        store.record_failure(spec.id, "no loss", "log", spec=spec.to_dict(), overrides={})
    noted = json.loads((store.home / "failed" / f"{RUN.id}.json").read_text())
    assert (noted["reason"], noted["log"], noted["spec"]) == ("no loss", "log", RUN.to_dict())
    runs = {run.id: (run.state, run.reason, run.round) for run in unfinished(store)}
    assert runs == {RUN.id: (UnfinishedState.FAILED, "no loss", 4), other.id: (UnfinishedState.FAILED, "no loss", 0)}
    for spec in (RUN, other):
        discard(store, spec.id)
    store.forget_failure(RUN.id)  # there is none any more
    assert unfinished(store) == []
    assert list(ids(store)) == []
    assert not store.work(RUN.id).exists()


def test_a_run_completed_since_is_left_out(store: Store) -> None:
    spec = small_run(store).spec
    begun(store, spec)
    (run,) = unfinished(store)
    assert run.id == spec.id, "a making anew that was interrupted"
    os.utime(store.work(spec.id) / CHECKPOINT, (1, 1))
    assert unfinished(store) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run": 3}', '{"run": {"method": "x"}}', "{"])
def test_what_is_illegible_is_left_out_and_can_be_removed(store: Store, text: str) -> None:
    begun(store)
    (store.work(RUN.id) / SPEC).write_text(text)
    assert unfinished(store) == []
    assert list(ids(store)) == [RUN.id]
    discard(store, RUN.id)
    assert list(ids(store)) == []


def test_a_manifest_that_is_a_folder_is_damage(store: Store) -> None:
    path = write(store, DIGITS).path / MANIFEST
    path.unlink()
    path.mkdir()
    (found,) = store.scan("dataset")
    assert isinstance(found, DamagedError)
    store.remove("dataset", DIGITS.id)
    assert not list(store.scan("dataset"))
