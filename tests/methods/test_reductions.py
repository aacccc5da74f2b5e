"""A method with its hyper-parameters at zero, in its first round or alone is the method that it generalises: to the bit
where no float order differs."""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench import methods
from fedbench.core.client import Client, ClientUpdate, Train
from fedbench.core.federation import Federation
from fedbench.engine.job import Job
from fedbench.methods import fedpac
from fedbench.methods.base import HEAD, Method, cross_entropy
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.parts.steps import trainable, vector
from fedbench.plugins.load import load
from fedbench.specs import Setting
from tests.support.formula_lab import right, sent
from tests.support.frames import refused
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import LabRun, digits, federation, method, own, same, setting, train


def second_pass(epochs: int | None) -> Method:
    """Local, with the batches of a client's second request."""

    def local(self: Method, client: Client) -> ClientUpdate:
        yield Train(cross_entropy, epochs=0)
        yield Train(cross_entropy, epochs=epochs)

    return own(name=f"second_pass_{epochs}", personal=("",), local=local)


PERSONAL_HEAD = own(name="personal_head", personal=HEAD)
#: FedAvg whose clients answer with what they have trained.
UNAVERAGED = own(FedAvg, name="unaveraged", answers_after_local=True)


def twins() -> Federation:
    """Three clients that all hold the same digits."""
    one = federation((60,))
    rows, client = np.tile(np.arange(60), 3), np.repeat(np.arange(3), 60)
    return Federation.of(one.images[rows].numpy(), one.labels[rows].numpy(), client, rows, one.is_test[rows], 10)


def balanced(each: int = 6) -> Federation:
    """Two clients with `each` training images of every class, and two test images of every class."""
    x, labels = digits()
    rows = np.concatenate([np.flatnonzero(labels == k)[: 2 * (each + 2)] for k in range(10)])
    place = np.tile(np.arange(2 * (each + 2)), 10)
    return Federation.of(x[rows], labels[rows], place % 2, rows, place >= 2 * each, 10)


USUAL, ALONE, EQUAL = federation(), federation((120,)), federation((60, 60, 60))
GROUPED = grouped_federation((0, 1, 0, 1), 60)
ONE_GROUP = replace(GROUPED, groups=[0] * 4, test_groups=[0] * 4)
TWO = setting(rounds=2)
SLOW = setting(rounds=2, momentum=0.0)
LATER = setting(rounds=3)
SOME = setting(rounds=3, participation=0.7)
STEP = setting(rounds=3, steps=1, passes="endless", lr=0.01, momentum=0.0, weight_decay=0.0, votes=False)
PHASE = grouped_setting(rounds=3)
ONE_EPOCH = grouped_setting(rounds=2, epochs=1)
WHOLE = setting(rounds=2, batch_size=100, steps=4, momentum=0.0, weight_decay=0.0)
FEDAVG = "fedavg", {}
LOCAL = "local", {}
BY_SIZE: dict[str, Any] = {"align_epochs": 0, "weigh_by": "size"}
AS_FEDREP: tuple[str, dict[str, Any]] = "fedrep", {"head_epochs": 1, "score": "after_aggregate"}
Chosen = tuple[str | Method, dict[str, Any]]

