"""Whom a method serves, and with which models it answers: those of the round with the lowest validation loss, those
that clients trained before the server's step; and what rounds cost by the formulas of `report.cost`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedbench import methods, models
from fedbench.conformance.lab import stop_after
from fedbench.core import simulation, worker
from fedbench.core.client import MEMBER, UNLABELLED, UNSEEN, Client, ClientUpdate, Collect, Train
from fedbench.core.federation import Federation, to_input
from fedbench.core.plan import Plan
from fedbench.core.server import Server
from fedbench.core.simulation import PERSONALISING, new_client
from fedbench.core.state import State
from fedbench.core.trainer import Interrupted
from fedbench.core.worker import Piece
from fedbench.errors import FedbenchError
from fedbench.methods.base import HEAD, Method
from fedbench.reports.table import cost
from tests.support.formula_lab import column
from tests.support.groups_lab import drifted, grouped_federation, grouped_setting
from tests.support.lab import Run, federation, method, parquet_bytes, same, setting, train, trainer

DATA = federation((60, 40, 50))
TEST_PHASE = setting(rounds=1, window=1, votes=False, test_phase=True)
#: The methods that do not serve everybody.
SERVES = {
    **dict.fromkeys(
        ("apfl", "confree", "fedas", "fedbn", "feddrm", "fedper", "fedproto", "fedrep", "fedrod", "lg_fedavg", "local",
         "mr_mtl"),
        frozenset({MEMBER}),
    ),
    **dict.fromkeys(
        ("apfl_flux", "cfl", "ditto", "fedala", "feddrift", "fitw_erm", "ftw_erm", "haccs", "kmeans_bound", "pfedme"),
        frozenset({MEMBER, UNLABELLED}),
    ),
    **dict.fromkeys(("fedpac", "pfedfda"), frozenset({MEMBER, UNSEEN})),
}  # fmt: skip


@pytest.mark.parametrize("name", methods.names())
def test_only_who_serves_them_answers_clients_without_labels(name: str, tmp_path: Path) -> None:
    how = method(name)
    assert len(set(how.serves)) == len(how.serves)
    assert set(how.serves) == SERVES.get(name, {MEMBER, UNSEEN, UNLABELLED})
    try:
        how.check_setting(TEST_PHASE)
        s = TEST_PHASE
    except FedbenchError:  # one gradient a client
        s = setting(rounds=1, window=1, votes=False, test_phase=True, steps=1, passes="endless", momentum=0.0)
    columns = train(how, DATA, tmp_path, s).predictions.column_names
    assert ("test_phase" in columns) == (UNLABELLED in how.serves)


@dataclass(frozen=True)
class OwnHead(Method):
    """A head of each client's own, and no word about who has none."""

    name = "own_head"
    personal = HEAD

    def serve(self, server: Server, client: Client) -> None:
        return  # a hook that is there says nothing of what it does


def test_untrained_parts_are_served_to_nobody_in_silence(tmp_path: Path) -> None:
    line = r"own_head keeps head\.weight with each client.*name it in `unlabelled_has`.*leave 'unlabelled' out"
    with pytest.raises(FedbenchError, match=line):
        trainer(OwnHead(), DATA, tmp_path, TEST_PHASE)
    trainer(OwnHead(), DATA, tmp_path, setting(votes=False))
    for declared in ({"unlabelled_has": HEAD}, {"serves": (MEMBER,)}):
        trainer(type("Declared", (OwnHead,), declared)(), DATA, tmp_path, TEST_PHASE)


@dataclass(frozen=True)
class Asking(Method):
    """Remembers who was served, and as whom clients personalise."""

    name = "asking"
    served = []  # noqa: RUF012
    kinds = []  # noqa: RUF012

    def serve(self, server: Server, client: Client) -> None:
        self.served.append((client.index, client.kind))

    def personalise(self, client: Client) -> ClientUpdate | None:
        self.kinds.append((client.index, client.kind))
        return None


