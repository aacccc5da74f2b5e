"""The round loop: what a round does, records and sends, and how long it takes; executors: order of results, errors and
interrupts in the middle of a round; what a hook may give them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, call, patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedbench import models
from fedbench.conformance.subject import small
from fedbench.core import executors, message, tables
from fedbench.core.client import Client, ClientUpdate, Collect, Gradient, Train, logits
from fedbench.core.executors import Cores, Executor, available_cores
from fedbench.core.plan import Plan
from fedbench.core.server import Server
from fedbench.core.simulation import initialise
from fedbench.core.state import size_in_bytes, state_of
from fedbench.core.usage import Clock
from fedbench.core.worker import Cancelled, Worker
from fedbench.engine.cost import images_per_second, images_to_process
from fedbench.methods.base import FORWARD, Method, cross_entropy
from fedbench.models import build
from fedbench.models.base import FLModel
from fedbench.specs import Setting
from tests.support.frames import refused
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import client, equal, federation, finish, method, own, setting, staged, train, trainer

DATA = federation()


def test_a_round_line_says_what_was_done(tmp_path: Path) -> None:
    s = setting(rounds=40, participation=0.4, epochs=2, tail="drop", batch_size=16, full_last_round=True)
    run = train("fedavg", DATA, tmp_path, s)
    plan = run.trainer.plan
    lines = run.trainer.checkpoint.rounds
    size = sum(t.numel() * 4 for t in run.trainer.server.shared.values())
    assert min(len(plan.cohort(t)) for t in range(1, 41)) == 0, "a round without anybody should be among them"
    for t, line in enumerate(lines, start=1):
        cohort = plan.cohort(t)
        assert line["round"] == t
        assert line["participants"] == len(cohort)
        assert line["images"] == sum(2 * (DATA.n_train[i] // 16) * 16 for i in cohort)
        assert line["bytes_up"] == line["bytes_down"] == len(cohort) * size
        assert (line["client_seconds"] > 0) == (len(cohort) > 0)
        parts = line["local_seconds"] + line["server_seconds"] + line["evaluation_seconds"]
        assert 0 < parts <= line["total_seconds"]
        assert line["local_seconds"] >= line["client_seconds"]  # one client after another
    assert lines[-1]["participants"] == DATA.clients
    assert [p.accuracy is not None for p in run.reports] == [False] * 38 + [True] * 2


def test_a_round_without_anybody_changes_nothing(tmp_path: Path) -> None:
    s = setting(rounds=12, participation=0.3, window=12)
    after: list[dict[str, torch.Tensor]] = []
    it = trainer(own(round_metrics=lambda self, server: after.append(dict(server.shared)) or {}), DATA, tmp_path, s)
    after.append(dict(it.server.shared))
    run = finish(it)
    empty = [t for t in range(1, 13) if not run.trainer.plan.cohort(t)]
    assert empty
    for t in range(1, 13):
        unchanged = all(after[t][name] is value for name, value in after[t - 1].items())
        assert unchanged == (t in empty)


def test_nobody_has_no_loss_and_a_run_of_nobody_is_refused(tmp_path: Path) -> None:
    run = train("fedavg", DATA, tmp_path / "some", setting(rounds=12, participation=0.3))
    empty = {t for t in range(1, 13) if not run.trainer.plan.cohort(t)}
    assert {report.round for report in run.reports if report.loss is None} == empty
    assert 0 < len(empty) < 12
    nobody = setting(rounds=3, participation=1e-6)
    says = "no client takes part in any of the 3 rounds at participation 1e-06"
    refused(says, trainer, method("fedavg"), DATA, tmp_path / "none", nobody)


def test_evaluated_rounds_views_and_columns(tmp_path: Path) -> None:
    data = federation(color=True)
    table = train("feddrm", data, tmp_path, setting(rounds=5, window=1, every=2, augment="crop")).predictions
    asked = table.group_by(["round", "view"]).aggregate([("own", "count")]).to_pylist()
    n = sum(data.n_test)
    assert {(a["round"], a["view"]): a["own_count"] for a in asked} == {
        (2, "crop"): n,
        (4, "crop"): n,
        (5, "crop"): n,
        (5, "plain"): n,
    }
    assert table.column_names == [
        "round",
        "view",
        "client",
        "sample",
        "label",
        "own",
        "votes",
        "route_probability",
        "route_density_ratio",
    ]
    last = table.slice(len(table) - n)
    rows = torch.cat(list(data.test)).numpy()
    np.testing.assert_array_equal(last["client"], data.client[rows])
    np.testing.assert_array_equal(last["sample"], data.sample[rows])
    np.testing.assert_array_equal(last["label"], data.labels[rows])
    assert len(last["votes"][0]) == data.clients
    votes = np.array(last["votes"].to_pylist())
    np.testing.assert_array_equal(votes[np.arange(n), last["client"].to_numpy()], last["own"])
    quiet = train("feddrm", data, tmp_path / "quiet", setting(rounds=1, window=1, votes=False, augment="crop"))
    assert quiet.predictions.column_names == ["round", "view", "client", "sample", "label", "own"]


def test_the_accuracy_heard_is_weighted_by_training_sizes(tmp_path: Path) -> None:
    run = train("local", DATA, tmp_path)
    last = run.predictions.to_pandas().query("round == 3")
    by_client = (last["own"] == last["label"]).groupby(last["client"]).mean()
    assert run.accuracy == pytest.approx(np.average(by_client, weights=DATA.n_train))
    assert run.accuracy != pytest.approx(by_client.mean())


def test_notes_of_the_last_evaluation_stand_in_the_clients_table(tmp_path: Path) -> None:
    table = train("pfedfda", DATA, tmp_path).trainer.clients_table().to_pydict()
    assert table["client"] == [0, 1, 2, 3]
    assert table["n_train"] == DATA.n_train
    assert table["n_test"] == DATA.n_test
    assert all(0 <= b <= 1 for b in table["beta"])


def test_variables_come_from_the_seed_and_leave_the_generators_alone() -> None:
    def start(seed: int) -> dict[str, torch.Tensor]:
        make = partial(models.build, "digits_cnn", shape=(8, 8, 1), classes=10, seed=seed)
        return initialise(method("pfedfda"), make, DATA, setting(seed=seed))[1]

    before = torch.get_rng_state()
    a, b, c = start(1), start(1), start(2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["gaussian.mean"], c["gaussian.mean"])


def in_odd_rounds(self: Method, t: int, rounds: int) -> bool:
    return t % 2 == 1


def test_who_misses_the_next_communication_holds_no_stale_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cohorts = {1: [0, 1, 2], 2: [0, 1, 2], 3: [0]}
    monkeypatch.setattr(Plan, "cohort", lambda self, t: cohorts[t])
    assert train(own(communicates=in_odd_rounds), DATA, tmp_path, setting(rounds=3)).trainer.server.personal == {}


def test_descriptors_are_a_line_each() -> None:
    rows = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    table = tables.descriptors(torch.tensor([4, 1]), torch.tensor(rows))
    assert table.to_pydict() == {"client": [4, 1], "descriptor": rows}


GROUPED = grouped_federation((0, 1, 0, 1), 120)
TWO = grouped_setting(rounds=2, lr=0.1, window=2, test_phase=None)


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedrep", "apfl", "pfedfda", "fedproto", "ifca"])
def test_it_is_the_accuracy_on_images_that_are_held_back(name: str, tmp_path: Path) -> None:
    """As if they were the test images: the same training, other images answered."""
    run = train(name, GROUPED, tmp_path / "run", TWO)
    other = train(name, replace(GROUPED, test=GROUPED.validation), tmp_path / "other", TWO).predictions.to_pandas()
    other = other[other.view == "plain"]
    right = (other.own == other.label).groupby(other["round"]).mean()
    lines = run.trainer.checkpoint.rounds
    assert [line["validation_accuracy"] for line in lines] == pytest.approx([right[1], right[2]])


def test_nothing_else_changes_where_images_are_held_back(tmp_path: Path) -> None:
    bare = staged(GROUPED, (GROUPED.train, [rows[:0] for rows in GROUPED.train]))
    runs = [train("ditto", data, tmp_path / str(k), TWO) for k, data in enumerate((GROUPED, bare))]
    assert runs[0].predictions.equals(runs[1].predictions)
    assert all("validation_accuracy" not in line for line in runs[1].trainer.checkpoint.rounds)


def test_only_evaluated_rounds_have_it_and_answers_without_scores_have_none(tmp_path: Path) -> None:
    lines = train("fedavg", GROUPED, tmp_path / "last", replace(TWO, window=1)).trainer.checkpoint.rounds
    assert ["validation_accuracy" in line for line in lines] == [False, True]
    lines = train("fedem", GROUPED, tmp_path / "fedem", TWO).trainer.checkpoint.rounds
    assert not any("validation_accuracy" in line for line in lines)


def test_seconds_add_up_by_phase_and_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock = Clock(torch.device("cpu"))
    for seconds in (2.0, 3.0):
        now[0] += 50  # between phases
        with clock.phase("local"):
            now[0] += seconds
    with contextlib.suppress(ValueError), clock.phase("server"):
        now[0] += 1
        raise ValueError("a phase that fails counts too")
    assert clock.reset() == {"local": 5.0, "server": 1.0}
    assert clock.reset() == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": 3},
        {"steps": 10},
        {"epochs": 2, "tail": "drop"},
        {"steps": 1, "batch_size": 500},
        {"epochs": 1, "batch_size": 500},
        {"epochs": 1, "votes": False, "every": 2},
    ],
)
def test_images_to_process_counts_the_plans_batches(changes: dict[str, Any]) -> None:
    s = setting(**{"rounds": 7, "window": 3, **changes})
    data = federation((64, 96, 160))  # whole batches, so that steps never meet a short one
    n_train = [48, 64, 112]
    plan = Plan(s, n_train, (8, 8))
    training = sum(
        len(batch) for t in range(1, 8) for i in range(3) for batch in plan.batches(i, t, 1, s.epochs, s.steps)
    )
    answers = sum(data.n_test) * (3 if s.votes else 1) * len(s.evaluated_rounds())
    fedavg, none = method("fedavg"), [0, 0, 0]
    assert images_to_process(s, fedavg, n_train, data.n_test, none) == pytest.approx(training + answers * FORWARD)
    assert images_to_process(replace(s, participation=0.5), fedavg, n_train, none, none) == pytest.approx(training / 2)


def test_images_to_process_counts_what_an_evaluation_asks() -> None:
    """Personalising, every view, images held back, clients that did not train, those without labels, and a round's
    choice."""
    n_train, n_test, none = [60, 120, 180], [30, 30, 60], [0, 0, 0]
    s = setting(rounds=4, epochs=1, window=2, votes=False)

    def work(of: Setting, name: str = "fedavg", validation: Sequence[int] = none, **params: Any) -> float:
        return images_to_process(of, method(name, **params), n_train, n_test, validation)

    plain = work(s)
    assert work(s, "fedavgft", finetune_epochs=5) == pytest.approx(plain + 5 * 360), "after the last round alone"
    assert work(s, "fedbabu", finetune_epochs=3) == pytest.approx(plain + 3 * 360 * FORWARD)
    assert work(s, "pfedfda") == pytest.approx(plain + 2 * 360 * FORWARD), "after each of two rounds"
    assert work(replace(s, augment="crop")) == pytest.approx(plain + 120 * FORWARD), "the last round has two views"
    assert work(s, validation=[6, 0, 12]) == pytest.approx(plain + 2 * 18 * FORWARD)
    assert work(replace(s, select="best"), validation=[6, 0, 12]) == pytest.approx(
        plain + 2 * 18 * FORWARD + 4 * (6 + 120 + 12) * FORWARD
    )
    served = replace(s, test_phase=True)
    assert work(served, "ifca", clusters=2) == pytest.approx(work(s, "ifca", clusters=2) + 120 * FORWARD)
    unseen = replace(s, partition=replace(s.partition, clients=3, unseen=1))
    assert work(unseen, "fedpac", newcomers="all", newcomer_epochs=5) == pytest.approx(
        work(unseen, "fedpac", newcomer_epochs=0) + 5 * 180
    )


def test_the_probe_does_not_count_waiting_and_keeps_the_threads() -> None:
    """As where other processes have the cores: every step waits a twentieth of a second."""
    before = torch.get_num_threads()

    class Waiting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            time.sleep(0.05)
            return super().forward(x.flatten(1))

    speed = images_per_second(Waiting(4, 2), (2, 2, 1), torch.device("cpu"), 16, "fp32")
    assert 2 * available_cores() * 16 / 0.05 < speed < 1e8
    assert torch.get_num_threads() == before


class Flat(FLModel):
    """A network whose last batch norm sees one value a channel of each image."""

    def __init__(self) -> None:
        layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(4)]
        super().__init__(nn.Sequential(*layers), nn.Identity(), nn.Linear(4, 10), backbone_size=4)


@pytest.mark.parametrize(
    ("sizes", "batch", "who", "way_out"),
    [
        ((30, 47), 16, "client 1, of 33 training images in batches of 16,", "--batch-size 17"),
        ((30, 47), 1, "client 0, of 21 training images in batches of 1,", "--batch-size 3"),
        ((30, 1), 16, "client 1, of 1 training image in batches of 16,", "a partition of larger clients"),
        ((30, 47), 17, "", ""),
    ],
)
def test_a_batch_of_a_single_image_is_refused_before_training(
    tmp_path: Path, sizes: tuple[int, ...], batch: int, who: str, way_out: str
) -> None:
    data, s = federation(sizes), setting(rounds=1, window=1, batch_size=batch)
    if who:
        line = refused("", lambda: trainer(method("fedavg"), data, tmp_path, s, network=Flat))
        told = "has a batch of a single image, of which the network's batch norm finds no variance"
        assert line == f"{who} {told}; choose {way_out}, or a network without it"
    # A batch norm over many pixels takes a single image.
    network = partial(small, norm=True) if who else Flat
    assert finish(trainer(method("fedavg"), federation((30, 47)), tmp_path, s, network=network)).tensors


#: Clients of 21, 42 and 30 training images, of which a pass in batches of ten ends in a single image for the first; and
#: in the other order. Two local steps never get there. The first has nine test images, the second eighteen.
LONE, LONE_LAST = federation((30, 60, 43)), federation((43, 60, 30))
TWO_STEPS = setting(rounds=3, window=1, steps=2, batch_size=10)
#: The last of three clients never trains.
JOINS_LAST = replace(TWO_STEPS, partition=replace(TWO_STEPS.partition, clients=3, unseen=1))


def asks_once(self: Method, server: Server, t: int, k: int) -> message.Question | None:
    """A question after the last round."""
    return message.Question() if t == server.context.setting.rounds and k == 0 else None


def on_one_image(self: Method, client: Client) -> ClientUpdate:
    """The smallest client's gradient on its last image, in the last round."""
    if client.n_train == 21 and client.final:
        yield Gradient(cross_entropy, part=(20, 21))


