"""Small federations of scikit-learn's data, and functions that train on them without a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fedbench import models
from fedbench.core import executors
from fedbench.core.checkpoint import Checkpoint
from fedbench.core.client import Client, ClientUpdate, Collect, Context
from fedbench.core.executors import Executor
from fedbench.core.federation import Federation
from fedbench.core.hooks import following, opened
from fedbench.core.plan import CropStream, Ints, Plan
from fedbench.core.simulation import initialise
from fedbench.core.trainer import Progress, Trainer
from fedbench.methods.base import Method
from fedbench.models.base import seeded
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.specs import DatasetSpec, Setting, require


def differing(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> str:
    """The first name whose tensors differ between two states, in quotes; 'nothing' if there is none."""
    names = sorted(a.keys() ^ b.keys()) or [n for n in a if not np.array_equal(a[n], b[n])]
    return f"'{names[0]}'" if names else "nothing"


def require_same_run(a: LabRun, b: LabRun, wrong: str, remedy: str) -> None:
    """Raise FedbenchError unless two runs have bitwise equal tensors, predictions and client tables."""
    require(same(a.tensors, b.tensors), f"{wrong}: {differing(a.tensors, b.tensors)} differs", remedy)
    predictions = parquet_bytes(a.predictions) == parquet_bytes(b.predictions)
    require(predictions, f"{wrong}: predictions differ", remedy)
    notes: tuple[Any, Any] = (a.trainer.clients_table(), b.trainer.clients_table())
    require(notes[0].equals(notes[1]), f"{wrong}: client.metrics differ", remedy)


def setting(**changes: Any) -> Setting:
    """A setting with a few rounds for 8x8 images; `changes`: fields of Setting."""
    partition = partition_spec(DatasetSpec("digits", "test", "test"), "iid", 4, 1, 0.7)
    values: dict[str, Any] = {
        "partition": partition,
        "model": "digits_cnn",
        "rounds": 3,
        "batch_size": 16,
        "lr": 0.05,
        "seed": 1,
        "epochs": 1,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "window": 2,
    }
    if "steps" in changes:
        values["epochs"] = None
    return Setting(**{**values, **changes})


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """All n = 1,797 digits: images uint8 [n, 8, 8, 1] and labels int64 [n]."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return np.rint(x.reshape(-1, 8, 8, 1) * 255 / 16).astype(np.uint8), y.astype(np.int64)