#: (a method, what it is, setting, federation, what is the same). "shared": the bits of what is shared; "near": to
#: float rounding; "all": all answers; "own", "test_phase": those; "PREFIX/": clients' models of that name.
ROWS: list[tuple[Chosen, Chosen, Setting, Federation, str]] = [
    (("fedprox", {"mu": 0}), FEDAVG, TWO, USUAL, "shared all"),
    (("fedprox", {"mu": 0, "finetune_rounds": 1}), ("fedavgft", {"finetune_rounds": 1}), TWO, USUAL, "shared / all"),
    (("fedavgft", {"finetune_rounds": 0, "finetune_epochs": 0}), FEDAVG, TWO, USUAL, "shared all"),
    (("fedavgft", {"finetune_rounds": 3}), LOCAL, LATER, USUAL, "/ all"),
    (("fedsam", {"rho": 0}), FEDAVG, TWO, USUAL, "shared all"),  # no batch norm sees images twice
    (("fedsam", {"rho": 0, "finetune_rounds": 1}), ("fedavgft", {"finetune_rounds": 1}), TWO, USUAL, "shared / all"),
    (("scaffold", {}), FEDAVG, setting(rounds=1, window=1, momentum=0.0), USUAL, "shared all"),
    (("scaffold", {}), FEDAVG, SLOW, ALONE, "near"),  # its control variate is the server's
    (("fednova", {}), FEDAVG, setting(rounds=2, steps=4), USUAL, "near"),
    (("fednova", {"mu": 0.3}), ("fedprox", {"mu": 0.3}), setting(rounds=2, steps=4), USUAL, "near"),
    (("fedopt", {"server": "avgm", "server_lr": 1, "beta1": 0}), FEDAVG, TWO, USUAL, "near"),
    (("qfedavg", {"q": 0}), FEDAVG, SLOW, EQUAL, "near"),
    (("moon", {"mu": 0}), FEDAVG, TWO, USUAL, "shared all"),
    (("fedproto", {"lambda": 0, "answers": "head"}), LOCAL, TWO, USUAL, "/ all"),
    (("fedala", {"rate": 0}), FEDAVG, TWO, USUAL, "shared all"),
    (("fedas", {**BY_SIZE, "score": "after_local"}), ("fedper", {"score": "after_local"}), TWO, USUAL, "shared all"),
    (("fedas", {**BY_SIZE, "score": "after_aggregate"}), ("fedper", {"score": "after_aggregate"}), TWO, USUAL, "all"),
    (("confree", {"alpha": 0}), AS_FEDREP, TWO, ALONE, "near own"),
    (("confree", {"rule": "pairs"}), AS_FEDREP, TWO, ALONE, "near own"),
    (
        ("confree", {"rule": "pairs"}),  # clients of one distribution: nothing conflicts in one round
        AS_FEDREP,
        setting(rounds=1, window=1, epochs=2),
        federation((90, 60, 75, 50), skew=float("inf")),
        "near",
    ),
    (("perfedavg", {"variant": "fo", "alpha": 0}), FEDAVG, WHOLE, USUAL, "near all"),  # all batches are one
    (("perfedavg", {"variant": "hf", "alpha": 0}), FEDAVG, WHOLE, USUAL, "near all"),
    (("feddrm", {"lambda": 1}), (PERSONAL_HEAD, {}), TWO, USUAL, "shared / votes"),
    (("fedrep", {"head_epochs": 0}), ("fedbabu", {}), TWO, USUAL, "shared"),  # nobody's head ever moves
    (("local", {}), FEDAVG, TWO, ALONE, "/ all"),
    (("lg_fedavg", {}), FEDAVG, TWO, ALONE, "/ all"),
    (("fedbn", {}), ("fedsgd", {}), STEP, USUAL, "shared all"),  # there are no norms
    (("grayscale", {}), ("fedsgd", {}), STEP, USUAL, "all"),  # of grey images
    (("cfl", {"eps1": 0}), FEDAVG, SOME, USUAL, "shared all"),
    (("haccs", {}), FEDAVG, SOME, twins(), "/ all"),
    (("ifca", {"clusters": 1}), FEDAVG, SOME, USUAL, "/ all"),
    (("fesem", {"clusters": 1}), FEDAVG, SOME, USUAL, "/ all"),
    (("fedem", {"clusters": 1}), FEDAVG, SOME, USUAL, "near:0/ all"),
    (("fedrc", {"clusters": 1}), FEDAVG, SOME, USUAL, "near:0/ all"),
    (("feddrift", {}), LOCAL, setting(rounds=1), USUAL, "/"),
    (("flux", {}), FEDAVG, PHASE, GROUPED, "shared own test_phase"),  # until it groups
    (("flux_soft", {}), FEDAVG, PHASE, GROUPED, "shared test_phase"),
    (("flux", {"clustering": "prior", "start": 2}), FEDAVG, PHASE, ONE_GROUP, "near:model own"),
    (("apfl", {"alpha": 1}), LOCAL, TWO, USUAL, "own/ all"),
    (("apfl", {"alpha": 0}), FEDAVG, TWO, USUAL, "shared all loss"),  # the logged loss is the shared model's
    (("ditto", {}), FEDAVG, TWO, USUAL, "shared"),
    (("ditto", {"mu": 0, "personal_epochs": 0}), (second_pass(None), {}), TWO, USUAL, "own/ own"),
    (("ditto", {"mu": 0, "personal_epochs": 2}), (second_pass(2), {}), TWO, USUAL, "own/ own"),
    (("pfedme", {"lambda": 20.0, "inner_steps": 1, "inner_lr": 0.05}), FEDAVG, SLOW, USUAL, "shared"),  # lr lambda = 1
    (("fedrod", {}), FEDAVG, TWO, balanced(), "shared"),
    (("apfl_flux", {}), FEDAVG, ONE_EPOCH, GROUPED, "shared test_phase"),
    (("mr_mtl", {"pull": 0}), LOCAL, replace(TWO, votes=False), USUAL, "own/ all"),
    (("atp", {"eta": 0}), FEDAVG, PHASE, GROUPED, "shared own test_phase"),
    (("atp", {"eta": 1.0}), FEDAVG, PHASE, GROUPED, "shared"),
    (
        ("fedala", {"weight_steps": 5, "rate": 0, "score": "after_local"}),  # as FedDRM ran it
        (UNAVERAGED, {}),
        setting(rounds=2, steps=10),
        USUAL,
        "shared all",
    ),
]
#: Where the other method's setting is another.
OTHERWISE = {len(ROWS) - 1: setting(rounds=2, steps=5)}
_TRAINED: dict[str, LabRun] = {}


