"""Every executor computes what the reference does: the same draws, and parameters to float rounding. This is the one
place for scenarios (living momentum, several labels), networks and single requests; of methods it is the conformance
suite (tests/methods/test_conformance.py). Captured steps of single clients leave nothing behind."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedbench.conformance import agreement
from fedbench.conformance.agreement import COMMON, RAGGED, TOLERANCE, Scenario, differs, gaps
from fedbench.conformance.lab import Recorder
from fedbench.conformance.subject import small
from fedbench.core import captured, executors, simulation, streams, worker
from fedbench.core.client import (
    Add,
    Answer,
    Ascend,
    Batch,
    Client,
    ClientUpdate,
    Collect,
    Differentiated,
    Gradient,
    Loss,
    Train,
    logits,
)
from fedbench.core.federation import ByClient, Federation
from fedbench.core.images import Piece
from fedbench.core.plan import Plan
from fedbench.core.precision import arithmetic
from fedbench.core.stacked import FASTEST
from fedbench.core.state import state_of
from fedbench.core.variants import twin, with_clients_among_channels
from fedbench.methods.base import cross_entropy
from fedbench.specs import Setting
from tests.support.cases import CASES, UNLIKE, label
from tests.support.lab import LabRun, client, federation, finish, method, needs_gpu, setting, trainer, vectors
from tests.support.rays_lab import many_labelled

#: What the reference is compared with: (executor, its options). All executors, whatever their number.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, {"cores": 2}) for name in executors.EXECUTORS if name != "sequential"
}
#: On a CPU these take the reference's own steps.
EXACT = ("cores", "streams")
#: On a GPU also what is the form of convolutions on a CPU, and the reverse.
ON_GPU = {**WAYS, "grouped": ("stacked", {})}
KNOWN = {**ON_GPU, "vmap": ("stacked", {"cores": 1, "block": 3})}
FORMS = {"grouped": with_clients_among_channels, "vmap": twin}
#: There cuDNN takes other algorithms for a stack than for one client, which differ by 4e-7, and these runs enlarge that
#: to 2 or 3e-4: on a CPU weights that begin 1e-6 apart end up to 8e-3 apart after the steps of FedSGD.
ENLARGING = {("apfl", "steps"), ("fedbn", "steps"), ("fedsgd", "steps"), ("fitw_erm", "steps"), ("ftw_erm", "ragged")}
ENLARGED = 1e-3


def check_states(ours: Mapping[str, Tensor], reference: Mapping[str, Tensor], exact: bool = False) -> None:
    assert ours.keys() == reference.keys()
    far = {name: gap for name, t in reference.items() if (gap := differs(ours[name], t)) > (0 if exact else TOLERANCE)}
    assert far == {}


#: No norm goes with it: of a bias before one the gradient is nothing but rounding, of which AdamW makes a step.
ADAMW: dict[str, Any] = {"optimizer": "adamw", "momentum": 0.0, "weight_decay": 0.01, "lr": 0.002}
STEPS: dict[str, Any] = {
    "epochs": None,
    "steps": 5,
    "momentum": 0.0,
    "augment": "crop",
    "tail": "drop",
    "votes": False,
    "rounds": 2,
    "window": 2,
}
LIVING: dict[str, Any] = {"momentum_lives": True, "votes": False}
ALONE: dict[str, Any] = {"rounds": 2, "votes": False, "window": 1, "test_phase": True}
SCENARIOS = {
    "ragged": RAGGED,
    # Everything else the other way: no norm, no momentum, steps, short batches dropped, crops, nobody votes.
    "steps": Scenario(federation((25, 40, 2, 30), color=True), setting(**{**COMMON, **STEPS})),
    "adamw": Scenario(RAGGED.data, setting(**{**COMMON, **ADAMW}, participation=0.7)),
    "lives": Scenario(federation(), setting(momentum_lives=True, votes=False)),
    "lives_adamw": Scenario(federation(), setting(**{**LIVING, **ADAMW, "lr": 0.003}, participation=0.6)),
    "labels": Scenario(many_labelled(3, 30), setting(**ALONE, weight_decay=0.0, momentum_restarts=True)),
    "vectors": Scenario(vectors(), setting(model="mlp", rounds=2, votes=False)),
}
#: Momentum that goes on with a client's network, with its part of it, with the one of several models that it trains.
LIVES: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {}),
    ("fedrep", {}),
    ("ifca", {"clusters": 2}),
    ("fesem", {"clusters": 2, "variant": "fedrc"}),
    ("cfl", {}),
    ("apfl_flux", {"variant": "fedrc"}),
    ("fedem", {"clusters": 2}),
]
#: Those that fill a table with FLUX's, of images with several labels.
LABELS: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {}),
    ("flux", {}),
    ("ifca", {"clusters": 2}),
    ("mr_mtl", {}),
    ("cfl", {}),
    ("fedem", {"clusters": 2}),
    ("fedrc", {"clusters": 2}),
    ("feddrift", {}),
    ("apfl_flux", {}),
]
#: Which executors a method meets where, besides those of methods/test_conformance.py in the ragged scenario. What
#: an executor makes of each single request is asked below, without a method.
MET = {"ragged": ("vmap",), "steps": ("stacked",), "adamw": ("stacked", "graphed", "streams")}
#: Every method everywhere; its variants where most can go wrong, and another optimiser with a few.
WHERE = [(*case, s) for case in CASES for s in ("ragged", "steps") if s == "ragged" or not case[1]]
WHERE += [(name, {}, "adamw") for name in ("apfl", "ditto", "fedavg", "fedrep")]
RUNS = [(*w, way) for w in WHERE for way in MET[w[2]] if w[2] == "adamw" or (w[0] in UNLIKE and not w[1])]
#: Another way to convolve knows nothing of a method: each request below meets it, and these few runs.
RUNS = [w for w in RUNS if w[3] != "vmap" or w[0] in ("fedavg", "pfedfda", "apfl")]
RUNS += [(*case, "lives", "stacked") for case in LIVES] + [(*case, "labels", "stacked") for case in LABELS]
RUNS += [
    (name, {}, "lives_adamw", way) for name, way in (("fedavg", "cores"), ("fedavg", "graphed"), ("ditto", "stacked"))
]
RUNS += [("fedavg", {}, "vectors", way) for way in WAYS] + [("pfedfda", {}, "vectors", "stacked")]
RUNS += [(*LIVES[3], "lives", "graphed"), ("fedavg", {}, "labels", "cores"), (*LABELS[5], "labels", "graphed")]


def test_the_scenarios_are_as_ragged_as_they_should_be(reference: Any) -> None:
    data, s, _ = SCENARIOS["ragged"]
    assert data.n_train == [22, 37, 1, 29, 7, 23]
    assert all(n % s.batch_size for n in data.n_train)
    plan = Plan(s, data.n_train, (8, 8))
    cohorts = [plan.cohort(t) for t in (1, 2, 3)]
    assert len({tuple(c) for c in cohorts}) == 3
    assert {i for c in cohorts for i in c} == set(range(6))
    assert {executor for executor, _ in WAYS.values()} == set(executors.EXECUTORS) - {"sequential"}
    assert {*agreement.WAYS, *(way for met in MET.values() for way in met)} == {*WAYS, "vmap"}
    assert max(len({len(list(plan.batches(i, t, 1, 2, None))) for i in c}) for t, c in enumerate(cohorts, 1)) > 2
    # Running statistics are compared.
    tensors = reference(("fedavg", {}), "ragged").trainer.server.tensors()
    assert any(n.endswith("running_var") for n in tensors)
    assert min(int(t) for n, t in tensors.items() if n.endswith("num_batches_tracked")) > 0


def run(case: tuple[str, dict[str, Any]], scenario: Scenario, way: str, where: Path) -> LabRun:
    """Train to the end; `way` is of KNOWN or "sequential"."""
    name, options = KNOWN.get(way, (way, {}))
    place = scenario.data.images.device.type
    whole = scenario.data.multi_label or scenario.data.vectors  # the setting's own network
    network = None if whole else partial(small, scenario.data.shape[2], scenario.norm)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FASTEST, place, FORMS.get(way, FASTEST[place]))
        it = trainer(
            method(case[0], **case[1]),
            scenario.data,
            where,
            scenario.setting,
            executor=name,
            options=options,
            plan=Recorder,
            network=network,
        )
    return finish(it)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LabRun]:
    """(number of the case, scenario) -> the reference's run, made once."""
    folder = tmp_path_factory.mktemp("references")

    @cache
    def made(name: str, scenario: str, *chosen: tuple[str, Any]) -> LabRun:
        where = folder / "-".join([name, scenario, *(f"{key}{value}" for key, value in chosen)])
        return run((name, dict(chosen)), SCENARIOS[scenario], "sequential", where)

    return lambda case, scenario: made(case[0], scenario, *case[1].items())


