"""Checks of runs: executors agree, methods learn, and a run depends only on its spec."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from fedbench import models
from fedbench.conformance.lab import (
    Recorder,
    Run,
    digits,
    federation,
    made_anew,
    other_shapes,
    require_same_run,
    same,
    setting,
    vectors,
)
from fedbench.conformance.subject import DATA, Subject, strange_generators
from fedbench.core.federation import Federation
from fedbench.core.state import STATISTICS, State
from fedbench.core.trainer import Interrupted, Progress
from fedbench.errors import FedbenchError
from fedbench.measure import CLIENT, ROUND
from fedbench.models.base import FLModel
from fedbench.models.form import check
from fedbench.plugins import shown
from fedbench.specs import Setting, require

# -- agreement -------------------------------------------------------------------------------------------------
# Checks that all executors agree with the reference: equal random draws, and parameters up to float rounding.


#: Largest allowed difference of two tensors, as a fraction of the largest value of the reference.
TOLERANCE = 1e-4
#: ... and an absolute one: a solver that ends on its bound may leave a last bit where the reference has zero.
NOTHING = 1e-12
#: Largest allowed norm of the difference of two steps, as a fraction of the reference step's norm (ResNet-9: 1e-3).
STEP = 1e-2
#: Executors to compare with the sequential one. Two cores, so that clients end in any order.
WAYS = ("cores", "stacked", "graphed")
CORES = {"cores": 2}


class Scenario(NamedTuple):
    """Data, setting and network of the comparison."""

    data: Federation
    setting: Setting
    norm: bool = False


#: 22, 37, 1, 29, 7 and 23 training images: a single one, less than a batch, and not sorted as in stacks.
UNEQUAL = (38, 66, 2, 52, 12, 40)
COMMON: dict[str, Any] = {
    "window": 3, "seed": 5, "lr": 0.02, "epochs": 2, "momentum": 0.9, "weight_decay": 5e-4, "batch_size": 16,
}  # fmt: skip
#: Clients leave the stack at different steps, short batches occur in the middle, cohorts and learning rates change; two
#: groups, validation images, an unseen client, and clients without labels.
CHANGES: dict[str, Any] = {**COMMON, "participation": 0.7, "schedule": "cosine", "test_phase": True}
RAGGED = Scenario(federation(UNEQUAL, groups=(0, 1, 0, 1, 0, 1), validation=0.2), setting(**CHANGES), norm=True)


def executors_agree(subject: Subject, ways: Sequence[str] = WAYS) -> None:
    """The executors (one client per core, stacks of clients, captured steps of stacks) agree with training one client
    after another, on clients of unequal sizes and a network with batch norm."""
    reference = run_of(subject, "sequential")
    for way in ways:
        compare(run_of(subject, way), reference, f"by executor {way}", exact=way == "cores")


def executors_agree_on_a_step(subject: Subject) -> None:
    """The executors (one client per core, stacks of clients, captured steps) move the network as training one client
    after another does. (One step, with the parameters as one vector, since deep networks with batch norm amplify
    rounding.)"""
    change = {"participation": 1.0, "schedule": "constant", "rounds": 1, "epochs": None, "steps": 1}
    reference = run_of(subject, "sequential", **change)
    start, end = (_vector(getattr(reference.trainer.server, name)) for name in ("initial", "shared"))
    remedy = (
        "a network is tensor code: no Python `if` about a tensor's values, no .item(), no tensor kept between calls"
    )
    for way in WAYS:
        gap = _vector(run_of(subject, way, **change).trainer.server.shared) - end
        share = float(gap.norm() / (end - start).norm())
        require(share <= STEP, f"by executor {way} a step differs by {share:.0e} of its length", remedy)


def _vector(state: State) -> torch.Tensor:
    return torch.cat([state[name].double().flatten().cpu() for name in sorted(state)])


def run_of(subject: Subject, way: str, **changes: Any) -> Run:
    """The subject's run in the scenario RAGGED by the executor `way`."""
    s = subject.with_unseen_client(subject.setting(**{**CHANGES, **changes}))
    options = {} if way == "sequential" else CORES
    network = partial(subject.network, norm=RAGGED.norm)
    return subject.train(RAGGED.data, s, executor=way, options=options, plan=Recorder, network=network)


