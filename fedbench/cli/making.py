"""Train the missing runs of a table or a sweep, or one run of each method; report costs and results."""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.text import Text

from fedbench import protocol as protocols
from fedbench.cli import context, printing
from fedbench.cli.options import of_spec
from fedbench.engine import keep as keeping
from fedbench.engine.engines import Where
from fedbench.errors import FedbenchError, reason
from fedbench.plugins import PluginError
from fedbench.protocol import OWN_BUDGET, PAPER
from fedbench.specs import RunSpec
from fedbench.store.claim import HeldError
from fedbench.words import counted, duration

if TYPE_CHECKING:
    from fedbench.engine.engines import Engine
    from fedbench.engine.job import Job
    from fedbench.engine.sweep import End, Outcome, Wanted
    from fedbench.observers import Observer
    from fedbench.observers.bars import Bars
    from fedbench.protocol import Protocol
    from fedbench.specs import PartitionSpec, Setting
    from fedbench.store import Artifact, Store


# -- one run ---------------------------------------------------------------------------------------------------


def run(
    jobs: Sequence[Job],
    engine: Engine,
    title: str = "",
    bars: Bars | None = None,
    observers: Sequence[Observer] = (),
) -> list[Artifact]:
    """Train and evaluate runs (`observers.make`) with progress bars; a sweep passes its `bars`. At an interrupt,
    print how to continue and exit with 130; if the engine trains several runs at a time, `stoppable` does this for all.
    """
    from fedbench.core.trainer import Interrupted
    from fedbench.observers import make
    from fedbench.observers.bars import Bars

    console = context.err()
    try:
        with contextlib.nullcontext(bars) if bars else Bars(console) as shown:
            watching = [shown, *observers]
            if engine.slots > 1:
                watching = [one.twin() for one in watching]
            warn = partial(console.print, markup=False)
            return make(jobs, engine, title=title, observers=watching, warn=warn)
    except (KeyboardInterrupt, Interrupted):
        if engine.slots > 1:
            raise
        console.print(_saved(jobs, engine.store))
        sys.exit(130)


def _saved(jobs: Sequence[Job], store: Store) -> str:
    """A message that tells what is saved of stopped runs."""
    from fedbench.engine.job import saved_round

    rounds = [saved_round(job, store) for job in jobs if not job.done(store)]
    if not rounds:
        return "stopped; what was to be trained is complete."
    if not min(rounds):
        return "stopped before the end of the first round; nothing was saved."
    every = jobs[0].spec.setting.rounds
    return f"stopped; round {min(rounds)} of {every} is saved. The same command continues from there."


@contextlib.contextmanager
def stoppable(engine: Engine) -> Iterator[None]:
    """For runs that are trained in parallel: after an interrupt, print how to continue and exit with 130."""
    try:
        yield
    except KeyboardInterrupt:
        if engine.slots == 1:
            raise
        context.err().print(f"stopped. {engine.goes_on}")
        sys.exit(130)


# -- cost ------------------------------------------------------------------------------------------------------
# The estimated training time of runs on this machine.


def costs_of(runs: Iterable[Wanted], device: str) -> dict[str, float]:
    """Run id -> estimated seconds on this machine; empty if the estimate of any run is not known."""
    from fedbench import methods
    from fedbench.engine.cost import seconds
    from fedbench.plugins import reported

    costs: dict[str, float] = {}
    try:
        for one in runs:
            with reported():
                method = methods.load(one.method)[0].create(one.spec.params)
            costs[one.spec.id] = seconds(one.spec.setting, method, context.store(), context.roots(), device)
    except FedbenchError:
        return {}
    return costs


def about(costs: Mapping[str, float]) -> str:
    """The end of a line that counts runs: their total training time."""
    return f", about {duration(sum(costs.values()))} of training here when idle" if costs else ""


def show(runs: Sequence[Wanted], scope: str, nothing: str, device: str, as_json: bool) -> None:
    """List a table's missing runs: a line for each row and data set, or each run as JSON. `scope` names budget and
    precision; `nothing` is the reason to print if no run is missing."""
    if as_json:
        show_json(runs, device)
        return
    costs = costs_of(runs, device)
    groups: dict[tuple[str, str], list[Wanted]] = defaultdict(list)
    for one in runs:
        groups[one.row or one.method, one.spec.setting.partition.dataset.name].append(one)
    if runs:
        show_costs(("row", "data set", "to make", "time here"), groups.items(), costs)
    total = f"{counted(len(runs), 'run')} to make, {scope}{about(costs)}"
    context.out().print(total if runs else f"nothing to run: {nothing}")


def show_costs(
    headings: Sequence[str], lines: Iterable[tuple[Sequence[str], Sequence[Wanted]]], costs: Mapping[str, float]
) -> None:
    """Print a line for each group of runs: its texts, the number of runs to train, and their training time here."""
    table = printing.table(*headings, right=("runs", "to make", "time here"))
    for texts, runs in lines:
        seconds = duration(sum(costs.get(one.spec.id, 0.0) for one in runs)) if runs and costs else "–"
        table.add_row(*texts, str(len(runs)), seconds)
    context.out().print(table)


def show_json(runs: Sequence[Wanted], device: str) -> None:
    """Print the runs as JSON; `seconds` is null if it is not known."""
    costs = costs_of(runs, device)
    printing.print_json(
        [
            {
                "run": one.spec.id, "row": one.row, "method": one.method,
                "dataset": one.spec.setting.partition.dataset.name, "partition": one.spec.setting.partition.id,
                "seed": one.spec.setting.seed, "seconds": costs.get(one.spec.id),
            }
            for one in runs
        ]
    )  # fmt: skip