def test_everybody_comes_once_more_without_labels_after_the_last_round(tmp_path: Path) -> None:
    Asking.served.clear()
    Asking.kinds.clear()
    train(Asking(), DATA, tmp_path, setting(rounds=2, window=1, votes=False, test_phase=True))
    expected = [(i, kind) for kind in (MEMBER, UNLABELLED) for i in range(3)]
    assert Asking.served == Asking.kinds == expected


#: Four rounds at a rate at which the last one is not the best.
FOUR, SETTING = grouped_federation((0, 1, 0, 1), 60), grouped_setting(rounds=4, lr=1.5)


def validation_loss(run: Run, data: Federation) -> float:
    """The loss of the shared model on all clients' validation images (training images if there are none)."""
    net = models.build("digits_cnn", shape=data.shape, classes=10, seed=0)
    net.load_state_dict({name: torch.from_numpy(t) for name, t in run.shared.items()})
    rows = torch.cat([v if len(v) else t for v, t in zip(data.validation, data.train, strict=True)])
    with torch.no_grad():
        return float(F.cross_entropy(net.eval()(to_input(data.images[rows])), data.labels[rows]))


@pytest.mark.parametrize("held_back", [True, False])
def test_the_best_round_answers(held_back: bool, tmp_path: Path) -> None:
    data = FOUR if held_back else replace(FOUR, validation=[torch.zeros(0, dtype=torch.long)] * FOUR.clients)
    rounds = [train("fedavg", data, tmp_path / str(t), replace(SETTING, rounds=t)) for t in (1, 2, 3, 4)]
    losses = [validation_loss(run, data) for run in rounds]
    best = int(np.argmin(losses))
    assert best < 3, "the last round would be answered by anyway"
    run = train("fedavg", data, tmp_path / "run", replace(SETTING, select="best"))
    assert same(run.shared, rounds[-1].shared), "training is FedAvg's"
    kept = run.trainer.server.best
    assert kept is not None
    assert kept.loss == pytest.approx(losses[best], rel=1e-4)
    for name, value in rounds[best].shared.items():
        assert torch.equal(kept.server[f"shared/{name}"], torch.from_numpy(value))
    told = rounds[best].predictions.to_pandas()
    for asked in ("own", "test_phase"):
        assert run.predictions.to_pandas()[asked].tolist() == told[asked].tolist()


def test_while_the_loss_falls_it_is_fedavg_and_models_of_other_data_do_not_compete(tmp_path: Path) -> None:
    """After a drift to data of which no model knows anything, the last stage's rounds answer."""
    data, s = grouped_federation((0, 0, 0), 200), grouped_setting(rounds=4)
    run, plain = (train("fedavg", data, tmp_path / str(how), replace(s, select=how)) for how in ("best", None))
    assert run.predictions.equals(plain.predictions)
    rounds = zip(run.trainer.checkpoint.rounds, plain.trainer.checkpoint.rounds, strict=True)
    assert [line["bytes_up"] - other["bytes_up"] for line, other in rounds] == [2 * 8 * 3] * 4  # a loss and a number
    before, after = grouped_federation((0, 0, 0, 0), 200), grouped_federation((2, 2, 2, 2), 200, concept=True)
    data = drifted(before, after, [2] * 4, [2] * 4)
    run = train("fedavg", data, tmp_path / "2", grouped_setting(rounds=5, drifts=(5,), select="best"))
    kept = run.trainer.server.best
    assert kept is not None
    for name, value in run.shared.items():
        assert torch.equal(kept.server[f"shared/{name}"], torch.from_numpy(value)), "the one round of its stage"


