"""`fedbench train` without a table: a run of each method on one partition, what is said before it, and its results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.text import Text

from fedbench import protocol as protocols
from fedbench.cli import context
from fedbench.cli.costs import show_json
from fedbench.cli.making import run, stoppable
from fedbench.engine import keep as keeping
from fedbench.engine.engines import Where
from fedbench.errors import FedbenchError
from fedbench.protocol import OWN_BUDGET, PAPER
from fedbench.specs import RunSpec
from fedbench.words import counted, duration, option_of

if TYPE_CHECKING:
    from fedbench.engine.job import Job
    from fedbench.observers import Observer
    from fedbench.observers.bars import Bars
    from fedbench.protocol import Protocol
    from fedbench.specs import PartitionSpec, Setting
    from fedbench.store import Artifact


def offered(methods: Sequence[str]) -> tuple[dict[str, Field[Any]], str]:
    """The hyper-parameters of all these methods, and the command that trains them, as users would type it. Raises
    FedbenchError for an unknown method."""
    from fedbench.methods import load

    kinds = [load(method)[0] for method in methods]
    called = "train " + " ".join(f"--method {kind.name}" for kind in kinds)
    return {name: field for kind in kinds for name, field in kind.hyperparameters().items()}, called


def jobs_of(
    methods: Sequence[str],
    partition: PartitionSpec,
    rules: Protocol,
    budget: str,
    chosen: Mapping[str, Any],
    options: Mapping[str, str],
    keep: frozenset[str] = frozenset(),
) -> list[Job]:
    """A job of each method on the partition. `chosen` has values of the setting, `options` texts of hyper-parameters
    for the methods that have them, and `keep` what the runs save besides predictions."""
    from fedbench.engine.job import Job

    setting = rules.setting(partition, budget, **chosen)
    return [replace(Job.under(rules, budget, setting, method, options), keep=keep) for method in methods]


def announce_all(jobs: Sequence[Job], rules: Protocol, budget: str, where: Where, as_json: bool = False) -> None:
    """Print what would be trained, and how long it takes on this machine; with `as_json`, as `show_json` does."""
    from fedbench.engine.sweep import Wanted

    _announce_setting(jobs, rules)
    for job in jobs:
        _announce(job, rules, budget, where.kind)
    if as_json:
        lacking = [Wanted(job.spec, job.named) for job in jobs if job.done(context.store()) is None]
        show_json(lacking, where.kind)


def train_all(
    jobs: Sequence[Job],
    rules: Protocol,
    budget: str,
    *,
    where: Where | None = None,
    observers: Sequence[Observer] = (),
) -> list[Artifact]:
    """Announce the jobs, and train those that the store lacks, one after another (or as many at a time as the engine
    has slots). Returns the runs; the last one becomes the current run."""
    from fedbench.engine.sweep import at_once
    from fedbench.observers.bars import Bars

    store, where = context.store(), where or Where()
    artifacts: dict[str, Artifact] = {}
    engine = where.engine_for(store, context.roots(), jobs[0].spec.setting.precision)
    _announce_setting(jobs, rules)

    def made(job: Job) -> Iterator[Artifact]:
        if engine.slots == 1:
            _announce(job, rules, budget, where.kind)
        yield from run([job], engine, "", bars, observers)

    bars: Bars | None = None
    with engine, stoppable(engine), contextlib.ExitStack() as stack:
        engine.get_ready(len(jobs))
        if engine.slots > 1:
            for job in jobs:
                _announce(job, rules, budget, where.kind)
            bars = stack.enter_context(Bars(context.err(), dict.fromkeys((job.spec.id for job in jobs), 1.0)))
        for artifact in at_once([partial(made, job) for job in jobs], engine.slots, engine.stop):
            artifacts[artifact.id] = artifact
            store.set_current(run=artifact.id)
            if bars:
                bars.end(1.0)
    store.set_current(run=jobs[-1].spec.id)
    return [artifacts[job.spec.id] for job in jobs]


def show_all(artifacts: Sequence[Artifact], rules: Protocol, as_json: bool = False) -> None:
    """Print the results, and the commands to continue with."""
    from fedbench.cli.evaluate import show
    from fedbench.results.learnt import not_learnt

    show(artifacts, context.store(), as_json)
    for line in not_learnt(artifacts):
        context.err().print(line, soft_wrap=True, markup=False)
    if not as_json:
        spec = artifacts[-1].spec
        assert isinstance(spec, RunSpec)
        context.err().print(_next(spec.setting.partition, rules.name), style="dim")


def _next(partition: PartitionSpec, protocol: str) -> str:
    """The commands to continue with after training; they differ between a user's own protocol and a paper's alone."""
    there = f"partition={partition.id}"
    side_by_side = f"next: fedbench compare {there} (side by side), fedbench figure curves {there} (by round)"
    if protocol == protocols.OWN:
        return side_by_side
    return f"{side_by_side}, fedbench report --table NAME ('fedbench tables' lists them)"


def _announce_setting(jobs: Sequence[Job], rules: Protocol) -> None:
    """Print the partition: id, data set, split and protocol. Raises FedbenchError if a complete run lacks what its job
    is to save."""
    from fedbench.partitions import schemes

    for job in jobs:
        job.check_kept(context.store())
    part = jobs[0].spec.setting.partition
    shift = "no covariate shift" if part.shift == "none" else f"shift {part.shift}"
    what = ", ".join([part.dataset.name, schemes.label(part), f"{part.clients} clients", shift])
    context.err().print(Text.assemble((f"partition {part.id}", "bold"), f": {what} (protocol {rules.name})"))


def _of_protocol(job: Job, protocol: Protocol, budget: str) -> Iterator[str]:
    """A line on the hyper-parameters that are the protocol's and neither the user's nor the method's default."""
    usual = protocol.method_params(job.method.name, budget, job.spec.setting.partition.dataset.name)
    own = [f"{option_of(k)} {v}" for k, v in job.overrides.items() if usual.get(k) == v]
    if own:
        yield f"{', '.join(own)}: from protocol {protocol.name}, budget {budget}"


