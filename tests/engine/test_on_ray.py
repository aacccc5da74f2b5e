"""`--engine ray`: the same bytes as here, whatever becomes of a node; what is left of a stopped command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="needs the extra ray: pip install 'fedbench-fl[ray]'")

from ray.cluster_utils import Cluster  # noqa: E402

from fedbench.engine.engines import on_ray  # noqa: E402
from fedbench.engine.training import data_of  # noqa: E402
from fedbench.errors import FedbenchError  # noqa: E402
from fedbench.files import process  # noqa: E402
from fedbench.store import Store  # noqa: E402
from tests.support.cli_user import SMOKE, Said, fedbench, good, own_method, predictions, runs, slow_method  # noqa: E402
from tests.support.waiting import rounds_under_way, until  # noqa: E402

pytestmark = pytest.mark.slow

SWEEP = ("sweep", "digits", *SMOKE, "--clients", "4", "--executor", "cores")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """Two nodes of one core each on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_health_check_period_ms", "1000")  # that a node is dead is known after five
        there = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        there.add_node(num_cpus=1)
        patch.setenv("RAY_ADDRESS", there.address)
        yield there
        there.shutdown()


def meanwhile(act: Callable[[], None], *command: str | Path) -> Said:
    """What a command says while another thread acts."""
    thread = threading.Thread(target=act)
    thread.start()
    said = fedbench(*command)
    thread.join()
    return said


def test_runs_come_home_and_a_failure_is_recorded_here(nodes: Cluster, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    bad = own_method(tmp_path, "yield 1 / 0")
    sweep = (*SWEEP, "-m", "fedavg", "-m", "local", "--seeds", "0")
    said = fedbench(*sweep, "-m", bad, "--engine", "ray", "--home", there)
    assert said.code == 1
    assert "2 of 3 runs made" in said.err
    assert "ZeroDivisionError: division by zero" in said.err
    good(*sweep, "--home", here)
    assert predictions(there) == predictions(here)
    (failed,) = (there / "failed").iterdir()
    assert failed.stem not in predictions(there)
    assert "yield 1 / 0" in failed.read_text()
    assert not list(there.glob("work/[!.]*"))
    store = Store(there)
    assert process() not in {run.provenance["process"] for run in store.list("run")}
    assert len(list(store.list("metrics"))) == 2


def test_stopped(nodes: Cluster, tmp_path: Path) -> None:
    """Ctrl-C: what is under way ends and leaves nothing; the same command makes it."""
    own, slow = slow_method(tmp_path)
    home = tmp_path / "home"
    sweep = (*SWEEP, "--rounds", "10", "-m", own, "--half", "0.25,0.5", "--home", home)

    def press() -> None:
        until(lambda: sum(round >= 2 for round in rounds_under_way(home)) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    said = meanwhile(press, *sweep, "--engine", "ray")
    assert (said.code, said.line) == (130, "stopped. The same command starts incomplete runs again.")
    assert not list(home.glob("work/[!.]*"))
    assert not (home / "failed").exists()
    slow.unlink()
    assert "2 of 2 runs made" in good(*sweep).err


def test_images_are_shared_and_not_copied(nodes: Cluster, tmp_path: Path) -> None:
    """What a task is given lies in the memory of the object store, and the federation's images are that memory."""
    good("partition", "digits", "--dir", "0.3", "--clients", "4", "--home", tmp_path)
    store = Store(tmp_path)
    spec = store.find(store.current["partition"], ("partition",)).spec
    data = data_of(spec, store, [])

    def look(data) -> tuple[bool, bool]:
        import torch

        from fedbench.engine.training import _joined

        (federation,) = _joined([data.arrays], torch.device("cpu"))
        images = data.arrays["images"]
        return images.flags.writeable, federation.images.data_ptr() == images.ctypes.data

    ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
    try:
        assert ray.get(ray.remote(look).remote(ray.put(data))) == (False, True)
    finally:
        ray.shutdown()


def test_a_node_is_killed_in_the_middle(nodes: Cluster, tmp_path: Path) -> None:
    """Its run starts again elsewhere, the sweep ends complete, and the bytes are those of a sweep in one process. It is
    the last on these nodes, which take a while to notice."""
    own, slow = slow_method(tmp_path)
    sweep = (*SWEEP, "--rounds", "6", "-m", own, "--half", "0.25,0.5", "--seeds", "0-1")
    here, there = tmp_path / "here", tmp_path / "there"
    lost = nodes.add_node(num_cpus=1)

    def kill() -> None:
        until(lambda: len(list(there.glob("work/*/progress.json"))) == 3)
        assert any(node["NodeID"] == lost.node_id for node in ray.nodes())
        nodes.remove_node(lost, allow_graceful=False)
        slow.unlink()

    said = meanwhile(kill, *sweep, "--engine", "ray", "--home", there)
    assert not slow.exists(), "the third node was at work and died"
    assert said.code == 0, said.err
    assert "4 of 4 runs made" in said.err
    good(*sweep, "--home", here)
    assert len(predictions(there)) == 4
    assert predictions(there) == predictions(here)


def test_no_cluster_at_the_address() -> None:
    with pytest.raises(FedbenchError, match=r"no Ray cluster to work with at ray://127\.0\.0\.1:1 "):
        on_ray.connected("ray://127.0.0.1:1")


def test_a_cluster_of_this_machine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other machine can reach it, nor anyone without its token; and if the driver is killed, only the runs that were
    under way are lost."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    own, slow = slow_method(tmp_path)
    home = tmp_path / "home"
    sweep = (*SWEEP, "--rounds", "8", "-m", "fedavg", "-m", own, "--home", home)
    command = [sys.executable, "-m", "fedbench", *sweep, "--engine", "ray"]
    environment = {**os.environ, "FEDBENCH_HOME": str(home)}
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until(lambda: len(predictions(home)) == 1 and rounds_under_way(home), child)
    processes = [folder for folder in Path("/proc").glob("[0-9]*") if f"FEDBENCH_HOME={home}" in environ(folder)]
    raylets = [folder for folder in processes if b"/raylet/raylet" in (folder / "cmdline").read_bytes()]
    sockets = {os.readlink(link) for folder in processes for link in (folder / "fd").iterdir()}
    reached = [address for address, inode in listening() if f"socket:[{inode}]" in sockets]
    assert len(reached) > 3
    assert {*reached} <= {"0100007F", "0000000000000000FFFF00000100007F"}, "127.0.0.1, and the same as IPv6"
    assert "RAY_AUTH_MODE=token" in environ(raylets[0])
    child.kill()
    child.communicate(timeout=120)
    slow.unlink()
    assert "1 of 1 runs made" in good(*sweep).err
    assert [run.table("rounds").num_rows for run in runs(home)] == [8, 8]


def environ(process: Path) -> list[str]:
    """The environment of a process that still is there and is ours."""
    try:
        return (process / "environ").read_text(errors="replace").split("\0")
    except OSError:
        return []


def listening() -> Iterator[tuple[str, str]]:
    """Address and inode of each TCP socket of this machine that listens."""
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A":
                yield local.partition(":")[0], inode
