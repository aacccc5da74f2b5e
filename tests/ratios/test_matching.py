"""HDRM of one client against known ratios: Gaussians in closed form, and digits under target shift."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fedbench import models
from fedbench.errors import FedbenchError
from fedbench.ratios import matching as module
from fedbench.ratios.divergence import DIVERGENCES, Terms
from fedbench.ratios.exact import stratum_ratios
from fedbench.ratios.matching import Matching, estimate, find_bound, fit, ratio_network, ratios
from fedbench.rng import stream

#: Two clients' test densities, N(mean, std): their mean over the training density N(0, 1) is below 2.
TESTS = ((0.8, 0.6), (-0.9, 0.5))


def normal(x: Tensor, mean: float, std: float) -> Tensor:
    return torch.exp(-(((x - mean) / std) ** 2) / 2) / std


def true_ratio(x: Tensor) -> Tensor:
    return sum(normal(x, *q) for q in TESTS) / len(TESTS) / normal(x, 0, 1)


def gaussians(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Training samples [n, 1] and a pool [n, 1] of equal numbers from both clients."""
    rng = stream(seed, "test")
    pool = np.concatenate([rng.normal(mean, std, n // 2) for mean, std in TESTS])
    return (torch.from_numpy(a.astype(np.float32))[:, None] for a in (rng.normal(size=n), rng.permutation(pool)))


def perceptron(inputs: int, hidden: int = 32, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(inputs, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, 1),
        )


BOUND = 2.5
GIVEN = Matching()


def error(network: nn.Module, matching: Matching) -> float:
    """Mean absolute error of the ratio over fresh training samples."""
    fresh, _ = gaussians(4000, seed=99)
    found, _, _ = ratios(network, fresh, matching, BOUND, 0)
    return float((found - true_ratio(fresh[:, 0])).abs().mean())


@pytest.mark.parametrize("name", DIVERGENCES)
def test_gaussians_in_closed_form(name: str) -> None:
    """The constant ratio 1 errs by 0.33; the bound of 2.5 is above the largest ratio."""
    train, pool = gaussians(2000)
    matching = replace(GIVEN, divergence=name, epochs=20, lr=1e-2)
    network = perceptron(1)
    ascents = fit(network, train, pool, matching, BOUND, 0, 0)
    assert error(network, matching) < 0.15
    assert 0 <= ascents < 0.5


def wide(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """The same ratio in 10 dimensions, of which only the first matters: easy to learn by heart."""
    noise = stream(seed, "noise").normal(size=(2 * n, 9)).astype(np.float32)
    first = torch.cat(list(gaussians(n, seed)))
    both = torch.cat([first, torch.from_numpy(noise)], 1)
    return both[:n], both[n:]


@pytest.mark.parametrize("name", ["lsif", "ukl"])
def test_the_switch_keeps_a_network_from_hacking_the_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few samples, many epochs: without ascents the ratios of the pool's samples, and with them all others, run off."""
    train, pool = wide(200, 0)
    fresh, _ = wide(2000, 1)
    matching = replace(GIVEN, divergence=name, epochs=100, lr=3e-3)

    def fitted() -> tuple[float, float]:
        network = perceptron(10, 64)
        ascents = fit(network, train, pool, matching, BOUND, 0, 0)
        found, _, _ = ratios(network, fresh, matching, 1e9, 0)
        return ascents, float((found - true_ratio(fresh[:, 0])).abs().mean())

    ascents, kept = fitted()
    monkeypatch.setattr(Terms, "step", property(lambda found: found.surplus + found.rest))
    _, hacked = fitted()
    assert 0.05 < ascents < 0.5
    assert kept < 1.2
    assert hacked > 2 * kept


def digits(shares: np.ndarray, n: int, rng: np.random.Generator) -> tuple[Tensor, np.ndarray]:
    """n scikit-learn digits as images [n, 1, 8, 8] with those class shares, drawn with replacement; their labels."""
    images, labels = load_digits(return_X_y=True)
    each = shares[labels] / np.bincount(labels)[labels]
    rows = rng.choice(len(labels), n, p=each / each.sum())
    return torch.from_numpy(images[rows].astype(np.float32) / 16).reshape(-1, 1, 8, 8), labels[rows]


def test_target_shift_of_digits() -> None:
    """Separable classes, exact ratios 10 (digits 0-4) and 1/10 (5-9): the estimate keeps them apart."""
    low = np.repeat([1.0, 10.0], 5) / 55
    exact = stratum_ratios(low, low[::-1])
    train, labels = digits(low, 1500, stream(0, "digits train"))
    pool, _ = digits(low[::-1], 600, stream(0, "digits pool"))
    matching = Matching(epochs=40, lr=3e-3)
    bound = find_bound(train, pool, matching, 0)
    found = estimate(perceptron(64), train, pool, matching, bound, seed=0, client=0)
    of_class = [float(found.weights[labels == c].mean()) for c in range(10)]
    assert min(of_class[:5]) > 3
    assert max(of_class[5:]) < 1
    assert 0.5 * exact.max() < found.bound < 2 * exact.max()
    assert 0 < found.ascents < 0.5
    assert 0.7 < float(found.weights.mean()) < 1.2
    assert float(found.weights.max()) <= found.bound


def test_same_arguments_same_bits_also_of_bytes_and_the_global_generators_rest() -> None:
    """`prepare` makes batches of 8-bit images [n, H, W, C] into the network's input."""
    train, pool = gaussians(300)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()

    def weights(seed: int = 0, client: int = 0) -> Tensor:
        return estimate(perceptron(1), train, pool, replace(GIVEN, epochs=2), BOUND, seed, client).weights

    once = weights()
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)
    torch.rand(3)
    assert torch.equal(weights(), once)
    assert not torch.equal(weights(seed=1), once)
    assert not torch.equal(weights(client=1), once)
    images, _ = digits(np.full(10, 0.1), 150, stream(0, "bytes"))
    stored = (images * 16).to(torch.uint8).permute(0, 2, 3, 1)

    def prepare(batch: Tensor) -> Tensor:
        return batch.permute(0, 3, 1, 2).float() / 16

    direct = estimate(perceptron(64), images[:100], images[100:], replace(GIVEN, epochs=2), BOUND, 0, 0)
    given = estimate(perceptron(64), stored[:100], stored[100:], replace(GIVEN, epochs=2), BOUND, 0, 0, prepare)
    assert torch.equal(direct.weights, given.weights)


def test_batches_pass_over_all_training_samples_and_recycle_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """7 training samples and a pool of 4 in batches of 3: 3 steps an epoch, the pool is shuffled after 2."""
    seen: list[tuple[list[float], list[float]]] = []

    class Spy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            values = x[:, 0].tolist()
            seen.append(([v for v in values if v < 50], [v for v in values if v >= 50]))
            return super().forward(x * 0.01)

    train, pool = torch.arange(7.0)[:, None], torch.arange(50.0, 54.0)[:, None]
    network = Spy(1, 1)
    fit(network, train, pool, replace(GIVEN, epochs=2, batch_size=3), BOUND, 0, 0)
    assert [(len(a), len(b)) for a, b in seen] == [(3, 3), (3, 1), (1, 3), (3, 1), (3, 3), (1, 1)]
    for epoch in (seen[:3], seen[3:]):
        assert sorted(v for own, _ in epoch for v in own) == list(range(7))
    for k in (0, 2, 4):
        assert sorted(seen[k][1] + seen[k + 1][1]) == [50, 51, 52, 53]
    assert seen[0][0] + seen[1][0] != seen[3][0] + seen[4][0]
    assert not network.training


def test_regulariser_is_descended_when_the_surplus_is_ascended() -> None:
    """Outputs are 0 on the training samples and large on the pool, so every step ascends."""
    train, pool = torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]])

    def idle_weight(weight_decay: float) -> float:
        network = nn.Linear(2, 1, bias=False)
        network.weight.data = torch.tensor([[5.0, 2.0]])  # no sample reaches the second weight
        matching = replace(GIVEN, epochs=10, weight_decay=weight_decay)
        assert fit(network, train, pool, matching, 1.0, 0, 0) == 1
        return network.weight[0, 1].item()

    assert idle_weight(0) == 2
    assert idle_weight(0.1) < 2