def _announce(job: Job, protocol: Protocol, budget: str, device: str) -> None:
    """Print the method, the budget and the paper's budget, and how long both take on this machine.

    Raises FedbenchError if the images do not fit the model.
    """
    from fedbench.engine.cost import seconds
    from fedbench.engine.job import saved_round
    from fedbench.planner.cells import DEFAULT_PRECISION
    from fedbench.store.provenance import other_code

    setting, store, console = job.spec.setting, context.store(), context.err()
    options = ", ".join(f"{name} {value}" for name, value in job.overrides.items())
    console.print(Text.assemble((job.method.title, "bold"), f" ({options})" if options else ""))
    for line in (*job.set_aside, *_of_protocol(job, protocol, budget)):
        console.print(line, style="dim", soft_wrap=True, markup=False)
    if (there := job.done(store)) is not None:
        changed = ", made by other code: --again makes it again" if other_code(there.provenance) else ""
        console.print(f"run {there.id} is already there{changed}")
        return

    def words(of: Setting) -> str:
        passes, unit = (of.steps, "step") if of.steps is not None else (of.epochs, "epoch")
        took = duration(seconds(of, job.method, store, context.roots(), device))
        model = of.model + ("" if of.precision == DEFAULT_PRECISION else f" in {of.precision}")
        descent = protocol.own_descent(of, PAPER if of is not setting else budget)
        what = ", ".join(filter(None, (f"{of.batch_size} {of.partition.dataset.samples}", model, descent)))
        return f"{counted(of.rounds, 'round')} x {counted(passes, unit)} of {what}, about {took} here when idle"

    named = budget if protocol.asks_for(setting, budget) else OWN_BUDGET
    console.print(Text.assemble("budget ", (named, "bold"), f": {words(setting)}"))
    if PAPER in protocol.budgets and not protocol.asks_for(setting, PAPER):
        try:
            paper = f"{words(protocol.setting(setting.partition, PAPER))} (--budget paper)"
        except FedbenchError as error:
            paper = f"not for this data ({error.message})"
        console.print(f"the paper's budget: {paper}", style="dim")
    if line := keeping.estimate(job.spec.setting, job.method, job.keep, store):
        console.print(line)
    saved = saved_round(job, store)
    console.print(f"run {job.spec.id}" + (f" continues after round {saved}" if saved else ""), style="dim")