@pytest.mark.parametrize(("name", "chosen", "scenario", "way"), RUNS, ids=label)
def test_a_run_is_the_references(
    name: str, chosen: dict[str, Any], scenario: str, way: str, reference: Any, tmp_path: Path
) -> None:
    a = reference((name, chosen), scenario)
    b = run((name, chosen), SCENARIOS[scenario], way, tmp_path)
    if scenario == "labels":
        assert max(gaps(b.trainer.server.tensors(), a.trainer.server.tensors()).values()) <= TOLERANCE
        for column in {"own_scores", "test_phase_scores"} & {*a.predictions.column_names}:
            ours, its = (np.array(one.predictions[column].to_pylist()) for one in (b, a))
            np.testing.assert_allclose(ours, its, rtol=0, atol=1e-4)
    else:
        agreement.compare(b, a, f"by {way}", exact=way in EXACT)
    server = a.trainer.server
    assert bool(server.momenta) is bool(a.trainer.setting.momentum_lives)
    moved = [differs(t, server.initial[n.split("/")[-1]]) for n, t in server.tensors().items() if n.endswith(".weight")]
    assert max(moved) > 0.01, "nothing was trained"


def scaled(model: Any, batch: Batch) -> Loss:
    """Weighted by image and by client; shows and keeps something else."""
    z = model.features(batch.x)
    each = F.cross_entropy(model.head(z), batch.y, reduction="none")
    weight = batch.extras["scale"] * (1 + batch.position % 3)
    return Loss((weight * each).mean(), logged=each.sum(), collected=torch.cat([z, batch.position[:, None].float()], 1))