OWN: dict[str, Method] = {
    "its gradient": own(local=on_one_image),
    "its reply": own(reply=on_one_image, ask=asks_once),
    "its personal model": own(personalise=on_one_image),
}


@pytest.mark.parametrize(
    ("name", "more", "joins"),
    [
        *((name, {}, False) for name in ("fedrep", "fedbabu", "fedpac", "confree", "fedas", *OWN)),
        ("fedavgft", {"finetune_epochs": 1}, False),
        *((name, {}, True) for name in ("fedbabu", "fedpac", "its personal model")),
        ("fedavgft", {"finetune_epochs": 1}, True),
        ("fedbabu", {"newcomers": "all"}, True),
    ],
)
def test_so_is_that_of_any_other_request(tmp_path: Path, name: str, more: dict[str, Any], joins: bool) -> None:
    data, s = (LONE_LAST, JOINS_LAST) if joins else (LONE, TWO_STEPS)
    it = trainer(OWN[name] if name in OWN else method(name, **more), data, tmp_path, s, network=Flat)
    line = refused(f"client {2 if joins else 0}, of 21 training images in batches of 10, has a batch of a", it.run)
    assert line.endswith("choose --batch-size 11, or a network without it")
    assert it.server.round == 0


@pytest.mark.parametrize("executor", ["sequential", "stacked", "streams"])
def test_and_one_that_nobody_could_foresee_ends_in_the_same_line(tmp_path: Path, executor: str) -> None:
    """In the second round of three."""

    def local(self: Method, client: Client) -> ClientUpdate:
        yield Train(cross_entropy, epochs=1, steps=None) if client.round == 2 else Train(cross_entropy)

    it = trainer(own(local=local), LONE, tmp_path, TWO_STEPS, network=Flat, executor=executor)
    refused("client 0, of 21 training images in batches of 10, has a batch of a single image", finish, it)
    assert it.server.round == 1


