"""What every method must satisfy: it finds them by the registry, so a new method's file is covered as it is."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from cases import cases
from lab import Run, federation, method, parquet_bytes, same, setting, train, trainer
from torch import Tensor

from fedbench import methods
from fedbench.core.federation import Federation
from fedbench.core.plan import Ints, Plan
from fedbench.core.trainer import Interrupted, Progress
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method
from fedbench.spec import RunSpec, Setting

every = pytest.mark.parametrize("name", methods.names())

DATA = federation((70, 40, 55, 30))


def few(**changes: Any) -> Setting:
    """Four rounds in which clients come and go."""
    return setting(**{"rounds": 4, "window": 3, "participation": 0.7, "seed": 11, **changes})


class Recorder(Plan):
    """A plan that remembers what it was asked."""

    cohorts: dict[int, list[int]]
    first: dict[tuple[int, int], list[list[int]]]

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.cohorts, self.first = {}, {}

    def cohort(self, t: int) -> list[int]:
        self.cohorts[t] = super().cohort(t)
        return self.cohorts[t]

    def batches(self, client: int, t: int, phase: int, epochs: int | None, steps: int | None) -> Iterator[Ints]:
        for batch in super().batches(client, t, phase, epochs, steps):
            if phase == 1 and len(self.first.setdefault((t, client), [])) < 3:
                self.first[t, client].append(batch.tolist())
            yield batch


class Reference(NamedTuple):
    """A run by the sequential executor, and what was written down while it was trained."""

    run: Run
    plan: Recorder
    #: "round/name" -> what the server held after that round ("initial": before the first), and a copy made then
    held: dict[str, tuple[Tensor, Tensor]]

    def after(self, t: int) -> dict[str, np.ndarray]:
        """What the server held after round t."""
        start = f"{t}/"
        return {key.removeprefix(start): then.numpy() for key, (_, then) in self.held.items() if key.startswith(start)}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, dict[str, Any]], Reference]:
    """(name, hyper-parameters) -> the run that most checks share, trained once."""
    folder = tmp_path_factory.mktemp("references")

    @cache
    def made(name: str, chosen: tuple[tuple[str, Any], ...]) -> Reference:
        it = trainer(method(name, **dict(chosen)), DATA, folder / f"{name}{hash(chosen)}", few(), plan=Recorder)
        assert isinstance(it.plan, Recorder)
        held = {f"initial/{key}": (value, value.clone()) for key, value in it.server.initial.items()}

        def listen(progress: Progress) -> None:
            for key, value in it.server.tensors().items():
                held[f"{progress.round}/{key}"] = (value, value.clone())

        it.run(listen)
        return Reference(Run(it, []), it.plan, held)

    return lambda name, chosen: made(name, tuple(chosen.items()))


def stop_after(t: int) -> Callable[[Progress], None]:
    """For `observe`: the user's interrupt after round t."""

    def observe(progress: Progress) -> None:
        if progress.round == t:
            raise KeyboardInterrupt

    return observe


def first_round(how: Method, data: Federation, where: Path, s: Setting) -> dict[str, np.ndarray]:
    """What the server holds after the first round; `where` keeps the checkpoint to go on from."""
    it = trainer(how, data, where, s)
    with pytest.raises(Interrupted):
        it.run(lambda progress: None if progress.doing else stop_after(1)(progress))
    return {name: t.numpy() for name, t in it.server.tensors().items()}


def test_the_cohorts_of_these_tests_vary() -> None:
    sizes = {len(Plan(few(), DATA.n_train, (8, 8)).cohort(t)) for t in range(1, 5)}
    assert len(sizes) > 1
    assert min(sizes) > 0


@cases
def test_same_seed_same_bits_whatever_the_labels_to_predict(
    name: str, chosen: dict[str, Any], reference: Any, tmp_path: Path
) -> None:
    labels = DATA.labels.clone()
    for rows in DATA.test:
        labels[rows] = (labels[rows] + 3) % 10
    garbled = dataclasses.replace(DATA, labels=labels)
    torch.manual_seed(12345)  # what the surrounding program draws must not matter
    np.random.seed(54321)
    a, b = reference(name, chosen).run, train(method(name, **chosen), garbled, tmp_path, few())
    assert same(a.tensors, b.tensors)
    assert not a.predictions["label"].equals(b.predictions["label"])
    assert a.predictions.drop_columns("label").equals(b.predictions.drop_columns("label"))


@cases
def test_another_seed_other_bits(name: str, chosen: dict[str, Any], reference: Any, tmp_path: Path) -> None:
    other = first_round(method(name, **chosen), DATA, tmp_path, few(seed=12))
    assert not same(reference(name, chosen).after(1), other)


