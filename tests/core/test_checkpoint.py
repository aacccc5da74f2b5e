"""Checkpoints: what a restart finds, and damage that it must not read over; a round's memory, which ends with the same
bits as with room for everybody; and runs that were interrupted or failed at any moment, alone or several at the same
time, which end with the bits that they would have had. (Of every method the conformance suite says so; here stands what
a method does not choose. tests/cli/test_cli_damage.py and tests/robust kill.)"""

from __future__ import annotations

import errno
import gc
import json
import pickle
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedbench.conformance.lab import stop_after
from fedbench.core import checkpoint as module
from fedbench.core import executors, simulation, worker
from fedbench.core import state as state_module
from fedbench.core import trainer as trainer_module
from fedbench.core.checkpoint import Checkpoint
from fedbench.core.client import Client, ClientUpdate, Train
from fedbench.core.federation import Federation
from fedbench.core.server import Server
from fedbench.core.state import (
    Mean,
    as_model,
    matches,
    model_in,
    name_in,
    plain,
    size_in_bytes,
    state_of,
    weighted_mean,
)
from fedbench.core.trainer import Interrupted, Progress, Trainer, train_together
from fedbench.errors import FedbenchError
from fedbench.files import SEAL, sealed
from fedbench.methods.base import Method, cross_entropy
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.fedopt import FedOptMemory
from fedbench.rng import stream
from tests.support.frames import refused
from tests.support.lab import LabRun, equal, federation, method, own, parquet_bytes, same, setting, train, trainer
from tests.support.rays_lab import many_labelled


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
        it.save_tables("predictions", t, [table(t)])
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
    assert state.keys() == tensors(2).keys()
    for name, t in tensors(2).items():
        assert state[name].dtype == t.dtype
        assert torch.equal(state[name], t)
    assert (again.round, again.rounds, again.notes) == (2, saved.rounds, {"0": {"beta": 0.2}})
    assert again.read("predictions").equals(pa.concat_tables([table(1), table(2)]))
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
    personal = {10: three(7), 2: three(8), 11: three(9)}
    before = Server(initial, three(3), personal, 3, memory, models, {7: 1, 2: 0}, momenta=momenta)
    saved.save(3, before.tensors())
    state = Checkpoint(saved.folder).load()
    after = Server(initial, {"stale": torch.ones(1)}, {7: {"stale": torch.ones(1)}}, 3, Memory())
    after.restore(state)
    assert plain(after) == plain(before)


def test_predictions_stand_in_the_order_of_the_rounds(tmp_path: Path) -> None:
    it = Checkpoint(tmp_path)
    for t in (10, 9, 1_000_000 - 1, 100):
        it.save_tables("predictions", t, [table(t)])
    assert it.read("predictions")["round"].to_pylist() == [9, 9, 10, 10, 100, 100, 999_999, 999_999]


@pytest.mark.parametrize(
    ("how", "s", "difference"),
    [
        (method("fedprox", mu=0.5), setting(), "hyper-parameter mu is 0.1 there and 0.5 here"),
        (method("fedavg"), setting(), 'method is "fedprox" there and "fedavg" here'),
        (method("fedprox", mu=0.1), setting(rounds=4), "setting rounds is 3 there and 4 here"),
        (method("fedprox", mu=0.1), setting(cohort=2), "setting cohort is not set there and 2 here"),
        (method("fedprox", mu=0.1), setting(seed=2), "setting seed is 1 there and 2 here"),
        (method("fedprox", mu=0.1), setting(), ""),
    ],
)
def test_of_another_run_is_refused_by_what_it_says(tmp_path: Path, how: Method, s: Any, difference: str) -> None:
    """Wherever it lies."""
    with pytest.raises(Interrupted):
        train(method("fedprox", mu=0.1), federation(), tmp_path, observe=stop_after(1))
    it = trainer(how, federation(), tmp_path, s)
    if difference:
        refused(
            rf"checkpoint\.json is of another run: {difference}; delete the folder .* begin this run again", it.resume
        )
    else:
        it.resume()
        assert it.server.round == 1


