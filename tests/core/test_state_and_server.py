"""States, their weighted mean, and what the server keeps of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedbench.core import state as state_module
from fedbench.core.server import Server
from fedbench.core.state import compact, matches, size_in_bytes, state_of, weighted_mean
from fedbench.methods.fedopt import Moments
from fedbench.rng import stream


@given(
    seed=st.integers(0, 1000),
    weights=st.lists(st.integers(1, 5000), min_size=1, max_size=12),
)
def test_weighted_mean_is_numpys_in_float64(seed: int, weights: list[int]) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(1000, 1, (len(weights), 3, 4)).astype(np.float32)
    states = [{"a": torch.from_numpy(v), "b": torch.from_numpy(-v)} for v in values]
    mean = weighted_mean(states, weights, ["a", "b"])
    expected = np.average(values.astype(np.float64), axis=0, weights=weights)
    assert mean["a"].dtype == torch.float32
    # One rounding to float32; accumulated in float32 it would be off by several units in the last place.
    np.testing.assert_array_max_ulp(mean["a"].numpy(), expected.astype(np.float32), 1)
    np.testing.assert_array_equal(mean["b"].numpy(), -mean["a"].numpy())
    scaled = weighted_mean(states, [w * 0.25 for w in weights], ["a"])
    np.testing.assert_array_equal(scaled["a"].numpy(), mean["a"].numpy())


def test_weighted_mean_keeps_counters_and_only_the_named() -> None:
    states = [{"n": torch.tensor(v), "x": torch.tensor([float(v)]), "y": torch.zeros(1)} for v in (3, 9)]
    mean = weighted_mean(states, [1, 2], ["n", "x"])
    assert mean.keys() == {"n", "x"}
    assert mean["n"].dtype == torch.int64
    assert int(mean["n"]) == 3
    assert mean["n"] is not states[0]["n"]
    assert float(mean["x"]) == 7
    assert weighted_mean(states, [1, 2], []) == {}


def test_state_of_is_a_copy_with_buffers() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    state = state_of(net)
    assert set(state) == {
        "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked",
    }  # fmt: skip
    before = state["0.weight"].clone()
    with torch.no_grad():
        net[0].weight.add_(1)
    assert torch.equal(state["0.weight"], before)
    assert not state["0.weight"].requires_grad
    # 2*3 + 3 + 4*3 floats of four bytes and one counter of eight.
    assert size_in_bytes(state) == 4 * 21 + 8


@pytest.mark.parametrize(
    ("name", "prefixes", "expected"),
    [("head.bias", ("head.",), True), ("ahead.bias", ("head.",), False), ("x", ("",), True), ("x", (), False)],
)
def test_matches_prefixes(name: str, prefixes: tuple[str, ...], expected: bool) -> None:
    assert matches(name, prefixes) is expected


def server() -> Server:
    initial = {name: torch.full((2,), float(i)) for i, name in enumerate(("backbone.w", "head.w", "extra"))}
    return Server(initial, {"backbone.w": torch.full((2,), 10.0)}, {3: {"head.w": torch.full((2,), 33.0)}})


def test_a_view_lays_personal_over_shared_over_initial() -> None:
    s = server()
    values = {name: float(t[0]) for name, t in s.view(3).items()}
    assert values == {"backbone.w": 10.0, "head.w": 33.0, "extra": 2.0}
    assert s.view(0)["head.w"] is s.initial["head.w"]
    assert s.view(0)["backbone.w"] is s.view(3)["backbone.w"]
    view = s.view(0)
    view["backbone.w"] = torch.zeros(2)
    assert float(s.view(0)["backbone.w"][0]) == 10.0


def test_tensors_and_restore_are_inverse() -> None:
    s = server()
    s.personal[12] = {"backbone.w": torch.zeros(2), "a/b": torch.ones(1)}
    again = Server(s.initial, {"stale": torch.ones(1)}, {7: {"stale": torch.ones(1)}})
    again.restore(s.tensors())
    assert again.shared.keys() == s.shared.keys()
    assert {i: set(p) for i, p in again.personal.items()} == {i: set(p) for i, p in s.personal.items()}
    for i in (0, 3, 12):
        theirs = again.view(i)
        assert theirs.keys() == s.view(i).keys()
        assert all(torch.equal(t, theirs[name]) for name, t in s.view(i).items())


def test_a_client_keeps_only_what_it_did_not_receive() -> None:
    s = server()
    own = torch.full((2,), 7.0)
    s.keep(1, {**s.view(1), "head.w": own})
    assert s.personal[1] == {"head.w": own}
    s.keep(2, s.view(2))
    assert 2 not in s.personal
    s.keep(3, {"backbone.w": s.shared["backbone.w"]})
    assert 3 not in s.personal, "a copy that the client no longer has would lie over the shared state for ever"


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "crop test"]), st.integers(0, 9), st.integers(0, 9)), unique=True))
def test_streams_of_different_keys_differ(keys: list[tuple[str, int, int]]) -> None:
    drawn = [tuple(stream(1, *key).integers(2**63, size=3)) for key in keys]
    assert len(set(drawn)) == len(keys)
    assert drawn == [tuple(stream(1, *key).integers(2**63, size=3)) for key in keys]


def test_what_is_kept_does_not_hold_a_stack_alive() -> None:
    stack = torch.arange(12.0).view(4, 3)
    server = Server({"a": torch.zeros(3)}, {})
    server.keep(1, {"a": stack[1]})
    kept = server.personal[1]["a"]
    assert torch.equal(kept, stack[1])
    assert kept.untyped_storage().nbytes() == kept.nbytes
    whole = torch.ones(3)
    assert compact(whole) is whole


@given(st.integers(1, 7), st.integers(1, 200))
def test_the_mean_is_the_same_in_pieces_of_any_size(clients: int, piece: int) -> None:
    rng = np.random.default_rng(clients)
    states = [{"a": torch.from_numpy(rng.normal(size=(2, 3))).float()} for _ in range(clients)]
    weights = rng.integers(1, 50, clients).tolist()
    expected = np.average([s["a"].double().numpy() for s in states], axis=0, weights=weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_module, "PIECE", piece)
        mean = weighted_mean(states, weights, ["a"])["a"]
    assert mean.dtype == torch.float32
    np.testing.assert_allclose(mean, expected, rtol=1e-6)


def test_the_servers_memory_is_saved_and_never_viewed() -> None:
    one = torch.ones(2)
    server = Server({"a": one}, {"a": one}, memory=Moments(3 * one))
    copy = server.copy(1)
    copy.memory.m = 4 * one
    assert torch.equal(server.memory.m, 3 * one)
    other = Server({"a": one}, {"a": one}, memory=Moments(one, one))  # as `start` makes it anew
    other.restore(copy.tensors())
    assert torch.equal(other.memory.m, 4 * one)
    assert other.memory.v is None
    assert other.view(0).keys() == {"a"}
    server.memory = Moments()
    other.restore(server.tensors())
    assert other.memory == Moments(), "what has come to nothing is nothing after a resume"
