"""The round loop: broadcast, local work, aggregation, evaluation, checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from fedbench.core import tables
from fedbench.core.checkpoint import Checkpoint
from fedbench.core.client import UNLABELLED, Client, Context
from fedbench.core.evaluation import Associate, evaluate
from fedbench.core.executors import Executor, one_thread
from fedbench.core.federation import Federation
from fedbench.core.kept import MODEL
from fedbench.core.method import Method
from fedbench.core.network import check_batches
from fedbench.core.plan import Plan
from fedbench.core.rehearsal import rehearse
from fedbench.core.server import Server
from fedbench.core.simulation import Simulation, bytes_down, bytes_up, learning_rate, survey
from fedbench.core.state import Mean, State, matches
from fedbench.core.usage import Clock, forget_peak, give_back_pages, peak_bytes
from fedbench.core.validation import consider
from fedbench.errors import FedbenchError
from fedbench.specs import Setting
from fedbench.words import counted

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Round:
    """The current round. Blocks of the cohort enter, train and leave; after that only what the server's step needs
    stays in memory."""

    server: Server  #: a copy, which the round updates
    cohort: list[int]
    communicates: bool
    mean: Mean | None  #: running mean of the uploads, if the server needs only that (`Method.streams`)
    line: dict[str, Any]  #: row of the run's `rounds` table; until `finish` it has sums over the clients that have left
    seconds: float  #: time spent on the round, without the local work
    n_train: int = 0  #: training images of the clients that have left
    weight: int = 0  #: how they count together in the mean
    parts: dict[str, float] = field(default_factory=lambda: {"network": 0.0})  #: their seconds by part of the work
    clients: list[Client] = field(default_factory=list)  #: if `mean` is None, the clients that have left
    trained: dict[int, State] = field(default_factory=dict)  #: client -> state to evaluate (`answers_after_local`)
    accuracy: float | None = None  #: average accuracy if the round was evaluated


#: Write a checkpoint if the last one is older than this (and at an interrupt) ...
CHECKPOINT_SECONDS = 10.0
#: ... and than saving takes divided by this, so that at most this share of the time goes into checkpoints.
CHECKPOINT_SHARE = 0.05


@dataclass(frozen=True)
class Progress:
    """What an observer receives after each round."""

    round: int
    rounds: int
    loss: float | None  #: mean training loss; None if no client took part
    accuracy: float | None  #: average accuracy if this round was evaluated
    doing: str = ""  #: a slow activity before the first round, for the display


class Interrupted(Exception):
    """The run was stopped by the user; its last completed round is saved."""

    def __init__(self, round: int) -> None:
        super().__init__(round)  # a worker process sends it to the driver
        self.round = round

    def __str__(self) -> str:
        return f"interrupted after round {self.round}"


class Trainer(Simulation):
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
        associate: Associate = dict,
        failure_file: Path | None = None,
    ) -> None:
        super().__init__(setting, method, federation, executor, plan, initial, context, failure_file)
        self.checkpoint, self.associate = checkpoint, associate
        checkpoint.run = {
            "method": method.name,
            "method version": method.version,
            "hyper-parameter": method.params,
            "setting": setting.to_dict(),
        }
        shared = {name: t for name, t in initial.items() if not method.is_personal(name)}
        self.server = Server(initial, shared, context=self.context)
        self.change(method.start, self.server)
        self.shared = dict(self.server.shared)
        self.remembers = type(self.server.memory)
        self.server.check(self.remembers)
        self.surveyed = (0, 0)  #: bytes up and down of the survey before the first round
        self.survey_seconds = 0.0
        self.evaluated = set(setting.evaluated_rounds())
        _check_test_phase(setting, method, model)
        if method.trains:
            check_participants(plan)
            check_batches(model, plan, federation.shape)

    def run(self, observe: Callable[[Progress], None] = lambda _: None) -> None:
        """Train to the last round. On Ctrl-C, saves the last completed round and raises Interrupted."""
        train_together([self], observe)

    def resume(self, observe: Callable[[Progress], None] = lambda _: None) -> None:
        """Load the checkpoint; without one, run the survey before the first round."""
        forget_peak(self.device)
        saved = self.checkpoint.load()
        if saved is None:
            if self.method.ask(self.server, 0, 0) is not None:
                observe(Progress(0, self.setting.rounds, 0.0, None, "clients describe their data"))
            self.surveyed = survey(self, self.server, range(self.plan.trainees), 0)
            self.survey_seconds = self.clock.reset().get("survey", 0.0)
            rehearse(self, self.server)
        else:
            self.server = self.server.copy(self.checkpoint.round)
            host = "personal/" if self.offloads else ()  # these tensors stay in host memory between updates
            moved = {id(t): t.to(self.device) for n, t in saved.items() if not n.startswith(host)}
            self.server.restore({n: t if n.startswith(host) else moved[id(t)] for n, t in saved.items()})

    def save(self) -> None:
        """Write the checkpoint of the last completed round."""
        self.checkpoint.save(self.server.round, self.server.tensors())

    def begin(self) -> Round:
        """Prepare the next round, before its clients enter."""
        started = time.perf_counter()
        t = self.server.round + 1
        server, cohort = self.server.copy(t), self.plan.cohort(t)
        given, mean = self.method.communicates(t, self.setting.rounds), None
        communicates = bool(self.given(given, bool | np.bool_, "communicates", "True or False"))
        if cohort and communicates and self.method.streams:
            n_train = self.federation.stages[self.context.stage(t)][0].sizes
            mean = self.method.aggregation(server.shared, [self.context.weight(n_train[i]) for i in cohort])
        up, down = self.surveyed if t == 1 else (0, 0)
        line = {
            "round": t,
            "participants": len(cohort),
            "images": 0,
            "loss": 0.0,
            "lr": learning_rate(self.setting, t),
            "client_seconds": 0.0,
            "bytes_up": up,
            "bytes_down": down,
        }
        return Round(server, cohort, communicates, mean, line, time.perf_counter() - started)

    def enter(self, round: Round, block: Sequence[int]) -> list[Client]:
        """Make clients of the cohort, ready for their local work."""
        started = time.perf_counter()
        server = round.server
        clients = [self.entering(server, i) for i in block]
        if round.communicates:
            round.line["bytes_down"] += sum(bytes_down(server, client, self.method.is_personal) for client in clients)
        round.seconds += time.perf_counter() - started
        return clients

    def leave(self, round: Round, clients: Sequence[Client]) -> None:
        """Collect the results of trained clients: uploads, personal states and measurements."""
        started = time.perf_counter()
        server, line, is_personal = round.server, round.line, self.method.is_personal
        with self.clock.phase("server"), one_thread():
            for client in clients:
                self.check_message(client, "upload")
                round.n_train += client.n_train
                round.weight += self.context.weight(client.n_train)
                line["images"] += client.work.processed
                line["loss"] += client.n_train * client.loss
                line["client_seconds"] += client.work.seconds
                line["bytes_up"] += bytes_up(server, client, is_personal) if round.communicates else 0
                for part, seconds in client.work.parts.items():
                    round.parts[part] = round.parts.get(part, 0.0) + seconds
                own = {n: v for n, v in client.state.items() if is_personal(n)}
                rest = {} if round.communicates else {n: v for n, v in client.state.items() if n not in own}
                server.keep(client.index, own, rest)
                if client.work.momenta:
                    server.momenta[client.index] = client.work.momenta
                # Before the server's step, which may change what clients keep.
                if self.method.answers_after_local and server.round in self.evaluated:
                    round.trained[client.index] = client.state
                if round.mean is not None:
                    round.mean.add(client.state)
                    client.state, client.received = {}, {}  # free the tensors before the block's last client is done
                elif round.communicates:
                    round.clients.append(client)
        round.seconds += time.perf_counter() - started

    def finish(self, round: Round, local_seconds: float) -> None:
        """Finish the round: the server's step, survey, evaluation, and the row of the `rounds` table."""
        started = time.perf_counter()
        method, setting, server, line = self.method, self.setting, round.server, round.line
        t, who = server.round, round.cohort
        with self.clock.phase("server"), one_thread():
            if round.mean is not None:
                before, server.shared = server.shared, round.mean.result()
                self.change(method.step, server, before, self.context.share_of(round.weight))
            elif round.clients:
                self.change(method.aggregate, server, round.clients, t)
            if who and round.communicates:
                server.copies = {}
        round.mean, round.clients = None, []  # free the uploads before the evaluation
        line["loss"] /= max(round.n_train, 1)
        line |= {f"part_{part}_seconds": seconds for part, seconds in sorted(round.parts.items())}
        if who and round.communicates:
            up, down = survey(self, server, who, t)
            line["bytes_up"] += up
            line["bytes_down"] += down
        if t in (setting.drifts or ()):
            server.best = None  # the models of earlier rounds saw other data
        if who and setting.select:
            with self.clock.phase("selection"):
                line["bytes_up"] += consider(self, server, who)
        server.check(self.remembers)
        figures = self.given(method.round_metrics(server), Mapping, "round_metrics", "a dictionary of numbers")
        line |= {f"figure_{name}": value for name, value in figures.items()}
        line = {name: tables.number(f"{method.name}: {name}", value) for name, value in line.items()}
        answers = models = None
        with self.clock.phase("evaluation"):
            if t in self.evaluated:
                give_back_pages()
                keep = MODEL in self.checkpoint.keep
                evaluated = evaluate(self, server, t, round.trained, self.associate, keep)
                answers, self.checkpoint.notes, validated, models = evaluated
                if validated is not None:
                    line["validation_accuracy"] = validated
                give_back_pages()
        seconds = {"local": local_seconds, **self.clock.reset()}
        before_first = self.survey_seconds if t == 1 else 0.0
        total = before_first + round.seconds + local_seconds + time.perf_counter() - started
        round.line = {**line, **{f"{phase}_seconds": s for phase, s in seconds.items()}}
        round.line |= {"describe_seconds": before_first, "total_seconds": total, "peak_bytes": peak_bytes(self.device)}
        if answers is not None:
            self.checkpoint.save_tables("predictions", t, tables.predictions(t, answers, self.federation))
            if models is not None:
                self.checkpoint.save_models(t, models)
            round.accuracy = tables.average_accuracy(answers, self.federation, self.plan.trainees)

    def commit(self, round: Round) -> None:
        """Make the end of this round the trainer's state."""
        self.checkpoint.rounds.append(round.line)
        self.server = round.server  # one assignment, so that an interrupt sees either the old or the new state

    def clients_table(self) -> pa.Table:
        """One row per client: sizes, groups, clusters, and the metrics of the last evaluation."""
        return tables.clients(self.federation, self.checkpoint.notes, self.server.assigned)


