"""`fedbench train`: train each method on a data set or the current partition, or all missing cells of a table."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import Field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedbench import protocol as protocols
from fedbench.cli import completion, context, hyperparameters, options, train_methods
from fedbench.cli.making import WHERE, How
from fedbench.cli.parser import App, Command
from fedbench.cli.partition import option_names, partition_of, scheme_fields
from fedbench.cli.train_table import Selection, train_table
from fedbench.engine import keep as keeping
from fedbench.engine.engines import Where
from fedbench.errors import FedbenchError
from fedbench.partition_options import PartitionerChoice, partitioner
from fedbench.specs import PartitionSpec, Setting
from fedbench.specs.base import check_values
from fedbench.words import option_of

if TYPE_CHECKING:
    from fedbench.observers import Observer
    from fedbench.protocol import Protocol
    from fedbench.store import Store

app = App()

#: The options that the fields of Setting declare.
SETTING = options.of_spec(Setting)
#: The options of a partition in one help panel, without --seed, which is the run's here.
PARTITION_OPTIONS = options.of_spec(PartitionerChoice, PartitionSpec)
del PARTITION_OPTIONS["seed"]


class DatasetCommand(Command):
    """A command with an argument that takes any number of words, one of which is the data set."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.removesuffix("...") for piece in super().collect_usage_pieces(ctx)]


#: The panels of the help; what stands in none comes first.
PANELS: dict[str, Collection[str]] = {
    "Training (default: the protocol's)": SETTING.keys() - {"seed"},
    "The data (with DATASET)": PARTITION_OPTIONS,
    "A table (with --table)": ("column", "dataset"),
    "Where it runs, and what is kept": (*WHERE, "keep", "log", "observe"),
    options.MORE: (
        *("momentum_lives", "select", "every", "drifts", "precision", "weighting", "again", "include_shipped"),
        *("counts", "subsample", "duplicates", "unseen_as", "phases", "partition_seed"),
        *("executor", "cpus_per_run", "gpus_per_run"),
    ),
}


