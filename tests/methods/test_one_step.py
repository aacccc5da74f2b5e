"""One gradient a round and a server Adam, plain or weighted: FedSGD, FedBN, grey images, FTW-ERM and FITW-ERM."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedbench import models
from fedbench.conformance.subject import small
from fedbench.core import message
from fedbench.core.client import Client
from fedbench.core.federation import Federation
from fedbench.core.images import to_input
from fedbench.core.plan import Plan
from fedbench.core.server import Server
from fedbench.core.trainer import Interrupted, Progress
from fedbench.errors import FedbenchError
from fedbench.methods.fedbn import is_norm
from fedbench.methods.grayscale import FirstChannel
from fedbench.methods.parts import importance
from fedbench.methods.parts.one_step import AdamMemory, adam
from fedbench.partitions.distribution import Densities
from fedbench.ratios.bound import kmeans_bound
from fedbench.specs import Setting
from tests.support.formula_lab import close, trained
from tests.support.frames import refused
from tests.support.lab import LabRun, digits, federation, method, same, setting, train, trainer

DATA = federation()


def one_step(**changes: Any) -> Setting:
    """The loop of FTW-ERM's paper, for a few rounds."""
    given = {"steps": 1, "passes": "endless", "lr": 0.01, "momentum": 0.0, "weight_decay": 0.0, "votes": False}
    return setting(**{**given, "rounds": 3, "window": 1, **changes})


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_is_torchs(decay: float) -> None:
    generator = torch.Generator().manual_seed(3)
    state = {n: torch.randn(shape, generator=generator) for n, shape in (("a", (3, 4)), ("b", (5,)))}
    parameters = {n: t.clone().requires_grad_() for n, t in state.items()}
    reference = torch.optim.Adam(parameters.values(), lr=0.02, weight_decay=decay)
    memory = AdamMemory()
    for _ in range(5):
        gradient = {n: torch.randn(t.shape, generator=generator) for n, t in state.items()}
        before, then = {n: t.clone() for n, t in state.items()}, copy.deepcopy(memory)
        moved, after = adam(state, gradient, memory, 0.02, decay)
        old, kept = (message.tensors(m, "memory") for m in (memory, then))
        assert old.keys() == kept.keys()
        assert all(torch.equal(old[n], kept[n]) for n in old)
        memory = after
        for n, p in parameters.items():
            p.grad = gradient[n]
        reference.step()
        for n, p in parameters.items():
            torch.testing.assert_close(moved[n], p.detach(), rtol=1e-5, atol=1e-7)
            assert torch.equal(state[n], before[n])
        state = moved
    assert memory.step == 5


@pytest.mark.parametrize("scale", ["mean", "sum"])
def test_a_round_is_one_step_on_all_batches_together(scale: str, tmp_path: Path) -> None:
    """Without batch norm: the mean of the clients' gradients is that of one weighted batch of all images."""
    s = one_step(rounds=1, weight_decay=0.01)
    it = trainer(method("fedsgd", scale=scale), DATA, tmp_path, s)
    start = {n: t.clone() for n, t in it.server.shared.items()}
    model = it.executor.model
    it.run()
    plan = Plan(s, DATA.n_train, (8, 8))
    rows = [DATA.train[i][torch.from_numpy(next(plan.batches(i, 1, 1, None, 1)))] for i in range(4)]
    model.load_state_dict(start)
    reference = torch.optim.Adam(model.parameters(), lr=s.lr, weight_decay=s.weight_decay)
    reference.zero_grad()
    factor = 1 if scale == "sum" else 1 / 4
    sum(factor * F.cross_entropy(model(to_input(DATA.images[r])), DATA.labels[r]) for r in rows).backward()  # type: ignore[union-attr]
    reference.step()
    for name, p in model.named_parameters():
        # Where a gradient is all but zero, Adam turns rounding into a step.
        torch.testing.assert_close(it.server.shared[name], p.detach(), rtol=1e-4, atol=2e-5)


