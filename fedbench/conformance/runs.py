"""Checks of runs by one executor: a run is determined by its spec, and leaves what it was handed alone."""

from __future__ import annotations

import dataclasses

import torch

from fedbench.conformance.expect import expect, expect_same_run
from fedbench.conformance.lab import same
from fedbench.conformance.recorded import made_anew, other_shapes
from fedbench.conformance.subject import DATA, Subject
from fedbench.measure import CLIENT, ROUND
from fedbench.plugins.mistakes import shown


def trains_and_answers(subject: Subject) -> None:
    """Four rounds in which clients come and go end with predictions of all clients; also of one that never trained and
    of clients without labels, where the method has a model for those."""
    run = subject.reference.run
    last = run.predictions.slice(len(run.predictions) - 1)
    expect(last["round"].to_pylist() == [4], "the last round has no predictions", "see what the hooks return")


def metrics_are_declared(subject: Subject) -> None:
    """Every metric that `round_metrics` and `client.metrics` report is declared in `measures`, and so a metric of its
    runs."""
    checkpoint = subject.reference.run.trainer.checkpoint
    reported = {
        ROUND: {key.removeprefix("figure_") for line in checkpoint.rounds for key in line if key.startswith("figure_")},
        CLIENT: {key for notes in checkpoint.notes.values() for key in notes},
    }
    for of, names in reported.items():
        for name in sorted(names - {one.name for one in subject.kind.measures if one.of == of}):
            remedy = f'write measures = (Measure("{name}", "what it is", "its unit", of="{of}"),) in the class'
            expect(False, f"it reports '{name}' of each {of}, which it does not declare", remedy)


def same_seed_same_bits(subject: Subject) -> None:
    """A run that is made twice ends with the same bits, whatever the surrounding program has drawn at random."""
    again = subject.train(DATA, subject.few())
    remedy = "draw from the generator of variables(), never from torch, numpy or random themselves, and read no clock"
    expect_same_run(subject.reference.run, again, "the same run made twice is not the same", remedy)


def another_seed_other_bits(subject: Subject) -> None:
    """The seed matters: with another one, other batches are drawn."""
    other = subject.stopped(DATA, subject.few(seed=12), 1, subject.place())
    tensors = {name: t.numpy() for name, t in other.server.tensors().items()}
    wrong = "two seeds make the same run"
    expect(not same(subject.reference.after(1), tensors), wrong, "train on the batches of the requests that you yield")


def test_labels_change_nothing(subject: Subject) -> None:
    """With other labels on the test images nothing of the run changes but the labels beside the predictions."""
    labels = DATA.labels.clone()
    for rows in DATA.test:
        labels[rows] = (labels[rows] + 3) % DATA.classes
    garbled = subject.train(dataclasses.replace(DATA, labels=labels), subject.few())
    ours, theirs = subject.reference.run, garbled
    expect(ours.predictions["label"] != theirs.predictions["label"], "the check garbled no label", "tell us")
    remedy = "take test images by client.images('test') or Collect(split='test'); client.work is the executor's alone"
    wrong = "what it computes depends on the labels of the test images"
    expect(same(ours.tensors, theirs.tensors), wrong, remedy)
    answers = [run.predictions.drop_columns("label") for run in (ours, theirs)]
    expect(answers[0].equals(answers[1]), wrong, remedy)


def stop_and_resume(subject: Subject) -> None:
    """Stopped after the first round, once more after the third, and gone on with by a new process each time, a run
    ends with the bits of one that was not stopped."""
    s, where = subject.few(), subject.place()
    for t in (1, 3):
        it = subject.stopped(DATA, s, t, where, executor="cores")
        expect(it.checkpoint.round == t, f"a run stopped after round {t} has saved round {it.checkpoint.round}", "")
    resumed = subject.train(DATA, s, where=where, executor="cores")
    remedy = (
        "a checkpoint keeps server.shared, server.memory and what clients keep (`personal`): what lies on the method "
        "itself, on its class or in its module is lost at a stop"
    )
    expect([p.round for p in resumed.reports] == [4], "a stopped run did not go on where it was stopped", remedy)
    expect_same_run(subject.reference.run, resumed, "a run that was stopped and went on ends with other bits", remedy)


def nothing_handed_on_is_written_to(subject: Subject) -> None:
    """What the server hands out and has kept stays as it was: a round works on new tensors, so that an interrupted one
    leaves no trace and clients cannot reach into one another."""
    for key, (value, copy) in subject.reference.snapshots.items():
        when, name = key.split("/", 1)
        since = "before the first round" if when == "initial" else f"after round {when}"
        expect(
            torch.equal(value, copy),
            f"'{name}', as the server held it {since}, was changed in place later",
            "make a new tensor (t + x, not t.add_(x) or t += x) and put that into client.state or server.shared",
        )


def requests_can_be_stacked(subject: Subject) -> None:
    """The loss of a request is one function for all clients, so that executors can run many clients at once."""
    for requests in subject.reference.requests.values():
        function = made_anew([request.function for request in requests])
        if function is None:
            continue
        code = getattr(function, "__code__", None)
        at = f" ({shown(code.co_filename)}, line {code.co_firstlineno})" if code else ""
        expect(
            False,
            f"{getattr(function, '__qualname__', function)}{at} is made anew for every client, so none can be stacked",
            "define it at the top of the file or as a method, and pass a client's own tensors as extras=",
        )


def extras_have_one_shape(subject: Subject) -> None:
    """The extra tensors of a request have the same shapes at all clients, so that executors can run many at once."""
    for (t, hook, _), requests in subject.reference.requests.items():
        different = other_shapes(requests)
        if different is None:
            continue
        name, *both = different
        one, other = (f"{list(r.shapes[name])} at client {r.client}" for r in both)
        expect(
            False,
            f"extras['{name}'] in {hook} of round {t} is {one} and {other}, so that they cannot be stacked",
            "give it the length of the largest client, max(client.context.n_train), and look up batch.position in it",
        )


def clients_answer_alone(subject: Subject) -> None:
    """A client's own answers are the same whether or not it is asked about the others' images too."""
    alone = subject.train(DATA, subject.few(votes=False)).predictions
    both = subject.reference.run.predictions.select(alone.column_names)
    wrong = "own answers differ where clients are asked about others' images too"
    expect(alone.equals(both), wrong, "route and personalise may not write to what clients hold")