def keeps_input(model: Any, batch: Batch) -> Loss:
    return cross_entropy(model, batch)._replace(collected=batch.x)


def bias_alone(model: Any, batch: Batch) -> Loss:
    """Does not touch any other parameter."""
    return Loss(
        F.cross_entropy(model.head.bias.expand(len(batch.y), -1), batch.y),
        logged=torch.full((), 2.0, device=batch.x.device),
    )


Update = Callable[[Client], ClientUpdate]


def once(*requests: Any) -> Update:
    """A client update of these requests (or functions client -> request), one after another."""

    def update(client: Client) -> ClientUpdate:
        for request in requests:
            yield request(client) if callable(request) else request

    return update


def listened(update: Update) -> Update:

    def recording(client: Client) -> ClientUpdate:
        generator, answer = update(client), None
        while True:
            try:
                request = generator.send(answer)
            except StopIteration:
                return
            answer = yield request
            client.answers.append(answer)

    return recording


def _there(client: Client, number: float) -> Tensor:
    return torch.tensor(number, device=client.work.rows.device)


def own_scale(client: Client) -> Train:
    return Train(scaled, extras={"scale": _there(client, 0.5 + client.index)})


def with_position(model: Any, batch: Batch) -> Tensor:
    return torch.cat([model(batch.x) * batch.extras["scale"], batch.position[:, None].float()], 1)


def own_rows(client: Client) -> Collect:
    return Collect(with_position, {"scale": _there(client, 1.0 + client.index)})


def own_gradient(client: Client) -> Gradient:
    return Gradient(scaled, extras={"scale": _there(client, 0.5 + client.index)})


def corrected(client: Client) -> ClientUpdate:
    client.put({n: torch.full_like(t, 0.01 * (client.index + 1)) for n, t in client.model().items()}, "control")
    yield Train(cross_entropy, rules=(Add("control", -1.0), Ascend(0.05), Add("control")))


def own_model(client: Client) -> ClientUpdate:
    yield Train(cross_entropy, steps=2)
    client.put(client.model(), "own")
    yield Train(cross_entropy, model="own", prox=0.5, trains=("own/head.",))
    yield Collect(logits, model="own")


