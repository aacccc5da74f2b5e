"""A worker's modules for the models of a client: where their tensors stand in its state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedbench.conformance.small import small
from fedbench.core.network import Network, Networks
from fedbench.core.state import State, as_model, model_in, name_in, plain, state_of

X = torch.rand((5, 1, 8, 8), generator=torch.Generator().manual_seed(0))


def state(scale: float, model: str = "") -> State:
    """The small network's tensors times `scale`, as that model."""
    return as_model({n: (scale * t).to(t.dtype) for n, t in state_of(small(norm=True)).items()}, model)


def networks() -> Networks:
    return Networks(small(norm=True))


def holds(module: nn.Module, scale: float) -> bool:
    return all(torch.equal(t, state(scale)[n]) for n, t in module.state_dict().items())


def output(model: Any, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return out


def outputs(models: Any, x: Tensor) -> Tensor:
    return torch.stack([model(x) for model in models])


def test_names_of_a_model_in_a_state() -> None:
    assert name_in("", "head.weight") == "head.weight"
    assert name_in("own", "head.weight") == "own/head.weight"
    assert plain("own/head.weight") == plain("head.weight") == "head.weight"
    both = {**state(1.0), **state(2.0, "own"), **state(3.0, "owner")}
    assert model_in(both, "own").keys() == state(1.0).keys()
    assert all(torch.equal(t, state(2.0)[n]) for n, t in model_in(both, "own").items()), "not owner's"
    assert as_model(both, "copy").keys() == {f"copy/{n}" for n in state(1.0)}, "of the unnamed model alone"


@pytest.mark.parametrize("model", ["", "own", "0"])
def test_the_tensors_of_one_model(model: str) -> None:
    it, alone = networks().of(model), small(norm=True)
    assert {n: t.shape for n, t in it.tensors.items()} == {
        name_in(model, n): t.shape for n, t in alone.state_dict().items()
    }
    assert set(it.parameters) == {name_in(model, n) for n, _ in alone.named_parameters()}
    assert (
        set(it.buffers) == set(it.tensors) - set(it.parameters) == {name_in(model, n) for n, _ in alone.named_buffers()}
    )
    assert all(p is it.tensors[n] for n, p in it.parameters.items()), "what is loaded is what trains"
    # Names with digits and dots, as a user's network may have, are no others' models.
    users = Network(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), ("own",))
    assert set(users.tensors) == {"own/0.weight", "own/0.bias", "own/1.weight", "own/1.bias"}


def test_loading_takes_the_models_tensors_and_no_others_and_copies() -> None:
    """A method's own variables, and models that are not asked, may be there or not."""
    one, own = state(1.0), state(2.0, "own")
    both = {**one, **own, "gaussian.mean": torch.zeros(3)}
    assert holds(networks().of("own").load(both), 2.0)
    with pytest.raises(KeyError, match="own/"):
        networks().of("own").load(one)
    pair = networks().of(("own", ""))
    assert set(pair.tensors) == {*one, *own}
    module = pair.load(both)
    assert isinstance(module, nn.ModuleList)
    assert [holds(m, scale) for m, scale in zip(module, (2.0, 1.0), strict=True)] == [True, True], "in that order"
    with torch.no_grad():
        module[1].head.weight.zero_()  # type: ignore[union-attr, operator]
    assert float(one["head.weight"].abs().max()) > 0


def test_a_call_lays_a_state_under_the_module_and_writes_nothing_to_it() -> None:
    known = networks()
    one, two = known.of(""), known.of(("", "own"))
    before = {n: t.clone() for n, t in one.tensors.items()}
    for it in (one, two):
        it.scope.eval()
    both = {**state(0.5), **state(2.0, "own")}
    for k, (scale, name) in enumerate(((0.5, ""), (2.0, "own"))):
        alone = small(norm=True)
        alone.load_state_dict(state(scale))
        expected = alone.eval()(X)
        torch.testing.assert_close(known.of(name).call(state(scale, name), output, X), expected)
        torch.testing.assert_close(two.call(both, outputs, X)[k], expected)
    assert all(torch.equal(t, before[n]) for n, t in one.tensors.items())


def test_running_statistics_of_a_call_move_in_the_state() -> None:
    it, own = networks().of("own"), {n: t.clone() for n, t in state(1.0, "own").items()}
    it.scope.train()
    it.call(own, output, X)
    assert int(own["own/backbone.norm.num_batches_tracked"]) == 1
    assert not torch.equal(own["own/backbone.norm.running_mean"], state(1.0)["backbone.norm.running_mean"])
    assert int(it.tensors["own/backbone.norm.num_batches_tracked"]) == 0


def test_modules_are_made_once() -> None:
    """For as many models as a request names, whatever their names."""
    copies: list[nn.Module] = []

    def convert(module: nn.Module) -> nn.Module:
        copies.append(module)
        return module

    model = small()
    known = Networks(model, convert)
    assert known.of("") is known.of("")
    assert known.of("").module is known.of("own").module is model
    pair, again = known.of(("", "own")).module, known.of(("a", "b")).module
    assert isinstance(pair, nn.ModuleList)
    assert isinstance(again, nn.ModuleList)
    assert list(pair) == list(again)
    assert (pair[0] is model, pair[1] is model) == (True, False)
    assert len(copies) == 4, "one a set of names"