def compare(ours: Run, reference: Run, where: str, exact: bool = False) -> None:
    """Raise FedbenchError unless a run has the draws, tensors, losses and predictions of the reference (bitwise if
    `exact`)."""
    remedy = "an update may not depend on other clients, the order of work, or Python's `if` about a tensor's values"
    plans = ours.trainer.plan, reference.trainer.plan
    assert isinstance(plans[0], Recorder)
    assert isinstance(plans[1], Recorder)
    require(plans[0].draws == plans[1].draws, f"{where} other batches are drawn", remedy)
    a, b = ours.trainer.server.tensors(), reference.trainer.server.tensors()
    require(a.keys() == b.keys(), f"{where} the server holds other tensors", remedy)
    far = {name: gap for name, gap in gaps(a, b).items() if gap > (0 if exact else TOLERANCE)}
    worst = max(far, key=lambda name: far[name], default="")
    require(not far, f"{where} '{worst}' differs by {far.get(worst, 0):.0e} of its largest value", remedy)
    _compare_lines(ours, reference, where, remedy, exact)
    if exact:
        require_same_run(reference, ours, f"{where} the run differs", remedy)
    _compare_answers(ours, reference, where, remedy)


def _compare_lines(ours: Run, reference: Run, where: str, remedy: str, exact: bool) -> None:
    for a, b in zip(ours.trainer.checkpoint.rounds, reference.trainer.checkpoint.rounds, strict=True):
        close = math.isclose(a["loss"], b["loss"], rel_tol=0 if exact else TOLERANCE)
        require(close, f"{where} the loss of round {b['round']} is {a['loss']:.6g}, not {b['loss']:.6g}", remedy)
        for key in ("images", "participants", "bytes_up", "bytes_down"):
            require(a[key] == b[key], f"{where} round {b['round']} has {a[key]} {key}, not {b[key]}", remedy)


def _compare_answers(ours: Run, reference: Run, where: str, remedy: str) -> None:
    a, b = ours.predictions, reference.predictions
    require(a.schema == b.schema, f"{where} predictions have other columns", remedy)
    for column in b.column_names:
        same = np.array(a[column].to_pylist()) == np.array(b[column].to_pylist())
        rounded = column in ("own", "votes") or column.startswith("route")
        enough = bool(np.mean(same) >= (0.99 if rounded else 1))
        require(enough, f"{where} '{column}' of the predictions differs", remedy)


def gaps(ours: State, reference: State) -> dict[str, float]:
    """Name -> relative difference of a tensor: to its largest value or, for a further model besides the network, to the
    largest value of that model. The parameters of such a model may be differences (control variates), and a single
    tensor can then be pure rounding error: the bias before a BatchNorm has no gradient."""
    large: dict[str, float] = {}
    for name, t in reference.items():
        if (model := _model(name)) and t.numel():
            large[model] = max(large.get(model, 0.0), float(t.abs().max()))
    return {name: differs(ours[name], t, large.get(_model(name), 0.0)) for name, t in reference.items()}


def _model(name: str) -> str:
    """The further model that a tensor belongs to: "personal/3/own" for "personal/3/own/head.bias"; "" if none."""
    place, _, tensor = name.rpartition("/")
    within = place.count("/") > name.startswith(("personal/", "model/"))
    return place if within and not tensor.endswith(STATISTICS) else ""


def differs(ours: Any, reference: Any, large: float = 0.0) -> float:
    """The largest difference, relative to the largest value of the reference or to `large` if that is larger."""
    a, b = torch.as_tensor(ours).double().cpu(), torch.as_tensor(reference).double().cpu()
    if a.shape != b.shape:
        return math.inf
    if not a.numel() or torch.equal(a, b):
        return 0.0
    gap = float((a - b).abs().max()) / max(float(b.abs().max()), large, NOTHING / TOLERANCE)
    return gap if math.isfinite(gap) else math.inf


# -- learning --------------------------------------------------------------------------------------------------
# Checks that a method learns, also on few, unusual or cropped data.