def both(models: Any, batch: Batch) -> Loss:
    first, second = (m(batch.x) for m in models)
    return Loss(F.cross_entropy(first + 0.5 * second, batch.y), collected=second)


def gap(models: Any, batch: Batch) -> Tensor:
    return models[0](batch.x) - models[1](batch.x)


def two_models(client: Client) -> ClientUpdate:
    client.put({n: 0.9 * t for n, t in client.model().items()}, "own")
    yield Train(both, model=("", "own"))
    yield Train(both, model=("", "own"), trains=("backbone.", "head."), prox=0.3)
    yield Gradient(both, model=("own", ""))
    yield Collect(gap, model=("own", ""))


FOLLOWING = Train(cross_entropy, prox=5.0, repeat=3, follow=0.2, momentum=0.0)
UPDATES: dict[str, tuple[Update, dict[str, Any]]] = {
    "several passes": (once(Train(cross_entropy, epochs=3), Train(cross_entropy, steps=5, lr=0.02)), {}),
    "tails dropped": (once(Train(cross_entropy)), {"tail": "drop"}),
    "steps with tails dropped": (once(Train(cross_entropy)), {"tail": "drop", "steps": 5, "epochs": None}),
    "neither momentum nor decay": (once(Train(cross_entropy)), {"momentum": 0.0, "weight_decay": 0.0}),
    "proximal": (once(Train(cross_entropy, steps=3), Train(cross_entropy, prox=0.7)), {}),
    "batches repeated": (once(Train(keeps_input, repeat=3, lr=0.01)), {}),
    "another momentum": (once(Train(cross_entropy, momentum=0.0), Train(cross_entropy, momentum=0.3)), {}),
    "momentum where there is none": (once(Train(cross_entropy, momentum=0.5)), {"momentum": 0.0}),
    "a centre that follows": (once(Train(cross_entropy, steps=3), FOLLOWING), {}),
    "a common body": (once(Train(cross_entropy, trains=("head.",))), {}),
    "a common body and a proximal term": (once(Train(cross_entropy, trains=("head.",), prox=0.7)), {}),
    "a body a client": (once(Train(cross_entropy, steps=3), Train(cross_entropy, trains=("head.",))), {}),
    "a common head": (once(Train(cross_entropy, trains=("backbone.",))), {}),
    "shown, kept and extras": (once(own_scale, own_scale), {}),
    "kept crops": (once(Train(keeps_input)), {"augment": "crop"}),
    "kept of many steps alike": (once(Train(keeps_input)), {"batch_size": 4, "lr": 0.002}),
    "what the loss leaves alone": (once(Train(bias_alone)), {}),
    "collect": (once(own_rows, Train(cross_entropy), own_rows), {"augment": "crop"}),
    "a gradient": (once(own_gradient, Gradient(cross_entropy, trains=("head.",)), Train(cross_entropy)), {}),
    "a gradient of crops": (once(Gradient(cross_entropy)), {"augment": "crop"}),
    "gradients of an endless pass": (
        once(Gradient(cross_entropy), Gradient(cross_entropy)),
        {"steps": 1, "epochs": None, "passes": "endless"},
    ),
    "a gradient that leaves parameters alone": (once(Gradient(bias_alone)), {}),
    "padded and flipped": (once(Train(keeps_input), own_rows, Gradient(cross_entropy)), {"augment": "pad_flip"}),
    "sharpness-aware": (once(Train(cross_entropy, rules=(Ascend(0.1),))), {}),
    "sharpness-aware, where the loss leaves some alone": (once(Train(bias_alone, rules=(Ascend(0.1),))), {}),
    "rules on rules": (corrected, {}),
    "a model of its own": (own_model, {}),
    "a loss of two models": (two_models, {}),
    "no step at all": (once(Train(keeps_input, epochs=0)), {}),
}


