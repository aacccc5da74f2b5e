"""Methods that part body from head: FedBABU, FedRep, LG-FedAvg."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedbench.core.augment import to_input
from fedbench.core.client import Client, ClientUpdate, Train
from fedbench.core.server import Server
from fedbench.core.simulation import PERSONALISING
from fedbench.core.state import State, matches
from fedbench.core.who import MEMBER, UNSEEN
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method, cross_entropy
from fedbench.methods.fedrep import FedRep
from tests.support.lab import Run, federation, method, same, setting, train, trainer

DATA = federation()
ALONE = federation((120,))
BODY, HEAD = ("backbone.", "projection."), ("head.",)


def size(server: Server, prefixes: tuple[str, ...]) -> int:
    return sum(4 * t.numel() for n, t in server.initial.items() if matches(n, prefixes))


def bytes_of(run: Run) -> list[tuple[int, int]]:
    return [(line["bytes_up"], line["bytes_down"]) for line in run.trainer.checkpoint.rounds]


def answering(run: Run, index: int, kind: str = MEMBER) -> Client:
    """The client as it is asked after the third round."""
    return run.trainer.answering(run.trainer.server, index, kind, 3)


def own(run: Run, t: int) -> np.ndarray:
    return run.predictions.to_pandas().query(f"round == {t}")["own"].to_numpy()


def by_hand(
    run: Any, client: int, state: State, t: int, steps: Sequence[tuple[tuple[str, ...], int, float]], first: int = 1
) -> State:
    """The state after these local passes (what trains, epochs, rate), by torch's own autograd and SGD, step by step."""
    it, s = run.trainer, run.trainer.setting
    model = it.executor.model
    values = {n: state[n].clone() for n in model.state_dict()}
    for phase, (prefixes, epochs, lr) in enumerate(steps, first):
        leaves = {n: v.requires_grad_() for n, v in values.items() if matches(n, prefixes)}
        optimiser = torch.optim.SGD(leaves.values(), lr=lr, momentum=s.momentum, weight_decay=s.weight_decay)
        for position in it.plan.batches(client, t, phase, epochs, None):
            rows = it.federation.train[client][torch.from_numpy(position)]
            logits = torch.func.functional_call(model, values, to_input(it.federation.images[rows]))
            optimiser.zero_grad()
            F.cross_entropy(logits, it.federation.labels[rows]).backward()
            optimiser.step()
        values = {n: v.detach() for n, v in values.items()}
    return values


# -- FedBABU --------------------------------------------------------------------------------------------------


def test_fedbabus_head_is_bit_identical_until_it_is_tuned(tmp_path: Path) -> None:
    run = train("fedbabu", DATA, tmp_path)
    server = run.trainer.server
    assert server.personal == {}
    for i in range(DATA.clients):
        for name, value in server.view(i).items():
            assert torch.equal(value, server.initial[name]) is name.startswith("head."), name
    assert bytes_of(run) == [(4 * size(server, BODY), 4 * size(server, BODY))] * 3


def test_fedbabu_trains_its_head_for_the_answers_of_the_last_round_alone(tmp_path: Path) -> None:
    tuned = train("fedbabu", DATA, tmp_path / "tuned")
    plain = train(method("fedbabu", finetune_epochs=0), DATA, tmp_path / "plain")
    assert same(tuned.tensors, plain.tensors)
    assert np.array_equal(own(tuned, 2), own(plain, 2))
    assert not np.array_equal(own(tuned, 3), own(plain, 3))
    # The tuned models, by hand: same body, five epochs of the head.
    it = tuned.trainer
    how = it.method
    client = it.client(2, it.server.view(2), 3)
    it.executor.run([client], how.personalise)
    expected = by_hand(tuned, 2, it.server.view(2), 3, [(HEAD, 5, 0.05)])
    for name, value in expected.items():
        torch.testing.assert_close(client.state[name], value, rtol=1e-4, atol=1e-5)
        assert torch.equal(client.state[name], it.server.view(2)[name]) is not name.startswith("head.")