#: Required accuracy: chance is 10 %, and a linear model on as many digits (84 per client) has over 80 %.
ENOUGH = 0.5
#: (rounds, learning rate) of successive attempts: methods without momentum need more of both.
TRIES = ((6, 0.05), (20, 0.2))


def learns(subject: Subject) -> None:
    """On digits, with all classes at every client, six rounds (or twenty with a higher learning rate) reach an accuracy
    above 50 %, where chance is 10 %, and reduce the loss."""
    best, loss = 0.0, ""
    for rounds, rate in TRIES:
        try:
            reports = _train(subject, rounds, rate)
        except FedbenchError as error:
            if "diverged" not in error.message:
                raise
            loss = "diverged"
            continue
        if _learned(reports):
            return
        best, loss = (
            max(best, reports[-1].accuracy or 0.0),
            f"went from {reports[0].loss:.3g} to {reports[-1].loss:.3g}",
        )
    raise FedbenchError(
        f"after {TRIES[-1][0]} rounds of training {best:.0%} of the answers are right, chance is 10 %; the loss {loss}",
        "see that local trains what answers, that aggregate takes what was trained, and the sign of the loss",
    )


def _learned(reports: Sequence[Progress]) -> bool:
    """Whether the accuracy is over ENOUGH and the loss has decreased."""
    return (reports[-1].accuracy or 0.0) > ENOUGH and reports[-1].loss < reports[0].loss


def _train(subject: Subject, rounds: int, rate: float) -> list[Progress]:
    """The progress of a run, which is stopped as soon as it has learned."""
    data = federation((120, 120, 120, 120), skew=float("inf"))
    s = subject.setting(rounds=rounds, window=1, every=1, epochs=3, lr=rate)
    if s.steps is not None:  # the method computes one gradient per client and round
        s = subject.setting(rounds=7 * rounds, window=1, every=7, lr=rate / 5)
    reports: list[Progress] = []

    def listen(progress: Progress) -> None:
        reports.append(progress)
        if _learned(reports):
            raise KeyboardInterrupt

    with contextlib.suppress(Interrupted):
        subject.train(data, s, observe=listen)
    return reports


def tiny_clients(subject: Subject) -> None:
    """Clients with one class, with fewer images than a batch, with one training image, and with dropped short batches
    all predict, and every value is finite."""
    images, labels = digits()
    pool = np.arange(len(labels))
    single = pool[labels == np.bincount(labels).argmax()][:12]
    rest = np.setdiff1d(pool, single)
    parts = [single, rest[:50], rest[50:58], rest[58:60]]
    rows = np.concatenate(parts)
    client = np.repeat(np.arange(4), [len(p) for p in parts])
    is_test = np.concatenate([np.arange(len(p)) >= len(p) / 2 for p in parts])
    data = Federation.of(images[rows], labels[rows], client, rows, is_test, 10)
    run = subject.train(data, subject.setting(tail="drop", epochs=2))
    remedy = "look for a division by a client's number of images or classes, and for a batch norm over one image"
    for name, value in run.tensors.items():
        require(bool(np.isfinite(value).all()), f"'{name}' is not finite with clients of 6, 25, 4 and 1 images", remedy)
    last = run.predictions.slice(len(run.predictions) - sum(data.n_test))
    answered = np.bincount(last["client"].to_numpy(), minlength=4).tolist()
    require(answered == data.n_test, f"clients with {data.n_test} test images have {answered} answers", remedy)
    require(max(last["own"].to_pylist()) < 10, "an answer is none of the ten classes", "client.answer holds classes")


def crops_of_colour_images(subject: Subject) -> None:
    """Training on cropped images with three channels differs from training on whole images, and both runs end with
    predictions."""
    data, common = federation((40, 30, 25), color=True), {"rounds": 3, "window": 1}
    where = subject.place()
    s = subject.setting(**common, augment="crop")
    cropped = _first_round(subject, data, s, where)
    views = set(subject.train(data, s, where=where).predictions["view"].to_pylist())
    require(views == {"crop", "plain"}, f"the last round answered {sorted(views)}", "answer in every view")
    whole = _first_round(subject, data, subject.setting(**common), subject.place())
    wrong = "crops train the same network as whole images"
    require(not same(whole, cropped), wrong, "train by requests: they crop images as the setting says")