def test_a_stopped_run_remembers_its_best_round(tmp_path: Path) -> None:
    s = replace(SETTING, select="best")
    whole = train("fedavg", FOUR, tmp_path / "whole", s)
    with pytest.raises(Interrupted):
        train("fedavg", FOUR, tmp_path / "stopped", s, observe=stop_after(2))
    resumed = train("fedavg", FOUR, tmp_path / "stopped", s)
    assert resumed.predictions.equals(whole.predictions)
    assert same(resumed.tensors, whole.tensors)
    with pytest.raises(FedbenchError, match="answer without scores"):
        train("fedem", FOUR, tmp_path / "2", replace(SETTING, select="best"))


@pytest.mark.parametrize("name", ["ditto", "ifca", "pfedfda"])
def test_of_a_personalised_method_the_personal_models_are_compared(name: str, tmp_path: Path) -> None:
    """The kept loss is the least, over the rounds, of what each round's clients would answer with."""
    run = train(name, FOUR, tmp_path / "best", replace(SETTING, lr=0.1, rounds=2, select="best"))
    kept = run.trainer.server.best
    assert kept is not None
    ends = [train(name, FOUR, tmp_path / str(t), replace(SETTING, lr=0.1, rounds=t)) for t in (1, 2)]
    assert any(same({n: t.numpy() for n, t in kept.server.items()}, end.tensors) for end in ends)


FIVE = federation((70, 40, 55, 30, 45))


