"""`fedbench train -m METHOD`: one run of each method in one setting, what will run before and what came out after."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.text import Text

from fedbench import protocol as protocols
from fedbench.cli import context, making
from fedbench.cli.live import run, stoppable
from fedbench.engine import keep as keeping
from fedbench.errors import FedbenchError
from fedbench.words import counted, duration

if TYPE_CHECKING:
    from fedbench.engine.engines import Where
    from fedbench.engine.job import Job
    from fedbench.observers import Observer
    from fedbench.observers.bars import Bars
    from fedbench.protocol import Protocol
    from fedbench.specs import PartitionSpec, RunSpec, Setting
    from fedbench.store import Artifact


# -- hint ------------------------------------------------------------------------------------------------------
# What to do next with a run.


def next_command(artifact: Artifact, protocol: str) -> str:
    """The command that prints the tables in which the run stands: headline ones, else any others on its data set. For a
    run of no table's setting, and so for all in `plain`, those that set the user's own runs side by side."""
    from fedbench.planner import table as tables
    from fedbench.specs import RunSpec

    assert isinstance(artifact.spec, RunSpec)
    setting = artifact.spec.setting
    there = f"partition={setting.partition.id}"
    own = f"next: fedbench compare {there} (side by side), fedbench figure curves {there} (by round)"
    if protocol == protocols.OWN:
        return own
    headline = {number: name for number, (_, name) in tables.headline().items()}
    commands = _tables_of(artifact.spec, headline, elsewhere=True)
    commands = commands or _tables_of(artifact.spec, {name: name for name in tables.names()}, elsewhere=False)
    if not commands:
        return own
    options, names = next(iter(commands.items()))
    return f"next: fedbench report --table {names[0]}{options}" + (
        f" (or --table {', '.join(names[1:])})" if names[1:] else ""
    )


def _tables_of(run: RunSpec, named: Mapping[str, str], elsewhere: bool) -> dict[str, list[str]]:
    """Of these tables (as the user calls them -> name), those with the run's setting: options of `report` -> tables.

    `elsewhere`: also those about other data sets, taken over to the setting's.
    """
    from fedbench.planner import table as tables
    from fedbench.planner.cells import DEFAULT_BUDGET, find
    from fedbench.planner.index import Index

    setting, store = run.setting, context.store()
    dataset = setting.partition.dataset.name
    index = Index(store)
    commands: dict[str, list[str]] = {}
    for short, name in named.items():
        table = tables.load(name)
        replaced = dataset not in {c.dataset for c in table.columns}
        if table.counted or (replaced and not elsewhere):
            continue
        if setting.budget not in protocols.load(table.protocol).budgets:
            continue
        table = tables.on_dataset(table, dataset) if replaced else table
        for seeds, words in (((), ""), ((setting.seed,), f" --seed {setting.seed}")):
            cells = find(
                table, setting.budget, store, context.roots(), precision=setting.precision, seeds=seeds, index=index
            )
            if any(s.id == setting.id for column in table.printed for s in cells.settings.get(column.key, ())):
                options = f" --dataset {dataset}" if replaced else ""
                options += f" --budget {setting.budget}" if setting.budget != DEFAULT_BUDGET else ""
                usual = protocols.load(table.protocol).precision(setting.budget)
                options += f" --precision {setting.precision}" if setting.precision != usual else ""
                asked = any(record and record.id == run.id for cell in cells.all for record in cell.records)
                commands.setdefault(options + words + ("" if asked else " --extra"), []).append(short)
                break
    return commands


# -- own runs --------------------------------------------------------------------------------------------------


def hyper_parameters(methods: Sequence[str]) -> dict[str, Field[Any]]:
    """Those of all of the methods. Raises FedbenchError for an unknown method."""
    from fedbench.methods import load

    return {name: field for method in methods for name, field in load(method)[0].hyperparameters().items()}


def called(methods: Sequence[str]) -> str:
    """The command that trains them, as users know it."""
    from fedbench.methods import load

    return "train " + " ".join(f"--method {load(method)[0].name}" for method in methods)


def own_jobs(
    methods: Sequence[str],
    partition: PartitionSpec,
    rules: Protocol,
    budget: str,
    chosen: Mapping[str, Any],
    options: Mapping[str, str],
    keep: frozenset[str] = frozenset(),
) -> list[Job]:
    """A job of each method in the partition. `chosen` are values of the setting, `options` texts of hyper-parameters,
    each for the methods that have it; `keep` what the runs keep."""
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
    """The runs of these jobs, made one after another (or as many at a time as the engine has slots) where they are not
    there, and announced; the last is the current one."""
    from fedbench.engine.engines import Where
    from fedbench.engine.sweep import at_once
    from fedbench.observers.bars import Bars

    store, setting = context.store(), jobs[0].spec.setting
    artifacts: dict[str, Artifact] = {}
    where = where or Where()
    engine = where.engine_for(store, context.roots(), setting.precision)
    for job in jobs:
        job.check_kept(store)
    _announce_setting(setting, rules)

    def made(job: Job) -> Iterator[Artifact]:
        if engine.slots == 1:
            _announce(job, rules, budget, where.kind)
        yield from run([job], engine, "", bars, observers)

    bars: Bars | None = None
    with engine, stoppable(engine), contextlib.ExitStack() as stack:
        engine.get_ready([(job.named, job.spec) for job in jobs])
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
    """Say what would run, and for how long here; in JSON as of a table."""
    from fedbench.engine.sweep import Wanted

    for job in jobs:
        job.check_kept(context.store())
    _announce_setting(jobs[0].spec.setting, rules)
    for job in jobs:
        _announce(job, rules, budget, where.kind)
    if as_json:
        lacking = [Wanted(job.spec, job.named) for job in jobs if job.done(context.store()) is None]
        making.show_json(lacking, where.kind)


def show_all(artifacts: Sequence[Artifact], rules: Protocol, as_json: bool = False) -> None:
    """What came out, and what to do next with it."""
    from fedbench.cli.evaluate import show

    show(artifacts, context.store(), as_json)
    if not as_json:
        context.err().print(next_command(artifacts[-1], rules.name), style="dim")


def _announce_setting(setting: Setting, rules: Protocol) -> None:
    """Say on what it will run: the partition's id and name."""
    from fedbench.partitions import schemes

    part = setting.partition
    shift = "no covariate shift" if part.shift == "none" else f"shift {part.shift}"
    what = ", ".join([part.dataset.name, schemes.label(part), f"{part.clients} clients", shift])
    context.err().print(Text.assemble((f"partition {part.id}", "bold"), f": {what} (protocol {rules.name})"))


