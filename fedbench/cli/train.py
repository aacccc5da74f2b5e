"""`fedbench train`: one run in the current partition, or all missing cells of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from fedbench import protocol as protocols
from fedbench.cli import context, hyperparameters
from fedbench.cli.live import run
from fedbench.cli.making import train_table
from fedbench.engine import keep as keeping
from fedbench.errors import FedbenchError
from fedbench.words import duration

if TYPE_CHECKING:
    from fedbench.engine.job import Job
    from fedbench.methods.base import Method
    from fedbench.observers import Observer
    from fedbench.specs import PartitionSpec, Setting
    from fedbench.store import Artifact, Store


def train(
    ctx: typer.Context,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-m",
            metavar="NAME",
            help="Method, or FILE.py:Class (see 'fedbench methods'); with --table repeatable.",
        ),
    ] = None,
    table: Annotated[str | None, typer.Option("--table", "-t", help="Run all missing cells of this table.")] = None,
    dataset: Annotated[str | None, typer.Option(help="With --table: its columns on this data set.")] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP/LABEL", help="With --table: only this column, * is any text (repeatable)."),
    ] = None,
    partition: Annotated[str | None, typer.Option(help="Partition id (default: the current one).")] = None,
    protocol: Annotated[
        str | None, typer.Option(help="Whose defaults to take: feddrm, flux, ftw_erm, pfedfda.")
    ] = None,
    budget: Annotated[str, typer.Option(help="small, paper, smoke, or another that the protocol has.")] = "small",
    model: Annotated[
        str | None,
        typer.Option(help="Network, NAME[:OPTION=VALUE], torchvision:NAME or FILE.py:Class (budget's)."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Local epochs a round.")] = None,
    steps: Annotated[int | None, typer.Option(help="Local steps a round.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images a batch.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="Of the local steps: sgd or adamw (torch's betas).")] = None,
    momentum: Annotated[float | None, typer.Option(help="Of SGD.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay of the optimiser.")] = None,
    select: Annotated[
        str | None, typer.Option(help="best: the models of the round with the lowest validation loss answer.")
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(metavar="N", help="Evaluate after every N rounds; the last ones that count always are."),
    ] = None,
    participation: Annotated[float | None, typer.Option(help="Probability that a client joins a round.")] = None,
    drifts: Annotated[
        str | None, typer.Option(metavar="T,T", help="Rounds that begin the second and later phases of drifting data.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of initial weights, cohorts and batches.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32 (default), tf32 or bf16.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    executor: Annotated[str, typer.Option(help="auto (measured), sequential, cores, stacked, graphed.")] = "auto",
    keep: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="Keep with the run model, logits, or both: model,logits."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Make stale runs anew: those whose code has changed.")] = False,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Append what happens, round by round, as JSON lines.")
    ] = None,
    observe: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:WHERE", help="tensorboard:DIR, mlflow:ADDRESS or wandb:PROJECT (repeatable)."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the run's id and metrics as JSON.")] = False,
) -> None:
    """Train a method in the current partition, or all missing cells of a table.

    Every hyper-parameter of the method is an option too, such as --lambda 0.8
    for feddrm: 'fedbench methods feddrm' lists them. With --table and one
    method they make an extra row of the table.

    A run that was interrupted goes on where it stopped when the same command
    is given again.
    """
    to_keep = keeping.parsed(keep)
    chosen = {
        "model": model, "rounds": rounds, "epochs": epochs, "steps": steps, "batch_size": batch_size, "lr": lr,
        "participation": participation, "seed": seed, "precision": precision,
        "optimizer": optimizer, "momentum": momentum, "weight_decay": weight_decay, "every": every,
        "select": select,
        "drifts": None if drifts is None else _rounds(drifts),
    }  # fmt: skip
    if table is not None:
        rest = {**chosen, "partition": partition, "protocol": protocol}
        free = ("seed", "precision")
        options = [
            f"--{name.replace('_', '-')}" for name, value in rest.items() if value is not None and name not in free
        ]
        if options:
            raise FedbenchError(
                f"{options[0]} does not go with --table, whose file says how its cells are made",
                "leave one of the two out",
            )
        scope: dict[str, Any] = {
            "methods": method or (), "params": _hyperparameters_of(method or (), ctx.args), "dataset": dataset,
            "columns": column or (), "budget": budget, "precision": precision, "seed": seed,
        }  # fmt: skip
        watching = _observers(log, observe)
        scope |= {"device": device, "executor": executor, "again": again, "keep": to_keep}
        train_table(table, **scope, as_json=json, observers=watching)
        return
    if every is not None and every < 1:
        raise FedbenchError(f"--every must be at least 1, not {every}", "the last round is evaluated in any case")
    if dataset is not None:
        raise FedbenchError("--dataset goes with --table only", "'fedbench partition DATASET' chooses the data set")
    if column:
        raise FedbenchError("--column goes with --table only", "leave it out")
    if not method:
        raise FedbenchError("train needs --method NAME or --table NAME", "'fedbench methods' lists the methods")
    if len(method) > 1:
        raise FedbenchError("several methods go with --table only", "train one after another")
    from fedbench.engine.place import check_place

    store = context.store()
    part, protocol_name = _partition(store, partition, protocol)
    job = replace(_job(method[0], part, protocol_name, budget, chosen, ctx.args), keep=to_keep)
    check_place(device, executor, job.spec.setting.precision)
    watching = _observers(log, observe)
    if again:
        job = job.again(store)
    job.check_kept(store)
    _announce(job, protocol_name, budget, device)
    (artifact,) = run([job], store, device, executor, observers=watching)
    store.set_current(run=artifact.id)
    _show(artifact, store, json)


def _observers(log: Path | None, names: list[str] | None) -> list[Observer]:
    """Those of --log and --observe."""
    from fedbench import observers

    named = [observers.of(name) for name in names or ()]
    return [*([] if log is None else [observers.log(log)]), *named]


def _hyperparameters_of(named: Sequence[str], arguments: list[str]) -> dict[str, str]:
    """The hyper-parameters among a table's options: those of the one method that is named."""
    from fedbench import methods

    if not arguments:
        return {}
    if len(named) != 1:
        raise FedbenchError(
            f"{arguments[0]} does not go with --table but for one method", "name it: -m METHOD; a row has params"
        )
    return _hyperparameters(methods.load(named[0])[0], arguments)


