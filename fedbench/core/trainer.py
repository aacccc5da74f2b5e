"""The round loop: broadcast, local work, aggregation, evaluation, checkpoint."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from fedbench.core import message, selection, tables, traffic
from fedbench.core.checkpoint import Checkpoint
from fedbench.core.client import Client
from fedbench.core.clock import Clock
from fedbench.core.context import Context
from fedbench.core.evaluation import Answers, answer, own_answers
from fedbench.core.executors import Executor, one_thread
from fedbench.core.federation import Federation
from fedbench.core.memory import fits
from fedbench.core.plan import Plan
from fedbench.core.rng import stream
from fedbench.core.server import Server
from fedbench.core.state import State, as_model, matches, size_in_bytes, state_of
from fedbench.core.who import MEMBER, UNLABELLED, UNSEEN
from fedbench.core.work import Work
from fedbench.errors import FedbenchError
from fedbench.models.base import seeded
from fedbench.specs import Setting

if TYPE_CHECKING:
    import pyarrow as pa

    from fedbench.methods.base import Method

#: A checkpoint is written when the last one is older than this (and at an interrupt).
CHECKPOINT_SECONDS = 10.0
#: ... and than saving takes, so many times over: at most this share of the time goes into checkpoints.
CHECKPOINT_SHARE = 0.05
#: Where a client's count of requests starts when it personalises, and when the server asks it.
PERSONALISING, SURVEYING = 1000, 2000


@dataclass(frozen=True)
class Progress:
    """What an observer hears after each round."""

    round: int
    rounds: int
    loss: float
    accuracy: float | None  #: average accuracy if this round was evaluated
    doing: str = ""  #: what goes on before the first round, if that may take long


class Interrupted(Exception):
    """The run was stopped by the user; its last completed round is saved."""

    def __init__(self, round: int) -> None:
        super().__init__(f"interrupted after round {round}")
        self.round = round


def initialise(
    method: Method, build: Callable[[], nn.Module], federation: Federation, setting: Setting
) -> tuple[nn.Module, State]:
    """The network and the state that all clients start from, from the seed of the initial weights alone.

    The global random state is left as it was. Raises FedbenchError for a method that cannot work with such labels.
    """
    if federation.many_labels and not method.takes_many_labels:
        raise FedbenchError(
            f"{method.name} works with one class an image, and these images have {federation.classes} labels each",
            "choose another method ('fedavg', say) or another data set",
        )
    model, context, seed = build(), Context.of(federation, setting), setting.initial_seed
    with seeded(seed, "method"):
        model = method.build(model, context)
    generator = torch.Generator().manual_seed(int(stream(seed, "variables").integers(2**62)))
    further = {k: v for own in method.keeps for k, v in as_model(state_of(model), own).items()}
    variables = {**further, **method.variables(model, context, generator)}
    device = federation.images.device
    model = model.to(device)
    return model, {**state_of(model), **{name: t.to(device) for name, t in variables.items()}}


def learning_rate(setting: Setting, t: int) -> float:
    """Of round t (1-based): constant, or a cosine over the rounds that would reach zero after the last."""
    if setting.schedule == "constant":
        return setting.lr
    return 0.5 * setting.lr * (1 + math.cos(math.pi * (t - 1) / setting.rounds))


def new_client(
    index: int, t: int, state: State, context: Context, federation: Federation, plan: Plan, phase: int = 0
) -> Client:
    """Client `index` at the start of round t, with the state that it has received; `phase` is where its count of
    requests begins, which keys its random streams."""
    stage = sum(t >= drift for drift in context.setting.drifts or ())
    rows, held_back = (side[index] for side in federation.at(stage))
    counts = federation.counts(rows) if stage else federation.class_counts[index]
    return Client(
        index=index,
        round=t,
        lr=learning_rate(context.setting, t),
        context=context,
        class_counts=counts,
        work=Work(federation, plan, rows, federation.test[index], held_back, phase=phase, looks=phase),
        state=state,
        received=dict(state),
    )


def known_association(server: Server, federation: Federation) -> Server:
    """The server as it serves clients whose distribution is known, after their data have drifted between training and
    test: client i is served by the cluster of most clients that last trained on its test distribution (ties: the
    smallest number; flux/protocol.md#drifting-data), or where nobody did by its own (there the released code has the
    nearest centroid, which not every method has)."""
    if not server.assigned or federation.test_groups == federation.groups:
        return server
    votes: dict[int, Counter[int]] = {}
    for i, m in sorted(server.assigned.items()):
        votes.setdefault(federation.groups[i], Counter())[m] += 1
    chosen = {g: min(count, key=lambda m: (-count[m], m)) for g, count in votes.items()}
    known = server.copy(server.round)
    for i, group in enumerate(federation.test_groups):
        if group in chosen:
            known.assigned[i] = chosen[group]
    return known


def _check_test_phase(setting: Setting, method: Method, model: nn.Module) -> None:
    """Raise FedbenchError if clients without labels would answer with parts of the network that nobody has trained."""
    if setting.test_phase and UNLABELLED in method.serves:
        for name in model.state_dict():
            if method.is_personal(name) and not matches(name, method.unlabelled_has):
                raise FedbenchError(
                    f"{method.name} keeps {name} with each client, so it has none for a client without labels",
                    f"let `serve` give it one and name it in `unlabelled_has`, or leave '{UNLABELLED}' out of `serves`",
                )


@dataclass
class Round:
    """A round under way."""

    server: Server  #: the server's copy to be brought to the end of the round
    cohort: list[Client]
    seconds: float  #: spent before the local work
    bytes_down: int  #: what the cohort was sent
    line: dict[str, Any] = field(default_factory=dict)  #: of the run's `rounds` table
    accuracy: float | None = None  #: average accuracy if the round was evaluated


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
        context: Context | None = None,
    ) -> None:
        self.setting, self.method, self.federation = setting, method, federation
        self.executor, self.plan, self.checkpoint = executor, plan, checkpoint
        self.device = federation.images.device
        self.clock = Clock(self.device)
        personal = size_in_bytes({name: t for name, t in initial.items() if method.is_personal(name)})
        #: What of a client's state waits in host memory while others are at work, if not all fit on the device.
        self.puts_by = None if fits(personal * federation.clients, self.device) else method.is_personal
        shared = {name: t for name, t in initial.items() if not method.is_personal(name)}
        self.context = context or Context.of(federation, setting)
        self.server = Server(initial, shared, context=self.context)
        self._change(method.start, self.server)
        self.remembers = type(self.server.memory)
        self.server.check(self.remembers)
        self.surveyed = (0, 0)  #: bytes up and down of what the server asked before the first round
        self.survey_seconds = 0.0
        self.evaluated = set(setting.evaluated_rounds())
        self.views = ("crop",) if setting.augment == "crop" else ("plain",)
        self.newcomers = range(plan.trainees, federation.clients)
        _check_test_phase(setting, method, model)

    def run(self, observe: Callable[[Progress], None] = lambda _: None) -> None:
        """Train to the last round. Raises Interrupted on Ctrl-C, after saving the last completed round."""
        train_together([self], observe)

    def resume(self, observe: Callable[[Progress], None] = lambda _: None) -> None:
        """Stand where the checkpoint left off, or else ask the clients what the server asks before the first round."""
        saved = self.checkpoint.load()
        if saved is None:
            if self.method.ask(self.server, 0, 0) is not None:
                observe(Progress(0, self.setting.rounds, 0.0, None, "clients look at their data"))
            self.surveyed = self.survey(self.server, range(self.plan.trainees), 0)
            self.survey_seconds = self.clock.reset().get("survey", 0.0)
        else:
            waits = self.puts_by is not None
            self.server = self.server.copy(self.checkpoint.round)
            self.server.restore(
                {n: t if waits and n.startswith("personal/") else t.to(self.device) for n, t in saved.items()}
            )

    def save(self) -> None:
        """Write the checkpoint of the last completed round."""
        self.checkpoint.save(self.server.round, self.server.tensors())

    def begin(self) -> Round:
        """The next round, up to its clients' local work."""
        started = time.perf_counter()
        t = self.server.round + 1
        server = self.server.copy(t)
        cohort = [self._client(i, server.view(i), t) for i in self.plan.cohort(t)]
        for client in cohort:
            self._change(self.method.broadcast, server, client)
            self._check_message(client, "inbox")
            client.received = dict(client.state)
        down = 0
        if self.method.shares(t, self.setting.rounds):
            down = sum(traffic.down(server, client, self.method.is_personal) for client in cohort)
        return Round(server, cohort, time.perf_counter() - started, down)

    def finish(self, round: Round, local_seconds: float) -> None:
        """The rest of the round: server's step, evaluation, the line for the run's `rounds` table."""
        started = time.perf_counter()
        method, setting, server, cohort = self.method, self.setting, round.server, round.cohort
        t = server.round
        shares = method.shares(t, setting.rounds)
        for client in cohort:
            self._check_message(client, "upload")
        up = sum(traffic.up(server, client, method.is_personal) for client in cohort) if shares else 0
        asked_up, asked_down = self.surveyed if t == 1 else (0, 0)
        # Before the server's step, which may put other tensors into what clients keep.
        trained = {c.index: c.state for c in cohort} if method.answers_after_local and t in self.evaluated else {}
        with self.clock.phase("server"), one_thread():
            for client in cohort:
                server.keep(
                    client.index, {n: v for n, v in client.state.items() if not shares or method.is_personal(n)}
                )
            if cohort and shares:
                self._change(method.aggregate, server, cohort, t)
                server.forget(method.is_personal)
        who = [c.index for c in cohort]
        parts = sorted({part for client in cohort for part in client.work.parts} | {"network"})
        line = {
            "round": t,
            "participants": len(cohort),
            "images": sum(c.work.processed for c in cohort),
            "loss": sum(c.n_train * c.loss for c in cohort) / max(sum(c.n_train for c in cohort), 1),
            "lr": learning_rate(setting, t),
            "client_seconds": sum(c.work.seconds for c in cohort),
            "bytes_up": up + asked_up,
            "bytes_down": round.bytes_down + asked_down,
            **{f"part_{part}_seconds": sum(c.work.parts.get(part, 0.0) for c in cohort) for part in parts},
        }
        cohort.clear()  # what the clients uploaded need not live through the evaluation
        if who and shares:
            asked_up, asked_down = self.survey(server, who, t)
            line["bytes_up"] += asked_up
            line["bytes_down"] += asked_down
        if who and setting.select:
            with self.clock.phase("selection"):
                line["bytes_up"] += self.consider(server, who)
        server.check(self.remembers)
        line |= {f"figure_{name}": value for name, value in method.figures(server).items()}
        line = {name: tables.number(f"{method.name}: {name}", value) for name, value in line.items()}
        answers = None
        with self.clock.phase("evaluation"):
            if t in self.evaluated:
                answers = self.evaluate(server, t, trained)
        seconds = {"local": local_seconds, **self.clock.reset()}
        before = self.survey_seconds if t == 1 else 0.0
        total = before + round.seconds + local_seconds + time.perf_counter() - started
        round.line = {**line, **{f"{phase}_seconds": s for phase, s in seconds.items()}}
        round.line |= {"describe_seconds": before, "total_seconds": total}
        if answers is not None:
            self.checkpoint.save_predictions(t, tables.predictions(t, answers, self.federation))
            round.accuracy = tables.average_accuracy(answers, self.federation, self.plan.trainees)

    def survey(self, server: Server, who: Sequence[int], t: int) -> tuple[int, int]:
        """Ask these clients what the server wants to know after round t, as often as it has a question: bytes up and
        down. After the last round the clients are sent once more what they hold, which else comes with the next one."""
        up = down = 0
        for k in itertools.count():
            question = self.method.ask(server, t, k)
            if question is None:
                return up, down
            with self.clock.phase("survey"):
                clients = [self._client(i, server.view(i), t, SURVEYING + 1000 * k) for i in who]
                for client in clients:
                    client.inbox = question
                    self._check_message(client, "inbox")
                    if t == self.setting.rounds and k == 0:
                        down += traffic.down(server, client, self.method.is_personal)
                    else:
                        down += message.size(question)
                self.executor.run(clients, self.method.reply)
                with one_thread():
                    for client in clients:
                        self._check_message(client, "upload")
                        up += message.size(client.upload)
                        kept = {n: t for n, t in client.state.items() if self.method.is_personal(n)}
                        server.keep(client.index, kept)
                    self._change(self.method.learn, server, clients, t)
        raise AssertionError("unreachable")

    def consider(self, server: Server, who: Sequence[int]) -> int:
        """Make this the round whose models answer, if they do better on the cohort's validation images than those of
        all rounds before (since the data last drifted: models of other data do not compete). Returns bytes up."""
        t = server.round
        clients = [self._answering(server, i, MEMBER, t) for i in who]
        self.executor.run(clients, selection.validation(self.method.personalise))
        loss = selection.mean_loss(clients)
        if server.best is None or t in (self.setting.drifts or ()) or loss < server.best.loss:
            server.best = None
            server.best = selection.Best(loss, server.tensors())
        return sum(message.size(c.upload) for c in clients)

    def commit(self, round: Round) -> None:
        """Go on from the end of this round."""
        self.checkpoint.rounds.append(round.line)
        self.server = round.server  # the round counts from this one assignment on: an interrupt finds it or not

    def evaluate(self, server: Server, t: int, trained: Mapping[int, State]) -> dict[str, Answers]:
        """Predictions of the personalised models by view; after the last round also on whole images.

        Clients answer from `trained` if they stand there, the others from what the method serves them.
        """
        if self.setting.select:
            server, trained = server.answering(), {}
        known = known_association(server, self.federation)
        clients = [
            self._answering(known, i, UNSEEN if i in self.newcomers else MEMBER, t, trained.get(i))
            for i in range(self.federation.clients)
        ]
        views = self.views if t < self.setting.rounds else tuple(dict.fromkeys((*self.views, "plain")))
        if self.setting.votes:
            self.executor.run(clients, self.method.personalise)
            router = self.method.route if self.method.routes else None
            answers = {view: answer(clients, self.executor, view, router) for view in views}
        else:
            answers = own_answers(clients, self.executor, views, self.method.personalise)
        if self.setting.test_phase and t == self.setting.rounds and UNLABELLED in self.method.serves:
            met = self._answers_without_labels(server, t)
            answers = {view: replace(a, test_phase=met) if view == "plain" else a for view, a in answers.items()}
        self.checkpoint.notes = {
            str(c.index): {k: tables.number(f"{self.method.name}: client.notes['{k}']", v) for k, v in c.notes.items()}
            for c in clients
            if c.notes
        }
        return answers

    def _answers_without_labels(self, server: Server, t: int) -> np.ndarray:
        """What each client's test images are answered when it comes as one without labels [T]."""
        clients = [self._answering(server, i, UNLABELLED, t) for i in range(self.federation.clients)]
        return own_answers(clients, self.executor, ("plain",), self.method.personalise)["plain"].own

    def _answering(self, server: Server, index: int, kind: str, t: int, state: State | None = None) -> Client:
        """A client that is to answer from `state`, else from what the method serves it."""
        client = self._client(index, server.view(index) if state is None else state, t, PERSONALISING)
        client.kind = kind
        if kind == UNLABELLED:  # nothing of what it has trained on is there
            client.work.rows, client.work.validation_rows = client.work.rows[:0], client.work.validation_rows[:0]
            client.class_counts = torch.zeros_like(client.class_counts)
            client.state = {**server.initial, **server.shared}
        if state is None:
            self._change(self.method.serve, server, client)
            self._check_message(client, "inbox")
            client.received = dict(client.state)
        return client

    def _client(self, index: int, state: State, t: int, phase: int = 0) -> Client:
        client = new_client(index, t, state, self.context, self.federation, self.plan, phase)
        client.work.puts_by = self.puts_by
        return client

    def _change(self, hook: Callable[..., None], *given: Any) -> None:
        """Call a hook that changes what it is handed. Raises FedbenchError if it returns something: nobody takes it."""
        result: Any = hook(*given)  # type: ignore[func-returns-value]
        if result is not None:
            raise FedbenchError(
                f"{self.method.name}: {hook.__name__} returns a {type(result).__name__}, and what is returned is lost",
                "change the server or the client that it is handed, and return nothing",
            )

    def _check_message(self, client: Client, name: str) -> None:
        """Raise FedbenchError unless the client's `inbox` or `upload` is a message."""
        message.check(getattr(client, name), f"{self.method.name}: client.{name}")

    def clients_table(self) -> pa.Table:
        """A line a client: sizes, groups, clusters, and the figures its method noted at the last evaluation."""
        return tables.clients(self.federation, self.checkpoint.notes, self.server.assigned)


