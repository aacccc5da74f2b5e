"""A worker's modules for the models of a client: where their tensors stand in its state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedbench.conformance.small import small
from fedbench.core.network import Network, Networks
from fedbench.core.state import State, as_model, model_in, name_in, plain, state_of


def state(scale: float, model: str = "", norm: bool = True) -> State:
    """The small network's tensors times `scale`, as that model."""
    return as_model({n: (scale * t).to(t.dtype) for n, t in state_of(small(norm=norm)).items()}, model)


def output(model: Any, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return out


def outputs(models: Any, x: Tensor) -> Tensor:
    return torch.stack([model(x) for model in models])


X = torch.rand((5, 1, 8, 8), generator=torch.Generator().manual_seed(0))


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
    it = Networks(small(norm=True)).of(model)
    expected = {name_in(model, n): t for n, t in small(norm=True).state_dict().items()}
    assert {n: t.shape for n, t in it.tensors.items()} == {n: t.shape for n, t in expected.items()}
    assert set(it.parameters) == {name_in(model, n) for n, _ in small(norm=True).named_parameters()}
    assert (
        set(it.buffers)
        == set(it.tensors) - set(it.parameters)
        == {name_in(model, f"backbone.norm.{n}") for n in ("running_mean", "running_var", "num_batches_tracked")}
    )
    assert all(p is it.tensors[n] for n, p in it.parameters.items()), "what is loaded is what trains"


def test_the_tensors_of_several_models_stand_under_each_ones_name() -> None:
    it = Networks(small(norm=True)).of(("own", ""))
    assert set(it.tensors) == {*state(1.0), *state(1.0, "own")}
    module = it.load({**state(1.0), **state(2.0, "own")})
    assert isinstance(module, nn.ModuleList)
    first, second = (m.state_dict() for m in module)
    assert all(torch.equal(t, state(2.0)[n]) for n, t in first.items()), "in the order in which they were named"
    assert all(torch.equal(t, state(1.0)[n]) for n, t in second.items())


def test_loading_takes_the_models_tensors_and_no_others() -> None:
    """A method's own variables, and models that are not asked, may be there or not."""
    both = {**state(1.0), **state(2.0, "own"), "gaussian.mean": torch.zeros(3)}
    loaded = Networks(small(norm=True)).of("own").load(both)
    assert all(torch.equal(t, state(2.0)[n]) for n, t in loaded.state_dict().items())
    with pytest.raises(KeyError, match="own/"):
        Networks(small(norm=True)).of("own").load(state(1.0))


def test_loading_copies() -> None:
    own = state(1.0)
    module = Networks(small(norm=True)).of("").load(own)
    with torch.no_grad():
        module.head.weight.zero_()
    assert float(own["head.weight"].abs().max()) > 0


def test_a_call_lays_a_state_under_the_module_and_writes_nothing_to_it() -> None:
    networks = Networks(small(norm=True))
    one, two = networks.of(""), networks.of(("", "own"))
    before = {n: t.clone() for n, t in one.tensors.items()}
    one.scope.eval()
    two.scope.eval()
    both = {**state(0.5), **state(2.0, "own")}
    for scale, name in ((0.5, ""), (2.0, "own")):
        alone = small(norm=True)
        alone.load_state_dict(state(scale))
        expected = alone.eval()(X)
        found = networks.of(name).call(model_as(both, name), output, X)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(two.call(both, outputs, X)[("", "own").index(name)], expected)
    assert all(torch.equal(t, before[n]) for n, t in one.tensors.items())


def model_as(both: State, name: str) -> State:
    """The part of the state that is one model's."""
    return {n: t for n, t in both.items() if n.startswith(f"{name}/") or (not name and "/" not in n)}


def test_running_statistics_of_a_call_move_in_the_state() -> None:
    it = Networks(small(norm=True)).of("own")
    it.scope.train()
    own = {n: t.clone() for n, t in state(1.0, "own").items()}
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
    networks = Networks(model, convert)
    assert networks.of("") is networks.of("")
    assert networks.of("").module is networks.of("own").module is model
    pair, again = networks.of(("", "own")).module, networks.of(("a", "b")).module
    assert isinstance(pair, nn.ModuleList)
    assert isinstance(again, nn.ModuleList)
    assert list(pair) == list(again)
    assert pair[0] is model
    assert pair[1] is not model
    assert len(copies) == 4, "one a set of names"


def test_a_network_of_a_users_own_names() -> None:
    """Names with digits and dots are no others' models."""
    it = Network(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), ("own",))
    assert set(it.tensors) == {"own/0.weight", "own/0.bias", "own/1.weight", "own/1.bias"}