def check_participants(plan: Plan) -> None:
    """Raise FedbenchError if no client takes part in any round: the untrained model is no result."""
    setting = plan.setting
    if not any(plan.cohort(t) for t in range(1, setting.rounds + 1)):
        raise FedbenchError(
            f"no client takes part in any of the {counted(setting.rounds, 'round')} at participation "
            f"{setting.participation:g}, so nothing would be trained",
            "choose a higher --participation, more --rounds or another --seed",
        )


def _check_test_phase(setting: Setting, method: Method, model: nn.Module) -> None:
    """Raise FedbenchError if clients without labels would predict with untrained parts of the network."""
    if setting.test_phase and UNLABELLED in method.serves:
        for name in model.state_dict():
            if method.is_personal(name) and not matches(name, method.unlabelled_has):
                raise FedbenchError(
                    f"{method.name} keeps {name} with each client, so it has none for a client without labels",
                    f"let `serve` give it one and name it in `unlabelled_has`, or leave '{UNLABELLED}' out of `serves`",
                )


def train_together(trainers: Sequence[Trainer], observe: Callable[[Progress], None] = lambda _: None) -> None:
    """Train runs that differ only in their seeds to the last round, with all cohorts of a round in one batch.

    The trainers share the executor, and their federations share one images tensor (Federation.joined). Of runs that
    stopped in different rounds, the furthest behind continue first. `observe` gets means over the runs that trained.
    On Ctrl-C, saves each run's last completed round and raises Interrupted.
    """
    rounds = trainers[0].setting.rounds
    last_save, patience = time.monotonic(), CHECKPOINT_SECONDS  # before `resume`, so that a long survey is saved soon
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
            if trainer.server.round:  # without a completed round there is nothing to save
                trainer.save()
        raise Interrupted(min(trainer.server.round for trainer in trainers)) from None


