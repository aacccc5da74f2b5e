"""Checkpoints: what a restart finds, and damage that it must not read over."""

from __future__ import annotations

import errno
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbench.core import checkpoint as module
from fedbench.core import state as state_module
from fedbench.core.checkpoint import Checkpoint
from fedbench.core.server import Server, Shelf
from fedbench.core.state import matches, weighted_mean
from fedbench.errors import FedbenchError
from fedbench.files import SEAL, sealed
from fedbench.methods.fedopt import Moments
from fedbench.rng import stream


def table(t: int) -> pa.Table:
    return pa.table({"round": pa.array([t, t], pa.int32()), "own": pa.array([7, t % 10], pa.uint16())})


def tensors(t: int) -> dict[str, torch.Tensor]:
    weight = torch.arange(24.0).reshape(2, 3, 2, 2) * t
    return {
        "shared/conv": weight.to(memory_format=torch.channels_last),
        "shared/count": torch.tensor(t),
        "personal/0/beta": torch.tensor([0.5 * t], dtype=torch.float64),
    }


@pytest.fixture
def saved(tmp_path: Path) -> Checkpoint:
    """A checkpoint of round 2 with predictions of rounds 1 and 2."""
    it = Checkpoint(tmp_path)
    for t in (1, 2):
        it.save_predictions(t, [table(t)])
        it.rounds.append({"round": t, "loss": 1 / t})
        it.notes = {"0": {"beta": 0.1 * t}}
        it.save(t, tensors(t))
    return it


def files(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


WHOLE = {"checkpoint.json", "state-000002.safetensors", "predictions-000001.parquet", "predictions-000002.parquet"}


def test_a_restart_finds_everything(saved: Checkpoint) -> None:
    again = Checkpoint(saved.folder)
    state = again.load()
    assert state is not None
    assert state.keys() == tensors(2).keys()
    for name, t in tensors(2).items():
        assert state[name].dtype == t.dtype
        assert torch.equal(state[name], t)
    assert (again.round, again.rounds, again.notes) == (2, saved.rounds, {"0": {"beta": 0.2}})
    assert again.read_predictions().equals(pa.concat_tables([table(1), table(2)]))
    assert files(saved.folder) == WHOLE


@dataclass
class Memory:
    """Of a server: dictionaries whose order is part of them."""

    states: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)


def test_what_a_server_holds_comes_back_in_its_order(saved: Checkpoint) -> None:
    """Who sums it up would else find other bits after a resume. What was there before is gone."""

    def three(k: int) -> dict[str, torch.Tensor]:
        kinds = {"w": torch.int8, "b": torch.double, "a/b": torch.float32}
        return {name: torch.full((1,), k, dtype=kind) for name, kind in kinds.items()}

    def plain(server: Server) -> Any:
        of = ({0: server.shared}, server.personal, dict(enumerate(server.models)), server.momenta, server.memory.states)
        states = [[(i, [(n, t.dtype, t.tolist()) for n, t in s.items()]) for i, s in one.items()] for one in of]
        return states, list(server.assigned.items()), list(server.memory.weights.items())

    memory = Memory({12: three(1), 3: three(2)}, {"z": 1.0, "a": 2.0})
    initial, models, momenta = three(0), [three(4), three(5)], {9: three(6)}
    before = Server(initial, three(3), Shelf(saved.folder), 3, memory, models, {7: 1, 2: 0}, momenta=momenta)
    before.personal.update({10: three(7), 2: three(8)})
    before.personal.put_by(3)
    before.personal[11] = before.personal[2] = three(9)
    saved.save(3, before.tensors(files=True), before.personal.used())
    state = Checkpoint(saved.folder).load()
    assert state is not None
    after = Server(initial, {"stale": torch.ones(1)}, Shelf(saved.folder), 3, Memory())
    after.personal[7] = {"stale": torch.ones(1)}
    after.restore(state)
    assert plain(after) == plain(before)
    after.restore(before.tensors())
    assert plain(after) == plain(before)


def test_predictions_stand_in_the_order_of_the_rounds(tmp_path: Path) -> None:
    it = Checkpoint(tmp_path)
    for t in (10, 9, 1_000_000 - 1, 100):
        it.save_predictions(t, [table(t)])
    assert it.read_predictions()["round"].to_pylist() == [9, 9, 10, 10, 100, 100, 999_999, 999_999]