# -- making ----------------------------------------------------------------------------------------------------


#: Options that choose device, executor and engine.
WHERE = of_spec(Where, native=True)


@dataclass(frozen=True)
class How:
    """How runs are trained, and what is printed about it."""

    where: Where
    again: bool = False
    keep: frozenset[str] = frozenset()
    as_json: bool = False
    observers: Sequence[Observer] = ()


def make(
    runs: Sequence[Wanted],
    scope: str,
    nothing: str,
    engine: Engine,
    how: How,
    more: Callable[[], Sequence[Wanted]] = tuple,
) -> bool:
    """Train runs and print the outcomes. `scope` describes the runs, `nothing` is the reason to print if there are
    none, and `more` returns the runs that the finished ones have made necessary.

    A failed run does not stop the others; it is listed at the end. False if any run failed.
    """
    from fedbench.engine.sweep import End

    console = context.err()
    with stoppable(engine):
        outcomes = _made(runs, scope, engine, how)
        while batch := more():
            runs = [*runs, *batch]
            for end, those in _made(batch, scope, engine, how).items():
                outcomes[end] += those
    ids = [one.artifact.id for one in outcomes[End.MADE] if one.artifact]
    failures = [_failure(one) for one in outcomes[End.FAILED]]
    if how.as_json:
        left = [one.title for one in outcomes[End.HELD]]
        printing.print_json({"made": ids, "failed": failures, "left": left})
    elsewhere = f", {len(others):,} by other processes" if (others := outcomes[End.MADE_BY_OTHERS]) else ""
    console.print(f"{len(ids):,} of {len(runs):,} runs made{elsewhere}" if runs else f"nothing to run: {nothing}")
    for one in outcomes[End.HELD]:
        assert isinstance(one.error, HeldError)
        console.print(f"left to {one.error.who}: {one.title}")
    for failure in failures:
        log = f" (log: {failure['log']})" if "log" in failure else ""
        console.print(f"failed: {failure['run']}: {failure['reason']}{log}")
    return not failures


def _made(runs: Sequence[Wanted], scope: str, engine: Engine, how: How) -> dict[End, list[Outcome]]:
    """Train the runs with progress bars, and return their outcomes."""
    from fedbench.engine.sweep import End, sweep
    from fedbench.observers.bars import Bars

    console = context.err()
    engine.get_ready(len(runs))
    costs = costs_of(runs, how.where.kind)
    shares = {one.spec.id: costs.get(one.spec.id, 1.0) for one in runs}
    if runs:
        console.print(f"{counted(len(runs), 'run')} to make, {scope}{about(costs)}")
    outcomes: dict[End, list[Outcome]] = {end: [] for end in End}
    with Bars(console, shares) as bars:

        def execute(jobs: Sequence[Job], title: str) -> list[Artifact]:
            return run(jobs, engine, title, bars, how.observers)

        for outcome in sweep(runs, engine, execute, executor=how.where.executor, again=how.again, keep=how.keep):
            if context.debug() and outcome.error and not isinstance(outcome.error, HeldError):
                raise outcome.error
            outcomes[outcome.end].append(outcome)
            if outcome.end is End.APART:
                console.print(f"not together: {reason(outcome.error)}; one run after another instead")
            else:
                bars.end(shares.get(outcome.job.spec.id, 1.0) if outcome.job else 1.0)
    return outcomes


def _failure(outcome: Outcome) -> dict[str, str]:
    """A failed run for the list; with its log unless the reason alone shows that the input was wrong."""
    failure = {"run": outcome.title, "reason": reason(outcome.error)}
    if outcome.job and (isinstance(outcome.error, PluginError) or not isinstance(outcome.error, FedbenchError)):
        failure["log"] = str(context.store().home / "failed" / f"{outcome.job.spec.id}.json")
    return failure


# -- user's runs -----------------------------------------------------------------------------------------------


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


def announce_all(jobs: Sequence[Job], rules: Protocol, budget: str, where: Where, as_json: bool = False) -> None:
    """Print what would be trained, and how long it takes on this machine; with `as_json`, as `show_json` does."""
    from fedbench.engine.sweep import Wanted

    _announce_setting(jobs, rules)
    for job in jobs:
        _announce(job, rules, budget, where.kind)
    if as_json:
        lacking = [Wanted(job.spec, job.named) for job in jobs if job.done(context.store()) is None]
        show_json(lacking, where.kind)


def show_all(artifacts: Sequence[Artifact], rules: Protocol, as_json: bool = False) -> None:
    """Print the results, and the commands to continue with."""
    from fedbench.cli.evaluate import show

    show(artifacts, context.store(), as_json)
    if not as_json:
        spec = artifacts[-1].spec
        assert isinstance(spec, RunSpec)
        context.err().print(_next(spec.setting.partition, rules.name), style="dim")


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


def _next(partition: PartitionSpec, protocol: str) -> str:
    """The commands to continue with after training; they differ between a user's own protocol and a paper's alone."""
    there = f"partition={partition.id}"
    side_by_side = f"next: fedbench compare {there} (side by side), fedbench figure curves {there} (by round)"
    if protocol == protocols.OWN:
        return side_by_side
    return f"{side_by_side}, fedbench report --table NAME ('fedbench tables' lists them)"