def trained(chosen: Chosen, s: Setting, data: Federation, folder: Path) -> LabRun:
    how = chosen[0] if isinstance(chosen[0], Method) else method(chosen[0], **chosen[1])
    key = repr((how.name, how.params, s.to_dict(), id(data)))
    if key not in _TRAINED:
        _TRAINED[key] = train(how, data, folder / str(len(_TRAINED)), s)
    return _TRAINED[key]


def models(run: LabRun, prefix: str) -> dict[str, np.ndarray]:
    views = [run.trainer.server.view(i) for i in range(run.trainer.federation.clients)]
    names = run.trainer.executor.model.state_dict()
    return {f"{i}/{n}": view[prefix + n].numpy() for i, view in enumerate(views) for n in names if prefix + n in view}


def named(chosen: Chosen) -> str:
    return f"{getattr(chosen[0], 'name', chosen[0])}{'-'.join(('', *chosen[1]))}"


@pytest.mark.parametrize("k", range(len(ROWS)), ids=lambda k: f"{named(ROWS[k][0])}={named(ROWS[k][1])}")
def test_it_is(k: int, tmp_path: Path) -> None:
    ours, theirs, s, data, what = ROWS[k]
    a, b = trained(ours, s, data, tmp_path), trained(theirs, OTHERWISE.get(k, s), data, tmp_path)
    for word in what.split():
        if word == "shared":
            assert b.shared
            assert all(np.array_equal(a.shared[n], t) for n, t in b.shared.items() if not n.startswith("prototypes"))
        elif word.startswith("near"):
            of = word.removeprefix("near").removeprefix(":")
            held = {n: t.numpy() for n, t in a.trainer.server.models[0].items()} if of == "model" else a.shared
            for n, t in b.shared.items():
                np.testing.assert_allclose(held[n if of == "model" else of + n], t, rtol=1e-4, atol=1e-5, err_msg=n)
        elif word == "loss":
            assert [p.loss for p in a.reports] == [p.loss for p in b.reports]
        elif word.endswith("/"):
            mine, expected = models(a, word.removesuffix("/") and word), models(b, "")
            assert expected
            assert all(np.array_equal(mine[n], t) for n, t in expected.items())
        else:
            columns = min((run.predictions.column_names for run in (a, b)), key=len) if word == "all" else [word]
            assert all(a.predictions[column].equals(b.predictions[column]) for column in columns)