@cases
def test_stop_and_resume_equals_uninterrupted(
    name: str, chosen: dict[str, Any], reference: Any, tmp_path: Path
) -> None:
    """Stopped after the first round, and once more after the third."""
    for stop in (1, 3):
        with pytest.raises(Interrupted) as caught:
            train(method(name, **chosen), DATA, tmp_path, few(), executor="cores", observe=stop_after(stop))
        assert caught.value.round == stop
    resumed = train(method(name, **chosen), DATA, tmp_path, few(), executor="cores")
    assert [p.round for p in resumed.heard] == [4]
    whole = reference(name, chosen).run
    assert same(resumed.tensors, whole.tensors)
    assert parquet_bytes(resumed.predictions) == parquet_bytes(whole.predictions)
    assert resumed.trainer.clients_table().equals(whole.trainer.clients_table())


@cases
def test_it_learns(name: str, chosen: dict[str, Any], tmp_path: Path) -> None:
    # Ten classes, alike at all clients: chance is 10 %, always naming the commonest class gives under 25 % (checked).
    # A linear model on as many digits (84 a client) has over 80 %, so half is well above chance and easy to reach.
    data = federation((120, 120, 120, 120), skew=float("inf"))
    commonest = max(np.bincount(data.labels[rows]).max() / len(rows) for rows in data.test)
    assert commonest < 0.25
    # pFedMe's steps have no momentum, so they must be larger to learn as fast.
    larger = name == "pfedme"
    how = method(name, **chosen, **({"inner_lr": 0.1} if larger else {}))
    s = setting(rounds=6, window=1, epochs=3, lr=0.2 if larger else 0.05)
    try:
        how.check_setting(s)
    except FedbenchError:  # one gradient a client and round, and a server Adam
        s = setting(rounds=40, window=1, steps=1, passes="endless", lr=0.01, momentum=0.0)
    run = train(how, data, tmp_path, s)
    assert run.accuracy > 0.5
    losses = [p.loss for p in run.heard]
    assert losses[-1] < 0.7 * losses[0]


@cases
def test_cohorts_and_first_batches_are_those_of_every_method(name: str, chosen: dict[str, Any], reference: Any) -> None:
    asked = reference(name, chosen).plan
    plan = Plan(few(), DATA.n_train, (8, 8))
    assert asked.cohorts == {t: plan.cohort(t) for t in range(1, 5)}
    assert asked.first, "it never trained"
    for (t, client), batches in asked.first.items():
        expected = [b.tolist() for b in plan.batches(client, t, 1, 1, None)]  # two to four of them
        assert batches[: len(expected)] == expected[: len(batches)]


@cases
def test_one_class_few_images_and_a_single_image(name: str, chosen: dict[str, Any], tmp_path: Path) -> None:
    """A client of one class, one with fewer images than a batch, one with a single training image; tails dropped."""
    labels = DATA.labels.numpy()
    pool = np.arange(len(labels))
    single = pool[labels == np.bincount(labels).argmax()][:12]
    rest = np.setdiff1d(pool, single)
    parts = [single, rest[:50], rest[50:58], rest[58:60]]
    rows = np.concatenate(parts)
    client = np.repeat(np.arange(4), [len(p) for p in parts])
    is_test = np.concatenate([np.arange(len(p)) >= len(p) / 2 for p in parts])
    data = Federation.of(DATA.images[rows].numpy(), labels[rows], client, rows, is_test, 10)
    assert data.n_train == [6, 25, 4, 1]
    run = train(method(name, **chosen), data, tmp_path, setting(tail="drop", epochs=2))
    assert all(np.isfinite(value).all() for value in run.tensors.values())
    last = run.predictions.slice(len(run.predictions) - sum(data.n_test))
    assert np.bincount(last["client"].to_numpy(), minlength=4).tolist() == data.n_test
    assert max(last["own"].to_pylist()) < 10


@cases
def test_crops_of_colour_images(name: str, chosen: dict[str, Any], tmp_path: Path) -> None:
    data = federation((40, 30, 25), color=True)
    s = setting(rounds=2, window=1, augment="crop", epochs=None, steps=4)
    how = method(name, **chosen)
    cropped = first_round(how, data, tmp_path / "cropped", s)
    run = train(how, data, tmp_path / "cropped", s)
    assert set(run.predictions["view"].to_pylist()) == {"crop", "plain"}
    whole = first_round(how, data, tmp_path / "whole", setting(rounds=2, window=1, epochs=None, steps=4))
    assert not same(whole, cropped), "training saw no crop"


@cases
def test_who_answers_alone_answers_the_same(name: str, chosen: dict[str, Any], reference: Any, tmp_path: Path) -> None:
    alone = train(method(name, **chosen), DATA, tmp_path, few(votes=False)).predictions
    assert alone.column_names == ["round", "view", "client", "sample", "label", "own"]
    assert alone.equals(reference(name, chosen).run.predictions.select(alone.column_names))


