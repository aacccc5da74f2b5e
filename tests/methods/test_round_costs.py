"""What rounds cost by the formulas of `report.cost`, against what runs send and compute."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fedbench.core.client import Client, ClientUpdate, Collect, Train
from fedbench.core.federation import Federation
from fedbench.methods.base import Method
from fedbench.reports.table import cost
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import method, trainer

ROUNDS, EPOCHS = 5, 2


def big_digits() -> Federation:
    """Six clients of two groups, with images large enough for LeNet-5."""
    small = grouped_federation(size=50)
    twice = small.images.repeat_interleave(2, 1).repeat_interleave(2, 2)
    return dataclasses.replace(small, images=twice)


def counting(how: Method, passes: list[int]) -> Method:
    """The method, which adds the forward passes an image of all that its clients ask for; training counts as three."""

    def counted(update: ClientUpdate | None, client: Client) -> ClientUpdate:
        answer = None
        while update is not None:
            try:
                request = update.send(answer)
            except StopIteration:
                return
            models = 1 if isinstance(request.model, str) else len(request.model)
            if isinstance(request, Train):
                passes.append(3 * models * client.n_train * (request.epochs or EPOCHS) * request.repeat)
            else:
                images = models * len(client.work.rows_of(request.split, request.part))
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
