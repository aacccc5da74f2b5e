"""`fedbench train`: one run in the current partition, or all missing cells of a table."""

from __future__ import annotations

import signal
import sys
import traceback
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbench import protocol as protocols
from fedbench.cli import context
from fedbench.cli.live import duration, watch
from fedbench.errors import FedbenchError, unknown

if TYPE_CHECKING:
    from fedbench.engine.local import Job
    from fedbench.spec import PartitionSpec, Setting
    from fedbench.store import Artifact, Store


def train(
    ctx: typer.Context,
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="Method, or FILE.py:Class (see 'fedbench methods').")
    ] = None,
    table: Annotated[str | None, typer.Option("--table", "-t", help="Run all missing cells of this table.")] = None,
    dataset: Annotated[str | None, typer.Option(help="With --table: its columns on this data set.")] = None,
    partition: Annotated[str | None, typer.Option(help="Partition id (default: the current one).")] = None,
    protocol: Annotated[str | None, typer.Option(help="Whose defaults to take: feddrm, pfedfda.")] = None,
    budget: Annotated[str, typer.Option(help="small, paper or smoke.")] = "small",
    model: Annotated[str | None, typer.Option(help="Network (default: the budget's).")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Local epochs a round.")] = None,
    steps: Annotated[int | None, typer.Option(help="Local SGD steps a round.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images a batch.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    participation: Annotated[float | None, typer.Option(help="Probability that a client joins a round.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of initial weights, cohorts and batches.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    executor: Annotated[str, typer.Option(help="auto, sequential or cores.")] = "auto",
    again: Annotated[bool, typer.Option(help="Make runs anew that older code made.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the run's id and metrics as JSON.")] = False,
) -> None:
    """Train a method in the current partition, or all missing cells of a table.

    Every hyper-parameter of the method is an option too, such as --lambda 0.8 for feddrm ('fedbench methods
    NAME' lists them). A run that was interrupted goes on where it stopped when the same command is given again.
    """
    chosen = {
        "model": model, "rounds": rounds, "epochs": epochs, "steps": steps, "batch_size": batch_size, "lr": lr,
        "participation": participation, "seed": seed,
    }  # fmt: skip
    signal.signal(signal.SIGTERM, _as_interrupt)
    if table is not None:
        given = [name for name, value in chosen.items() if value is not None and name != "seed"]
        if given or ctx.args or partition:
            name = given[0] if given else (ctx.args[0].lstrip("-") if ctx.args else "partition")
            raise FedbenchError(
                f"--{name.replace('_', '-')} does not go with --table, whose file says how its cells are made",
                "leave one of the two out",
            )
        train_table(
            table, method=method, dataset=dataset, budget=budget, seed=seed, device=device, executor=executor, again=again
        )
        return
    if dataset is not None:
        raise FedbenchError("--dataset goes with --table only", "'fedbench partition DATASET' chooses the data set")
    if method is None:
        raise FedbenchError("train needs --method NAME or --table NAME", "'fedbench methods' lists the methods")
    store = context.store()
    part, protocol_name = _partition(store, partition, protocol)
    job = _job(method, part, protocol_name, budget, chosen, ctx.args)
    _announce(job, protocol_name, budget, device)
    if again and (old := store.get(job.spec)) is not None:
        store.remove(old)
    artifact = _execute(job, store, device, executor)
    store.set_current(run=artifact.id)
    _show(artifact, store, json)


def _as_interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _partition(store: Store, given: str | None, protocol: str | None) -> tuple[PartitionSpec, str]:
    """The partition to train on, and the protocol whose defaults hold."""
    from fedbench.spec import PartitionSpec

    id = given or store.current.get("partition")
    if id is None:
        raise FedbenchError("there is no current partition", "make one: fedbench partition cifar10 --dir 0.3")
    spec = store.find(id, ("partition",)).spec
    assert isinstance(spec, PartitionSpec)
    current = store.current.get("protocol") if spec.id == store.current.get("partition") else None
    return spec, protocol or current or protocols.DEFAULT


def _job(
    method: str, part: PartitionSpec, protocol_name: str, budget: str, chosen: dict[str, Any], arguments: list[str]
) -> Job:
    from fedbench import methods
    from fedbench.engine.local import Job

    kind, _ = methods.load(method)
    knobs = _knobs(arguments, kind)
    protocol = protocols.load(protocol_name)
    setting = protocol.setting(part, budget, **chosen)
    return Job.of(setting, method, {**protocol.method_params(kind.name, budget), **knobs})


def _knobs(arguments: list[str], kind: Any) -> dict[str, str]:
    """The method's hyper-parameters among the options that the command does not know itself."""
    known = {name.replace("_", "-"): name for name in kind.knobs()}
    own = [p.removeprefix("--") for p in _own_options()]
    out: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise FedbenchError(f"unexpected argument '{word}'", "options begin with --")
        option, equals, value = word.removeprefix("--").partition("=")
        if option not in known:
            raise unknown(f"option of train --method {kind.name}", f"--{option}", [f"--{o}" for o in (*known, *own)])
        if not equals:
            if kind.knobs()[known[option]].type in (bool, "bool") and (not rest or rest[0].startswith("--")):
                value = "true"
            elif not rest:
                raise FedbenchError(f"--{option} needs a value")
            else:
                value = rest.pop(0)
        out[known[option]] = value
    return out


def _own_options() -> list[str]:
    import inspect

    names = [name for name in inspect.signature(train).parameters if name != "ctx"]
    return [f"--{name.replace('_', '-')}" for name in names]


def _announce(job: Job, protocol_name: str, budget: str, device: str) -> None:
    """Say what will run, under which budget, what the paper's would be, and how long both would take here."""
    from fedbench import data, models, partition
    from fedbench.core.estimate import images_per_second, images_to_process
    from fedbench.engine.local import choose_device

    setting, store, console = job.spec.setting, context.store(), context.err()
    part = setting.partition
    options = ", ".join(f"{name} {value}" for name, value in job.overrides.items())
    console.print(
        f"[bold]{job.method.title}[/] on {part.dataset.name}, {part.label}, {part.clients} clients, shift {part.shift}"
        + (f" ({options})" if options else "")
    )
    if store.has(job.spec):
        console.print(f"run {job.spec.id} is already there")
        return
    protocol, target = protocols.load(protocol_name), choose_device(device)
    built = partition.build(part, store, context.roots())
    facts = data.info(part.dataset, store)

    def seconds(of: Any) -> float:
        network = models.build(of.model, shape=facts.shape, classes=len(facts.classes), seed=0)
        batch = 8 if of.model.startswith("resnet") else of.batch_size
        work = images_to_process(of, [int(n) for n in built.n_train], int(built.n_test.sum()))
        return work / images_per_second(network, facts.shape, target, batch)

    def words(of: Any) -> str:
        local = f"{of.steps} steps" if of.steps is not None else f"{of.epochs} epochs"
        try:
            took = f"about {duration(seconds(of))} here"
        except FedbenchError as error:
            took = str(error)
        return f"{of.rounds} rounds x {local} of {of.batch_size} images, {of.model}, {took}"

    console.print(f"budget [bold]{setting.budget}[/]: {words(setting)}")
    if setting.budget != "paper" and "paper" in protocol.budgets:
        console.print(f"the paper's budget: {words(protocol.setting(part, 'paper'))} (--budget paper)", style="dim")
    console.print(f"run {job.spec.id}", style="dim")


def _execute(job: Job, store: Store, device: str, executor: str, title: str = "") -> Artifact:
    from fedbench.core.trainer import Interrupted
    from fedbench.engine.local import execute
    from fedbench.metrics.evaluate import evaluate

    console = context.err()
    try:
        with watch(console, title or job.method.title) as observe:
            artifact = execute(job, store, context.roots(), device=device, executor=executor, observe=observe)
    except Interrupted as stop:
        rounds = job.spec.setting.rounds
        console.print(f"stopped; round {stop.round} of {rounds} is saved. The same command goes on from there.")
        sys.exit(130)
    except KeyboardInterrupt:
        console.print("stopped before the first round; nothing to save.")
        sys.exit(130)
    evaluate(artifact, store)
    return artifact


def _show(artifact: Artifact, store: Store, as_json: bool) -> None:
    from fedbench.cli.evaluate import show

    show([artifact], store, as_json)
    if not as_json:
        context.err().print("next: fedbench report --table 1 (and 2, 5)", style="dim")


def train_table(
    name: str,
    *,
    method: str | None = None,
    dataset: str | None = None,
    budget: str = "small",
    seed: int | None = None,
    device: str = "auto",
    executor: str = "auto",
    again: bool = False,
    quiet: bool = False,
) -> None:
    """Run what a table lacks (or `method` in all of its settings).

    One failed run does not stop the others; it is listed at the end, and the exit code is then 1.
    """
    from fedbench.engine.local import Job

    console, store = context.err(), context.store()
    wanted, remarks = _wanted(name, store, method, dataset, budget, seed, again)
    for remark in remarks:
        console.print(remark, style="dim", highlight=False)
    failures: list[str] = []
    for k, (setting, kind, overrides) in enumerate(wanted, 1):
        where = f"{setting.partition.dataset.name} {setting.partition.label}"
        title, job = f"({k}/{len(wanted)}) {kind} {where}", None
        try:
            job = Job.of(setting, kind, overrides)
            if again and (old := store.get(job.spec)) is not None:
                store.remove(old)
            _execute(job, store, device, executor, title)
        except Exception as error:
            if context.debug():
                raise
            reason = str(error) if isinstance(error, FedbenchError) else f"{type(error).__name__}: {error}"
            failures.append(f"failed: {title}: {reason}")
            if job is not None and store.claimed(job.spec.id) is None:
                told = {"spec": job.spec.to_dict(), "overrides": dict(job.overrides)}
                store.record_failure(job.spec.id, reason, traceback.format_exc(), **told)
    if not quiet or failures:
        console.print(f"{len(wanted) - len(failures)} of {len(wanted)} runs made", highlight=False)
    for line in failures:
        console.print(line, markup=False, highlight=False)
    if failures:
        sys.exit(1)


def _wanted(
    name: str, store: Store, method: str | None, dataset: str | None, budget: str, seed: int | None, again: bool
) -> tuple[list[tuple[Setting, str, dict[str, Any]]], list[str]]:
    """The runs to make (setting, method, chosen hyper-parameters), and what to say about the others."""
    from fedbench import methods
    from fedbench.report import table as tables
    from fedbench.report.cells import find
    from fedbench.report.index import Job, State

    table = tables.load(name)
    if table.counted:
        return [], [f"table {table.id} is counted by formula: 'fedbench report --table {name}' prints it as it is"]
    if dataset is not None:
        table = table.for_dataset(dataset)
    cells = find(table, budget, store, context.roots(), seeds=() if seed is None else (seed,))
    states = (State.MISSING, State.FAILED, *((State.OLDER,) if again else ()))
    jobs = cells.jobs(*states)
    remarks = [f"{data} is not at hand: {why}" for data, why in cells.absent.items()]
    if method is not None:
        kind, _ = methods.load(method)
        preset = protocols.load(table.protocol).method_params(kind.name, budget)
        row = [job for job in jobs if job.method == method]
        in_table = any(r.method == method for r in table.rows)
        settings = {s.id: s for column in cells.settings.values() for s in column}
        extra = [Job(s, method, preset) for s in settings.values()]
        found = [(job, cells.index.find(job)) for job in extra]
        jobs = row if in_table else [job for job, record in found if record is None or record.state in states]
    elif cells.counts[State.NOT_BUILT]:
        absent = dict.fromkeys(c.row.label for c in cells.all if c.state is State.NOT_BUILT)
        remarks.append(f"not built yet, so left out: {', '.join(absent)}")
    if cells.counts[State.OLDER] and not again:
        remarks.append(f"{cells.counts[State.OLDER]} cells were made by older code; --again makes them anew")
    return [(job.setting, job.method, dict(job.overrides)) for job in jobs], remarks
