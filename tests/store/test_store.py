"""The store: whole artifacts or none, each verified; runs claimed by one process at a time."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedbench.errors import FedbenchError
from fedbench.files import machine
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.specs import SCHEMA, DatasetSpec, PartitionSpec, Spec
from fedbench.store import MANIFEST, Artifact, DamagedError, Store
from fedbench.store import claim as module
from tests.support.waiting import until

DIGITS = DatasetSpec("digits", "sklearn", "0123456789ab")
OTHER = DatasetSpec("digits", "sklearn", "another")
PARTITION = partition_spec(DIGITS, "iid", 3, 1, 0.5)
ROOT = Path(__file__).parents[2]


def table(rows: int = 100) -> pa.Table:
    return pa.table({"label": pa.array(range(rows), pa.int32()), "name": [f"row {i}" for i in range(rows)]})


def write(store: Store, spec: Spec = DIGITS, rows: int = 100, **inputs: str) -> Artifact:
    with store.writing(spec, inputs) as writer:
        writer.table("data", table(rows))
    found = store.get(spec)
    assert found is not None
    return found


def tree(store: Store) -> set[str]:
    """Every file below the store's home, hidden ones and leftovers included, but for the locks."""
    return {p.relative_to(store.home).as_posix() for p in store.home.rglob("*") if p.is_file() and p.name != ".lock"}


def refused(caught: pytest.ExceptionInfo[FedbenchError], *says: str) -> None:
    """One clear line that says all this."""
    line = str(caught.value)
    assert "\n" not in line
    for words in says:
        assert words in line