@cases
def test_a_cohort_that_has_not_moved_leaves_the_server_where_it_was(
    name: str, chosen: dict[str, Any], tmp_path: Path
) -> None:
    """The weights of every average sum to one, whatever the sizes of the clients."""
    how = method(name, **chosen)
    it = trainer(how, DATA, tmp_path, few())
    before = dict(it.server.shared)
    cohort = [it._client(i, how.broadcast(it.server, i, 1), 1) for i in (0, 2, 3)]
    how.aggregate(it.server, cohort, 1)
    assert it.server.shared.keys() == before.keys()
    for key, value in before.items():
        torch.testing.assert_close(it.server.shared[key], value, rtol=1e-6, atol=1e-7)


@cases
def test_nothing_handed_on_is_written_to(name: str, chosen: dict[str, Any], reference: Any) -> None:
    """A round works on new tensors, so that an interrupted one leaves no trace."""
    held = reference(name, chosen).held
    assert {key.split("/")[0] for key in held} >= {"initial", "1", "2", "3", "4"}
    assert [key for key, (value, then) in held.items() if not torch.equal(value, then)] == []


@cases
def test_traffic_is_counted_before_anything_is_trained(name: str, chosen: dict[str, Any], tmp_path: Path) -> None:
    it = trainer(method(name, **chosen), DATA, tmp_path, few())
    everything = sum(t.numel() * t.element_size() for t in it.server.initial.values())
    for direction in it.method.traffic(it.server, 1):
        assert isinstance(direction, int)
        assert 0 <= direction <= 2 * everything  # a client may send statistics beside what it holds


@every
def test_it_is_named_as_its_file_and_keeps_what_exists(name: str, tmp_path: Path) -> None:
    cls, source = methods.load(name)
    assert source is None
    assert cls.name == name
    assert cls.title
    assert cls.version >= 1
    assert cls.__doc__
    assert not cls.__doc__.startswith(f"{cls.__name__}("), "no docstring but a dataclass's own"
    initial = trainer(cls(), DATA, tmp_path).server.initial
    for prefix in cls.personal:
        assert any(key.startswith(prefix) for key in initial), f"'{prefix}' is no tensor's prefix"


@every
def test_hyper_parameters_are_documented_and_parse(name: str) -> None:
    cls, _ = methods.load(name)
    default = cls()
    for option, field in cls.knobs().items():
        assert field.metadata["help"], option
        assert "\n" not in field.metadata["help"]
        assert option == option.lower()
        choices = field.metadata["choices"]
        assert not choices or field.default in choices
        assert cls.create({option: str(field.default)}) == default
        assert type(cls.create({option: str(field.default)}).params[option]) is type(field.default)
        with pytest.raises(FedbenchError, match=f"--{option.replace('_', '-')}"):
            cls.create({option: "no such value"})
    with pytest.raises(FedbenchError, match=f"unknown option of {name}"):
        cls.create({"no_such_knob": 1})
    spec = RunSpec(setting(), name, default.params, cls.version)
    assert RunSpec.from_dict(spec.to_dict()).id == spec.id


@every
def test_deviations_are_whole_paragraphs(name: str) -> None:
    cls, _ = methods.load(name)
    said = cls.deviations()
    assert len(said) == (cls.__doc__ or "").count("deviates:")
    for text in said:
        assert text.endswith(".")
        assert "\n" not in text
        assert len(text) > 20


@every
def test_hooks_keep_the_signatures_of_the_base(name: str) -> None:
    """A client's box knows one client; nothing that answers is ever given a label."""
    cls, _ = methods.load(name)
    hooks = [name for name, value in vars(Method).items() if inspect.isfunction(value) and not name.startswith("_")]
    for hook in hooks:
        ours = list(inspect.signature(getattr(cls, hook)).parameters)
        assert len(ours) == len(inspect.signature(getattr(Method, hook)).parameters), hook
    assert "label" not in " ".join(inspect.signature(cls.route).parameters)


@pytest.fixture(scope="module")
def fedavgs_round(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Setting], Run]:
    """Setting -> FedAvg's run in it, trained once."""
    return cache(lambda s: train("fedavg", DATA, tmp_path_factory.mktemp("fedavg"), s))


@every
def test_effort_is_that_of_the_local_work(name: str, tmp_path: Path, fedavgs_round: Any) -> None:
    """What tells beforehand how long a run takes: the images of all requests, against FedAvg's."""
    how = methods.load(name)[0]()
    s = setting(rounds=1, window=1, epochs=2)
    try:
        how.check_setting(s)
    except FedbenchError:
        s = setting(rounds=1, window=1, steps=1, passes="endless", momentum=0.0)
    if how.trains:
        runs = [train(how, DATA, tmp_path, s), fedavgs_round(s)]
        images, others = (run.trainer.checkpoint.rounds[0]["images"] for run in runs)
        size, other = (sum(p.numel() for p in run.trainer.executor.model.parameters()) for run in runs)
        assert how.effort(s) == pytest.approx(images / others * round(size / other))  # APFL trains two networks
    assert how.effort(setting(steps=3)) >= 1