def served(
    update: Update, s: Setting, network: bool | nn.Module, way: str, data: Federation = RAGGED.data, **more: Any
) -> list[Client]:
    """All clients after their update; `answers` holds what it was answered. `network`: a small one with a norm?"""
    name, options = KNOWN.get(way, (way, {}))
    model = (small(norm=network) if isinstance(network, bool) else network).to(data.images.device)
    state, plan = state_of(model), Plan(s, data.n_train, data.shape[:2])
    with pytest.MonkeyPatch.context() as patch:
        place = data.images.device.type
        patch.setitem(FASTEST, place, FORMS.get(way, FASTEST[place]))
        executor = executors.make(name, model, data, s, **{**options, **more})
    everyone = [client(data, plan, i, dict(state)) for i in range(data.clients)]
    for one in everyone:
        vars(one)["answers"] = []
    try:
        executor.run(everyone, listened(update))
    finally:
        executor.close()
    return everyone


#: Client after client, on cores of their own, goes by the reference's worker: with a norm it meets every request once.
STACKS = [way for way in WAYS if way != "cores"]


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize(("norm", "way"), [*((True, way) for way in WAYS), *((False, way) for way in STACKS)])
def test_a_request_is_answered_as_the_reference_does(update: str, norm: bool, way: str) -> None:
    made, changes = UPDATES[update]
    s = setting(**{**COMMON, **changes})
    for ours, its in zip(served(made, s, norm, way), served_by_reference(update, norm), strict=True):
        check_client(ours, its, exact=way in EXACT)


@pytest.mark.parametrize("restarts", [False, True], ids=["a request", "a pass"])
@pytest.mark.parametrize(
    "update",
    [
        "several passes",
        "tails dropped",
        "proximal",
        "batches repeated",
        "a common body",
        "a centre that follows",
        "what the loss leaves alone",
        "no step at all",
    ],
)
@pytest.mark.parametrize("way", STACKS)
def test_adamw_answers_as_the_reference_does(update: str, restarts: bool, way: str) -> None:
    more = {**ADAMW, "momentum_restarts": restarts}
    made, changes = UPDATES[update]
    s = setting(**{**COMMON, **changes, **more})
    for ours, its in zip(served(made, s, False, way), served_by_reference(update, False, **more), strict=True):
        check_client(ours, its)


@cache
def served_by_reference(update: str, norm: bool, **more: Any) -> list[Client]:
    made, changes = UPDATES[update]
    return served(made, setting(**{**COMMON, **changes, **more}), norm, "sequential")


def check_client(ours: Any, its: Any, exact: bool = False) -> None:
    """The same tensors, losses and answers; what did not train is still the very tensor that was received."""
    check_states(ours.state, its.state, exact and not any(t.is_cuda for t in ours.state.values()))
    for name, t in its.state.items():
        assert (ours.state[name] is ours.received.get(name)) is (t is its.received.get(name)), name
    assert ours.work.phase == its.work.phase
    assert [n for _, n in ours.work.losses] == [n for _, n in its.work.losses]
    assert [loss for loss, _ in ours.work.losses] == pytest.approx([loss for loss, _ in its.work.losses], rel=TOLERANCE)
    for a, b in zip(ours.answers, its.answers, strict=True):
        check_answer(a, b)


def check_answer(ours: Answer, its: Answer) -> None:
    assert type(ours) is type(its)
    if isinstance(ours, Differentiated) and isinstance(its, Differentiated):
        assert ours.gradient.keys() == its.gradient.keys()
        # As one vector: a bias in front of a norm has no gradient but rounding.
        whole, theirs = (torch.cat([g.flatten() for g in x.gradient.values()]) for x in (ours, its))
        assert differs(whole, theirs) <= TOLERANCE
        assert ours.loss == pytest.approx(its.loss, rel=TOLERANCE)
        assert ours.images == its.images
        return
    assert not isinstance(its, Differentiated)
    assert torch.equal(ours.labels, its.labels)
    for key in set(its._fields) - {"labels"}:
        a, b = getattr(ours, key), getattr(its, key)
        assert (a is None) is (b is None), key
        if isinstance(a, dict) and isinstance(b, dict):
            check_states(a, b)
        elif b is not None:
            assert differs(a, b) <= TOLERANCE, key
            assert getattr(a, "dtype", None) == getattr(b, "dtype", None), key