def test_clamped_ratios_are_counted_and_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Linear(1, 1, bias=False)
    nn.init.ones_(network.weight)
    samples = torch.tensor([[-1.0], [0.0], [1e-4], [1.0], [2.5], [3.0], [9.0], [99.0]])
    found, at_floor, at_bound = ratios(network, samples, GIVEN, BOUND, 0)
    torch.testing.assert_close(found, torch.tensor([1e-4, 1e-4, 1e-4, 1.0, 2.5, 2.5, 2.5, 2.5]))
    assert (at_floor, at_bound) == (2, 3)
    train, _ = gaussians(50)
    whole, _, _ = ratios(perceptron(1), train, GIVEN, BOUND, 0)
    monkeypatch.setattr(module, "CHUNK", 7)
    torch.testing.assert_close(ratios(perceptron(1), train, GIVEN, BOUND, 0)[0], whole)


def test_the_ratio_network_is_the_classifier_with_one_output() -> None:
    """Its head is drawn as the model draws its own: the ResNet's linear layers have no bias at the start."""
    network = ratio_network("lenet5", (28, 28, 1), seed=3)
    assert sum(p.numel() for p in network.parameters()) == 43_661
    assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 1)
    again, other = (ratio_network("lenet5", (28, 28, 1), seed=s) for s in (3, 4))
    pairs = list(zip(network.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(network.head.weight, other.head.weight)
    body = models.build("lenet5", shape=(28, 28, 1), classes=2, seed=3).backbone
    assert all(torch.equal(a, b) for a, b in zip(body.parameters(), network.backbone.parameters(), strict=True))
    network = ratio_network("resnet18_gn", (32, 32, 3), seed=0)
    assert network.head.weight.shape == (1, 256)
    assert float(network.head.bias.detach().abs().sum()) == 0


def test_bad_input() -> None:
    nan = torch.full((20, 1), float("nan"))
    with pytest.raises(FedbenchError, match="ratio network of client 2 diverged; take a lower lr"):
        estimate(perceptron(1), nan, torch.ones(20, 1), GIVEN, BOUND, 0, 2)
    with pytest.raises(FedbenchError, match="40 samples cannot make 41 clusters"):
        find_bound(*gaussians(20), Matching(clusters=41), 0)
