"""The round loop: interrupts, resumption, what a round records."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedbench import models
from fedbench.core import tables
from fedbench.core.client import Client, ClientUpdate, Train
from fedbench.core.executors import available_cores
from fedbench.core.plan import Plan
from fedbench.core.precision import Clock
from fedbench.core.server import Server
from fedbench.core.simulation import initialise
from fedbench.engine.cost import images_per_second, images_to_process
from fedbench.errors import FedbenchError
from fedbench.methods.base import FORWARD, Method, cross_entropy
from fedbench.methods.fedavg import FedAvg
from fedbench.methods.pfedfda import PFedFDA
from tests.support.groups_lab import grouped_federation, grouped_setting
from tests.support.lab import federation, finish, method, setting, train, trainer

DATA = federation()


@pytest.mark.parametrize("name", ["fedavg", "pfedfda", "local"])
def test_divergence_is_one_clear_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(FedbenchError, match=r"training diverged: client \d in round \d.*--lr") as caught:
        train(name, DATA, tmp_path, setting(rounds=6, lr=1e6, weight_decay=0.0))
    assert "\n" not in str(caught.value)


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

    class Spy(FedAvg):
        def round_metrics(self, server: Server) -> Any:
            after.append(dict(server.shared))
            return super().round_metrics(server)

    it = trainer(Spy(), DATA, tmp_path, s)
    after.append(dict(it.server.shared))
    run = finish(it)
    empty = [t for t in range(1, 13) if not run.trainer.plan.cohort(t)]
    assert empty
    for t in range(1, 13):
        unchanged = all(after[t][name] is value for name, value in after[t - 1].items())
        assert unchanged == (t in empty)


def test_evaluated_rounds_views_and_columns(tmp_path: Path) -> None:
    data = federation(color=True)
    s = setting(rounds=5, window=1, every=2, augment="crop")
    run = train("feddrm", data, tmp_path, s)
    table = run.predictions
    asked = table.group_by(["round", "view"]).aggregate([("own", "count")]).to_pylist()
    n = sum(data.n_test)
    assert {(a["round"], a["view"]): a["own_count"] for a in asked} == {
        (2, "crop"): n, (4, "crop"): n, (5, "crop"): n, (5, "plain"): n,
    }  # fmt: skip
    assert table.column_names == [
        "round", "view", "client", "sample", "label", "own", "votes", "route_probability", "route_density_ratio",
    ]  # fmt: skip
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
    run = train("pfedfda", DATA, tmp_path)
    table = run.trainer.clients_table().to_pydict()
    assert table["client"] == [0, 1, 2, 3]
    assert table["n_train"] == DATA.n_train
    assert table["n_test"] == DATA.n_test
    assert all(0 <= b <= 1 for b in table["beta"])
    # A resume after the last round still knows them.
    run.trainer.checkpoint.save(run.trainer.server.round, run.trainer.server.tensors())
    again = trainer(method("pfedfda"), DATA, tmp_path)
    again.run()
    assert again.clients_table().to_pydict() == table


def test_initialise_comes_from_the_seed_and_leaves_the_generators_alone() -> None:
    def start(seed: int) -> dict[str, torch.Tensor]:
        _, state = initialise(
            PFedFDA(),
            lambda: models.build("digits_cnn", shape=(8, 8, 1), classes=10, seed=seed),
            DATA,
            setting(seed=seed),
        )
        return state

    torch.manual_seed(99)
    before = torch.get_rng_state()
    a = start(1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(7)
    b, c = start(1), start(2)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["gaussian.mean"], c["gaussian.mean"])
    assert not torch.equal(a["head.weight"], c["head.weight"])


@dataclass(frozen=True)
class Alternating(Method):
    """Communicates in odd rounds only; keeps what rounds of either kind give it."""

    name = "alternating"

    def communicates(self, t: int, rounds: int) -> bool:
        return t % 2 == 1


def test_rounds_without_communication_start_from_the_clients_own_copy(tmp_path: Path) -> None:
    starts: dict[tuple[int, int], torch.Tensor] = {}
    ends: dict[tuple[int, int], torch.Tensor] = {}

    class Spy(Alternating):
        def local(self, client: Client) -> ClientUpdate:
            starts[client.round, client.index] = client.state["head.weight"]
            yield Train(cross_entropy)
            ends[client.round, client.index] = client.state["head.weight"]

        def aggregate(self, server: Server, cohort: Sequence[Client], t: int) -> None:
            super().aggregate(server, cohort, t)
            means[t] = server.shared["head.weight"]

    means: dict[int, torch.Tensor] = {}
    run = train(Spy(), DATA, tmp_path, setting(rounds=3))
    assert means.keys() == {1, 3}
    for i in range(DATA.clients):
        assert starts[2, i] is means[1]
        assert starts[3, i] is ends[2, i]
    assert [line["bytes_up"] > 0 for line in run.trainer.checkpoint.rounds] == [True, False, True]
    assert run.trainer.server.personal == {}, "after a round that communicates nobody holds a copy of its own"


def test_who_misses_the_next_communication_holds_no_stale_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cohorts = {1: [0, 1, 2], 2: [0, 1, 2], 3: [0]}
    monkeypatch.setattr(Plan, "cohort", lambda self, t: cohorts[t])
    run = train(Alternating(), DATA, tmp_path, setting(rounds=3))
    assert run.trainer.server.personal == {}


def test_descriptors_are_a_line_each() -> None:
    table = tables.descriptors(torch.tensor([4, 1]), torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    assert table["client"].to_pylist() == [4, 1]
    assert table["descriptor"].to_pylist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


# -- the share of held back images that are answered rightly, which hyper-parameters may be chosen by ---------------

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
    bare = replace(GROUPED, validation=[torch.zeros(0, dtype=torch.long)] * GROUPED.clients)
    runs = [train("ditto", data, tmp_path / str(k), TWO) for k, data in enumerate((GROUPED, bare))]
    assert runs[0].predictions.equals(runs[1].predictions)
    assert all("validation_accuracy" not in line for line in runs[1].trainer.checkpoint.rounds)


def test_only_evaluated_rounds_have_it_and_answers_without_scores_have_none(tmp_path: Path) -> None:
    lines = train("fedavg", GROUPED, tmp_path / "last", replace(TWO, window=1)).trainer.checkpoint.rounds
    assert ["validation_accuracy" in line for line in lines] == [False, True]
    lines = train("fedem", GROUPED, tmp_path / "fedem", TWO).trainer.checkpoint.rounds
    assert not any("validation_accuracy" in line for line in lines)


# -- seconds by phase, and how long a setting would take -------------------------------------------------------------


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
        {"epochs": 3}, {"steps": 10}, {"epochs": 2, "tail": "drop"}, {"steps": 1, "batch_size": 500},
        {"epochs": 1, "batch_size": 500}, {"epochs": 1, "votes": False, "every": 2},
    ],
)  # fmt: skip
def test_images_to_process_counts_the_plans_batches(changes: dict[str, Any]) -> None:
    s = setting(**{"rounds": 7, "window": 3, **changes})
    data = federation((64, 96, 160))  # whole batches, so that steps never meet a short one
    n_train = [48, 64, 112]
    plan = Plan(s, n_train, (8, 8))
    training = sum(
        len(batch) for t in range(1, 8) for i in range(3) for batch in plan.batches(i, t, 1, s.epochs, s.steps)
    )
    n_test = sum(data.n_test)
    answers = n_test * (3 if s.votes else 1) * len(s.evaluated_rounds())
    assert images_to_process(s, n_train, n_test) == pytest.approx(training + answers * FORWARD)


def test_participation_scales_the_training_part() -> None:
    n = [50, 70]
    everybody, half = (images_to_process(setting(rounds=10, participation=q), n, 0) for q in (1.0, 0.5))
    assert half == pytest.approx(everybody / 2)


def test_the_probe_gives_a_speed_and_keeps_the_threads() -> None:
    before = torch.get_num_threads()
    model = models.build("digits_cnn", shape=(8, 8, 1), classes=10, seed=1)
    speed = images_per_second(model, (8, 8, 1), torch.device("cpu"), 16, "fp32")
    assert torch.get_num_threads() == before
    assert 0 < speed < 1e8


def test_the_probe_does_not_count_waiting() -> None:
    """As where other processes have the cores: every step waits a twentieth of a second."""

    class Waiting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            time.sleep(0.05)
            return super().forward(x.flatten(1))

    speed = images_per_second(Waiting(4, 2), (2, 2, 1), torch.device("cpu"), 16, "fp32")
    assert speed > 2 * available_cores() * 16 / 0.05