def test_what_is_tried_before_the_first_round_changes_nothing(tmp_path: Path) -> None:
    """Not even where a network draws at random, and its clients are at risk and take no single image after all."""

    class Dropping(Flat):
        def __init__(self) -> None:
            super().__init__()
            self.projection = nn.Dropout(0.5)

    runs = []
    for tried in (True, False):
        torch.manual_seed(3)
        it = trainer(method("fedavg"), LONE, tmp_path / str(tried), TWO_STEPS, network=Dropping)
        with contextlib.nullcontext() if tried else patch("fedbench.core.trainer.rehearse"):
            runs.append(finish(it))
    equal(*runs)


THREE = federation((40, 30, 30))
CLIENTS = 3
SENDING = setting(rounds=3, window=1, steps=2)
#: The network's tensors as all start from them.
START = initialise(
    method("fedavg"), lambda: build(SENDING.model, shape=THREE.shape, classes=10, seed=1), THREE, SENDING
)[1]


def size(*prefixes: str) -> int:
    """Bytes of the network's tensors whose names begin so, of all clients."""
    return CLIENTS * size_in_bytes({n: t for n, t in START.items() if n.startswith(prefixes or ("",))})


WHOLE, HEAD = size(), size("head.")
BODY = WHOLE - HEAD


def head_alone(self: Method, client: Client) -> ClientUpdate:
    yield Train(cross_entropy, trains=("head.",))


