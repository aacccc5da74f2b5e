"""What a Ray cluster has room for, and what must be the same on all of its nodes: reckoned, without a cluster."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from fedbench.engine.engines import cluster
from fedbench.engine.engines.node import DECISIVE, About, Token
from fedbench.errors import FedbenchError
from fedbench.store import Store

TWO_GPUS = ({"CPU": 8.0, "GPU": 2.0}, {"CPU": 4.0})
OURS = {"python": "3.11", "torch": "2.13.0", "fedbench": "0.1", "code": "abc"}


def has(monkeypatch: pytest.MonkeyPatch, *nodes: dict[str, float]) -> None:
    """A cluster of these nodes, and of one that is dead."""
    alive: list[dict[str, Any]] = [{"Alive": True, "Resources": one} for one in nodes]
    dead = {"Alive": False, "Resources": {"CPU": 99.0, "GPU": 99.0}}
    monkeypatch.setattr(cluster.ray, "nodes", lambda: [*alive, dead])


@pytest.mark.parametrize(
    ("cpus", "gpus", "device", "expected"),
    [
        (1.0, None, "auto", (1.0, 2)),
        (1.0, None, "cpu", (0.0, 12)),
        (3.0, 0.0, "auto", (0.0, 3)),  # two on the first node, one on the second
        (1.0, 0.25, "cuda", (0.25, 8)),
    ],
)
def test_room_for_runs(
    monkeypatch: pytest.MonkeyPatch, cpus: float, gpus: float | None, device: str, expected: tuple[float, int]
) -> None:
    has(monkeypatch, *TWO_GPUS)
    assert cluster.places(cpus, gpus, device) == expected


@pytest.mark.parametrize(
    ("cpus", "gpus", "device", "line"),
    [
        (9.0, None, "cpu", "a run is to have 9 cores, and no node of the cluster has more than 8; see --cpus-per-run"),
        (1.0, 4.0, "auto", "a run is to have 4 GPUs, and no node of the cluster has more than 2; see --gpus-per-run"),
    ],
)
def test_no_room(monkeypatch: pytest.MonkeyPatch, cpus: float, gpus: float | None, device: str, line: str) -> None:
    has(monkeypatch, *TWO_GPUS)
    with pytest.raises(FedbenchError) as raised:
        cluster.places(cpus, gpus, device)
    assert str(raised.value) == line


def test_no_gpu_in_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, {"CPU": 2.0})
    assert cluster.places(1.0, None, "auto") == (0.0, 2)
    with pytest.raises(FedbenchError, match="to have 1 GPU, and no node of the cluster has more than 0"):
        cluster.places(1.0, None, "cuda")


def look(monkeypatch: pytest.MonkeyPatch, *nodes: About) -> bool:
    monkeypatch.setattr(cluster, "versions", lambda: OURS)
    monkeypatch.setattr(cluster, "_about", lambda token, files: list(nodes))
    return cluster.checked(Token(Path("token"), "text"), [])


def test_the_store_is_shared_if_all_nodes_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(monkeypatch, About("a", OURS, True), About("b", OURS, True))
    assert not look(monkeypatch, About("a", OURS, True), About("b", OURS, False))


@pytest.mark.parametrize("what", DECISIVE)
def test_other_versions_on_a_node(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    with pytest.raises(FedbenchError, match=rf"node b has .*{what}.* 9, and here it is {OURS[what]}; install the same"):
        look(monkeypatch, About("a", OURS, True), About("b", {**OURS, what: "9"}, True))


def test_a_node_in_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FedbenchError, match="node b: no disk; nothing was trained"):
        look(monkeypatch, About("a", OURS, True), About("b", OURS, True, "no disk"))


def test_on_a_full_disk_nothing_is_left_in_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, text: str) -> None:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(FedbenchError, match=r"no space left while marking the store for other nodes in .*; free some"):
        Token.laid(Store(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["store.json"]