def test_fine_tuning_rounds_of_fedbabu_move_heads_alone(tmp_path: Path) -> None:
    """Those of FedProx, and with it FedAvgFT: test_drift.py."""
    s = setting(rounds=3, window=3)
    babu = train(method("fedbabu", finetune_rounds=2, finetune_epochs=0), USUAL, tmp_path / "babu", s)
    bodies = train(method("fedbabu", finetune_epochs=0), USUAL, tmp_path / "bodies", setting(rounds=1))
    assert same(babu.shared, bodies.shared), "the body stands still while the heads train"
    for i in range(USUAL.clients):
        view = babu.trainer.server.view(i)
        assert not torch.equal(view["head.weight"], babu.trainer.server.initial["head.weight"])
        assert np.array_equal(view["backbone.0.weight"].numpy(), babu.shared["backbone.0.weight"])


@pytest.mark.parametrize("name", ["fedavgft", "fedbabu"])
def test_fine_tuning_epochs_touch_only_the_answers_of_the_last_round(name: str, tmp_path: Path) -> None:
    ours, theirs = (trained((name, {"finetune_epochs": k}), TWO, USUAL, tmp_path) for k in (2, 0))
    assert same(ours.tensors, theirs.tensors)
    a, b = (run.predictions.to_pandas() for run in (ours, theirs))
    for t in (1, 2):
        last = [table[table["round"] == t]["own"].tolist() for table in (a, b)]
        assert (last[0] == last[1]) is (t == 1)


def test_local_clients_never_meet(tmp_path: Path) -> None:
    order = np.argsort(USUAL.client, kind="stable")
    keep = order[USUAL.client[order] <= 1]
    given = (USUAL.images[keep].numpy(), USUAL.labels[keep].numpy(), USUAL.client[keep], USUAL.sample[keep])
    two = Federation.of(*given, USUAL.is_test[keep], 10)
    few, all_of_them = trained(LOCAL, TWO, two, tmp_path), models(trained(LOCAL, TWO, USUAL, tmp_path), "")
    assert all(np.array_equal(t, all_of_them[n]) for n, t in models(few, "").items())
    assert (few.shared, sent(few)) == ({}, [(0, 0)] * 2)


def test_fedpac_without_distance_and_combination_is_fedrep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rep = train(method("fedrep", head_epochs=1), USUAL, tmp_path / "rep", TWO)

    def pac(**chosen: Any) -> LabRun:
        how = {"lambda": 0.0, "head_lr": 0.05, "score": "after_aggregate", **chosen}
        return train(method("fedpac", **how), USUAL, tmp_path / "-".join(chosen), TWO)

    combined = pac()
    monkeypatch.setattr(fedpac, "combination", lambda v, h: torch.eye(len(v), dtype=torch.float64))
    alone = pac(head_epochs=1)
    beside = ("shared/prototypes.", "shared/head.")  # FedPAC shares the mean head for newcomers
    shown = {n.replace("memory/of/", "personal/"): t for n, t in alone.tensors.items() if not n.startswith(beside)}
    assert same(shown, rep.tensors)
    for other in (combined, pac(**{"lambda": 1.0}), pac(head_lr=0.1)):
        assert not np.array_equal(other.shared["backbone.0.weight"], rep.shared["backbone.0.weight"])