def test_a_fresh_start_clears_leftovers_and_nothing_else(tmp_path: Path) -> None:
    for name in ("state-000009.safetensors", "state-000009.safetensors.part", "predictions-000009.parquet", "claim"):
        (tmp_path / name).write_bytes(b"half")
    it = Checkpoint(tmp_path)
    assert it.load() is None
    assert it.round == 0
    assert files(tmp_path) == {"claim"}


def test_files_beyond_the_checkpoint_are_cleared(saved: Checkpoint) -> None:
    saved.save_tables("predictions", 3, [table(3)])
    (saved.folder / "state-000003.safetensors").write_bytes(b"half")
    (saved.folder / "state-000003.safetensors.part").write_bytes(b"half")
    again = Checkpoint(saved.folder)
    again.load()
    assert files(saved.folder) == WHOLE
    assert set(again.written) == {"predictions-000001.parquet", "predictions-000002.parquet"}


def test_an_empty_state_and_two_names_for_one_tensor_can_be_saved(tmp_path: Path) -> None:
    """An empty one is that of a method that shares nothing, stopped before its first round ended."""
    Checkpoint(tmp_path).save(0, {})
    assert Checkpoint(tmp_path).load() == {}
    t = torch.arange(6.0)
    Checkpoint(tmp_path).save(0, {"a": t, "b": t, "c": t[:3], "d": t.view(2, 3), "empty": t[:0], "e": t[6:]})
    state = Checkpoint(tmp_path).load()
    assert state["a"] is state["b"], "a tensor that a client receives under two names is sent once"
    assert {n: v.tolist() for n, v in state.items()} == {
        "a": t.tolist(),
        "b": t.tolist(),
        "c": [0, 1, 2],
        "d": [[0, 1, 2], [3, 4, 5]],
        "empty": [],
        "e": [],
    }


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
    refused(r"checkpoint\.json is .*; delete ", Checkpoint(saved.folder).load)