def work(blocks: Sequence[tuple[Trainer, Round, Sequence[int]]], local: Clock) -> None:
    """Run the local work of one block of each trainer."""
    clients = [trainer.enter(round, block) for trainer, round, block in blocks]
    first, _, _ = blocks[0]
    with local.phase("local"):
        # One method object for all runs, because losses are equal, and can be stacked, only if their object is.
        first.executor.run([client for some in clients for client in some], first.method.local)
    for (trainer, round, _), some in zip(blocks, clients, strict=True):
        trainer.leave(round, some)


def _train_round(trainers: Sequence[Trainer]) -> Progress:
    first, under_way = trainers[0], [trainer.begin() for trainer in trainers]
    local = Clock(first.device)
    each = [[*trainer.blocks(round.cohort)] for trainer, round in zip(trainers, under_way, strict=True)]
    for blocks in zip_longest(*each, fillvalue=[]):
        work(list(zip(trainers, under_way, blocks, strict=True)), local)
    seconds = local.reset().get("local", 0.0) / len(trainers)
    for trainer, round in zip(trainers, under_way, strict=True):
        trainer.finish(round, seconds)
    for trainer, round in zip(trainers, under_way, strict=True):
        trainer.commit(round)
    losses = [round.line["loss"] for round in under_way if round.cohort]
    accuracies = [round.accuracy for round in under_way if round.accuracy is not None]
    return Progress(
        first.server.round,
        first.setting.rounds,
        sum(losses) / len(losses) if losses else None,
        sum(accuracies) / len(accuracies) if accuracies else None,
    )