SKEWED, EVEN = federation((90, 60, 75, 50), skew=0.5), federation((90, 90, 90, 90), skew=0.5)
FAR = setting(rounds=5, window=1, epochs=10, momentum=0.0, lr=0.05)
NEAR = setting(rounds=8, window=1, epochs=2)
CONCEPTS = grouped_federation((0, 1, 0, 1), 200, concept=True)
SIX = grouped_federation(size=150, concept=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "data", "s", "margin"),
    [
        # Many local steps on unlike clients go less astray.
        (("feddc", {}), EVEN, FAR, 0.1),
        (("feddyn", {}), EVEN, FAR, 0.1),
        (("scaffold", {}), EVEN, FAR, 0.1),
        # Labels apart: a part of the model that is the client's own answers better.
        (("fedala", {}), SKEWED, NEAR, 0.1),
        (("fedas", {}), SKEWED, NEAR, 0.1),
        (("confree", {"rule": "worst"}), SKEWED, NEAR, 0.1),
        (("confree", {"rule": "pairs"}), SKEWED, NEAR, 0.1),
        # Two groups that name the same images differently.
        (("mr_mtl", {"pull": 0.02}), CONCEPTS, grouped_setting(rounds=8, epochs=4), 0.2),
        (("apfl_flux", {}), CONCEPTS, grouped_setting(rounds=4), 0.07),
        (("cfl", {"eps1": 0.5, "eps2": 0.6}), SIX, grouped_setting(rounds=10), 0.2),
        (("ifca", {}), SIX, grouped_setting(rounds=8, epochs=3), 0.2),
        (("fesem", {}), CONCEPTS, grouped_setting(rounds=12, epochs=3, seed=2), 0.1),
        (("fedem", {}), CONCEPTS, grouped_setting(rounds=16, lr=0.2), 0.2),
        (("fedrc", {}), CONCEPTS, grouped_setting(rounds=16, lr=0.2), 0.2),
        (("flux", {"clustering": "prior"}), SIX, grouped_setting(rounds=10), 0.15),
        (("feddrift", {}), CONCEPTS, grouped_setting(rounds=8), 0.2),
    ],
    ids=lambda value: named(value) if isinstance(value, tuple) else "",
)
def test_it_answers_better_than_fedavg_where_it_should(
    chosen: Chosen, data: Federation, s: Setting, margin: float, tmp_path: Path
) -> None:
    ours, plain = (right(trained(one, s, data, tmp_path)) for one in (chosen, FEDAVG))
    assert ours > plain + margin


OF_THE_PAGE = """
import torch
from dataclasses import dataclass
from fedbench.core.client import Train
from fedbench.methods.base import Method, cross_entropy, hyperparameter
from fedbench.methods.parts.steps import from_vector, trainable, vector
from fedbench.rng import stream

@dataclass(frozen=True)
class Noisy(Method):
    name, title = "noisy", "Noisy"
    clip: float = hyperparameter(1.0, "largest norm of a client's change", above=0)
    noise: float = hyperparameter(1.0, "standard deviation of the noise in units of clip", least=0)
"""