def own_model_too(self: Method, client: Client) -> ClientUpdate:
    yield Train(cross_entropy)
    yield Train(cross_entropy, model="own", prox=1.0)


@dataclass(frozen=True)
class Report:
    """A tensor of 12 bytes in two places, one of 3, and two numbers."""

    vector: Tensor
    again: list[Tensor]
    small: Tensor
    numbers: tuple[int, float]


REPORT = CLIENTS * (12 + 3 + 2 * 8)


def report() -> Report:
    vector = torch.zeros(3)
    return Report(vector, [vector], torch.zeros(3, dtype=torch.uint8), (1, 0.5))


def uploads(self: Method, client: Client) -> ClientUpdate:
    yield Train(cross_entropy)
    client.upload = report()


def sends(self: Method, server: Server, client: Client) -> None:
    """A message from the second round on, and of the model the head once more under another name."""
    client.state = {**client.state, "again": client.state["head.bias"], "more": torch.zeros(5)}
    if server.round > 1:
        client.inbox = report()


def clustered(self: Method, server: Server, cohort: Sequence[Client], t: int) -> None:
    """Two clusters from the first round on, one of a client alone: each is sent its model in place of the shared."""
    Method.aggregate(self, server, cohort, t)
    body = {n: t for n, t in server.shared.items() if not n.startswith("head.")}
    server.models, server.assigned = [body, dict(body)], {c.index: int(c.index == 1) for c in cohort}