@pytest.mark.parametrize("name", ["fedrep", "fedpac", "lg_fedavg", "fedrod", "apfl"])
@pytest.mark.parametrize("votes", [True, False])
def test_the_answers_are_those_of_the_models_before_the_servers_step(
    name: str, votes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches states that are taken after the server's step, of another client or of another round, an answer that
    leaves `personalise` out, and what waits elsewhere taken for what was trained."""
    how, trained, s = method(name, score="after_local"), {}, setting(rounds=3, participation=0.6, seed=5, votes=votes)
    assert how.answers_after_local
    assert method(name).answers_after_local is (name != "apfl"), "the default"
    step = type(how).aggregate

    def recording(self: Any, server: Any, cohort: list[Client], t: int) -> None:
        trained.update({(t, c.index): {n: v.clone() for n, v in c.state.items()} for c in cohort})
        step(self, server, cohort, t)

    with monkeypatch.context() as patch:
        patch.setattr(type(how), "aggregate", recording)
        run = train(how, FIVE, tmp_path / "run", s)
    other = train(method(name, score="after_aggregate"), FIVE, tmp_path / "other", s)
    t, client, own, theirs = column(run, "round"), column(run, "client"), column(run, "own"), column(other, "own")
    plan, moved = Plan(s, FIVE.n_train, FIVE.shape[:2]), 0
    assert set(plan.cohort(3)) != set(plan.cohort(2)), "in every evaluated round some are away, but not always the same"
    for number in (2, 3):
        assert 0 < len(plan.cohort(number)) < FIVE.clients
        for i in range(FIVE.clients):
            rows = (t == number) & (client == i)
            if i in plan.cohort(number):
                expected = answers_of(run, trained[number, i], i, number)
                assert own[rows].tolist() == expected.tolist(), (number, i)
                moved += int((own[rows] != theirs[rows]).sum())
            else:
                assert own[rows].tolist() == theirs[rows].tolist(), "who is away answers from what the server gives"
    assert moved, "the server's step changes no answer, so this test could not tell"
    if votes:
        each = column(run, "votes")
        assert each[np.arange(len(each)), client].tolist() == own.tolist()
        assert (each != each[:, :1]).any(), "all models answer alike"

    sent, stacks = [], train(how, FIVE, tmp_path / "stacks", s, executor="stacked")

    def away(tensor: torch.Tensor) -> torch.Tensor:
        """A copy, as on a GPU: what waits is never the tensor that was at work."""
        sent.append(tensor)
        return tensor.clone()

    monkeypatch.setattr(worker, "_to_host", away)
    monkeypatch.setattr(simulation, "fits", lambda *_: False)
    for here, executor in ((run, "sequential"), (other, "sequential"), (stacks, "stacked")):
        sent.clear()
        elsewhere = train(here.trainer.method, FIVE, tmp_path / str(id(here)), s, executor=executor)
        assert elsewhere.trainer.puts_by is not None
        assert same(elsewhere.tensors, here.tensors)
        assert parquet_bytes(elsewhere.predictions) == parquet_bytes(here.predictions)
        assert bool(sent) is (name != "fedpac"), "FedPAC's heads are the server's, all others' parts wait"
        # Nothing that is shared waits: not what clients were sent, nor what they made of it.
        personal = {t.shape for n, t in here.trainer.server.initial.items() if how.is_personal(n)}
        assert {t.shape for t in sent} <= personal


def answers_of(run: Run, state: State, index: int, t: int) -> np.ndarray:
    """What a client's model of that state gives for the client's own test images."""
    it = run.trainer
    client = new_client(index, t, dict(state), it.context, it.federation, it.plan, PERSONALISING)
    it.executor.run([client], it.method.personalise)
    (labels,) = it.executor.map(lambda w, c: w.answers([c], [[Piece(c.work.test_rows, None)]])[0], [client])
    return labels


ROUNDS, EPOCHS = 5, 2


def big_digits() -> Federation:
    """Six clients of two groups, with images large enough for LeNet-5."""
    small = grouped_federation(size=50)
    twice = small.images.repeat_interleave(2, 1).repeat_interleave(2, 2)
    return dataclasses.replace(small, images=twice)


def counting(how: Method, passes: list[int]) -> Method:
    """The method, which adds the forward passes an image of all that its clients ask for; training counts as three."""

    def counted(update: ClientUpdate | None, client: Client) -> ClientUpdate:
        answer = None
        while update is not None:
            try:
                request = update.send(answer)
            except StopIteration:
                return
            models = 1 if isinstance(request.model, str) else len(request.model)
            if isinstance(request, Train):
                passes.append(3 * models * client.n_train * (request.epochs or EPOCHS) * request.repeat)
            else:
                images = models * len(client.work.rows_of(request.split, request.part))
                passes.append(images if isinstance(request, Collect) else 3 * images)
            answer = yield request

    def hook(name: str) -> Any:
        return lambda self, client: counted(getattr(type(how), name)(self, client), client)

    kind = type("Counting", (type(how),), {name: hook(name) for name in ("local", "reply")})
    made: Method = kind(**{f.name: getattr(how, f.name) for f in dataclasses.fields(how)})
    return made


@pytest.mark.parametrize("name", cost.METHODS)
def test_costs_are_what_runs_send_and_compute(name: str, tmp_path: Path) -> None:
    data, passes = big_digits(), list[int]()
    s = grouped_setting(model="lenet5_flux", rounds=ROUNDS, epochs=EPOCHS, lr=0.01, test_phase=False)
    it = trainer(counting(method(name), passes), data, tmp_path, s)
    it.run()
    lines = it.checkpoint.rounds
    clients, clusters = data.clients, 2.0
    if name == "feddrift":  # has a model more or less from round to round, and none before the first
        held = [line["figure_clusters"] for line in lines[:-1]]
        clusters = sum(held) / len(held)
    c = cost.Case(
        "lenet5_flux", data.shape, data.classes, clients=clients, clusters=clusters, samples=data.n_train[0],
        validation=len(data.validation[0]), rounds=ROUNDS, epochs=EPOCHS, components=10, inner_steps=5,
        clustering_round=int(lines[-1].get("figure_clustering_round", 4)),
    )  # fmt: skip
    found = cost.cost(name, c)
    assert found.bytes_up == pytest.approx(sum(line["bytes_up"] for line in lines) / (clients * ROUNDS))
    assert found.bytes_down == pytest.approx(sum(line["bytes_down"] for line in lines) / (clients * ROUNDS))
    beside = cost.PROJECTION * c.network.latents / ROUNDS if name == "flux" else 0  # makes no pass
    assert (found.client - beside) / c.network.forward == pytest.approx(sum(passes) / (clients * ROUNDS))