def test_the_pages_clipping_and_noise(tmp_path: Path) -> None:
    """Without noise and with a wide clip it is FedAvg; a round moves the model by the clip at most, and then by noise
    of the said size, drawn anew each round."""
    page = Path(methods.__file__).with_name("README.md").read_text()
    (hooks,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "self.clip" in code)
    (tmp_path / "noisy.py").write_text(OF_THE_PAGE + textwrap.indent(hooks, "    "))
    create = load(tmp_path / "noisy.py")[0].Noisy.create
    plain = train("fedavg", USUAL, tmp_path / "plain", TWO).trainer.server
    wide = train(create({"noise": 0, "clip": 1e6}), USUAL, tmp_path / "wide", TWO).trainer.server
    for name in plain.shared:
        torch.testing.assert_close(wide.shared[name], plain.shared[name])
    names = sorted(trainable(plain.initial))
    clipped, noisy = (
        train(create({"noise": noise, "clip": 0.01}), USUAL, tmp_path / str(noise), replace(TWO, rounds=1))
        for noise in (0, 0.5)
    )
    ends = [vector(run.trainer.server.shared, names).double() for run in (clipped, noisy)]
    before = vector(plain.initial, names)
    assert 0 < (ends[0] - before).norm() <= 0.01 + 1e-5 < 0.1 < (vector(plain.shared, names) - before).norm()
    assert (ends[1] - ends[0]).std() == pytest.approx(0.5 * 0.01, rel=0.05)
    twice = train(create({"noise": 1e3, "clip": 1e-5}), USUAL, tmp_path / "twice", TWO).trainer.server
    spread = (vector(twice.shared, names) - before).std()
    assert spread == pytest.approx(2**0.5 * 1e-2, rel=0.05), "two rounds draw apart"


UNIFORM = {"weighting": "uniform"}


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddyn", "fedrep", "fedopt", "ditto"])
def test_clients_of_one_size_count_alike_either_way(name: str, tmp_path: Path) -> None:
    runs = [
        train(name, EQUAL, tmp_path / str(k), replace(SLOW, participation=0.7, **more))
        for k, more in enumerate(({}, UNIFORM))
    ]
    assert same(runs[0].tensors, runs[1].tensors)


def test_the_uniform_mean_is_that_of_the_clients_models(tmp_path: Path) -> None:
    """Of clients of unequal sizes, as each trains alone; by sizes it is another."""
    s = setting(rounds=1, window=1)
    alone = train("local", USUAL, tmp_path / "alone", s).trainer.server.personal
    by_size, alike = (train("fedavg", USUAL, tmp_path / str(k), replace(s, **k)).shared for k in ({}, UNIFORM))
    for name, value in alike.items():
        each = np.stack([alone[i][name].double().numpy() for i in range(USUAL.clients)])
        np.testing.assert_allclose(value, each.mean(0), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(by_size[name], np.average(each, 0, USUAL.n_train), rtol=1e-6, atol=1e-7)
    assert not same(by_size, alike)


@pytest.mark.parametrize("weighting", [None, "uniform"])
@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_what_the_server_adds_up_is_the_mean_of_all_clients(name: str, weighting: str | None, tmp_path: Path) -> None:
    """SCAFFOLD's control variate c that of all c_i, and FedDyn's h that of all gradients, also of clients that have not
    taken part, whose are zero: Algorithm 1 of both, where it counts clients alike."""
    s = replace(setting(rounds=5, window=1, momentum=0.0, participation=0.5), weighting=weighting)
    server = train(name, USUAL, tmp_path, s).trainer.server
    own = "own_control/" if name == "scaffold" else "own_gradient/"
    weights = None if weighting else USUAL.n_train
    assert server.personal
    for place, zero in server.initial.items():
        if place.startswith(own):
            each = np.stack(
                [server.personal.get(i, {}).get(place, zero).double().numpy() for i in range(USUAL.clients)]
            )
            bare = place.removeprefix(own)
            total = server.shared[f"control/{bare}"] if name == "scaffold" else server.memory.h[bare]
            np.testing.assert_allclose(total.numpy(), np.average(each, 0, weights), rtol=1e-4, atol=1e-6)


def test_weighting_is_of_the_mean_alone() -> None:
    assert replace(TWO, weighting="size") == TWO
    assert replace(TWO, **UNIFORM).id != TWO.id
    s = replace(TWO, **UNIFORM, votes=False)
    refused("fednova weights clients by its own rule and does not accept --weighting uniform", Job.of, s, "fednova", {})
    for name in ("fedavg", "scaffold", "feddyn", "fedprox", "ditto"):
        assert Job.of(s, name, {}).spec.setting.weighting == "uniform"