@pytest.mark.parametrize("way", STACKS)
def test_what_a_client_holds_is_its_own(way: str) -> None:
    """To change one client's tensors in place changes no other's, nor what all of them received."""
    everyone = served(once(Train(cross_entropy)), setting(**COMMON), True, way)
    before = [{n: t.clone() for n, t in c.state.items()} for c in everyone]
    received = {n: t.clone() for n, t in everyone[0].received.items()}
    for t in everyone[1].state.values():
        t.zero_()
    for i in (0, 2, 3, 4):
        check_states(everyone[i].state, before[i], exact=True)
    check_states(everyone[0].received, received, exact=True)


# -- captured steps of single clients, side by side --------------------------------------------------------------

#: Clients with whole batches of 16, with short ones, and with nothing but a short one.
COLOUR = federation((40, 25, 36, 12, 66), color=True)
COLOUR_SETTING = setting(**{**COMMON, "augment": "crop"})


def everything(client: Client) -> ClientUpdate:
    """Everything that has a place: momentum, a centre that moves, what a rule reads, extra tensors; and answers."""
    client.put({n: torch.full_like(t, 0.01 * client.index) for n, t in client.model().items()}, "control")
    yield dataclasses.replace(own_scale(client), prox=0.1, follow=0.5, rules=(Add("control"),))
    yield Train(cross_entropy, trains=("head.",), momentum=0.0, steps=3)
    yield Collect(logits)
    yield Collect(logits, split="test")


def streamed(update: Update = everything, **options: Any) -> list[Client]:
    return served(update, COLOUR_SETTING, small(3, True), "streams", COLOUR, cores=1, **options)