@dataclass(frozen=True)
class Question:
    """Of 4 bytes."""

    threshold: Tensor


ASKED = CLIENTS * 4


def asking(*at: int) -> Method:
    """Asks after these rounds; twice before the first."""

    def ask(self: Method, server: Server, t: int, k: int) -> Question | None:
        return Question(torch.zeros(1)) if t in at and k < 1 + (t == 0) else None

    def reply(self: Method, client: Client) -> None:
        client.upload = report()

    return own(ask=ask, reply=reply)


CHOICE = 8 * CLIENTS  #: the number of the model that the client chose


@pytest.mark.parametrize(
    ("how", "up", "down"),
    [
        (method("fedavg"), [WHOLE] * 3, [WHOLE] * 3),
        (own(personal=("head.",)), [BODY] * 3, [BODY] * 3),
        (own(personal_models=("own",), local=own_model_too), [WHOLE] * 3, [WHOLE] * 3),
        # The server has the body already.
        (own(local=head_alone), [HEAD] * 3, [WHOLE] * 3),
        (own(local=uploads), [WHOLE + REPORT] * 3, [WHOLE] * 3),
        (own(broadcast=sends), [WHOLE] * 3, [WHOLE + CLIENTS * 20 + further for further in (0, REPORT, REPORT)]),
        *((method("ifca", clusters=n), [WHOLE + CHOICE] * 3, [n * WHOLE] * 3) for n in (1, 2, 3)),
        (own(aggregate=clustered), [WHOLE] * 3, [WHOLE] * 3),
        # Questions before the first round are counted in it.
        (asking(0), [WHOLE + 2 * REPORT, WHOLE, WHOLE], [WHOLE + 2 * ASKED, WHOLE, WHOLE]),
        # Those after a round are counted in it. What the clients look at is what they would be sent with the next
        # round; after the last one it is sent for the question alone.
        (asking(1, 2, 3), [WHOLE + REPORT] * 3, [WHOLE + ASKED, WHOLE + ASKED, 2 * WHOLE + ASKED]),
        (own(local=uploads, communicates=in_odd_rounds), [WHOLE + REPORT, 0, WHOLE + REPORT], [WHOLE, 0, WHOLE]),
    ],
)
def test_bytes_up_and_down(how: Method, up: list[int], down: list[int], tmp_path: Path) -> None:
    assert 0 < HEAD < BODY
    lines = train(how, THREE, tmp_path, SENDING).trainer.checkpoint.rounds
    assert [line["bytes_up"] for line in lines] == up
    assert [line["bytes_down"] for line in lines] == down