def test_fedbabu_under_any_body_update_is_fedavg_of_a_frozen_head(tmp_path: Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class Frozen(Method):
        name = "frozen"

        def local(self, client: Client) -> ClientUpdate:
            yield Train(cross_entropy, trains=BODY)

    frozen = train(Frozen(), DATA, tmp_path / "frozen")
    babu = train(method("fedbabu", finetune_epochs=0), DATA, tmp_path / "babu")
    assert babu.predictions.equals(frozen.predictions)
    assert all(np.array_equal(value, frozen.shared[name]) for name, value in babu.shared.items())


@pytest.mark.parametrize(("newcomers", "trains"), [("head", HEAD), ("all", ("",))])
def test_what_an_unseen_client_of_fedbabu_tunes(newcomers: str, trains: tuple[str, ...], tmp_path: Path) -> None:
    it = trainer(method("fedbabu", newcomers=newcomers, finetune_epochs=4), DATA, tmp_path)
    client = it.answering(it.server, 1, UNSEEN, 3)
    assert all(client.state[n] is t for n, t in it.server.initial.items())
    (request,) = it.method.personalise(client) or ()
    assert (request.trains, request.epochs, request.lr) == (trains, 4, None)
    assert list(it.method.personalise(it.answering(it.server, 1, UNSEEN, 2)) or ()) == []


# -- FedRep ---------------------------------------------------------------------------------------------------


def test_fedrep_without_head_epochs_and_fedbabu_train_the_same_bodies(tmp_path: Path) -> None:
    """Nobody's head ever moves."""
    rep = train(method("fedrep", head_epochs=0), DATA, tmp_path / "rep")
    babu = train("fedbabu", DATA, tmp_path / "babu")
    assert same(rep.tensors, babu.tensors)
    assert not same(train("fedrep", DATA, tmp_path / "with").shared, babu.shared)


def test_a_round_of_fedrep_by_hand(tmp_path: Path) -> None:
    """Five epochs of the head, then the setting's two of the body; bodies averaged by training size."""
    run = train("fedrep", DATA, tmp_path, setting(rounds=1, window=1, epochs=2))
    server = run.trainer.server
    ends = [by_hand(run, i, server.initial, 1, [(HEAD, 5, 0.05), (BODY, 2, 0.05)]) for i in range(DATA.clients)]
    share = np.array(DATA.n_train) / sum(DATA.n_train)
    for name in server.initial:
        if name.startswith("head."):
            for i, end in enumerate(ends):
                torch.testing.assert_close(server.personal[i][name], end[name], rtol=1e-4, atol=1e-5)
        else:
            mean = sum(p * end[name].double() for p, end in zip(share, ends, strict=True))
            torch.testing.assert_close(server.shared[name], mean.float(), rtol=1e-4, atol=1e-5)
    assert set(server.personal) == {0, 1, 2, 3}
    assert all(set(state) == {"head.weight", "head.bias"} for state in server.personal.values())
    assert bytes_of(run) == [(4 * size(server, BODY), 4 * size(server, BODY))]


# -- LG-FedAvg ------------------------------------------------------------------------------------------------


def test_alone_in_a_federation_lg_fedavg_is_fedavg(tmp_path: Path) -> None:
    runs = [train(name, ALONE, tmp_path / name) for name in ("lg_fedavg", "fedavg")]
    a, b = (run.trainer.server.view(0) for run in runs)
    assert all(torch.equal(a[name], b[name]) for name in b)
    assert runs[0].predictions.equals(runs[1].predictions)


def test_lg_fedavg_averages_the_head_and_nothing_else(tmp_path: Path) -> None:
    run = train("lg_fedavg", DATA, tmp_path, setting(rounds=1, window=1))
    server = run.trainer.server
    ends = [by_hand(run, i, server.initial, 1, [(("",), 1, 0.05)]) for i in range(DATA.clients)]
    share = np.array(DATA.n_train) / sum(DATA.n_train)
    assert set(server.shared) == {"head.weight", "head.bias"}
    for name, value in server.shared.items():
        mean = sum(p * end[name].double() for p, end in zip(share, ends, strict=True))
        torch.testing.assert_close(value, mean.float(), rtol=1e-4, atol=1e-5)
    bodies = [n for n in server.initial if not n.startswith("head.")]
    for i, end in enumerate(ends):
        assert set(server.personal[i]) == set(bodies)
        for name in bodies:
            torch.testing.assert_close(server.personal[i][name], end[name], rtol=1e-4, atol=1e-5)
    assert not torch.equal(server.personal[0]["backbone.0.weight"], server.personal[1]["backbone.0.weight"])
    assert bytes_of(run) == [(4 * size(server, HEAD), 4 * size(server, HEAD))]


# -- which of a client's models answers -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedrep", "lg_fedavg", "fedpac"])
def test_the_answers_after_local_are_those_of_the_models_before_the_servers_step(name: str, tmp_path: Path) -> None:
    runs = {s: train(method(name, score=s), DATA, tmp_path / s) for s in ("after_local", "after_aggregate")}
    it = runs["after_local"].trainer
    # The last round once more, from the end of the second: what the clients held before the server's step.
    two = train(method(name, score="after_aggregate"), DATA, tmp_path / "two", setting(rounds=2)).trainer
    clients = [two.client(i, two.server.view(i), 3) for i in range(DATA.clients)]
    for client in clients:
        two.method.broadcast(two.server, client)
        client.received = dict(client.state)
    two.executor.run(clients, two.method.local)
    expected = {
        "after_local": [c.state for c in clients],
        "after_aggregate": [answering(runs["after_aggregate"], i).state for i in range(DATA.clients)],
    }
    for score, states in expected.items():
        said = []
        for i, state in enumerate(states):
            model = it.executor.worker.load(state).eval()  # type: ignore[attr-defined]
            with torch.no_grad():
                said.append(model(to_input(DATA.images[DATA.test[i]])).argmax(1))
        assert np.array_equal(own(runs[score], 3), torch.cat(said).numpy()), score
    assert not np.array_equal(own(runs["after_local"], 3), own(runs["after_aggregate"], 3))
    assert same(runs["after_local"].shared, runs["after_aggregate"].shared)


# -- newcomers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "epochs"), [("fedbabu", "finetune_epochs"), ("fedpac", "newcomer_epochs")])
def test_an_unseen_client_joins_after_the_last_round(name: str, epochs: str, tmp_path: Path) -> None:
    """The last client never trains; it tunes what it is served with, and nobody else is touched by that."""
    base, data = setting(), federation(skew=float("inf"))
    s = dataclasses.replace(base, partition=dataclasses.replace(base.partition, unseen=1), epochs=3)
    said = {}
    for newcomers, trains in (("head", HEAD), ("all", ("",))):
        for tunes in (0, 8):
            how = method(name, **{epochs: tunes, "newcomers": newcomers})
            run = train(how, data, tmp_path / f"{newcomers}{tunes}", s)
            server, it = run.trainer.server, run.trainer
            assert 3 not in server.personal
            assert [line["participants"] for line in it.checkpoint.rounds] == [3, 3, 3]
            start = answering(run, 3, UNSEEN).state
            tuned = by_hand(run, 3, start, 3, [(trains, tunes, s.lr)], first=PERSONALISING + 1) if tunes else start
            model = it.executor.worker.load(tuned).eval()  # type: ignore[attr-defined]
            with torch.no_grad():
                answers = model(to_input(data.images[data.test[3]])).argmax(1)
            last = run.predictions.to_pandas().query("round == 3 and client == 3")
            assert last["own"].tolist() == answers.tolist()
            said[newcomers, tunes] = answers.tolist()
    assert said["head", 0] == said["all", 0]
    assert said["head", 0] not in (said["head", 8], said["all", 8])


# -- bad input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "option"), [("fedbabu", "finetune_epochs"), ("fedrep", "head_epochs")])
def test_negative_epochs(name: str, option: str) -> None:
    with pytest.raises(FedbenchError, match=f"--{option.replace('_', '-')} of {name} must be at least 0, not -1"):
        method(name, **{option: -1})


@pytest.mark.parametrize(("name", "option"), [("fedbabu", "newcomers"), ("fedrep", "score"), ("lg_fedavg", "score")])
def test_unknown_choices(name: str, option: str) -> None:
    with pytest.raises(FedbenchError, match=f"--{option}"):
        method(name, **{option: "body"})


def test_who_takes_newcomers() -> None:
    assert [UNSEEN in method(n).serves for n in ("fedbabu", "fedpac", "fedrep", "lg_fedavg")] == [
        True,
        True,
        False,
        False,
    ]
    assert FedRep().answers_after_local
    assert not FedRep(score="after_aggregate").answers_after_local


# -- FedDRM's comparison: local steps shared out, rounds without communication -------------------------------------


def test_fedrep_shares_local_steps_out(tmp_path: Path) -> None:
    s = setting(steps=5)
    run = train(method("fedrep", head_steps=2), DATA, tmp_path / "split", s)
    asked = []
    for request in _requests(run, method("fedrep", head_steps=2, mu=0.3)):
        asked.append((request.trains, request.steps, request.epochs, request.prox))
    assert asked == [(("head.",), 2, None, 0.0), (("backbone.", "projection."), 3, None, 0.3)]
    near = train(method("fedrep", head_steps=2, mu=50.0), DATA, tmp_path / "near", setting(steps=5, lr=0.01))
    free = train(method("fedrep", head_steps=2), DATA, tmp_path / "free", setting(steps=5, lr=0.01))
    start = run.trainer.server.initial
    moved = [sum(np.square(v - start[n].numpy()).sum() for n, v in r.shared.items()) for r in (near, free)]
    assert moved[0] < moved[1], "the proximal term holds the body back"
    for steps, epochs, chosen in ((None, 2, 3), (3, None, 3)):
        with pytest.raises(FedbenchError, match="--head-steps of fedrep must be"):
            method("fedrep", head_steps=chosen).check_setting(setting(steps=steps, epochs=epochs))


def test_ditto_shares_local_steps_out(tmp_path: Path) -> None:
    run = train(method("ditto", personal_steps=2), DATA, tmp_path, setting(steps=5))
    asked = [(r.steps, r.epochs, r.prox) for r in _requests(run, method("ditto", personal_steps=2))]
    assert asked == [(3, None, 0.0), (2, None, 1.0)]
    with pytest.raises(FedbenchError, match="--personal-steps of ditto must be below 2 steps, not 2"):
        method("ditto", personal_steps=2).check_setting(setting(steps=2))


def test_fedbabu_trains_heads_alone_in_its_last_rounds(tmp_path: Path) -> None:
    how = method("fedbabu", finetune_rounds=2, finetune_epochs=0)
    run = train(how, DATA, tmp_path / "ft", setting(rounds=4, window=4))
    plain = train(method("fedbabu", finetune_epochs=0), DATA, tmp_path / "plain", setting(rounds=2))
    assert same(run.shared, plain.shared), "the body stands still while the heads train"
    assert [line["bytes_up"] > 0 for line in run.trainer.checkpoint.rounds] == [True, True, False, False]
    start = run.trainer.server.initial
    for i in range(DATA.clients):
        view = run.trainer.server.view(i)
        assert not torch.equal(view["head.weight"], start["head.weight"])
        assert np.array_equal(view["backbone.0.weight"].numpy(), run.shared["backbone.0.weight"])
    with pytest.raises(FedbenchError, match="--finetune-rounds of fedbabu must be below the number of rounds, 3"):
        method("fedbabu", finetune_rounds=3).check_setting(setting(rounds=3))


def _requests(run: Run, how: Method) -> list[Train]:
    """What a client asks for in a round, nothing of it done."""
    client = run.trainer.client(1, run.trainer.server.view(1), 1)
    update = how.local(client)
    assert update is not None
    return [request for request in update if isinstance(request, Train)]
