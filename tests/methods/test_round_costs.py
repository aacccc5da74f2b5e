"""What rounds cost by the formulas of `report.cost`, against what networks are and what runs send and compute."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench import models
from fedbench.core.client import Box, Client, Collect, Train
from fedbench.core.federation import Federation
from fedbench.methods.base import Method
from fedbench.models.counting import counts
from fedbench.report import cost
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import method, trainer

ROUNDS, EPOCHS = 5, 2


@pytest.mark.parametrize(
    ("model", "shape", "classes", "parameters", "forward"),
    [
        ("lenet5_flux", (28, 28, 3), 10, 62_006, 651_720),
        ("lenet5_flux", (28, 28, 1), 10, 61_706, None),
        ("lenet5_flux", (32, 32, 3), 10, 83_126, None),
        ("resnet9", (32, 32, 3), 100, 6_775_140, None),
        ("resnet9", (64, 64, 1), 14, 6_683_790, None),
    ],
)
def test_facts_of_the_networks(model: str, shape: Any, classes: int, parameters: int, forward: int | None) -> None:
    found = cost.network(model, shape, classes)
    made = models.build(model, shape=shape, classes=classes, seed=0).eval()
    macs: list[int] = []

    def count(layer: Any, _: Any, out: torch.Tensor) -> None:
        macs.append(out[0].numel() * layer.weight[0].numel())

    for layer in made.modules():
        if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
            layer.register_forward_hook(count)
    x = torch.zeros(1, shape[2], *shape[:2])
    with torch.no_grad():
        made(x)
        assert found.forward == sum(macs)
        assert found.latents == made.latent(x).numel()  # type: ignore[operator]
    assert forward in (None, found.forward)
    state = made.state_dict()
    assert sum(p.numel() for p in made.parameters()) == parameters
    assert counts(model, shape, classes)["total"] == parameters
    trained = {name for name, _ in made.named_parameters()}
    assert found.buffers == sum(t.numel() * t.element_size() for name, t in state.items() if name not in trained)
    assert found.tensors == sum(t.is_floating_point() for t in state.values())
    if model == "resnet9" and shape[0] == 32:
        assert found.forward == pytest.approx(379.5e6, rel=1e-3)


def big_digits() -> Federation:
    """Six clients of two groups, with images large enough for LeNet-5."""
    small = grouped_federation(size=50)
    twice = small.images.repeat_interleave(2, 1).repeat_interleave(2, 2)
    return dataclasses.replace(small, images=twice)


def counting(how: Method, passes: list[int]) -> Method:
    """The method, which adds the forward passes an image of all that its clients ask for; training counts as three."""

    def counted(box: Box | None, client: Client) -> Box:
        answer = None
        while box is not None:
            try:
                request = box.send(answer)
            except StopIteration:
                return
            if isinstance(request, Train):
                passes.append(3 * client.n_train * (request.epochs or EPOCHS) * request.repeat)
            else:
                images = len(client.work.side(request.split, request.part))
                passes.append(images if isinstance(request, Collect) else 3 * images)
            answer = yield request

    def hook(name: str) -> Any:
        return lambda self, client: counted(getattr(type(how), name)(self, client), client)

    kind = type("Counting", (type(how),), {name: hook(name) for name in ("local", "reply")})
    made: Method = kind(**{f.name: getattr(how, f.name) for f in dataclasses.fields(how)})
    return made


@pytest.mark.parametrize("name", cost.METHODS)
def test_costs_are_what_runs_send_and_compute(name: str, tmp_path: Path) -> None:
    data, passes = big_digits(), list[int]()
    s = grouped_setting(model="lenet5_flux", rounds=ROUNDS, epochs=EPOCHS, lr=0.01, test_phase=False)
    it = trainer(counting(method(name), passes), data, tmp_path, s)
    it.run()
    lines = it.checkpoint.rounds
    clients, clusters = data.clients, 2.0
    if name == "feddrift":  # has a model more or less from round to round, and none before the first
        held = [line["figure_clusters"] for line in lines[:-1]]
        clusters = sum(held) / len(held)
    c = cost.Case(
        "lenet5_flux", data.shape, data.classes, clients=clients, clusters=clusters, samples=data.n_train[0],
        validation=len(data.validation[0]), rounds=ROUNDS, epochs=EPOCHS, components=10, inner_steps=5,
        clustering_round=int(lines[-1].get("figure_clustering_round", 4)),
    )  # fmt: skip
    found = cost.cost(name, c)
    assert found.bytes_up == pytest.approx(sum(line["bytes_up"] for line in lines) / (clients * ROUNDS))
    assert found.bytes_down == pytest.approx(sum(line["bytes_down"] for line in lines) / (clients * ROUNDS))
    beside = cost.PROJECTION * c.network.latents / ROUNDS if name == "flux" else 0  # makes no pass
    assert (found.client - beside) / c.network.forward == pytest.approx(sum(passes) / (clients * ROUNDS))