FOUR = federation()
PLAN = Plan(setting(), FOUR.n_train, FOUR.shape[:2])
MODEL = models.build("digits_cnn", shape=FOUR.shape, classes=10, seed=1)


def make(name: str) -> Executor:
    return executors.make(name, MODEL, FOUR, PLAN.setting)


@pytest.mark.parametrize("name", executors.EXECUTORS)
def test_results_come_in_the_order_of_the_items(name: str) -> None:
    executor = make(name)

    def job(worker: Worker, item: int) -> int:
        time.sleep(0.002 * (5 - item))
        return item * item

    torch.set_num_threads(2)
    try:
        executor = make(name)
        assert executor.map(job, range(5)) == [0, 1, 4, 9, 16]
        assert executor.map(job, []) == []
        assert executor.model is MODEL
        assert set(executor.map(lambda *_: torch.get_num_threads(), range(4))) == {1}, "one a client"
        assert torch.get_num_threads() == 2, "the caller's stays"
        executor.close()
    finally:
        torch.set_num_threads(1)


def test_no_worker_serves_two_at_a_time() -> None:
    executor = Cores(MODEL, FOUR, PLAN.setting, cores=3)
    busy: set[int] = set()
    lock = threading.Lock()

    def job(worker: Worker, item: int) -> bool:
        with lock:
            free = id(worker) not in busy
            busy.add(id(worker))
        time.sleep(0.002)
        with lock:
            busy.discard(id(worker))
        return free

    assert all(executor.map(job, range(30)))
    executor.close()


class Stop(BaseException):
    """Stands for a Ctrl-C."""


@pytest.mark.parametrize("error", [ValueError, Stop, KeyboardInterrupt])
def test_an_error_stops_the_others_and_the_executor_works_on(error: type[BaseException]) -> None:
    executor = Cores(MODEL, FOUR, PLAN.setting, cores=2)
    started: list[int] = []
    cancelled: list[int] = []

    def job(worker: Worker, item: int) -> int:
        started.append(item)
        if item == 0:
            time.sleep(0.02)
            raise error
        if worker.cancel.wait(5):
            cancelled.append(item)
        raise Cancelled

    with pytest.raises(error):
        executor.map(job, range(20))
    # Nobody is left at work, and what had not begun never begins.
    assert sorted(started) != list(range(20))
    assert set(started) - {0} == set(cancelled)
    assert executor.map(lambda worker, item: not worker.cancel.is_set(), [1, 2, 3]) == [True] * 3
    executor.close()