def test_clients_count_equally_whatever_their_sizes(tmp_path: Path) -> None:
    """Their gradients and their running statistics."""
    it = trainer(method("fedsgd"), DATA, tmp_path, one_step(), network=lambda: small(norm=True))
    round = it.begin()
    cohort = it.enter(round, round.cohort)
    it.executor.run(cohort, it.method.local)
    gradients = [c.upload.gradient["head.bias"] for c in cohort]
    means = torch.stack([c.state["backbone.norm.running_mean"] for c in cohort])
    assert len({c.n_train for c in cohort}) > 1
    assert (means.std(0) > 0).all()
    it.method.aggregate(round.server, cohort, 1)
    mean = round.server.memory.mean[-len(gradients[0]) :] / 0.1
    torch.testing.assert_close(mean, torch.stack(gradients).mean(0), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(round.server.shared["backbone.norm.running_mean"], means.mean(0))


def test_statistics_are_averaged_by_fedsgd_and_kept_by_fedbn(tmp_path: Path) -> None:
    """Frozen norms stay at their start."""
    s = one_step()
    shared = trained(method("fedsgd"), DATA, s, tmp_path / "a").server
    own = trained(method("fedbn"), DATA, s, tmp_path / "b").server
    norm = {n for n in shared.shared if ".norm." in n}
    assert {n.rsplit(".", 1)[1] for n in norm} == {
        "weight",
        "bias",
        "running_mean",
        "running_var",
        "num_batches_tracked",
    }
    assert not shared.personal
    assert norm.isdisjoint(own.shared)
    for which in ("weight", "running_mean"):
        kept = [own.personal[i][f"backbone.norm.{which}"] for i in range(4)]
        assert len({tuple(t.tolist()) for t in kept}) == 4, which
    server = trained(method("fedbn", affine="frozen"), DATA, one_step(), tmp_path / "2" / "a").server
    for i in range(4):
        own = server.view(i)
        assert torch.equal(own["backbone.norm.weight"], torch.ones(6))
        assert torch.equal(own["backbone.norm.bias"], torch.zeros(6))
        assert not torch.equal(own["backbone.norm.running_mean"], torch.zeros(6))


def test_fedbns_own_adam_is_torchs_on_the_same_gradients(tmp_path: Path) -> None:
    """One client: what it does to its norm alone is what one Adam does to the whole network."""
    alone, s = federation((120,)), one_step(rounds=3, weight_decay=0.01)
    ours, plain = (trained(method(name), alone, s, tmp_path / name).server.view(0) for name in ("fedbn", "fedsgd"))
    close({n: ours[n] for n in plain}, plain, 1e-6, 1e-7)


def test_who_sits_out_keeps_its_norms_and_moments(tmp_path: Path) -> None:
    how = method("fedbn")
    it = trainer(how, DATA, tmp_path, one_step(rounds=5, cohort=1), network=lambda: small(norm=True))
    held: list[dict[int, Any]] = []
    it.run(lambda _: held.append({i: it.server.view(i) for i in range(4)}))
    moved = 0
    for t in range(2, 6):
        before, after = held[t - 2], held[t - 1]
        for i in range(4):
            own = [n for n in after[i] if how.is_personal(n)]
            same = all(torch.equal(before[i][n], after[i][n]) for n in own)
            assert same is (it.plan.cohort(t) != [i])
            moved += not same
    assert moved == 4


def test_every_norm_of_the_resnet_is_told_by_its_name() -> None:
    for name in ("resnet18_bn", "resnet18_gn", "cifar_cnn_bn"):
        model = models.build(name, shape=(32, 32, 3), classes=10, seed=0)
        kinds = (torch.nn.BatchNorm2d, torch.nn.GroupNorm, torch.nn.LayerNorm)
        normalising = {
            f"{path}.{n}"
            for path, module in model.named_modules()
            if isinstance(module, kinds)
            for n in module.state_dict()
        }
        assert normalising == {n for n in model.state_dict() if is_norm(n)}


def painted(seed: int) -> Federation:
    """The digits, each in one of three channels at random."""
    data = federation()
    channel = torch.from_numpy(np.random.default_rng(seed).integers(0, 3, len(data.labels)))
    images = torch.zeros(*data.images.shape[:3], 3, dtype=torch.uint8)
    images[torch.arange(len(channel)), :, :, channel] = data.images[..., 0]
    return replace(data, images=images)


def test_grayscale_does_not_see_the_colour(tmp_path: Path) -> None:
    """The first channel is the brightest, and the others black."""
    a, b = (train("grayscale", painted(k), tmp_path / str(k), one_step()) for k in (1, 2))
    assert same(a.tensors, b.tensors)
    assert a.predictions.equals(b.predictions)
    seen: list[LabRun] = [train("fedsgd", painted(k), tmp_path / f"seen{k}", one_step()) for k in (1, 2)]
    assert not same(seen[0].tensors, seen[1].tensors)
    x = torch.tensor([[[[0.5, -1.0]], [[-1.0, 1.0]], [[-1.0, -1.0]]]])
    assert FirstChannel()(x).tolist() == [[[[0.5, 1.0]], [[-1.0, -1.0]], [[-1.0, -1.0]]]]


EVEN = federation((120, 120, 120, 120), skew=float("inf"))


def known(data: Federation, train: Any, test: Any) -> Federation:
    """The federation with these class probabilities declared, [M, K] up to a factor."""
    sides = [np.asarray(d, np.float64) for d in (train, test)]
    p, q = (side / side.sum(1, keepdims=True) for side in sides)
    return replace(data, densities=Densities(data.labels.numpy(), p, q))


def target_shift(n: int = 300) -> Federation:
    """One client: rare digits in training are the common ones of its tests (1 to 9)."""
    images, labels = digits()
    rng = np.random.default_rng(0)
    low = labels < 5
    share = {False: np.where(low, 0.1, 0.9), True: np.where(low, 0.9, 0.1)}
    first = rng.random(len(labels)) < 0.5
    rows = {side: np.flatnonzero((first == side) & (rng.random(len(labels)) < p))[:n] for side, p in share.items()}
    chosen = np.concatenate([rows[False], rows[True]])
    is_test = np.arange(len(chosen)) >= len(rows[False])
    data = Federation.of(images[chosen], labels[chosen], np.zeros(len(chosen), int), chosen, is_test, 10)
    return known(data, [[1] * 5 + [9] * 5], [[9] * 5 + [1] * 5])


P = [[1, 1, 1, 1, 1, 171, 1, 1, 1, 1], [1] * 10, [1] * 10, [2] * 5 + [1] * 5]
Q = [[171, 1, 1, 1, 1, 1, 1, 1, 1, 1], [1] * 10, [3] * 5 + [1] * 5, [1] * 10]


def weights(
    how: Any, data: Federation, where: Path, s: Setting | None = None, executor: str = "sequential"
) -> list[torch.Tensor]:
    """Each client's weights, padding left out."""
    it = trainer(how, data, where, s or one_step(), executor=executor)
    it.resume()
    return [it.server.view(i)[importance.WEIGHT][: data.n_train[i]] for i in range(data.clients)]


@pytest.mark.parametrize("name", ["ftw_erm", "fitw_erm"])
def test_with_all_ratios_one_it_is_fedsgd_bit_for_bit(name: str, tmp_path: Path) -> None:
    data = known(EVEN, np.ones((4, 10)), np.ones((4, 10)))
    s = one_step(rounds=6, weight_decay=0.01)
    a, b = train(name, data, tmp_path / "a", s), train("fedsgd", data, tmp_path / "b", s)
    assert same(a.shared, b.shared)
    moments = [vars(run.trainer.server.memory) for run in (a, b)]
    assert same(*({n: t.numpy() for n, t in each.items()} for each in moments))
    assert a.predictions.equals(b.predictions)
    losses = [[line["loss"] for line in run.trainer.checkpoint.rounds] for run in (a, b)]
    assert losses[0] == losses[1]


def test_weights_are_the_ratios_of_the_declared_densities(tmp_path: Path) -> None:
    """Where none are declared (a random split), a client's training and test distribution are the same."""
    data = known(EVEN, P, Q)
    p, q = data.densities.train, data.densities.test
    for scale, over in (("mean", q.mean(0)), ("sum", q.sum(0))):
        ftw, fitw = (weights(method(n, scale=scale), data, tmp_path / scale / n) for n in ("ftw_erm", "fitw_erm"))
        for k in range(4):
            y = data.labels[data.train[k]].numpy()
            np.testing.assert_allclose(ftw[k], (over / p[k])[y], rtol=1e-6)
            np.testing.assert_allclose(fitw[k], (q[k] / p[k])[y], rtol=1e-6)
    skewed = federation((70, 40, 55, 30))
    assert all((w == 1).all() for w in weights(method("fitw_erm"), skewed, tmp_path / "own"))
    assert any((w != 1).any() for w in weights(method("ftw_erm"), skewed, tmp_path / "all"))


def test_the_uploaded_gradient_is_that_of_the_weighted_mean(tmp_path: Path) -> None:
    data, s = known(EVEN, P, Q), one_step()
    it = trainer(method("ftw_erm"), data, tmp_path, s)
    it.resume()
    model = it.executor.model
    model.load_state_dict({n: t for n, t in it.server.shared.items() if not n.startswith("ratio")})
    round = it.begin()
    cohort = it.enter(round, round.cohort)
    it.executor.run(cohort, it.method.local)
    p, q = data.densities.train, data.densities.test.mean(0)
    for k, client in enumerate(cohort):
        batch = next(Plan(s, data.n_train, (8, 8)).batches(k, 1, 1, None, 1))
        rows = data.train[k][torch.from_numpy(batch)]
        y = data.labels[rows]
        total = sum(
            float(q[c] / p[k][c]) * F.cross_entropy(model(to_input(data.images[r : r + 1])), y[i : i + 1])
            for i, (r, c) in enumerate(zip(rows.tolist(), y.tolist(), strict=True))
        )
        expected = torch.autograd.grad(total / len(rows), model.parameters())  # type: ignore[operator,arg-type]
        for (name, _), g in zip(model.named_parameters(), expected, strict=True):
            torch.testing.assert_close(client.upload.gradient[name], g, rtol=1e-4, atol=1e-6)


def test_special_cases_have_client_one_as_the_target(tmp_path: Path) -> None:
    two = federation((120, 120), skew=float("inf"))
    data = known(two, [P[0], P[3]], [Q[0], Q[3]])
    p, q = data.densities.train, data.densities.test
    found = weights(method("ftw_erm", case="cs_both"), data, tmp_path / "both")
    for k in range(2):
        np.testing.assert_allclose(found[k], (q[0] / p[k])[data.labels[data.train[k]].numpy()], rtol=1e-6)
    no_shift = known(two, [P[0], P[3]], [P[0], P[3]])
    found = weights(method("ftw_erm", case="no_cs"), no_shift, tmp_path / "none")
    assert torch.equal(found[0], torch.ones(len(found[0])))
    refused("case no_cs needs", weights, method("ftw_erm", case="no_cs"), data, tmp_path / "wrong")


MATCHED = {"ratios": "hdrm", "n_te": 100, "clusters": 15, "restarts": 2, "matching_epochs": 30}
ROUGHLY = {"ratios": "hdrm", "n_te": 20, "clusters": 3, "restarts": 1, "matching_epochs": 1}


@pytest.mark.parametrize("name", ["ftw_erm", "fitw_erm"])
def test_matched_ratios_tell_rare_digits_from_common_ones(name: str, tmp_path: Path) -> None:
    """True ratios 9 and 1/9; matched without a single test label, bounded and reported."""
    data = target_shift()
    unlabelled = torch.isin(torch.arange(len(data.labels)), data.test[0])
    garbled = replace(data, labels=torch.where(unlabelled, 0, data.labels))
    run = train(method(name, **MATCHED), garbled, tmp_path, one_step(rounds=1))
    (line,), found = run.trainer.clients_table().to_pylist(), run.trainer.server.view(0)[importance.WEIGHT]
    rare = data.labels[data.train[0]] < 5
    assert found[rare].mean() > 3 * found[~rare].mean()
    assert (found > 0).all()
    assert found.max() <= line["ratio_bound"] * (1 + 1e-6)
    assert line["ratio_mean"] == pytest.approx(float(found.mean()), rel=1e-5)
    assert line["ratio_clamped"] == pytest.approx(float((found >= line["ratio_bound"] * (1 - 1e-6)).double().mean()))
    assert line["ratio_floored"] == pytest.approx(float((found <= 1.0001e-4).double().mean()))
    assert 0 < line["ratio_ascents"] < 1


def test_the_pool_is_sent_once_and_counted(tmp_path: Path) -> None:
    chosen = {"ratios": "hdrm", "n_te": 7, "clusters": 2, "restarts": 1, "matching_epochs": 1}
    hdrm = train(method("ftw_erm", **chosen), EVEN, tmp_path / "a", one_step()).trainer.checkpoint.rounds
    exact = train("ftw_erm", EVEN, tmp_path / "b", one_step()).trainer.checkpoint.rounds
    own = train(method("fitw_erm", **chosen), EVEN, tmp_path / "c", one_step()).trainer.checkpoint.rounds
    model = exact[0]["bytes_up"]
    assert [line["bytes_up"] - model for line in hdrm] == [4 * 7 * 64, 0, 0]
    assert [line["bytes_down"] - model for line in hdrm] == [4 * 4 * 7 * 64, 0, 0]
    assert [line["bytes_up"] for line in own] == [model] * 3
    assert model == 4 * 4 * 13_706


def test_matched_ratios_of_own_test_images_alone_and_in_sum_form(tmp_path: Path) -> None:
    """FITW-ERM's follow the client's own test images alone; in sum form they are so many times those in mean form."""
    images = EVEN.images.clone()
    images[EVEN.test[2]] = images[EVEN.test[2]].flip(1)
    other = replace(EVEN, images=images)
    changed = {}
    for name in ("fitw_erm", "ftw_erm"):
        a, b = (weights(method(name, **ROUGHLY), d, tmp_path / f"{name}{k}") for k, d in enumerate((EVEN, other)))
        changed[name] = [not torch.equal(x, y) for x, y in zip(a, b, strict=True)]
    assert changed == {"fitw_erm": [False, False, True, False], "ftw_erm": [True] * 4}
    runs = [
        train(method("ftw_erm", scale=scale, **ROUGHLY), EVEN, tmp_path / "2" / scale, one_step(rounds=1))
        for scale in ("mean", "sum")
    ]
    for i in range(4):
        mean, total = (run.trainer.server.view(i)[importance.WEIGHT] for run in runs)
        torch.testing.assert_close(total, 4 * mean)
        a, b = (run.trainer.clients_table().to_pylist()[i]["ratio_bound"] for run in runs)
        assert b == pytest.approx(4 * a)


@pytest.mark.parametrize("executor", ["sequential", "cores"])
def test_clients_with_the_same_images_match_once(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, n = EVEN.images.clone(), len(EVEN.train[0])
    images[EVEN.train[3][:n]] = images[EVEN.train[0]]
    asked, whole = list[int](), importance.estimate
    monkeypatch.setattr(importance, "estimate", lambda *given: asked.append(given[6]) or whole(*given))
    found = weights(method("ftw_erm", **ROUGHLY), replace(EVEN, images=images), tmp_path, executor=executor)
    assert sorted(asked) == [0, 1, 2]
    assert torch.equal(found[0], found[3])
    assert not torch.equal(found[0], found[1])


def test_runs_on_common_images_have_the_weights_that_they_have_alone(tmp_path: Path) -> None:
    """Federations of several seeds are joined: rows, strata and pools are then those of the whole."""
    other = federation((90, 100, 110, 120), skew=float("inf"))
    parts = [known(EVEN, P, Q), known(other, Q, P)]
    for name, chosen in (("ftw_erm", {}), ("fitw_erm", {}), ("ftw_erm", ROUGHLY)):
        how = method(name, **chosen)
        for k, joined in enumerate(Federation.joined(parts)):
            where = tmp_path / f"{name}{len(chosen)}{k}"
            alone, together = weights(how, parts[k], where / "a"), weights(how, joined, where / "b")
            assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True)), name