def vectors_of_numbers(subject: Subject) -> None:
    """On vectors instead of images (table rows, embeddings) its network changes and stays finite; skipped for methods
    with `takes_vectors = False` and networks that need images."""
    data, model = vectors(), subject.model or "mlp"
    if not subject.kind.takes_vectors:
        return
    try:
        subject.network(data)
    except FedbenchError:
        return
    run = subject.train(data, subject.setting(model=model, rounds=3, votes=False))
    remedy = "take an image's shape from client.context.shape, and let the network make features of it"
    initial, trained = run.trainer.server.initial, run.trainer.server.tensors()
    for name, value in trained.items():
        require(bool(value.isfinite().all()), f"'{name}' is not finite after training on vectors", remedy)
    moved = any(not torch.equal(t, initial[n]) for name, t in trained.items() if (n := name.split("/")[-1]) in initial)
    require(moved, "on vectors nothing of the network is trained", remedy)


def _first_round(subject: Subject, data: Federation, s: Any, where: Any) -> dict[str, np.ndarray]:
    tensors: dict[str, torch.Tensor] = subject.stopped(data, s, 1, where).server.tensors()
    return {name: t.numpy() for name, t in tensors.items()}


# -- network ---------------------------------------------------------------------------------------------------
# Checks of a network, without training.


def form(subject: Subject) -> None:
    """It has the parts backbone, projection and head with the sizes that it states, for digits and for 32x32 colour
    images with seven classes."""
    for shape, classes in ((_digits(subject), 10), ((32, 32, 3), 7)):
        network = _made(subject, shape, classes, 1)
        check(network, subject.model or "", shape, classes)


def weights_from_the_seed(subject: Subject) -> None:
    """Its initial weights depend on the seed alone: the same for the same seed, different for another."""
    one, again, other = (_made(subject, _digits(subject), 10, seed).state_dict() for seed in (1, 1, 2))
    remedy = "draw weights in the layers' own reset_parameters, or override initialise(self, module)"
    for name, value in one.items():
        require(torch.equal(value, again[name]), f"'{name}' differs in two networks of one seed", remedy)
    moved = any(not torch.equal(value, other[name]) for name, value in one.items())
    require(moved, "two seeds give the same weights", remedy)


def _digits(subject: Subject) -> tuple[int, int, int]:
    return 8 * subject.scale, 8 * subject.scale, 1


def _made(subject: Subject, shape: tuple[int, int, int], classes: int, seed: int) -> FLModel:
    with strange_generators():
        return models.build(subject.model or "", shape=shape, classes=classes, seed=seed)


# -- runs ------------------------------------------------------------------------------------------------------


def trains_and_answers(subject: Subject) -> None:
    """Four rounds with partial participation end with predictions of all clients, including one that never trained and,
    if the method has a model for them, clients without labels."""
    run = subject.reference.run
    last = run.predictions.slice(len(run.predictions) - 1)
    require(last["round"].to_pylist() == [4], "the last round has no predictions", "see what the hooks return")


def metrics_are_declared(subject: Subject) -> None:
    """Every metric that `round_metrics` and `client.metrics` report is declared in `measures`."""
    checkpoint = subject.reference.run.trainer.checkpoint
    reported = {
        ROUND: {key.removeprefix("figure_") for line in checkpoint.rounds for key in line if key.startswith("figure_")},
        CLIENT: {key for notes in checkpoint.notes.values() for key in notes},
    }
    for of, names in reported.items():
        for name in sorted(names - {one.name for one in subject.kind.measures if one.of == of}):
            remedy = f'write measures = (Measure("{name}", "what it is", "its unit", of="{of}"),) in the class'
            require(False, f"it reports '{name}' of each {of}, which it does not declare", remedy)


def same_seed_same_bits(subject: Subject) -> None:
    """Two runs of the same spec have the same bits, whatever random numbers the program draws elsewhere."""
    again = subject.train(DATA, subject.few())
    remedy = "draw from the generator of variables(), never from torch, numpy or random themselves, and read no clock"
    require_same_run(subject.reference.run, again, "the same run made twice is not the same", remedy)