def _announce(job: Job, protocol: Protocol, budget: str, device: str) -> None:
    """Say what will run, under which budget, what the paper's would be, and how long both would take here.

    Raises FedbenchError if the images do not suit the model.
    """
    from fedbench.engine.cost import seconds
    from fedbench.engine.job import saved_round
    from fedbench.planner.cells import DEFAULT_PRECISION
    from fedbench.store.provenance import other_code

    setting, store, console = job.spec.setting, context.store(), context.err()
    options = ", ".join(f"{name} {value}" for name, value in job.overrides.items())
    console.print(Text.assemble((job.method.title, "bold"), f" ({options})" if options else ""))
    if (there := job.done(store)) is not None:
        changed = ", made by code that has changed since: --again makes it anew" if other_code(there.provenance) else ""
        console.print(f"run {there.id} is already there{changed}")
        return

    def words(of: Setting) -> str:
        passes, unit = (of.steps, "step") if of.steps is not None else (of.epochs, "epoch")
        took = duration(seconds(of, job.method, store, context.roots(), device))
        model = of.model + ("" if of.precision == DEFAULT_PRECISION else f" in {of.precision}")
        own = protocol.own_descent(of, budget if of.budget == "custom" else of.budget)
        what = ", ".join(filter(None, (f"{of.batch_size} images", model, own)))
        return f"{counted(of.rounds, 'round')} x {counted(passes, unit)} of {what}, about {took} here when idle"

    console.print(Text.assemble("budget ", (setting.budget, "bold"), f": {words(setting)}"))
    if setting.budget != "paper" and "paper" in protocol.budgets:
        try:
            paper = f"{words(protocol.setting(setting.partition, 'paper'))} (--budget paper)"
        except FedbenchError as error:
            paper = f"not for this data ({error.message})"
        console.print(f"the paper's budget: {paper}", style="dim")
    if line := keeping.estimate(job.spec.setting, job.method, job.keep, store):
        console.print(line)
    saved = saved_round(job, store)
    console.print(f"run {job.spec.id}" + (f" goes on after round {saved}" if saved else ""), style="dim")