def _hyperparameters(kind: type[Method], arguments: list[str]) -> dict[str, str]:
    return hyperparameters.read(arguments, kind.hyperparameters(), f"train --method {kind.name}", train)


def _rounds(text: str) -> list[int]:
    """Rounds such as '5,8'."""
    try:
        return [int(t) for t in text.split(",")]
    except ValueError:
        raise FedbenchError(f"--drifts takes rounds, such as 5,8, not '{text}'") from None


def _partition(store: Store, id: str | None, protocol: str | None) -> tuple[PartitionSpec, str]:
    """The partition to train on, and the protocol whose defaults hold."""
    from fedbench.specs import PartitionSpec

    id = id or store.current.get("partition")
    if id is None:
        raise FedbenchError(
            "there is no current partition (none was made, or the last 'partition' failed)",
            "make one: fedbench partition cifar10 --dir 0.3",
        )
    spec = store.find(id, ("partition",)).spec
    assert isinstance(spec, PartitionSpec)
    current = store.current.get("protocol") if spec.id == store.current.get("partition") else None
    return spec, protocol or current or protocols.DEFAULT


def _job(
    method: str, part: PartitionSpec, protocol_name: str, budget: str, chosen: dict[str, Any], arguments: list[str]
) -> Job:
    from fedbench import methods
    from fedbench.engine.job import Job

    kind, _ = methods.load(method)
    params = _hyperparameters(kind, arguments)
    protocol = protocols.load(protocol_name)
    setting = protocol.setting(part, budget, **chosen)
    return Job.of(setting, method, {**protocol.method_params(kind.name, budget, part.dataset.name), **params})