def another_seed_other_bits(subject: Subject) -> None:
    """Another seed draws other batches."""
    other = subject.stopped(DATA, subject.few(seed=12), 1, subject.place())
    tensors = {name: t.numpy() for name, t in other.server.tensors().items()}
    wrong = "two seeds make the same run"
    require(not same(subject.reference.after(1), tensors), wrong, "train on the batches of the requests that you yield")


def test_labels_change_nothing(subject: Subject) -> None:
    """Other labels on the test images change nothing but the labels in the predictions."""
    labels = DATA.labels.clone()
    for rows in DATA.test:
        labels[rows] = (labels[rows] + 3) % DATA.classes
    garbled = subject.train(dataclasses.replace(DATA, labels=labels), subject.few())
    ours, theirs = subject.reference.run, garbled
    require(ours.predictions["label"] != theirs.predictions["label"], "the check garbled no label", "tell us")
    remedy = "take test images by client.images('test') or Collect(split='test'); client.work is the executor's alone"
    wrong = "what it computes depends on the labels of the test images"
    require(same(ours.tensors, theirs.tensors), wrong, remedy)
    answers = [run.predictions.drop_columns("label") for run in (ours, theirs)]
    require(answers[0].equals(answers[1]), wrong, remedy)


def stop_and_resume(subject: Subject) -> None:
    """A run that is stopped after rounds 1 and 3, and resumed by a new process each time, ends with the bits of a run
    that was not stopped."""
    s, where = subject.few(), subject.place()
    for t in (1, 3):
        it = subject.stopped(DATA, s, t, where, executor="cores")
        require(it.checkpoint.round == t, f"a run stopped after round {t} has saved round {it.checkpoint.round}", "")
    resumed = subject.train(DATA, s, where=where, executor="cores")
    remedy = (
        "a checkpoint keeps server.shared, server.memory and what clients keep (`personal`): what lies on the method "
        "itself, on its class or in its module is lost at a stop"
    )
    require([p.round for p in resumed.reports] == [4], "a stopped run did not continue where it was stopped", remedy)
    require_same_run(subject.reference.run, resumed, "a run that was stopped and went on ends with other bits", remedy)


def no_tensor_is_overwritten(subject: Subject) -> None:
    """A round does not write to what the server sends or keeps: it makes new tensors, so that an interrupted round has
    no effect and clients cannot change each other."""
    for key, (value, copy) in subject.reference.snapshots.items():
        when, name = key.split("/", 1)
        since = "before the first round" if when == "initial" else f"after round {when}"
        require(
            torch.equal(value, copy),
            f"'{name}', as the server held it {since}, was changed in place later",
            "make a new tensor (t + x, not t.add_(x) or t += x) and put that into client.state or server.shared",
        )


def requests_can_be_stacked(subject: Subject) -> None:
    """The loss of a request is one function for all clients, so that executors can stack clients."""
    for requests in subject.reference.requests.values():
        function = made_anew([request.function for request in requests])
        if function is None:
            continue
        code = getattr(function, "__code__", None)
        at = f" ({shown(code.co_filename)}, line {code.co_firstlineno})" if code else ""
        require(
            False,
            f"{getattr(function, '__qualname__', function)}{at} is new for every client, so none can be stacked",
            "define it at the top of the file or as a method, and pass a client's own tensors as extras=",
        )


def extras_have_one_shape(subject: Subject) -> None:
    """The extra tensors of a request have the same shapes at all clients, so that executors can stack clients."""
    for (t, hook, _), requests in subject.reference.requests.items():
        different = other_shapes(requests)
        if different is None:
            continue
        name, *both = different
        one, other = (f"{list(r.shapes[name])} at client {r.client}" for r in both)
        require(
            False,
            f"extras['{name}'] in {hook} of round {t} is {one} and {other}, so that they cannot be stacked",
            "give it the length of the largest client, max(client.context.n_train), and look up batch.position in it",
        )


def clients_answer_alone(subject: Subject) -> None:
    """A client's predictions for its own images do not depend on whether it also predicts other clients' images."""
    alone = subject.train(DATA, subject.few(votes=False)).predictions
    both = subject.reference.run.predictions.select(alone.column_names)
    wrong = "own answers differ where clients also answer others' images"
    require(alone.equals(both), wrong, "route and personalise may not write to what clients hold")
