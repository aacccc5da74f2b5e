"""The round loop: broadcast, local work, aggregation, evaluation, checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from fedbench.core.checkpoint import Checkpoint
from fedbench.core.client import Client
from fedbench.core.clock import Clock
from fedbench.core.evaluation import Answers, answer, own_answers
from fedbench.core.executors import Executor, one_thread
from fedbench.core.federation import Federation
from fedbench.core.plan import Plan
from fedbench.core.rng import stream
from fedbench.core.server import Server
from fedbench.core.state import State, state_of
from fedbench.models.base import seeded
from fedbench.spec import Setting

if TYPE_CHECKING:
    import pyarrow as pa

    from fedbench.methods.base import Method

#: A checkpoint is written when the last one is older than this (and at an interrupt).
CHECKPOINT_SECONDS = 10.0
#: ... and than saving takes, so many times over: at most this share of the time goes into checkpoints.
CHECKPOINT_SHARE = 0.05
#: Where a client's count of requests starts when it personalises.
PERSONALISING = 1000


@dataclass(frozen=True)
class Progress:
    """What an observer hears after each round."""

    round: int
    rounds: int
    loss: float
    accuracy: float | None  #: average accuracy if this round was evaluated


class Interrupted(Exception):
    """The run was stopped by the user; its last completed round is saved."""

    def __init__(self, round: int) -> None:
        super().__init__(f"interrupted after round {round}")
        self.round = round


def initialise(
    method: Method, build: Callable[[], nn.Module], federation: Federation, seed: int
) -> tuple[nn.Module, State]:
    """The network and the state that all clients start from, from the seed alone.

    The global random state is left as it was.
    """
    model = build()
    with seeded(seed, "method"):
        model = method.build(model, federation)
    generator = torch.Generator().manual_seed(int(stream(seed, "variables").integers(2**62)))
    variables = method.variables(model, federation, generator)
    device = federation.images.device
    model = model.to(device)
    return model, {**state_of(model), **{name: t.to(device) for name, t in variables.items()}}


def learning_rate(setting: Setting, t: int) -> float:
    """Of round t (1-based): constant, or a cosine over the rounds that would reach zero after the last."""
    if setting.schedule == "constant":
        return setting.lr
    return 0.5 * setting.lr * (1 + math.cos(math.pi * (t - 1) / setting.rounds))


class Trainer:
    """Trains one run in its work folder, resuming from the checkpoint there."""

    def __init__(
        self,
        setting: Setting,
        method: Method,
        federation: Federation,
        model: nn.Module,
        initial: State,
        executor: Executor,
        plan: Plan,
        checkpoint: Checkpoint,
    ) -> None:
        self.setting, self.method, self.federation = setting, method, federation
        self.executor, self.plan, self.checkpoint = executor, plan, checkpoint
        self.clock = Clock(federation.images.device)
        shared = {name: t for name, t in initial.items() if not method.is_personal(name)}
        self.server = Server(initial, shared)
        self.views = ("crop",) if setting.augment == "crop" else ("plain",)

    def run(self, observe: Callable[[Progress], None] = lambda _: None) -> None:
        """Train to the last round. Raises Interrupted on Ctrl-C, after saving the last completed round."""
        saved = self.checkpoint.load()
        if saved is not None:
            device = self.federation.images.device
            self.server.restore({name: t.to(device) for name, t in saved.items()})
            self.server.round = self.checkpoint.round
        evaluated = set(self.setting.evaluated_rounds())
        last_save, patience = time.monotonic(), CHECKPOINT_SECONDS
        try:
            for t in range(self.server.round + 1, self.setting.rounds + 1):
                server = self.server.copy(t)
                line, answers = self.round(server, t, t in evaluated)
                if answers is not None:
                    self.checkpoint.save_predictions(t, self._table(t, answers))
                self.checkpoint.rounds.append(line)
                self.server = server  # the round counts from this one assignment on: an interrupt finds it or not
                observe(Progress(t, self.setting.rounds, line["loss"], _accuracy(self.federation, answers)))
                if t < self.setting.rounds and time.monotonic() - last_save > patience:
                    began = time.monotonic()
                    self.checkpoint.save(t, self.server.tensors())
                    last_save = time.monotonic()
                    patience = max(CHECKPOINT_SECONDS, (last_save - began) / CHECKPOINT_SHARE)
        except KeyboardInterrupt:
            self.checkpoint.save(self.server.round, self.server.tensors())
            raise Interrupted(self.server.round) from None

    def round(self, server: Server, t: int, evaluate: bool) -> tuple[dict[str, Any], dict[str, Answers] | None]:
        """One round on `server` (updated in place): the line for the run's `rounds` table, and the answers."""
        started = time.perf_counter()
        method, setting = self.method, self.setting
        shares = method.shares(t, setting.rounds)
        cohort = [self._client(i, method.broadcast(server, i, t), t) for i in self.plan.cohort(t)]
        up, down = method.traffic(server, t) if shares else (0, 0)
        with self.clock.phase("local"):
            self.executor.run(cohort, method.local)
        with self.clock.phase("server"), one_thread():
            for client in cohort:
                server.keep(
                    client.index, {n: v for n, v in client.state.items() if not shares or method.is_personal(n)}
                )
            if cohort and shares:
                method.aggregate(server, cohort, t)
                server.forget(method.is_personal)
        line = {
            "round": t,
            "participants": len(cohort),
            "images": sum(c.images for c in cohort),
            "loss": sum(c.n_train * c.loss for c in cohort) / max(sum(c.n_train for c in cohort), 1),
            "lr": learning_rate(setting, t),
            "client_seconds": sum(c.seconds for c in cohort),
            "bytes_up": up * len(cohort),
            "bytes_down": down * len(cohort),
        }
        cohort.clear()  # what the clients uploaded need not live through the evaluation
        answers = None
        with self.clock.phase("evaluation"):
            if evaluate:
                answers = self.evaluate(server, t)
        seconds = {f"{phase}_seconds": s for phase, s in self.clock.reset().items()}
        return {**line, **seconds, "total_seconds": time.perf_counter() - started}, answers

    def evaluate(self, server: Server, t: int) -> dict[str, Answers]:
        """Predictions of the personalised models by view; after the last round also on whole images."""
        clients = [self._client(i, server.view(i), t) for i in range(self.federation.clients)]
        for client in clients:
            client.phase = PERSONALISING  # random streams apart from those of the round's local work
        views = self.views if t < self.setting.rounds else tuple(dict.fromkeys((*self.views, "plain")))
        if self.setting.votes:
            self.executor.run(clients, self.method.personalise)
            router = self.method.route if self.method.routes else None
            answers = {view: answer(clients, self.executor, self.plan, t, view, router) for view in views}
        else:
            answers = own_answers(clients, self.executor, self.plan, t, views, self.method.personalise)
        self.checkpoint.notes = {str(c.index): c.notes for c in clients if c.notes}
        return answers

    def _client(self, index: int, state: State, t: int) -> Client:
        return Client(
            index=index,
            round=t,
            rounds=self.setting.rounds,
            lr=learning_rate(self.setting, t),
            n_train=self.plan.n_train[index],
            class_counts=self.federation.class_counts[index],
            state=state,
            received=dict(state),
        )

    def _table(self, t: int, answers: dict[str, Answers]) -> pa.Table:
        """The predictions of one round, views one after another."""
        import pyarrow as pa

        labels = self.federation.labels.cpu().numpy().astype(np.uint16)
        tables = []
        for view, a in answers.items():
            columns: dict[str, Any] = {
                "round": np.full(len(a.rows), t, np.int32),
                "view": pa.array([view] * len(a.rows), pa.string()),
                "client": self.federation.client[a.rows].astype(np.int32),
                "sample": self.federation.sample[a.rows].astype(np.int32),
                "label": labels[a.rows],
                "own": a.own,
            }
            if a.votes is not None:
                flat = pa.array(np.ascontiguousarray(a.votes).reshape(-1))
                columns["votes"] = pa.FixedSizeListArray.from_arrays(flat, a.votes.shape[1])
            columns.update({f"route_{rule}": chosen for rule, chosen in a.routes.items()})
            tables.append(pa.table(columns))
        return pa.concat_tables(tables)

    def clients_table(self) -> pa.Table:
        """A line a client: sizes, and the figures its method noted at the last evaluation."""
        import pyarrow as pa

        columns: dict[str, Any] = {
            "client": np.arange(self.federation.clients, dtype=np.int32),
            "n_train": np.array(self.federation.n_train, np.int64),
            "n_test": np.array(self.federation.n_test, np.int64),
        }
        for key in sorted({k for notes in self.checkpoint.notes.values() for k in notes}):
            columns[key] = [self.checkpoint.notes.get(str(i), {}).get(key) for i in range(self.federation.clients)]
        return pa.table(columns)


def _accuracy(federation: Federation, answers: dict[str, Answers] | None) -> float | None:
    """Average accuracy weighted by training sizes, for the display."""
    if answers is None:
        return None
    a = next(iter(answers.values()))
    right = (federation.labels.cpu().numpy()[a.rows] == a.own).astype(np.float64)
    client = federation.client[a.rows]
    accuracy = np.bincount(client, right, federation.clients) / np.bincount(client, minlength=federation.clients)
    weights = np.array(federation.n_train, np.float64)
    return float((accuracy * weights).sum() / weights.sum())
