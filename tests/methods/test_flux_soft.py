"""FLUX-soft: who mixes whose models, and what a client without labels gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.core.federation import Federation
from fedbench.core.server import Server
from fedbench.methods.flux_soft import Kernel, Memory
from fedbench.methods.parts.description import projection
from fedbench.methods.parts.descriptor import cube
from fedbench.methods.parts.phases import Phase
from tests.support.groups_lab import answers, grouped_federation, grouped_setting, network, pixels
from tests.support.lab import Run, method, train

DATA = grouped_federation((0, 1, 2, 0, 1, 2))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train("flux_soft", DATA, tmp_path_factory.mktemp("soft"), grouped_setting(rounds=7))


def weights_by_hand(points: np.ndarray, d: np.ndarray, kernel: Kernel) -> np.ndarray:
    """Pair by pair; a client's nearest always counts."""
    reach, width, sizes = kernel.reach * (1 + 1e-9), kernel.width, kernel.sizes.tolist()  # it is one of the distances
    out = np.zeros((len(points), len(d)))
    for i, p in enumerate(points):
        far = [float(np.linalg.norm(p - other)) for other in d]
        for j, r in enumerate(far):
            if r <= reach or r == min(far):
                out[i, j] = sizes[j] * np.exp(-(r**2) / width)
    return out / out.sum(1, keepdims=True)


def test_weights_by_hand(run: Run) -> None:
    memory = run.trainer.server.memory
    d = memory.described.descriptors.numpy()
    gaps = np.linalg.norm(d[:, None] - d, axis=2) + np.diag([np.inf] * len(d))
    assert memory.kernel.width == pytest.approx(np.median(gaps.min(1) ** 2))
    expected = weights_by_hand(d, d, memory.kernel)
    np.testing.assert_allclose(memory.weights.numpy(), expected, atol=1e-9)
    assert (expected > 0).sum() < expected.size, "not everybody is near everybody"
    assert (np.diag(expected) == expected.max(1)).all(), "all train on as many images"


def test_mixing_by_hand() -> None:
    weights = torch.tensor([[0.75, 0.25, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    trained = [{"w": torch.tensor([1.0, 2.0]) * k} for k in (1, 10, 100)]
    memory = Memory(Phase.GROUPED, cube(torch.tensor(2.0), 3), weights=weights)
    server = Server({}, {"w": torch.zeros(2)}, memory=memory, models=list(trained))
    server.assigned = {5: 0, 7: 1, 9: 2}
    here: Any = [SimpleNamespace(index=5), SimpleNamespace(index=9), SimpleNamespace(index=4)]
    method("flux_soft").mix(server, here)  # type: ignore[attr-defined]
    assert server.models[0]["w"].tolist() == [0.75 + 2.5, 1.5 + 5]
    assert server.models[1]["w"].tolist() == [10, 20], "not in the cohort"
    assert server.models[2]["w"].tolist() == [100, 200]


@torch.no_grad()
def test_the_test_phase_by_hand(run: Run) -> None:
    server, memory = run.trainer.server, run.trainer.server.memory
    net, given, at = network(DATA, server.shared), answers(run, "test_phase"), 0
    for rows in DATA.test:
        x = pixels(DATA, rows)
        how = projection(memory.bounds, 10)
        z = (net.latent(x) - how.mean) @ how.axes.T
        d = torch.cat([z.mean(0), z.std(0, correction=0)]).double().numpy()
        low, high = (np.repeat(side.numpy()[:2], 10) for side in (memory.scaling.low, memory.scaling.high))
        known = (d - low) / (high - low)
        w = weights_by_hand(known[None], memory.described.descriptors.numpy()[:, :20], memory.kernel)[0]
        mixed = {n: sum(float(a) * m[n].double() for a, m in zip(w, server.models, strict=True)) for n in server.shared}
        own = network(DATA, {n: t.float() for n, t in mixed.items()})
        assert (given[at : at + len(rows)] == own(x).argmax(1).numpy()).mean() > 0.99  # rounding may turn one
        at += len(rows)


def test_when_data_drift_models_are_mixed_anew(tmp_path: Path) -> None:
    parts = Federation.joined([grouped_federation((0, 0, 1, 1)), grouped_federation((1, 0, 1, 0))])
    data = replace(parts[0], stages=[(f.train, f.validation) for f in parts], test=parts[1].test, groups=[1, 0, 1, 0])
    found = train("flux_soft", data, tmp_path, grouped_setting(rounds=7, drifts=(6,)))
    rounds = found.trainer.checkpoint.rounds
    assert [line["images"] > 0 for line in rounds] == [True] * 5 + [False, True]
    assert [line.get("figure_clustering_round") for line in rounds][-3:] == [5, 6, 6]