def test_a_busy_worker_hears_of_the_interrupt() -> None:
    executor = make("sequential")
    who = client(FOUR, PLAN, 0, state_of(MODEL))
    executor.cancel.set()
    with pytest.raises(Cancelled):
        executor.worker.collect(who, Collect(lambda m, b: b.x))


def test_on_a_gpu_each_worker_has_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """After what the main stream has been asked, and done before the job's answer is used; the GPU is a stand-in."""
    streams: list[MagicMock] = []

    @contextlib.contextmanager
    def on(own: MagicMock) -> Iterator[None]:
        own.begins()
        yield
        own.ends()

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: (streams.append(MagicMock()), streams[-1])[1])
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: "main")
    executor = Cores(MODEL, FOUR, PLAN.setting, cores=2)
    executor.device = torch.device("cuda")
    assert executor.map(lambda worker, item: item, range(7)) == list(range(7))
    executor.close()
    assert len(streams) <= 2
    turns = [len(one.method_calls) // 4 for one in streams]
    assert sum(turns) == 7
    for one, n in zip(streams, turns, strict=True):
        assert one.method_calls == [call.wait_stream("main"), call.begins(), call.ends(), call.synchronize()] * n


PAIR = federation((40, 30))
SHORT = setting(rounds=1, window=1, steps=2)


def giving(hook: str, does: Callable[[Any], Any]) -> Method:
    """A method of which a hook gives what that makes of the client or the server that it is handed."""

    def given(self: Method, handed: Any, *more: Any) -> Any:
        return does(handed)

    given.__name__ = hook
    return own(**{"ask": lambda self, server, t, k: None if k else message.Question(), "reply": nothing, hook: given})


def nothing(self: Method, client: Client) -> None:
    """An answer to the question."""


def returned(client: Client) -> Any:
    """A request after others: it would be dropped without a word, for a generator's return value goes nowhere."""
    yield Collect(logits)
    return Gradient(cross_entropy)


def yielding(value: Any) -> Callable[[Client], Any]:
    def update(client: Client) -> Any:
        yield Train(cross_entropy)
        yield value

    return update


def sends_a_list(self: Method, server: Server, client: Client) -> None:
    client.inbox = [torch.zeros(3)]


def uploads_a_tensor(client: Client) -> None:
    client.upload = torch.zeros(3)


NOT_DONE = "and what is returned is not done; write `yield {}(...)`"
LOST = "and what is returned is lost; change the server or the client that it is handed, and return nothing"
DATACLASS = "make it a dataclass, with that as a field"
MISTAKES: list[tuple[Method, str]] = [
    *(
        (giving(hook, lambda client: Train(cross_entropy)), f"{hook} returns Train(...), {NOT_DONE.format('Train')}")
        for hook in ("local", "reply", "personalise")
    ),
    (giving("local", returned), f"local returns Gradient(...), {NOT_DONE.format('Gradient')}"),
    *(
        (
            giving("local", yielding(value)),
            f"local yields {words}, not a request; yield Train(...) or Gradient(...) or Collect(...)",
        )
        for value, words in ((None, "None"), ((1, 2), "a tuple"), (0.5, "0.5"))
    ),
    (
        giving("personalise", lambda client: client.state),
        "personalise returns a dict; yield requests, and return nothing",
    ),
    *(
        (giving(hook, lambda server: server.shared), f"{hook} returns a dict, {LOST}")
        for hook in ("start", "broadcast", "aggregate", "learn", "serve")
    ),
    *((own(**{hook: sends_a_list}), f"client.inbox is a list; {DATACLASS}") for hook in ("broadcast", "serve")),
    *((giving(hook, uploads_a_tensor), f"client.upload is a Tensor; {DATACLASS}") for hook in ("local", "reply")),
]


@pytest.mark.parametrize(("how", "line"), MISTAKES, ids=[line.split(",")[0] for _, line in MISTAKES])
def test_what_a_hook_gives_wrongly_is_one_line(how: Method, line: str, tmp_path: Path) -> None:
    for executor in executors.EXECUTORS:
        assert refused("", lambda on=executor: train(how, PAIR, tmp_path / on, SHORT, executor=on)) == f"own: {line}"
