"""`fedbench train`: train each method on a data set or the current partition, or all missing cells of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedbench import protocol as protocols
from fedbench.cli import context
from fedbench.cli.context import App
from fedbench.cli.making import How, train_table
from fedbench.cli.partition import (
    PARTITION_OPTIONS,
    DatasetCommand,
    dataset_among,
    option_names,
    partition_of,
    scheme_fields,
)
from fedbench.engine import keep as keeping
from fedbench.engine.engines import Where
from fedbench.errors import FedbenchError
from fedbench.partition_options import partitioner
from fedbench.specs import PartitionSpec, Setting
from fedbench.words import option_of

if TYPE_CHECKING:
    from fedbench.observers import Observer
    from fedbench.protocol import Protocol
    from fedbench.store import Store

app = App()

#: The options that the fields of Setting declare.
SETTING = context.of_spec(Setting)


@app.command("train", cls=DatasetCommand, context_settings={"ignore_unknown_options": True})
@context.grouped(chosen=SETTING, place=context.WHERE, partitioning=PARTITION_OPTIONS)
def train(
    words: Annotated[
        list[str] | None,
        context.argument("Partition this data set first, as 'fedbench partition' does.", "DATASET", context.datasets),
    ] = None,
    method: Annotated[
        list[str] | None, "Method, or FILE.py:Class (see 'fedbench methods'); repeatable.", "-m", "NAME"
    ] = None,
    table: Annotated[str | None, "Run all missing cells of this table.", "-t"] = None,
    dataset: context.OnDataset = None,
    column: context.Columns = None,
    partition: Annotated[str | None, "Partition id (default: the current one)."] = None,
    protocol: context.ProtocolName = None,
    budget: context.Budget = "small",
    *,
    chosen: dict[str, Any],
    partition_seed: Annotated[int | None, "With DATASET: seed of all draws of the partition (the protocol's)."] = None,
    place: dict[str, Any],
    keep: Annotated[str | None, "Keep the run's models, for 'export' (the only value: model).", "model"] = None,
    again: Annotated[bool, "Make runs again; of a table, those of another version of the code."] = False,
    unshipped: Annotated[bool, "With --table: leave out runs that result packs hold."] = False,
    dry_run: context.DryRun = False,
    log: Annotated[Path | None, "Append what happens, round by round, as JSON lines.", "FILE.jsonl"] = None,
    observe: Annotated[list[str] | None, "Observer: tensorboard:DIR, wandb:PROJECT (repeatable).", "NAME:WHERE"] = None,
    json: context.Json = False,
    partitioning: dict[str, Any],
) -> None:
    """Train a method on a data set or in the current partition, or all missing cells of a table.

    'fedbench train digits --dir 0.3 -m fedavg -m ditto' partitions the digits
    and trains both methods; without DATASET it uses the current partition.

    Every hyper-parameter of a method is an option too, such as --lambda 0.8
    for feddrm: 'fedbench methods feddrm' lists them. With --table and one
    method they make an extra row of the table (report --extra).

    An interrupted run continues where it stopped when the same command is
    given again.
    """
    kept = keeping.parsed(keep)
    where = Where(**place)
    chosen = {name: protocols.value_of("train", name, text) for name, text in chosen.items()}
    data, rest = dataset_among(words or ())
    partitioning |= {} if partition_seed is None else {"seed": partition_seed}
    if table is not None:
        if data is not None:
            raise FedbenchError(f"unexpected argument '{data}'", f"with --table it is --dataset {data}")
        _refuse_with_table({**chosen, "partition": partition, "protocol": protocol, **partitioning})
        params, watching = _row(method or (), rest), [] if dry_run else _observers(log, observe)
        train_table(
            table, How(where, again, kept, as_json=json, observers=watching), methods=method or (),
            params=params, dataset=dataset, columns=column or (), budget=budget, precision=chosen.get("precision"),
            seed=chosen.get("seed"), unshipped=unshipped, dry_run=dry_run,
        )  # fmt: skip
        return
    if dataset is not None:
        raise FedbenchError("--dataset goes with --table only", f"fedbench train {dataset} chooses the data set")
    for option, given in {"column": column, "unshipped": unshipped}.items():
        if given:
            raise FedbenchError(f"--{option} goes with --table only", "leave it out")
    if not method:
        raise FedbenchError("train needs --method NAME or --table NAME", "'fedbench methods' lists the methods")
    from fedbench.cli import making

    store, (fields, caption) = context.store(), making.offered(method)
    from_data = data is not None or "from" in partitioning
    if not from_data:
        if partitioning:
            option = "partition_seed" if (first := next(iter(partitioning))) == "seed" else first
            raise FedbenchError(
                f"{option_of(option)} is an option of a partition, and no data set is named",
                "for example fedbench train digits --dir 0.3 --method fedavg",
            )
        texts = context.read(rest, fields, caption, train)
        part, rules = _partition(store, partition, protocol)
    else:
        if partition is not None:
            raise FedbenchError(f"give either {data or '--from'} or --partition {partition}, not both")
        rules = protocols.load(protocol or protocols.default_for(data))
        if rules.redraws and "seed" in chosen:
            partitioning.setdefault("seed", chosen["seed"])
        texts = _texts(rest, partitioning, fields, rules, caption)
        part = partition_of(data, partitioning | {k: v for k, v in texts.items() if k not in fields}, rules)
    jobs = making.jobs_of(method, part, rules, budget, chosen, texts, kept)
    jobs = [job.again(store) for job in jobs] if again else jobs
    if dry_run:
        making.announce_all(jobs, rules, budget, where, json)
        return
    if from_data:
        store.set_current(partition=part.id, protocol=rules.name)
    watching = _observers(log, observe)
    runs = making.train_all(jobs, rules, budget, where=where, observers=watching)
    making.show_all(runs, rules, json)


def _observers(log: Path | None, names: list[str] | None) -> list[Observer]:
    """The observers that --log and --observe name."""
    from fedbench import observers

    named = [observers.of(name) for name in names or ()]
    return [*([] if log is None else [observers.JsonLines(log)]), *named]


def _row(methods: Sequence[str], words: Sequence[str]) -> dict[str, str]:
    """The hyper-parameters among the words of `train --table`, for the only method that is given."""
    from fedbench.cli.making import offered

    if not words:
        return {}
    if len(methods) != 1:
        context.check_spelling(words, methods, "train --table", train)
        raise FedbenchError(
            f"{words[0]} does not go with --table but for one method", "name it: -m METHOD; a row has params"
        )
    return context.read(words, *offered(methods), train)


def _refuse_with_table(values: Mapping[str, Any]) -> None:
    """Raise FedbenchError for an option that the file of a table already determines."""
    free = ("seed", "precision")
    options = [option_of(name) for name, value in values.items() if value is not None and name not in free]
    if options:
        raise FedbenchError(
            f"{options[0]} does not go with --table, whose file says how its cells are made",
            "leave one of the two out",
        )


def _texts(
    words: Sequence[str],
    partitioning: Mapping[str, Any],
    fields: Mapping[str, Field[Any]],
    rules: Protocol,
    called: str,
) -> dict[str, str]:
    """Option -> its text, for hyper-parameters and partitioner options; hyper-parameters have precedence."""
    names = [name for name in option_names(words) if name not in fields]
    kind = partitioner({**partitioning, **dict.fromkeys(names, "")}, rules)
    known = {**scheme_fields(words, kind, fields), **fields}
    return context.read(words, known, called, train)


def _partition(store: Store, id: str | None, protocol: str | None) -> tuple[PartitionSpec, Protocol]:
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