def test_a_fresh_start_clears_leftovers_and_nothing_else(tmp_path: Path) -> None:
    for name in ("state-000009.safetensors", "state-000009.safetensors.part", "predictions-000009.parquet", "claim"):
        (tmp_path / name).write_bytes(b"half")
    it = Checkpoint(tmp_path)
    assert it.load() is None
    assert it.round == 0
    assert files(tmp_path) == {"claim"}


def test_files_beyond_the_checkpoint_are_cleared(saved: Checkpoint) -> None:
    saved.save_predictions(3, [table(3)])
    (saved.folder / "state-000003.safetensors").write_bytes(b"half")
    (saved.folder / "state-000003.safetensors.part").write_bytes(b"half")
    again = Checkpoint(saved.folder)
    again.load()
    assert files(saved.folder) == WHOLE
    assert set(again.predictions) == {"predictions-000001.parquet", "predictions-000002.parquet"}


def test_an_empty_state_and_two_names_for_one_tensor_can_be_saved(tmp_path: Path) -> None:
    """An empty one is that of a method that shares nothing, stopped before its first round ended."""
    Checkpoint(tmp_path).save(0, {})
    assert Checkpoint(tmp_path).load() == {}
    t = torch.arange(6.0)
    Checkpoint(tmp_path).save(0, {"a": t, "b": t, "c": t[:3], "d": t.view(2, 3), "empty": t[:0], "e": t[6:]})
    state = Checkpoint(tmp_path).load()
    assert state is not None
    assert {n: v.tolist() for n, v in state.items()} == {
        "a": t.tolist(), "b": t.tolist(), "c": [0, 1, 2], "d": [[0, 1, 2], [3, 4, 5]], "empty": [], "e": [],
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(WHOLE))
@pytest.mark.parametrize("harm", ["truncate", "alter", "remove", "empty"])
def test_damage_is_one_clear_line(saved: Checkpoint, name: str, harm: str) -> None:
    path = saved.folder / name
    content = path.read_bytes()
    if harm == "remove":
        path.unlink()
    elif harm == "alter":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :])
    else:
        path.write_bytes(content[: len(content) // 2] if harm == "truncate" else b"")
    again = Checkpoint(saved.folder)
    if (name, harm) == ("checkpoint.json", "remove"):
        assert again.load() is None  # the same as never begun
        return
    with pytest.raises(FedbenchError) as caught:
        again.load()
    assert str(path) in str(caught.value)
    assert "delete" in caught.value.hint
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["{}", "[]", '{"round": 2}'])
def test_an_index_that_is_none_is_one_clear_line(saved: Checkpoint, content: str) -> None:
    saved.index.write_text(content)
    with pytest.raises(FedbenchError, match=r"checkpoint\.json is .*; delete "):
        Checkpoint(saved.folder).load()


def test_a_state_that_is_no_safetensors_file(saved: Checkpoint) -> None:
    path = saved.folder / "state-000002.safetensors"
    path.write_bytes(b"not tensors, but with the right checksum")
    entry = json.loads(saved.index.read_text())
    entry["state"] = {path.name: module.sha256_of(path)}
    del entry[SEAL]
    saved.index.write_text(json.dumps(sealed(entry)))
    with pytest.raises(FedbenchError, match="cannot read the checkpoint"):
        Checkpoint(saved.folder).load()


def test_saving_the_same_round_again_never_harms_the_saved_one(
    saved: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt before the next round's end saves the round that is on disk already; a kill may hit that."""
    import safetensors.torch

    def half(tensors: object, path: Path, metadata: object) -> None:
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(safetensors.torch, "save_file", half)
    with pytest.raises(KeyboardInterrupt):
        saved.save(2, tensors(2))
    monkeypatch.undo()
    state = Checkpoint(saved.folder).load()
    assert state is not None
    assert torch.equal(state["shared/conv"], tensors(2)["shared/conv"])
    assert files(saved.folder) == WHOLE


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_disk_is_one_clear_line(
    saved: Checkpoint, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr(module, "write_json", refuse)
    with pytest.raises(FedbenchError, match=r"no space left while saving|cannot write in"):
        saved.save(3, tensors(3))
    state = Checkpoint(saved.folder).load()
    assert state is not None
    assert int(state["shared/count"]) == 2


def test_a_checkpoint_of_other_code_is_not_continued(saved: Checkpoint) -> None:
    other = Checkpoint(saved.folder, code="other")
    assert other.load() is None
    assert (other.round, other.rounds, other.predictions) == (0, [], {})
    assert files(saved.folder) == set()


@given(
    seed=st.integers(0, 1000),
    weights=st.lists(st.integers(1, 5000), min_size=1, max_size=12),
    piece=st.none() | st.integers(1, 200),
)
def test_weighted_mean_is_numpys_in_float64(seed: int, weights: list[int], piece: int | None) -> None:
    """In pieces of any size."""
    rng = np.random.default_rng(seed)
    values = rng.normal(1000, 1, (len(weights), 3, 4)).astype(np.float32)
    states = [{"a": torch.from_numpy(v), "b": torch.from_numpy(-v)} for v in values]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_module, "PIECE", piece or state_module.PIECE)
        mean = weighted_mean(states, weights, ["a", "b"])
    expected = np.average(values.astype(np.float64), axis=0, weights=weights)
    assert mean["a"].dtype == torch.float32
    # One rounding to float32; accumulated in float32 it would be off by several units in the last place.
    np.testing.assert_array_max_ulp(mean["a"].numpy(), expected.astype(np.float32), 1)
    np.testing.assert_array_equal(mean["b"].numpy(), -mean["a"].numpy())
    scaled = weighted_mean(states, [w * 0.25 for w in weights], ["a"])
    np.testing.assert_array_equal(scaled["a"].numpy(), mean["a"].numpy())


def test_matches_prefixes() -> None:
    cases = (("head.bias", ("head.",)), ("ahead.bias", ("head.",)), ("x", ("",)), ("x", ()))
    assert [matches(*case) for case in cases] == [True, False, True, False]


def server() -> Server:
    initial = {name: torch.full((2,), float(i)) for i, name in enumerate(("backbone.w", "head.w", "extra"))}
    return Server(initial, {"backbone.w": torch.full((2,), 10.0)}, {3: {"head.w": torch.full((2,), 33.0)}})


def test_a_client_keeps_only_what_it_did_not_receive() -> None:
    s = server()
    own = torch.full((2,), 7.0)
    s.keep(1, {**s.view(1), "head.w": own})
    assert s.personal[1] == {"head.w": own}
    s.keep(2, s.view(2))
    assert 2 not in s.personal
    s.keep(3, {"backbone.w": s.shared["backbone.w"]})
    assert 3 not in s.personal, "a copy that the client no longer has would lie over the shared state for ever"
    stack = torch.arange(8.0).view(4, 2)
    s.keep(4, {"head.w": stack[1], "extra": own})
    kept = s.personal[4]["head.w"]
    assert torch.equal(kept, stack[1])
    assert kept.untyped_storage().nbytes() == kept.nbytes, "it would hold the stack alive"
    assert s.personal[4]["extra"] is own


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "crop test"]), st.integers(0, 9), st.integers(0, 9)), unique=True))
def test_streams_of_different_keys_differ(keys: list[tuple[str, int, int]]) -> None:
    drawn = [tuple(stream(1, *key).integers(2**63, size=3)) for key in keys]
    assert len(set(drawn)) == len(keys)
    assert drawn == [tuple(stream(1, *key).integers(2**63, size=3)) for key in keys]


def test_clusters_are_viewed_and_memory_is_not_and_a_copy_is_to_be_worked_on() -> None:
    a, b = {"w": torch.ones(2)}, {"w": torch.full((2,), 2.0)}
    initial, shared = {"w": torch.zeros(2), "v": torch.zeros(1)}, {"v": torch.ones(1)}
    memory = Moments(3 * torch.ones(2))
    server = Server(initial, shared, models=[a, b], assigned={0: 1, 2: 0}, memory=memory)
    assert [server.view(i)["w"][0].item() for i in range(3)] == [2, 0, 1]
    assert server.view(0).keys() == {"w", "v"}
    copied = server.copy(4)
    copied.models[0], copied.assigned[1], copied.memory.m = b, 1, torch.ones(2)
    assert (server.models[0], server.assigned, server.memory) == (a, {0: 1, 2: 0}, memory)
    assert memory.m is not copied.memory.m
    server.keep(0, {"w": server.models[1]["w"], "v": torch.ones(1) * 3})
    assert server.personal[0].keys() == {"v"}, "what it merely received is not its own"
    server.memory = Moments()
    copied.restore(server.tensors())
    assert copied.memory == Moments(), "what has come to nothing is nothing after a resume"