def test_clients_describe_their_data_once(tmp_path: Path) -> None:
    """An interrupt at it leaves nothing, after a resume nobody describes again, and who looks on hears of it."""
    s, how = one_step(rounds=2), method("ftw_erm")
    it = trainer(how, known(EVEN, P, Q), tmp_path, s)
    asked: list[int] = []

    class Stopped(type(how)):  # type: ignore[misc]
        def learn(self, server: Server, cohort: Sequence[Client], t: int) -> None:
            asked.append(t)
            if len(asked) == 1:
                raise KeyboardInterrupt
            super().learn(server, cohort, t)

    it.method = Stopped()
    with pytest.raises(Interrupted) as caught:
        it.run()
    assert caught.value.round == 0
    assert not (tmp_path / "checkpoint.json").exists()
    again = trainer(how, known(EVEN, P, Q), tmp_path, s)
    again.method = it.method
    again.run()
    alone = train(how, known(EVEN, P, Q), tmp_path / "alone", s)
    assert same(alone.tensors, {n: t.numpy() for n, t in again.server.tensors().items()})
    assert asked == [0, 0]
    for name, expected in (("ftw_erm", ["clients describe their data", "", ""]), ("fedsgd", ["", ""])):
        it = trainer(method(name), known(EVEN, P, Q), tmp_path / "2" / name, one_step(rounds=2))
        reports: list[str] = []
        it.run(lambda progress, reports=reports: reports.append(progress.doing))  # type: ignore[misc]
        assert reports == expected
    data, s = known(EVEN, P, Q), one_step(rounds=3)

    def stop(progress: Progress) -> None:
        if progress.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        train("ftw_erm", data, tmp_path / "3", s, observe=stop)
    untold = known(EVEN, np.ones((4, 10)), np.ones((4, 10)))  # were they asked again, all weights would be one
    resumed = train("ftw_erm", untold, tmp_path / "3", s)
    assert same(resumed.tensors, train("ftw_erm", data, tmp_path / "3" / "whole", s).tensors)