def python(code: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """Another process on the same store."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


# -- writing and reading --------------------------------------------------------------------------------------


def test_write_and_read(store: Store) -> None:
    assert store.get(PARTITION) is None
    assert not store.has(PARTITION)
    made = write(store, PARTITION, dataset=DIGITS.id)
    assert store.has(PARTITION)
    assert (made.kind, made.id, made.spec) == ("partition", PARTITION.id, PARTITION)
    assert made.table("data").equals(table())
    assert made.table("data", ["name"]).column_names == ["name"]
    assert made.manifest["inputs"] == {"dataset": DIGITS.id}
    assert made.provenance["libraries"]["fedbench"]
    assert made.provenance["wall_seconds"] >= 0


def test_the_parquet_tells_its_own_origin(store: Store) -> None:
    """A file that was copied away from its manifest still says what it is."""
    made = write(store, PARTITION, dataset=DIGITS.id)
    metadata = json.loads(pq.read_schema(made.file("data.parquet")).metadata[b"fedbench"])
    assert PartitionSpec.from_dict(metadata["spec"]) == PARTITION
    assert (metadata["schema"], metadata["kind"], metadata["id"]) == (SCHEMA, "partition", PARTITION.id)
    assert metadata["inputs"] == {"dataset": DIGITS.id}
    assert "pyarrow" in metadata["libraries"]


def test_metadata_of_the_table_is_kept(store: Store) -> None:
    with store.writing(DIGITS) as writer:
        writer.table("data", table().replace_schema_metadata({b"classes": b"10"}))
    assert store.open("dataset", DIGITS.id).table("data").schema.metadata[b"classes"] == b"10"


def test_same_spec_same_bytes(tmp_path: Path) -> None:
    first, second = (write(Store(tmp_path / name), PARTITION, dataset=DIGITS.id) for name in ("a", "b"))
    assert first.file("data.parquet").read_bytes() == second.file("data.parquet").read_bytes()
    assert first.manifest["files"] == second.manifest["files"]


def test_written_twice_the_first_stays(store: Store) -> None:
    first = write(store, rows=10)
    before = first.file("data.parquet").stat().st_ino
    again = write(store, rows=20)
    assert again.table("data").num_rows == 10
    assert again.file("data.parquet").stat().st_ino == before
    assert tree(store) == {"store.json", f"dataset/{DIGITS.id}/{MANIFEST}", f"dataset/{DIGITS.id}/data.parquet"}


def test_list_oldest_first(store: Store) -> None:
    assert list(store.list("dataset")) == []
    made = [write(store, spec) for spec in (OTHER, DIGITS)]
    for age, artifact in zip((100, 200), made, strict=True):
        os.utime(artifact.path / MANIFEST, (time.time() - age,) * 2)
    assert [a.id for a in store.list("dataset")] == [DIGITS.id, OTHER.id]
    assert list(store.list("partition")) == []


def test_find(store: Store) -> None:
    write(store)
    write(store, PARTITION)
    assert DIGITS.id[0] != PARTITION.id[0], "choose other specs: this test needs two beginnings"
    assert store.find(DIGITS.id[:3]).spec == DIGITS
    assert store.find(PARTITION.id, ("partition",)).spec == PARTITION
    for prefix, kinds in ((DIGITS.id[:3], ("partition",)), ("x", ("run", "dataset")), ("", ("dataset",))):
        with pytest.raises(FedbenchError) as caught:
            store.find(prefix, kinds)
        refused(caught, f"no {' or '.join(kinds)} '{prefix}'", "fedbench list")


def test_find_ambiguous(store: Store) -> None:
    write(store)
    twin = store.home / "partition" / (DIGITS.id[:4] + "00000000")
    twin.mkdir(parents=True)
    with pytest.raises(FedbenchError) as caught:
        store.find(DIGITS.id[:4])
    refused(caught, "ambiguous", f"dataset {DIGITS.id}", f"partition {twin.name}")


def test_remove(store: Store) -> None:
    made = write(store)
    kept = write(store, OTHER)
    store.remove(made.kind, made.id)
    assert store.get(DIGITS) is None
    assert tree(store) == {"store.json", f"dataset/{OTHER.id}/{MANIFEST}", f"dataset/{OTHER.id}/data.parquet"}
    assert kept.table("data").num_rows == 100
    assert write(store).table("data").num_rows == 100


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


def test_current(store: Store) -> None:
    assert store.current == {}
    store.set_current(partition="a", protocol="feddrm")
    store.set_current(partition="b")
    assert Store(store.home).current == {"partition": "b", "protocol": "feddrm"}


def test_full_disk_keeps_the_former_current(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.set_current(partition="a")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(FedbenchError, match="no space left"):
            store.set_current(partition="b")
    assert store.current == {"partition": "a"}
    assert tree(store) == {"store.json", "current.json"}


def test_a_frame_for_notebooks(store: Store) -> None:
    with store.writing(DIGITS) as writer:
        writer.table("data", pa.table({"label": [3, 1], "name": ["a", "b"]}))
    frame = store.open("dataset", DIGITS.id).frame("data")
    assert frame.to_dict("list") == {"label": [3, 1], "name": ["a", "b"]}


def test_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path / "from the environment"))
    assert Store().home == tmp_path / "from the environment"
    assert Store(tmp_path / "given").home == tmp_path / "given"
    monkeypatch.delenv("FEDBENCH_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Store().home == tmp_path / ".fedbench"


# -- whole or not at all --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_nothing(store: Store, error: type[BaseException]) -> None:
    def interrupted() -> None:
        with store.writing(DIGITS) as writer:
            writer.table("data", table())
            raise error

    with pytest.raises(error):
        interrupted()
    assert tree(store) == {"store.json"}
    assert not store.has(DIGITS)


def test_a_killed_process_leaves_nothing_visible(store: Store) -> None:
    killed = python(
        """
        import os, sys
        from pathlib import Path
        import pyarrow as pa
        from fedbench.specs import DatasetSpec
        from fedbench.store import Store
        with Store(Path(sys.argv[1])).writing(DatasetSpec("digits", "sklearn", "0123456789ab")) as writer:
            writer.table("data", pa.table({"label": [1, 2, 3]}))
            os._exit(9)
        """,
        store.home,
    )
    assert killed.wait(60) == 9
    assert any(name.endswith("data.parquet") for name in tree(store)), "the process must die after it has written"
    assert list(store.list("dataset")) == []
    assert store.get(DIGITS) is None
    with pytest.raises(FedbenchError):
        store.find(DIGITS.id)
    assert write(store).table("data").num_rows == 100


def failing(code: int, when: str) -> Any:
    """A stand-in for os.fsync that fails for files of that name, after their bytes were (partly) written."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if when in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(code, os.strerror(code))
        real(descriptor)

    return fsync


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc to know which file is flushed")
@pytest.mark.parametrize("name", ["data.parquet", MANIFEST])
@pytest.mark.parametrize(("code", "says"), [(errno.ENOSPC, "no space left"), (errno.EROFS, "cannot write")])
def test_disk_refuses_in_the_middle(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str, code: int, says: str
) -> None:
    store.prepare()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(code, name))
        with pytest.raises(FedbenchError) as caught:
            write(store)
    refused(caught, says, str(store.home), "--home")
    assert tree(store) == {"store.json"}
    assert write(store).table("data").num_rows == 100