@app.command("train", cls=DatasetCommand, context_settings={"ignore_unknown_options": True})
@options.paneled(PANELS)
@options.grouped(chosen=SETTING, place=WHERE, partitioning=PARTITION_OPTIONS)
def train(
    words: Annotated[
        list[str] | None,
        options.argument(
            "A data set to partition first, as 'fedbench partition' does; or a table, as --table.",
            "DATASET",
            completion.datasets,
        ),
    ] = None,
    method: Annotated[
        list[str] | None, "Method, or FILE.py:Class (see 'fedbench methods'); repeatable.", "-m", "NAME"
    ] = None,
    table: Annotated[str | None, "Train the missing runs of this table.", "-t"] = None,
    dataset: options.OnDataset = None,
    column: options.Columns = None,
    partition: Annotated[str | None, "Partition id (default: the current one)."] = None,
    protocol: options.ProtocolName = None,
    budget: options.Budget = "small",
    *,
    chosen: dict[str, Any],
    partition_seed: Annotated[int | None, "With DATASET: seed of all draws of the partition (the protocol's)."] = None,
    place: dict[str, Any],
    keep: Annotated[str | None, "Keep the run's models for 'fedbench export' (the only value: model).", "model"] = None,
    again: Annotated[bool, "Train runs again; of a table, only those that were made by other code."] = False,
    include_shipped: Annotated[bool, "With --table: train also the runs that are in result packs."] = False,
    dry_run: options.DryRun = False,
    log: Annotated[Path | None, "Append the progress of every round as JSON lines.", "FILE.jsonl"] = None,
    observe: Annotated[list[str] | None, "Observer: tensorboard:DIR, wandb:PROJECT (repeatable).", "NAME:WHERE"] = None,
    json: options.Json = False,
    partitioning: dict[str, Any],
) -> None:
    """Train methods on a data set or on the current partition, or the missing runs of a table.

    'fedbench train digits --dir 0.3 -m fedavg -m ditto' partitions the digits and trains both methods. Without
    DATASET the current partition is used. 'fedbench sweep' trains several seeds and values.

    The hyper-parameters of a method are options, too, such as --lambda 0.8 for feddrm ('fedbench methods
    feddrm' lists them). With --table and one method, the run becomes an additional row of the table (report).

    If a run is interrupted, the same command continues it.
    """
    from fedbench.planner.table import is_table  # imports NumPy, which no help needs

    kept = keeping.parsed(keep)
    where = Where(**place)
    chosen = {name: protocols.value_of("train", name, text) for name, text in chosen.items()}
    data, rest = dataset_among(words or ())
    if table is None and data is not None and is_table(data):
        table, data = data, None
    if any(word.partition("=")[0] == "--seeds" for word in rest):
        raise FedbenchError("train takes one seed, --seed 0", SEVERAL_SEEDS if table is None else SEEDS_OF_A_TABLE)
    partitioning |= {} if partition_seed is None else {"seed": partition_seed}
    if table is not None:
        _refuse_with_table(data, {**chosen, "partition": partition, "protocol": protocol, **partitioning})
        selection = Selection(
            table,
            methods=method or (),
            params=_row(method or (), rest),
            dataset=dataset,
            columns=column or (),
            budget=budget,
            precision=chosen.get("precision"),
            seed=chosen.get("seed"),
            include_shipped=include_shipped,
        )
        watching = [] if dry_run else _observers(log, observe)
        train_table(selection, How(where, again, kept, as_json=json, observers=watching), dry_run)
        return
    _refuse_without_table(dataset, {"column": column, "include_shipped": include_shipped})
    if not method:
        raise FedbenchError("train needs --method NAME or --table NAME", "'fedbench methods' lists the methods")
    offered, watching = train_methods.offered(method), [] if dry_run else _observers(log, observe)
    # Before a data set is built. Lists are still text.
    numbers = {name: value for name, value in chosen.items() if isinstance(value, int | float) and math.isfinite(value)}
    check_values(Setting, numbers)
    from_data = data is not None or "from" in partitioning
    if from_data:
        if partition is not None:
            raise FedbenchError(f"give either {data or '--from'} or --partition {partition}, not both")
        rules = protocols.load(protocol or protocols.default_for(data))
        part, texts = _partitioned(data, rest, partitioning, rules, offered, chosen)
    else:
        _refuse_without_data(partitioning)
        texts = hyperparameters.read(rest, *offered, train)
        part, rules = _current(context.store(), partition, protocol)
    jobs = train_methods.jobs_of(method, part, rules, budget, chosen, texts, kept)
    jobs = [job.again(context.store()) for job in jobs] if again else jobs
    if dry_run:
        train_methods.announce_all(jobs, rules, budget, where, json)
        return
    if from_data:
        context.store().set_current(partition=part.id, protocol=rules.name)
    runs = train_methods.train_all(jobs, rules, budget, where=where, observers=watching)
    train_methods.show_all(runs, rules, json)


#: How several seeds are trained.
SEVERAL_SEEDS = "several: fedbench sweep DATASET -m METHOD --seeds 0-2"
SEEDS_OF_A_TABLE = "without it the seeds of the table are trained, which its file or protocol names"