def test_data_and_weights_that_are_refused(tmp_path: Path) -> None:
    for name in ("ftw_erm", "fitw_erm"):
        with pytest.raises(FedbenchError, match="client 0 has 36 test samples and is to give 100"):
            weights(method(name, ratios="hdrm"), EVEN, tmp_path / name)
    impossible = np.ones((4, 10))
    impossible[2, 3] = 0
    with pytest.raises(FedbenchError, match="client 2 has training samples of stratum 3"):
        weights(method("ftw_erm"), known(EVEN, impossible, np.ones((4, 10))), tmp_path / "impossible")
    it = trainer(method("ftw_erm"), EVEN, tmp_path / "weights", one_step())
    for wrong in (float("nan"), float("inf"), -0.5):
        client = it.client(1, it.server.view(1), 0)
        with pytest.raises(FedbenchError, match=r"client 1 has 1 .* sample weights, the first at position 2"):
            importance.keep(client, torch.tensor([1.0, 1.0, wrong]))
        assert client.state == client.received


def test_the_k_means_bound_is_noted_and_nothing_trained(tmp_path: Path) -> None:
    run = train(method("kmeans_bound", clusters=6, restarts=2), EVEN, tmp_path, one_step(rounds=1))
    for i, line in enumerate(run.trainer.clients_table().to_pylist()):
        train_x, test_x = (EVEN.images[rows].flatten(1).numpy() for rows in (EVEN.train[i], EVEN.test[i]))
        expected = kmeans_bound(train_x, test_x, 6, 2, 1)
        assert line["ratio_bound"] == pytest.approx(expected.value)
        assert line["ratio_bound_images"] == expected.train_count
    assert all(torch.equal(t, run.trainer.server.initial[n]) for n, t in run.trainer.server.shared.items())
    (line,) = run.trainer.checkpoint.rounds
    assert line["bytes_up"] == line["bytes_down"] == 0