def test_a_state_that_is_no_safetensors_file(saved: Checkpoint) -> None:
    path = saved.folder / "state-000002.safetensors"
    path.write_bytes(b"not tensors, but with the right checksum")
    entry = json.loads(saved.index.read_text())
    entry["state"] = {path.name: module.sha256_of(path)}
    del entry[SEAL]
    saved.index.write_text(json.dumps(sealed(entry)))
    refused("cannot read the checkpoint", Checkpoint(saved.folder).load)


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
    assert torch.equal(state["shared/conv"], tensors(2)["shared/conv"])
    assert files(saved.folder) == WHOLE


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_disk_is_one_clear_line(
    saved: Checkpoint, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr(module, "write_json", refuse)
    refused(r"no space left while saving|cannot write in", saved.save, 3, tensors(3))
    state = Checkpoint(saved.folder).load()
    assert int(state["shared/count"]) == 2


def test_a_checkpoint_of_other_code_is_not_continued(saved: Checkpoint) -> None:
    other = Checkpoint(saved.folder, code="other")
    assert other.load() is None
    assert (other.round, other.rounds, other.written) == (0, [], {})
    assert files(saved.folder) == set()


@given(
    seed=st.integers(0, 1000),
    weights=st.lists(st.integers(1, 5000), min_size=1, max_size=12),
    piece=st.none() | st.integers(1, 200),
)
def test_weighted_mean_is_numpys_in_float64(seed: int, weights: list[int], piece: int | None) -> None:
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


def test_state_of_is_a_copy_with_buffers() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    state = state_of(net)
    nn.init.zeros_(net[0].weight)
    assert state["0.weight"].any()
    assert not state["0.weight"].requires_grad
    assert size_in_bytes(state) == 4 * (2 * 3 + 3 + 4 * 3) + 8, "statistics and a counter too"


def test_names_of_a_model_in_a_state() -> None:
    state: Any = {"w": 1, "own/w": 2, "owner/w": 3}
    assert model_in(state, "own") == {"w": 2}
    assert as_model(state, "copy") == {"copy/w": 1}, "of the unnamed model alone"
    assert (name_in("", "w"), name_in("own", "w"), plain("own/w")) == ("w", "own/w", "w")


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
    memory = FedOptMemory(3 * torch.ones(2))
    server = Server(initial, shared, models=[a, b], assigned={0: 1, 2: 0}, memory=memory)
    assert [server.view(i)["w"][0].item() for i in range(3)] == [2, 0, 1]
    assert server.view(0).keys() == {"w", "v"}
    copied = server.copy(4)
    copied.models[0], copied.assigned[1], copied.memory.m = b, 1, torch.ones(2)
    assert (server.models[0], server.assigned, server.memory) == (a, {0: 1, 2: 0}, memory)
    assert memory.m is not copied.memory.m
    server.keep(0, {"w": server.models[1]["w"], "v": torch.ones(1) * 3})
    assert server.personal[0].keys() == {"v"}, "what it merely received is not its own"
    server.memory = FedOptMemory()
    copied.restore(server.tensors())
    assert copied.memory == FedOptMemory(), "what has come to nothing is nothing after a resume"


ELEVEN = federation((30, 40, 20, 25, 30, 35, 20, 45, 30, 20, 25))
SHORT = setting(rounds=3, participation=0.8)
#: Whole second models, control variates, a server that steps from the mean or holds uploads, one of several models,
#: silent rounds, variables of a method's own; and one that shares a part.
METHODS = ["ditto", "scaffold", "fedopt", "fednova", "ifca", "fedavgft", "pfedfda", "fedper"]


@pytest.mark.parametrize("name", METHODS)
def test_blocks_end_with_the_same_bits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(name, ELEVEN, tmp_path / "whole", SHORT)
    monkeypatch.setattr(simulation, "BLOCK_BYTES", 0)
    sizes = [len(block) for block in trainer(method(name), ELEVEN, tmp_path / "one", SHORT).blocks(range(9))]
    assert sizes[0] == 4
    assert len(sizes) > 1
    equal(train(name, ELEVEN, tmp_path / "blocks", SHORT), whole)


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        *((name, {}) for name in ("feddrm", "pfedfda", "local")),
        *((name, {"score": "after_local"}) for name in ("fedrep", "lg_fedavg", "apfl")),
    ],
)
def test_personal_states_that_do_not_fit_wait_elsewhere(
    name: str, chosen: dict[str, str], executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where they lie differs, and nothing that is shared is sent away."""
    data, s, how = federation(), setting(rounds=3, window=2, participation=0.8), method(name, **chosen)
    here = train(how, data, tmp_path / "here", s, executor=executor)
    sent: list[torch.Tensor] = []
    monkeypatch.setattr(worker, "_to_host", lambda tensor: (sent.append(tensor), tensor.clone())[1])
    monkeypatch.setattr(simulation, "fits", lambda *_: False)
    elsewhere = train(how, data, tmp_path / "elsewhere", s, executor=executor)
    assert same(elsewhere.tensors, here.tensors)
    assert parquet_bytes(elsewhere.predictions) == parquet_bytes(here.predictions)
    assert sent
    shared = {t.data_ptr() for t in elsewhere.trainer.server.shared.values()}
    assert not shared & {t.data_ptr() for t in sent}


@pytest.mark.parametrize(("piece", "columns"), [(1, 4096), (5000, 64), (64 << 20, 4096), (64 << 20, 1 << 20)])
def test_the_mean_added_up_is_that_of_all_at_once(
    piece: int, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "PIECE", piece)
    monkeypatch.setattr(state_module, "COLUMNS", columns)
    at_once = own(FedAvg, aggregate=lambda self, server, cohort, t: FedAvg.aggregate(self, server, cohort, t))
    assert (FedAvg().streams, at_once.streams) == (True, False)
    streams, holds = (
        train(how, ELEVEN, tmp_path / how.name, setting(rounds=1, window=1)) for how in (FedAvg(), at_once)
    )
    assert same(streams.tensors, holds.tensors)
    assert all(method(name).streams for name in ("feddrm", "scaffold", "feddyn", "feddc", "fedopt", "pfedme"))
    assert not any(method(name).streams for name in ("cfl", "ifca", "fednova"))


def test_a_method_that_streams_is_averaged_by_the_class_that_it_names(tmp_path: Path) -> None:
    sums: list[Noted] = []

    class Noted(Mean):
        def __init__(self, names: Iterable[str], weights: Sequence[float]) -> None:
            super().__init__(names, weights)
            sums.append(self)

    def never(self: Method, server: Server, cohort: Sequence[Client], t: int) -> None:
        raise AssertionError("aggregate is not called")

    assert FedAvg.aggregation is Mean
    run = train(own(FedAvg, aggregation=Noted), ELEVEN, tmp_path / "noted", setting(rounds=3, window=1))
    assert [one.count for one in sums] == [ELEVEN.clients] * 3
    assert same(dict(sums[-1].result()), {n: run.tensors[f"shared/{n}"] for n in sums[-1].names})
    with pytest.raises(AssertionError, match="aggregate is not called"):
        train(own(FedAvg, aggregation=Noted, aggregate=never), ELEVEN, tmp_path / "held", setting(rounds=1))
    assert len(sums) == 3, "a method that holds its uploads needs no running mean"


def test_uploads_are_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "BLOCK_BYTES", 0)
    states: list[weakref.ref[object]] = []
    alive: list[int] = []  # whose states are when a client begins

    def local(self: Method, client: Client) -> ClientUpdate:
        gc.collect()
        alive.append(sum(ref() is not None for ref in states))
        yield Train(cross_entropy)
        states.append(weakref.ref(client.state["head.weight"]))

    gc.freeze()  # what other tests hold need not be looked through again and again
    try:
        train(own(local=local), ELEVEN, tmp_path, setting(rounds=1))
    finally:
        gc.unfreeze()
    assert len(alive) == ELEVEN.clients
    assert max(alive) == 3  # the others of its block


DATA = federation()
FIVE = setting(rounds=5, window=3)
#: Four rounds in which clients come and go, of whom two never train.
UNSEEN_DATA = federation((90, 80, 70, 80, 60, 60), skew=float("inf"))
PARTITION = replace(setting().partition, clients=6, unseen=2)
NEWCOMERS = (4, 5)
FOUR: dict[str, Any] = {
    "partition": PARTITION,
    "rounds": 4,
    "window": 3,
    "participation": 0.7,
    "seed": 11,
    "epochs": 3,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> LabRun:
    return train("feddrm", DATA, tmp_path_factory.mktemp("whole"), FIVE)


ADAMW: dict[str, Any] = {"optimizer": "adamw", "momentum": 0.0, "weight_decay": 0.1, "lr": 0.01}
LIVES: dict[str, Any] = {"rounds": 4, "participation": 0.7, "momentum_lives": True, "votes": False}
LABELS: dict[str, Any] = {"rounds": 5, "votes": False, "window": 1, "test_phase": True, "momentum_restarts": True}
STOPPED: list[tuple[str, dict[str, Any], dict[str, Any], int]] = [
    ("ditto", {}, {"rounds": 4, "participation": 0.7, **ADAMW}, 2),
    *((name, {}, LIVES, 2) for name in ("fedavg", "ifca", "apfl_flux")),
    ("flux", {}, LABELS, 2),
    # Before the newcomers joined: two rounds, or the last answers alone, to go.
    ("fedpac", {"newcomer_epochs": 1}, FOUR, 2),
    ("fedpac", {"newcomers": "all", "newcomer_epochs": 2, "score": "after_aggregate"}, {**FOUR, "window": 1}, 3),
    ("fedbabu", {"finetune_epochs": 1}, {**FOUR, "window": 1}, 3),
    ("fedbabu", {"finetune_epochs": 2, "newcomers": "all"}, FOUR, 2),
    ("fedbabu", {"finetune_rounds": 2, "finetune_epochs": 1}, FOUR, 2),
]


@pytest.mark.parametrize(("name", "chosen", "changes", "stop"), STOPPED, ids=lambda v: v if isinstance(v, str) else "")
def test_stop_and_resume_equals_uninterrupted(
    name: str, chosen: dict[str, Any], changes: dict[str, Any], stop: int, tmp_path: Path
) -> None:
    """Catches what a checkpoint leaves out (moments, living momentum, heads of clients, the server's memory), newcomers
    that come back as members of the cohorts, and streams that depend on how many rounds this process has seen."""
    data = many_labelled(3, 30) if changes is LABELS else UNSEEN_DATA if "partition" in changes else DATA
    how, s = method(name, **chosen), setting(**changes)
    whole = train(how, data, tmp_path / "whole", s)
    with pytest.raises(Interrupted) as caught:
        train(how, data, tmp_path / "resumed", s, executor="cores", observe=stop_after(stop))
    assert pickle.loads(pickle.dumps(caught.value)).round == stop
    resumed = train(how, data, tmp_path / "resumed", s, executor="cores")
    assert [p.round for p in resumed.reports] == list(range(stop + 1, s.rounds + 1))
    equal(resumed, whole)
    if "partition" in changes:
        assert sorted(set(whole.predictions["round"].to_pylist())) == list(range(5 - s.window, 5))
        last = resumed.predictions.to_pandas().query("round == 4")
        for newcomer in NEWCOMERS:  # they answer, and keep nothing
            assert last[last.client == newcomer].own.nunique() > 1
            assert not any(n.startswith(f"personal/{newcomer}/") for n in resumed.tensors)


def test_an_interrupt_while_predictions_are_written(
    tmp_path: Path, whole: LabRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = trainer(method("feddrm"), DATA, tmp_path, FIVE)
    save = it.checkpoint.save_tables

    def interrupted(kind: str, t: int, table: Any) -> None:
        save(kind, t, table)
        if t == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(it.checkpoint, "save_tables", interrupted)
    with pytest.raises(Interrupted, match="after round 3"):
        it.run()
    assert not (tmp_path / "predictions-000004.parquet").exists()
    equal(train("feddrm", DATA, tmp_path, FIVE), whole)


@pytest.mark.parametrize("name", ["fedavg", "local"])
def test_an_interrupt_before_the_first_round_ends(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Method, "local", stop)
        with pytest.raises(Interrupted, match="after round 0"):
            train(name, DATA, tmp_path)
    assert [p.round for p in train(name, DATA, tmp_path).reports] == [1, 2, 3]


@pytest.mark.parametrize(("seconds", "share", "expected"), [(0.0, 1e9, [1, 2, 3, 4]), (1e9, 1e9, []), (0.0, 1e-9, [1])])
def test_checkpoints_are_as_frequent_as_asked_and_less_on_a_slow_disk(
    seconds: float, share: float, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "CHECKPOINT_SECONDS", seconds)
    monkeypatch.setattr(trainer_module, "CHECKPOINT_SHARE", share)
    saves: list[int] = []
    it = trainer(method("fedavg"), DATA, tmp_path, FIVE)
    save: Callable[..., None] = it.checkpoint.save
    monkeypatch.setattr(it.checkpoint, "save", lambda t, *given: (saves.append(t), save(t, *given))[1])
    it.run()
    assert saves == expected


#: One partition a seed: other sizes, other images.
SEEDS = {1: federation((90, 60, 75, 50)), 2: federation((40, 110, 64, 33)), 3: federation((70, 70, 71, 72))}


def how(name: str) -> Method:
    """pFedFDA without a search for beta: it stops at a tolerance of its own, so that rounding shows far beyond it."""
    return method(name, **({"betas": 0} if name == "pfedfda" else {}))


def trainers(name: str, where: Path, executor: str = "sequential", **changes: Any) -> list[Trainer]:
    """One trainer a seed, all on one executor."""
    joined = Federation.joined(list(SEEDS.values()))
    settings = [setting(seed=seed, **changes) for seed in SEEDS]
    found = [trainer(how(name), d, where / f"{s.seed}", s) for d, s in zip(joined, settings, strict=True)]
    shared = executors.make(executor, found[0].executor.model, joined[0], settings[0])
    for it in found:
        it.executor = shared
    return found


def together(name: str, where: Path, executor: str = "sequential", **changes: Any) -> list[LabRun]:
    found, reports = trainers(name, where, executor, **changes), list[Progress]()
    try:
        train_together(found, reports.append)
    finally:
        found[0].executor.close()
    return [LabRun(it, reports) for it in found]


def alone(name: str, where: Path, executor: str = "sequential", **changes: Any) -> list[LabRun]:
    return [train(how(name), SEEDS[s], where / f"{s}", setting(seed=s, **changes), executor=executor) for s in SEEDS]


@pytest.mark.parametrize(
    ("name", "executor"),
    [
        ("feddrm", "sequential"),
        ("pfedfda", "sequential"),
        ("fedavg", "stacked"),
        ("feddrm", "stacked"),
        ("local", "stacked"),
        ("pfedfda", "graphed"),
    ],
)
def test_each_has_the_bits_that_it_has_alone(name: str, executor: str, tmp_path: Path) -> None:
    changes = {"participation": 0.6, "augment": "crop", "rounds": 2}
    both = (together(name, tmp_path / "a", executor, **changes), alone(name, tmp_path / "b", executor, **changes))
    for a, b in zip(*both, strict=True):
        equal(a, b)


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> list[LabRun]:
    return alone("feddrm", tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    ("moment", "executor"),
    [
        *((moment, "sequential") for moment in ("broadcast", "local", "step", "personalise")),
        ("local", "cores"),
        ("personalise", "cores"),
        ("local", "stacked"),
    ],
)
def test_an_interrupt_loses_only_the_round_of_all(
    moment: str, executor: str, tmp_path: Path, wholes: list[LabRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, calls = type(method("feddrm")), 0
    original = getattr(kind, moment)

    def interrupted(self: Method, *given: Any) -> Any:
        nonlocal calls
        calls += given[0].round == 3
        if calls == 2:  # in the middle: for step, one run of three is through
            raise KeyboardInterrupt
        return original(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(kind, moment, interrupted)
        with pytest.raises(Interrupted, match="after round 2"):
            together("feddrm", tmp_path, executor)
    resumed = together("feddrm", tmp_path, executor)
    assert [p.round for p in resumed[0].reports] == [3]
    expected = wholes if executor != "stacked" else alone("feddrm", tmp_path / "alone", executor)
    for a, b in zip(resumed, expected, strict=True):
        equal(a, b)


def test_who_stands_behind_catches_up(tmp_path: Path, wholes: list[LabRun]) -> None:
    with pytest.raises(Interrupted):
        train("feddrm", SEEDS[2], tmp_path / "2", setting(seed=2), observe=stop_after(1))
    train("feddrm", SEEDS[3], tmp_path / "3", setting(seed=3)).trainer.save()  # all of it
    runs = together("feddrm", tmp_path)
    assert [p.round for p in runs[0].reports] == [1, 2, 3]
    for a, b in zip(runs, wholes, strict=True):
        equal(a, b)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_runs_that_ended_together_go_on_alone(
    error: type[BaseException], tmp_path: Path, wholes: list[LabRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an interrupt, and after an error from the checkpoints that are written under way."""
    monkeypatch.setattr(trainer_module, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(trainer_module, "CHECKPOINT_SHARE", 1e9)  # however slow the disk

    def stop(progress: Progress) -> None:
        if progress.round == (2 if error is KeyboardInterrupt else 3):
            raise error

    with pytest.raises(Interrupted if error is KeyboardInterrupt else error):
        train_together(trainers("feddrm", tmp_path), stop)
    resumed = alone("feddrm", tmp_path)
    assert [p.round for run in resumed for p in run.reports] == [3, 3, 3]
    for a, b in zip(resumed, wholes, strict=True):
        equal(a, b)


def test_what_is_heard_is_the_mean_and_times_are_shares(
    tmp_path: Path, wholes: list[LabRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    class Slow(FedAvg):
        """A client's work takes one second of a clock that only it moves."""

        def local(self, client: Client) -> None:
            clock[0] += 1.0

    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    found = trainers("feddrm", tmp_path)
    for it in found:
        it.method = Slow()
    reports: list[Progress] = []
    train_together(found, reports.append)
    for it in found:
        for line in it.checkpoint.rounds:
            assert line["local_seconds"] == line["total_seconds"] == 4.0, "12 clients' seconds over three runs"
            assert line["client_seconds"] == 4.0
    monkeypatch.undo()
    runs = together("feddrm", tmp_path / "real")
    losses = np.array([[line["loss"] for line in run.trainer.checkpoint.rounds] for run in runs])
    np.testing.assert_allclose([p.loss for p in runs[0].reports], losses.mean(0))
    assert runs[0].accuracy == pytest.approx(np.mean([run.accuracy for run in wholes]))