def test_no_space_in_arrow(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's own error carries the reason in its text only."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError("Error writing bytes to file. Detail: [errno 28] No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(FedbenchError) as caught:
        write(store)
    refused(caught, "no space left")
    assert tree(store) == {"store.json"}


def test_other_errors_pass(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing disk is no bad input: its traceback must be seen."""

    def broken(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", broken)
    with pytest.raises(OSError, match="Input/output error"):
        write(store)
    assert tree(store) == {"store.json"}


@pytest.mark.parametrize("below", ["", "store"], ids=["the home is a file", "the home is below a file"])
def test_store_that_cannot_be(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    store = Store(file / below)
    assert list(store.list("run")) == []
    for attempt in (lambda: write(store), lambda: store.set_current(run="x"), lambda: store.claim("x").__enter__()):
        with pytest.raises(FedbenchError) as caught:
            attempt()
        refused(caught, "cannot write in", str(file), "FEDBENCH_HOME")


def test_read_only_store_can_be_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write(store)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        patch.setattr(Path, "rename", refuse)
        assert store.find(DIGITS.id).table("data").num_rows == 100
        for attempt in (
            lambda: write(store, OTHER),
            lambda: store.remove("dataset", DIGITS.id),
            lambda: store.record_failure("x", "reason", "log"),
            lambda: store.claim("x").__enter__(),
        ):
            with pytest.raises(FedbenchError) as caught:
                attempt()
            refused(caught, "Read-only file system", "writable --home")
    assert tree(store) == {"store.json", f"dataset/{DIGITS.id}/{MANIFEST}", f"dataset/{DIGITS.id}/data.parquet"}


# -- damage ---------------------------------------------------------------------------------------------------


def test_truncated(store: Store) -> None:
    path = write(store).path / "data.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FedbenchError) as caught:
        store.open("dataset", DIGITS.id).table("data")
    refused(caught, "truncated", str(path), f"fedbench remove {DIGITS.id}")


@pytest.mark.parametrize("where", [4, -9], ids=["in a page", "in the footer"])
def test_altered(store: Store, where: int) -> None:
    path = write(store).path / "data.parquet"
    raw = bytearray(path.read_bytes())
    raw[where] ^= 1
    path.write_bytes(raw)
    with pytest.raises(FedbenchError) as caught:
        store.open("dataset", DIGITS.id).table("data")
    refused(caught, "altered", str(path), f"fedbench remove {DIGITS.id}")


def test_missing_file(store: Store) -> None:
    made = write(store)
    (made.path / "data.parquet").unlink()
    for name in ("data", "rounds"):
        with pytest.raises(FedbenchError) as caught:
            made.table(name)
        refused(caught, f"no file {name}.parquet", f"fedbench remove {DIGITS.id}")


def test_missing_column(store: Store) -> None:
    with pytest.raises(FedbenchError) as caught:
        write(store).table("data", ["writer"])
    refused(caught, "writer")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "damaged"),
        ('{"schema": 1, "kind": "data', "damaged"),
        ("[1, 2]", "damaged"),
        ("\x00\x01", "damaged"),
        ("{}", "altered"),
        (f'{{"schema": 1, "kind": "dataset", "id": "{DIGITS.id}"}}', "altered"),
    ],
)
def test_damaged_manifest(store: Store, text: str, says: str) -> None:
    path = write(store).path / MANIFEST
    path.write_text(text)
    for attempt in (lambda: store.get(DIGITS), lambda: store.find(DIGITS.id)):
        with pytest.raises(DamagedError) as caught:
            attempt()
        refused(caught, says, str(path), f"fedbench remove {DIGITS.id}")


def test_manifest_of_another_artifact(store: Store) -> None:
    shutil.copy(write(store, OTHER).path / MANIFEST, write(store).path / MANIFEST)
    with pytest.raises(FedbenchError) as caught:
        store.get(DIGITS)
    refused(caught, "describes dataset", DIGITS.id)


def test_newer_store(store: Store) -> None:
    store.prepare()
    (store.home / "store.json").write_text(json.dumps({"schema": SCHEMA + 1}))
    with pytest.raises(FedbenchError) as caught:
        Store(store.home)
    refused(caught, "newer fedbench", f"schema {SCHEMA + 1}", "upgrade")


def test_newer_artifact(store: Store) -> None:
    """Also one whose manifest looks quite different."""
    path = write(store).path / MANIFEST
    path.write_text(json.dumps({"schema": SCHEMA + 1, "name": DIGITS.id}))
    with pytest.raises(FedbenchError) as caught:
        store.get(DIGITS)
    refused(caught, "newer fedbench", DIGITS.id, "upgrade")


@pytest.mark.parametrize("name", ["store.json", "current.json"])
@pytest.mark.parametrize("text", ["{", "3", "\x00"])
def test_damaged_store_files(store: Store, name: str, text: str) -> None:
    store.set_current(partition="x")
    (store.home / name).write_text(text)
    with pytest.raises(FedbenchError) as caught:
        _ = Store(store.home).current
    refused(caught, "damaged", name, "delete it")


# -- claims ---------------------------------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from fedbench.errors import FedbenchError
from fedbench.store import Store
try:
    with Store(Path(sys.argv[1])).claim("abc"):
        print("held", flush=True)
        sys.stdin.readline()
except FedbenchError as error:
    print(error, flush=True)
"""


@pytest.fixture
def holder(store: Store) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the run 'abc' until it gets a line."""
    process = python(HOLD, store.home)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def plant(store: Store, age: float = 0.0, **claim: Any) -> Path:
    """A claim as another worker would have left it."""
    path = store.work("abc") / "claim.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(claim))
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_claim_and_release(store: Store) -> None:
    assert store.claimed("abc") is None
    with store.claim("abc") as claim:
        claim.beat()
        holder = store.claimed("abc")
        assert holder is not None
        assert (holder["host"], holder["pid"]) == (socket.gethostname(), os.getpid())
        with pytest.raises(FedbenchError), store.claim("abc"):
            pass
        assert claim.held(), "the refused one must not release it"
        with store.claim("another"):
            pass
    assert store.claimed("abc") is None
    assert not store.work("abc").exists()


def test_release_keeps_the_checkpoint(store: Store) -> None:
    with store.claim("abc"):
        (store.work("abc") / "checkpoint").write_text("round 3")
    assert [p.name for p in store.work("abc").iterdir()] == ["checkpoint"]


def test_another_process_holds_it(store: Store, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(FedbenchError) as caught, store.claim("abc"):
        pass
    refused(caught, f"run abc is being trained by process {holder.pid}", "wait for it")
    holder.communicate("go\n")
    with store.claim("abc") as claim:
        assert claim.held()


def test_of_many_processes_one_gets_it(store: Store) -> None:
    """Also when all of them find a stale claim at once."""
    plant(store, machine=machine(), pid=2**22 + 1, token=1)  # above the kernel's largest pid
    crowd = [python(HOLD, store.home) for _ in range(4)]
    lines = [process.stdout.readline() for process in crowd if process.stdout]
    for process in crowd:
        process.communicate("go\n")
    assert sorted(line == "held\n" for line in lines) == [False, False, False, True]
    assert all("being trained by process" in line for line in lines if line != "held\n")


def test_of_many_threads_one_gets_a_stale_claim(store: Store) -> None:
    """Threads meet more closely than processes do: none may take away a claim made after it looked."""
    for turn in range(20):
        path = plant(store, machine=machine(), pid=2**22 + 1, token=turn)
        barrier, done, held = threading.Barrier(6), threading.Barrier(6), []

        def attempt(barrier: Any = barrier, done: Any = done, held: list[bool] = held) -> None:
            barrier.wait()
            try:
                with store.claim("abc") as claim:
                    done.wait()
                    held.append(claim.held())
                    done.wait()
            except FedbenchError:
                done.wait()
                done.wait()

        threads = [threading.Thread(target=attempt) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert held == [True]
        shutil.rmtree(path.parent, ignore_errors=True)


def test_killed_holder_is_replaced_at_once(store: Store, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    assert (store.work("abc") / "claim.json").exists()
    assert store.claimed("abc") is None
    with store.claim("abc") as claim:
        assert claim.held()


def test_silent_machine_is_replaced(store: Store) -> None:
    """Of a process on another machine only the heartbeat can tell."""
    path = plant(store, module.STALE_SECONDS - 30, host="elsewhere", pid=1, token=1)
    with pytest.raises(FedbenchError, match="process 1 on elsewhere"), store.claim("abc"):
        pass
    os.utime(path, (time.time() - module.STALE_SECONDS - 1,) * 2)
    with store.claim("abc") as claim:
        assert claim.held()


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_damaged_claim_holds_nobody_up(store: Store, text: str) -> None:
    plant(store).write_text(text)
    with store.claim("abc") as claim:
        assert claim.held()


def test_holder_that_lost_its_claim_notices(store: Store) -> None:
    with store.claim("abc") as claim:
        path = store.work("abc") / "claim.json"
        path.write_text(json.dumps({"host": "elsewhere", "pid": 1, "token": 1}))
        with pytest.raises(FedbenchError) as caught:
            claim.beat()
        refused(caught, "taken this run over")
    assert path.exists(), "the new holder's claim must stay"


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

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(FedbenchError, match="no space left"), store.claim("abc"):
            pass
    assert tree(store) == {"store.json"}
    assert store.claimed("abc") is None
    with store.claim("abc") as claim:
        assert claim.held()


# -- failures -------------------------------------------------------------------------------------------------


def test_failures_are_noted_and_forgotten(store: Store) -> None:
    assert store.failure("abc") is None
    path = store.record_failure("abc", "diverged", "the log", spec={"method": "x"})
    assert path.exists()
    noted = Store(store.home).failure("abc")
    assert noted is not None
    assert (noted["reason"], noted["log"], noted["spec"]) == ("diverged", "the log", {"method": "x"})
    assert list(store.list("run")) == []
    store.forget_failure("abc")
    store.forget_failure("abc")
    assert store.failure("abc") is None