def _announce(job: Job, protocol_name: str, budget: str, device: str) -> None:
    """Say what will run, under which budget, what the paper's would be, and how long both would take here.

    Raises FedbenchError if the images do not suit the model.
    """
    from fedbench.engine.speed.cost import seconds
    from fedbench.engine.work import saved_round
    from fedbench.partitions import schemes
    from fedbench.reports.status.cells import DEFAULT_PRECISION
    from fedbench.store.provenance import is_stale

    setting, store, console = job.spec.setting, context.store(), context.err()
    protocol = protocols.load(protocol_name)
    part = setting.partition
    options = ", ".join(f"{name} {value}" for name, value in job.overrides.items())
    where = f" on {part.dataset.name}, {schemes.label(part)}, {part.clients} clients, shift {part.shift}"
    console.print(Text.assemble((job.method.title, "bold"), where, f" ({options})" if options else ""))
    if (there := job.done(store)) is not None:
        older = ", but stale (its code has changed): --again makes it anew" if is_stale(there.provenance) else ""
        console.print(f"run {there.id} is already there{older}")
        return

    def words(of: Setting) -> str:
        local = f"{of.steps} steps" if of.steps is not None else f"{of.epochs} epochs"
        took = duration(seconds(of, job.method, store, context.roots(), device))
        model = of.model + ("" if of.precision == DEFAULT_PRECISION else f" in {of.precision}")
        own = protocol.own_descent(of, budget if of.budget == "custom" else of.budget)
        what = ", ".join(filter(None, (f"{of.batch_size} images", model, own)))
        return f"{of.rounds} rounds x {local} of {what}, about {took} here"

    console.print(Text.assemble("budget ", (setting.budget, "bold"), f": {words(setting)}"))
    if setting.budget != "paper" and "paper" in protocol.budgets:
        try:
            paper = f"{words(protocol.setting(part, 'paper'))} (--budget paper)"
        except FedbenchError as error:
            paper = f"not for this data ({error.message})"
        console.print(f"the paper's budget: {paper}", style="dim")
    if line := keeping.estimate(job, store):
        console.print(line)
    saved = saved_round(job, store)
    console.print(f"run {job.spec.id}" + (f" goes on after round {saved}" if saved else ""), style="dim")


def _show(artifact: Artifact, store: Store, as_json: bool) -> None:
    from fedbench.cli.evaluate import show

    show([artifact], store, as_json)
    if not as_json:
        context.err().print(_next(artifact), style="dim")


def _next(artifact: Artifact) -> str:
    """The command that prints the tables in which the run stands: headline ones, else any others on its data set."""
    from fedbench.reports import table as tables
    from fedbench.specs import RunSpec

    assert isinstance(artifact.spec, RunSpec)
    setting = artifact.spec.setting
    headline = {number: name for number, (_, name) in tables.headline().items()}
    commands = _tables_of(setting, headline, elsewhere=True)
    commands = commands or _tables_of(setting, {name: name for name in tables.names()}, elsewhere=False)
    if not commands:
        return f"no table has this setting; 'fedbench show {artifact.id}' tells all about the run"
    options, names = next(iter(commands.items()))
    return f"next: fedbench report --table {names[0]}{options}" + (
        f" (or --table {', '.join(names[1:])})" if names[1:] else ""
    )


def _tables_of(setting: Setting, named: Mapping[str, str], elsewhere: bool) -> dict[str, list[str]]:
    """Of these tables (as the user calls them -> name), those with the setting: options of `report` -> tables.

    `elsewhere`: also those about other data sets, taken over to the setting's.
    """
    from fedbench.reports import table as tables
    from fedbench.reports.status.cells import DEFAULT_BUDGET, DEFAULT_PRECISION, find
    from fedbench.reports.status.index import Index

    store, dataset = context.store(), setting.partition.dataset.name
    index = Index(store)
    commands: dict[str, list[str]] = {}
    for called, name in named.items():
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
                options += f" --precision {setting.precision}" if setting.precision != DEFAULT_PRECISION else ""
                commands.setdefault(options + words, []).append(called)
                break
    return commands