def train_together(trainers: Sequence[Trainer], observe: Callable[[Progress], None] = lambda _: None) -> None:
    """Train runs that differ in nothing but their seeds to the last round; the clients of all are one cohort.

    The trainers share one executor, and their federations one images tensor (Federation.joined). Runs that were
    interrupted at different rounds go on with those that are furthest behind. `observe` hears the means over the
    runs at work. Raises Interrupted on Ctrl-C, after saving each run's last completed round.
    """
    rounds = trainers[0].setting.rounds
    last_save, patience = time.monotonic(), CHECKPOINT_SECONDS  # what clients describe for long is soon saved
    try:
        for trainer in trainers:
            trainer.resume(observe)
    except KeyboardInterrupt:
        raise Interrupted(min(trainer.server.round for trainer in trainers)) from None
    try:
        while (t := 1 + min(trainer.server.round for trainer in trainers)) <= rounds:
            behind = [trainer for trainer in trainers if trainer.server.round < t]
            observe(_train_round(behind))
            if t < rounds and time.monotonic() - last_save > patience:
                began = time.monotonic()
                for trainer in behind:
                    trainer.save()
                last_save = time.monotonic()
                patience = max(CHECKPOINT_SECONDS, (last_save - began) / CHECKPOINT_SHARE)
    except KeyboardInterrupt:
        for trainer in trainers:
            if trainer.server.round:  # before the first round there is nothing that would not come again
                trainer.save()
        raise Interrupted(min(trainer.server.round for trainer in trainers)) from None


def _train_round(trainers: Sequence[Trainer]) -> Progress:
    """One round of each."""
    first, under_way = trainers[0], [trainer.begin() for trainer in trainers]
    with first.clock.phase("local"):
        # One method object for all: by it the losses of requests that could be stacked are told apart.
        first.executor.run([client for round in under_way for client in round.cohort], first.method.local)
    seconds = first.clock.reset()["local"] / len(trainers)
    for trainer, round in zip(trainers, under_way, strict=True):
        trainer.finish(round, seconds)
    for trainer, round in zip(trainers, under_way, strict=True):
        trainer.commit(round)
    losses = [round.line["loss"] for round in under_way]
    accuracies = [round.accuracy for round in under_way if round.accuracy is not None]
    return Progress(
        first.server.round,
        first.setting.rounds,
        sum(losses) / len(losses),
        sum(accuracies) / len(accuracies) if accuracies else None,
    )