def federation(
    sizes: Sequence[int] = (90, 60, 75, 50),
    skew: float = 4.0,
    color: bool = False,
    groups: Sequence[int] = (),
    validation: float = 0.0,
) -> Federation:
    """Clients with `sizes` digits, 70 % of each for training. `skew`: a small value gives each client few classes,
    infinity gives all clients the same class distribution. `color`: three channels. `groups`: the images of a client in
    group g are rotated by 90 g degrees. `validation`: fraction of the training images."""
    images, labels = digits()
    rng = np.random.default_rng(7)
    rows = rng.permutation(len(labels))[: sum(sizes)]
    if np.isfinite(skew):
        rows = rows[np.argsort(labels[rows] + rng.random(len(rows)) * skew, kind="stable")]
    client = np.repeat(np.arange(len(sizes)), sizes)
    is_test = np.concatenate([np.arange(n) >= round(0.7 * n) for n in sizes])
    within = np.concatenate([rng.permutation(np.flatnonzero(client == i)) for i in range(len(sizes))])
    rows = rows[within]
    x = images[rows]
    if color:
        x = np.concatenate([x, 255 - x, x // 2], axis=3)
    if groups:
        x = np.stack([np.rot90(image, groups[int(i)]) for image, i in zip(x, client, strict=True)])
    held_back = np.concatenate([np.arange(n) < int(validation * round(0.7 * n)) for n in sizes])
    return Federation.of(x, labels[rows], client, rows, is_test, 10, validation=held_back, groups=list(groups))


@cache
def vectors(size: int = 40) -> Federation:
    """Four clients with `size` normalised rows (30 values) of the breast cancer data; 70 % of each for training."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    x, y, n = x[: 4 * size], y[: 4 * size], 4 * size
    rows = ((x - x.mean(0)) / x.std(0)).astype(np.float32)[:, None, None, :]
    is_test = np.arange(n) % size >= round(0.7 * size)
    return Federation.of(rows, y.astype(np.int64), np.arange(n) // size, np.arange(n), is_test, 2)


class Recorder(Plan):
    """A plan that records its random draws: (purpose, client, round, phase) -> values."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.draws: dict[tuple[Any, ...], list[Any]] = {}

    def cohort(self, t: int) -> list[int]:
        cohort = super().cohort(t)
        self.draws["cohort", t] = cohort
        return cohort

    def batches(self, client: int, t: int, phase: int, epochs: int | None, steps: int | None) -> Iterator[Ints]:
        draws = self.draws.setdefault(("batches", client, t, phase), [])
        for batch in super().batches(client, t, phase, epochs, steps):
            draws.append(batch.tolist())
            yield batch

    def crops(self, purpose: str, t: int, client: int, phase: int) -> CropStream | None:
        stream = super().crops(purpose, t, client, phase)
        if stream is not None:
            draw, windows = stream.draw, self.draws.setdefault((purpose, client, t, phase), [])

            def recorded(n: int) -> Ints:
                some = draw(n)
                windows.append(some.tolist())
                return some

            stream.draw = recorded  # type: ignore[method-assign]
        return stream


@dataclass
class LabRun:
    """A trained run and its results."""

    trainer: Trainer
    reports: list[Progress]

    @property
    def predictions(self) -> pa.Table:
        return self.trainer.checkpoint.read("predictions")

    @property
    def shared(self) -> dict[str, np.ndarray]:
        return {name: t.numpy() for name, t in self.trainer.server.shared.items()}

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        return {name: t.numpy() for name, t in self.trainer.server.tensors().items()}

    @property
    def accuracy(self) -> float:
        accuracy = self.reports[-1].accuracy
        assert accuracy is not None
        return accuracy


def fitting(how: Method, s: Setting) -> Setting:
    """The setting, without votes if the method's clients cannot vote."""
    return s if how.takes_votes else replace(s, votes=False)


def trainer(
    how: Method,
    data: Federation,
    where: Path,
    s: Setting | None = None,
    *,
    executor: str = "sequential",
    options: Mapping[str, Any] | None = None,
    plan: Callable[..., Plan] = Plan,
    network: Callable[[], Any] | None = None,
) -> Trainer:
    """A trainer with work folder `where`; `network` replaces the setting's; `options`: the executor's."""
    s = fitting(how, s or setting())
    the_plan = plan(s, data.n_train, data.shape[:2])
    build = network or (lambda: models.build(s.model, shape=data.shape, classes=data.classes, seed=s.seed))

    def further(k: int) -> Any:
        model = build()
        with seeded(s.seed + k, "model"):
            model.initialise(model)
        return model

    context = Context.of(data, s, further if network else None)
    model, initial = initialise(how, build, data, s, context)
    where.mkdir(parents=True, exist_ok=True)
    runner: Executor = executors.make(executor, model, data, s, **(options or {}))
    return Trainer(s, how, data, model, initial, runner, the_plan, Checkpoint(where), context)


def finish(it: Trainer, observe: Callable[[Progress], None] = lambda _: None) -> LabRun:
    """Train to the last round, starting from the checkpoint if there is one; `observe` is called after every round."""
    reports: list[Progress] = []

    def listen(progress: Progress) -> None:
        if not progress.doing:
            reports.append(progress)
            observe(progress)

    try:
        it.run(listen)
    finally:
        it.executor.close()
    return LabRun(it, reports)


def stop_after(t: int) -> Callable[[Progress], None]:
    """An observer for `finish` that simulates the user's interrupt after round t."""

    def observe(progress: Progress) -> None:
        if progress.round == t:
            raise KeyboardInterrupt

    return observe


def same(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> bool:
    """Whether two states have the same names and bitwise equal tensors."""
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def parquet_bytes(table: pa.Table) -> bytes:
    """The bytes of the table as a Parquet file."""
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table.combine_chunks(), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


class Recorded(NamedTuple):
    """The properties of a client's request that decide whether it can be stacked with those of others."""

    client: int
    function: Callable[..., Any]  #: loss or output of the request
    shapes: Mapping[str, tuple[int, ...]]  #: name of an extra -> its shape


#: (round, hook, number of the request within its update) -> the clients' requests
Requests = dict[tuple[int, str, int], list[Recorded]]


def recording(executor: Executor) -> Requests:
    """A dictionary that is filled with all requests that the executor receives."""
    requests: Requests = {}
    run = executor.run

    def listen(clients: Sequence[Client], update: Callable[[Client], ClientUpdate | None]) -> None:
        run(clients, lambda client: _recorded_update(update, opened(update, client), client, requests))

    executor.run = listen  # type: ignore[method-assign]
    return requests


def _recorded_update(
    hook: Callable[[Client], ClientUpdate | None], update: ClientUpdate | None, client: Client, requests: Requests
) -> ClientUpdate:
    """The same update, which records its requests."""
    answer: Any = None
    count = 0
    while update is not None and (request := following(hook, update, answer, client)) is not None:
        function = request.output if isinstance(request, Collect) else request.loss
        shapes = {name: tuple(t.shape) for name, t in request.extras.items()}
        key = client.round, getattr(hook, "__name__", "update"), count
        requests.setdefault(key, []).append(Recorded(client.index, function, shapes))
        count += 1
        answer = yield request


def other_shapes(requests: Sequence[Recorded]) -> tuple[str, Recorded, Recorded] | None:
    """(name, request, request) of an extra whose shape differs between requests with the same function, or None."""
    first: dict[tuple[Any, str], Recorded] = {}
    for request in requests:
        for name, shape in request.shapes.items():
            before = first.setdefault((request.function, name), request)
            if before.shapes[name] != shape:
                return name, before, request
    return None


def made_anew(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any] | None:
    """A function that has the code of another one in the list but is another object, or None: a lambda, a function
    inside a hook, or a partial function, which is created for each client."""
    by_code: dict[Any, Callable[..., Any]] = {}
    for function in functions:
        if by_code.setdefault(code_of(function), function) != function:
            return function
    return None


def code_of(function: Any) -> Any:
    """The code object of a function, a method or a partial function."""
    while True:
        inner = getattr(function, "func", None) or getattr(function, "__func__", None)
        if inner is None:
            return getattr(function, "__code__", function)
        function = inner
