"""Checks of runs: executors agree, methods learn, and a run depends only on its spec."""

from __future__ import annotations

import dataclasses

import torch

from fedbench import models
from fedbench.conformance.lab import (
    made_anew,
    other_shapes,
    require_same_run,
    same,
)
from fedbench.conformance.subject import DATA, Subject, strange_generators
from fedbench.measure import CLIENT, ROUND
from fedbench.models.base import FLModel
from fedbench.models.form import check
from fedbench.plugins import shown
from fedbench.specs import require


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
