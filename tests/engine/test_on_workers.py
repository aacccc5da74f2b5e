"""`--executor workers`: a run's clients on actors of a Ray cluster, and what is wrong with one in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="needs the extra ray: pip install 'fedbench-fl[ray]'")

from ray.cluster_utils import Cluster  # noqa: E402

from fedbench.store import Store  # noqa: E402
from tests.support.cli_user import SMOKE, fedbench, good, own_method, slow_method  # noqa: E402
from tests.support.waiting import until  # noqa: E402

WORKERS = ("--executor", "workers")
TRAIN = ("train", "digits", *SMOKE, "--dir", "0.3", "--clients", "6", "--seed", "0")


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Two nodes of one core each on this machine."""
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    there = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    there.add_node(num_cpus=1)
    monkeypatch.setenv("RAY_ADDRESS", there.address)
    yield there
    there.shutdown()


def answers(home: Path) -> dict[str, bytes]:
    """Run's id -> the bytes of its predictions."""
    return {run.id: run.file("predictions.parquet").read_bytes() for run in Store(home).list("run")}


@pytest.mark.slow
def test_the_same_bytes_and_bad_input_in_one_line(nodes: Cluster, tmp_path: Path) -> None:
    """Several runs on the same workers, a user's own method among them, and models that are kept."""
    here, there = tmp_path / "here", tmp_path / "there"
    own = own_method(tmp_path)
    train = (*TRAIN, "-m", "ditto", "-m", "pfedfda", "-m", own, "--keep", "model,logits")
    good(*train, "--executor", "cores", "--home", here)
    good(*train, *WORKERS, "--home", there)
    assert len(answers(there)) == 3
    assert answers(there) == answers(here)
    for run in Store(there).list("run"):
        assert run.provenance["executor"] == "workers"
        assert run.provenance["workers"] == "2 x cpu"
        (twin,) = (one for one in Store(here).list("run") if one.id == run.id)
        assert run.manifest["files"].keys() == twin.manifest["files"].keys()
        assert run.file("models.safetensors").read_bytes() == twin.file("models.safetensors").read_bytes()
    text = "import os\nif 'RAY_RAYLET_PID' in os.environ:\n    import nowhere_to_be_had\n"
    (tmp_path / "mine.py").write_text(
        (tmp_path / "mine.py").read_text().replace("from dataclasses", f"{text}from dataclasses", 1)
    )
    for words, line in (
        (("-m", "fedavg", "--gpus-per-run", "2"), "a run is to have 2 GPUs, and the cluster has 0; see --gpus-per-run"),
        (("-m", "fedavg", "--cpus-per-run", "9"), "a run is to have 9 cores, and the cluster has 2; see"),
        (("-m", own), "No module named 'nowhere_to_be_had'; nothing was trained"),
    ):
        said = fedbench(*TRAIN, *words, *WORKERS, "--home", there)
        assert said.code == 2
        assert line in said.line
        assert "Traceback" not in said.err
    assert len(answers(there)) == 3


@pytest.mark.slow
def test_a_node_is_killed_and_the_run_goes_on(nodes: Cluster, tmp_path: Path) -> None:
    lost, killed = nodes.add_node(num_cpus=1), threading.Event()
    own, slow = slow_method(tmp_path)
    here, there = tmp_path / "here", tmp_path / "there"

    def kill() -> None:
        until(lambda: list(there.glob("work/*/progress.json")))
        nodes.remove_node(lost, allow_graceful=False)
        killed.set()
        slow.unlink()

    thread = threading.Thread(target=kill)
    thread.start()
    good(*TRAIN, "-m", own, "--rounds", "20", *WORKERS, "--home", there)
    thread.join()
    assert killed.is_set()
    (run,) = Store(there).list("run")
    assert run.provenance["workers"] == "3 x cpu"
    good(*TRAIN, "-m", own, "--rounds", "20", "--executor", "cores", "--home", here)
    assert answers(there) == answers(here)


@pytest.mark.slow
def test_stopped_and_gone_on_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster of this machine alone; Ctrl-C saves the last round, and `cores` goes on from there."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    home = tmp_path / "home"
    own, slow = slow_method(tmp_path)
    train = (*TRAIN, "-m", own, "--rounds", "40", "--home", str(home))
    child = subprocess.Popen(
        [sys.executable, "-m", "fedbench", *train, *WORKERS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until(lambda: list(home.glob("work/*/progress.json")), child, seconds=200)
    child.send_signal(signal.SIGINT)
    said = child.communicate(timeout=120)[1]
    assert child.returncode == 130, said
    slow.unlink()
    assert "of 40 is saved. The same command goes on from there." in said.splitlines()[-1]
    good(*train, "--executor", "cores")
    assert len(answers(home)) == 1


def test_what_does_not_go_with_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def line(*words: str) -> str:
        said = fedbench(*TRAIN, "-m", "fedavg", *WORKERS, *words, "--home", tmp_path)
        assert said.code == 2
        return said.line

    assert "--jobs does not go with --executor workers" in line("--jobs", "2")
    assert "--device cuda:0 does not go with --executor workers" in line("--device", "cuda:0")
    assert "--device cpu does not go with --gpus-per-run" in line("--device", "cpu", "--gpus-per-run", "1")
    assert "0.5 workers are none; each has a whole core or a whole GPU" in line("--gpus-per-run", "0.5")
    assert "tf32 needs a GPU" in line("--device", "cpu", "--precision", "tf32")
    assert "no Ray cluster to work with at ray://127.0.0.1:1 " in line("--engine", "ray://127.0.0.1:1")
    for name in [name for name in sys.modules if name.startswith("fedbench.engine.engines.on_workers")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "--executor workers needs Ray, which is not installed" in line()
    assert "pip install 'fedbench-fl[ray]'" in line()
    assert not list(Store(tmp_path).list("run"))
    assert os.listdir(tmp_path / "work") == [] if (tmp_path / "work").exists() else True