def dataset_among(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The data set, which is the only word that is neither an option nor an option's value; and the other words.

    Raises FedbenchError for a second such word.
    """
    bare: list[str] = []
    rest: list[str] = []
    value = False
    for word in words:
        option = word.startswith("--")
        (rest if option or value else bare).append(word)
        value = option and "=" not in word
    if len(bare) > 1:
        raise FedbenchError(f"unexpected argument '{bare[1]}'", f"the data set is {bare[0]}, and options begin with --")
    return (bare[0] if bare else None), rest


def _refuse_with_table(data: str | None, values: Mapping[str, Any]) -> None:
    """Raise FedbenchError for a data set or an option that the file of a table already determines."""
    if data is not None:
        raise FedbenchError(f"unexpected argument '{data}'", f"with --table write --dataset {data}")
    free = ("seed", "precision")
    options = [option_of(name) for name, value in values.items() if value is not None and name not in free]
    if options:
        raise FedbenchError(
            f"{options[0]} cannot be used with --table, whose file determines its cells",
            "leave one of the two out",
        )


def _row(methods: Sequence[str], words: Sequence[str]) -> dict[str, str]:
    """The hyper-parameters among the words of `train --table`, for the only method that is given."""
    if not words:
        return {}
    if len(methods) != 1:
        hyperparameters.check_spelling(words, methods, "train --table", train)
        raise FedbenchError(
            f"{words[0]} needs exactly one method with --table", "name it: -m METHOD; in a table's file write params"
        )
    return hyperparameters.read(words, *train_methods.offered(methods), train)


def _observers(log: Path | None, names: list[str] | None) -> list[Observer]:
    """The observers that --log and --observe name."""
    from fedbench import observers

    named = [observers.of(name) for name in names or ()]
    return [*([] if log is None else [observers.JsonLines(log)]), *named]


def _refuse_without_table(dataset: str | None, values: Mapping[str, Any]) -> None:
    """Raise FedbenchError for an option of --table."""
    if dataset is not None:
        raise FedbenchError("--dataset needs --table", f"fedbench train {dataset} chooses the data set")
    for option, given in values.items():
        if given:
            raise FedbenchError(f"{option_of(option)} needs --table", "leave it out")


def _partitioned(
    data: str | None,
    words: Sequence[str],
    partitioning: dict[str, Any],
    rules: Protocol,
    offered: tuple[Mapping[str, Field[Any]], str],
    chosen: Mapping[str, Any],
) -> tuple[PartitionSpec, dict[str, str]]:
    """The partition of a data set by the options, and the other options among the words: option -> its text.

    `offered` has the methods' hyper-parameters, which have precedence over a partitioner's options, and the command for
    errors. A run's seed among the `chosen` values of the setting is the partition's too, where the protocol draws a
    partition for every run.
    """
    fields, called = offered
    if rules.redraws and "seed" in chosen:
        partitioning.setdefault("seed", chosen["seed"])
    names = [name for name in option_names(words) if name not in fields]
    kind = partitioner({**partitioning, **dict.fromkeys(names, "")}, rules)
    texts = hyperparameters.read(words, {**scheme_fields(words, kind, fields), **fields}, called, train)
    of_scheme = {name: text for name, text in texts.items() if name not in fields}
    return partition_of(data, partitioning | of_scheme, rules), texts


def _refuse_without_data(partitioning: Mapping[str, Any]) -> None:
    """Raise FedbenchError for an option of a partition, as the current one is drawn already."""
    if partitioning:
        option = "partition_seed" if (first := next(iter(partitioning))) == "seed" else first
        raise FedbenchError(
            f"{option_of(option)} is an option of a partition, and no data set is named",
            "for example fedbench train digits --dir 0.3 --method fedavg",
        )


def _current(store: Store, id: str | None, protocol: str | None) -> tuple[PartitionSpec, Protocol]:
    """The partition to train on, and the protocol that gives the defaults."""
    id = id or store.current.get("partition")
    if id is None:
        raise FedbenchError(
            "there is no current partition (none was made, or the last 'partition' failed)",
            "name a data set: fedbench train digits --dir 0.3 --method fedavg",
        )
    spec = store.find(id, ("partition",)).spec
    assert isinstance(spec, PartitionSpec)
    current = store.current.get("protocol") if spec.id == store.current.get("partition") else None
    return spec, protocols.load(protocol or current or protocols.default_for(spec.dataset.name))