def check_streamed(ours: list[Client]) -> None:
    reference = served(everything, COLOUR_SETTING, small(3, True), "sequential", COLOUR)
    for one, its in zip(ours, reference, strict=True):
        check_client(one, its)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was captured: as on a GPU steps are taken before, and one is while it is."""
    seen: list[Any] = []

    def recorded(run: Callable[[], Any], stream: Any, pool: Any, warm: Callable[[], None]) -> Callable[[], Any]:
        seen.append(run)
        warm()
        place = run()  # what a replay writes over

        def replay() -> Any:
            if place is not None:
                place.copy_(run())
            else:
                run()
            return place

        return replay

    monkeypatch.setattr(streams, "captured", recorded)
    monkeypatch.setattr(streams, "USES", 2)
    return seen


@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_a_capture_leaves_nothing_behind_and_no_client_anything_to_the_next(captures: list[Any], lanes: int) -> None:
    check_streamed(streamed(lanes=lanes))
    # Two kinds of training a lane that has a client with a whole batch; answers of training and of test images.
    assert len(captures) == 2 * min(lanes, 4) + 2


def test_the_oldest_captures_go(monkeypatch: pytest.MonkeyPatch, captures: list[Any]) -> None:
    monkeypatch.setattr(captured, "KEPT", 1)
    check_streamed(streamed(lanes=1))
    assert len(captures) > 4


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
def test_compiled(captures: list[Any]) -> None:
    check_streamed(streamed(lanes=2, compiled=True))


def test_what_cannot_be_compiled_runs_as_it_is(monkeypatch: pytest.MonkeyPatch, captures: list[Any]) -> None:
    def refuse(*_: Any, **__: Any) -> Callable[..., Any]:
        def broken(*_: Any) -> Any:
            raise RuntimeError("no compiler")

        return broken

    monkeypatch.setattr(torch, "compile", refuse)
    with pytest.warns(UserWarning, match="not compiled: RuntimeError: no compiler"):
        ours = streamed(lanes=2, compiled=True)
    check_streamed(ours)


def test_an_error_of_the_loss_is_no_fault_of_the_compiler(captures: list[Any]) -> None:
    def wrong(model: Any, batch: Batch) -> Loss:
        raise ZeroDivisionError

    with pytest.warns(UserWarning, match="not compiled"), pytest.raises(ZeroDivisionError):
        streamed(once(Train(wrong)), compiled=True)


def test_a_worker_of_many_kinds_of_questions_asks_plainly_at_first(captures: list[Any]) -> None:
    worker = executors.make("streams", small(3, True), COLOUR, COLOUR_SETTING, cores=1).new_worker()
    state, asks = state_of(small(3, True)), Collect(logits, split="test")
    piece = Piece(COLOUR.test[0], None)
    for asked in range(4):
        got = worker.outputs(state, asks, [piece])
        assert len(captures) == max(0, min(asked - 1, 1))
        assert got.shape == (len(COLOUR.test[0]), 10)


def moved(data: Federation, device: str) -> Federation:

    def there(clients: ByClient) -> ByClient:
        return ByClient(clients.rows.to(device), clients.ends)

    def some(name: str) -> Tensor | None:
        tensor = getattr(data, name)
        return None if tensor is None else tensor.to(device)

    return dataclasses.replace(
        data,
        **{name: some(name) for name in ("images", "labels", "class_counts", "image", "scaling")},
        test=there(data.test),
        stages=[(there(train), there(held)) for train, held in data.stages],
    )


@needs_gpu
@pytest.mark.parametrize(("name", "chosen", "scenario"), WHERE, ids=label)
def test_a_run_on_a_gpu_is_the_references(
    name: str, chosen: dict[str, Any], scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (name, scenario) in ENLARGING:
        monkeypatch.setattr(agreement, "TOLERANCE", ENLARGED)
    place = SCENARIOS[scenario]._replace(data=moved(SCENARIOS[scenario].data, "cuda"))
    with arithmetic("fp32", torch.device("cuda")):
        a = run((name, chosen), place, "sequential", tmp_path / "a")
        for way in ON_GPU:
            agreement.compare(run((name, chosen), place, way, tmp_path / way), a, f"by {way} on a GPU")


@needs_gpu
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
def test_a_request_on_a_gpu_is_answered_as_the_reference_does(update: str, norm: bool) -> None:
    made, changes = UPDATES[update]
    s, data = setting(**{**COMMON, **changes}), moved(SCENARIOS["ragged"].data, "cuda")
    with arithmetic("fp32", torch.device("cuda")):
        reference = served(made, s, norm, "sequential", data)
        for way in ON_GPU:
            for ours, its in zip(served(made, s, norm, way, data), reference, strict=True):
                check_client(ours, its)


@needs_gpu
@pytest.mark.parametrize("way", ["sequential", "stacked", "graphed", "streams"])
@pytest.mark.parametrize("name", ["feddrm", "pfedfda", "local"])
def test_states_that_do_not_fit_on_a_gpu_wait_in_pinned_memory(
    name: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = RAGGED._replace(data=moved(RAGGED.data, "cuda"))
    sent: list[Tensor] = []
    original = worker._to_host

    def to_host(tensor: Tensor) -> Tensor:
        sent.append(original(tensor))
        return sent[-1]

    with arithmetic("fp32", torch.device("cuda")):
        there = run((name, {}), place, way, tmp_path / "there")
        monkeypatch.setattr(worker, "_to_host", to_host)
        monkeypatch.setattr(simulation, "fits", lambda *_: False)
        waited = run((name, {}), place, way, tmp_path / "waited")
    agreement.compare(waited, there, f"by {way} with states in host memory")
    assert sent
    assert all(t.is_pinned() for t in sent)


@needs_gpu
@pytest.mark.parametrize("way", ["sequential", "stacked", "graphed", "streams"])
@pytest.mark.parametrize(("precision", "least", "limit"), [("tf32", 0.0, 2e-3), ("bf16", 5e-4, 0.05)])
def test_less_precision_on_a_gpu_moves_the_weights_a_little(
    precision: str, least: float, limit: float, way: str, tmp_path: Path
) -> None:
    """On an H200 bf16 by 1e-2, tf32 by 2e-7: convolutions so small are computed without."""
    data, s, norm = RAGGED
    device = torch.device("cuda")

    def weights(precision: str, way: str) -> Mapping[str, Tensor]:
        place = Scenario(moved(data, "cuda"), dataclasses.replace(s, precision=precision), norm)
        with arithmetic(precision, device):
            return run(("fedavg", {}), place, way, tmp_path / precision / way).trainer.server.shared

    ours, reference = weights(precision, way), weights("fp32", "sequential")
    assert {t.dtype for t in ours.values() if t.is_floating_point()} == {torch.float32}
    apart = max(differs(ours[name], t) for name, t in reference.items())
    assert least < apart < limit
