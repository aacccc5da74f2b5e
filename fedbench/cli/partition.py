"""`fedbench partition`: distribute a data set among clients."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import Field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from fedbench.cli import completion, context, hyperparameters, options, printing
from fedbench.cli.parser import OPEN, App, Command
from fedbench.errors import FedbenchError
from fedbench.partition_options import PartitionerChoice, partitioner, shorts, spec_of, values
from fedbench.specs import PartitionSpec
from fedbench.words import option_of

if TYPE_CHECKING:
    from fedbench.partitions import Partition, Scheme
    from fedbench.protocol import Protocol

app = App()


class PartitionCommand(Command):
    """If the command fails for any reason, the current partition is cleared, so that a `train` that follows in a script
    does not use the previous one. The help lists the options of the chosen partitioner."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _current_if_complete():
            return super().make_context(*args, **kwargs)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["fedbench.words"] = tuple(args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        # Before the help, because this raises an error for an unknown partitioner.
        kind = _named(ctx.meta.get("fedbench.words", ()))
        try:
            super().format_help(ctx, formatter)
            if kind is not None:
                _print_options(kind)
        except SystemExit as stop:  # rich's, if the reader of a pipe is gone: nothing has failed
            raise typer.Exit(1) from stop


def _named(words: Sequence[str]) -> type[Scheme] | None:
    """The partitioner that the words of a command choose, by its name or by a short option such as --dir."""
    parts = [part for word in words for part in word.split("=", 1)]
    name = next((after for word, after in itertools.pairwise(parts) if word == "--scheme"), None)
    if name is not None:
        from fedbench.partitions import schemes

        return schemes.load(schemes.named(name))
    short = next((word[2:] for word in parts if word.startswith("--") and word[2:] in shorts()), None)
    return None if short is None else shorts()[short][0]


def _print_options(kind: type[Scheme]) -> None:
    """Print the partitioner's options, below those of the command."""
    from rich.panel import Panel
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    words = {bool: "", int: "N", float: "NUMBER", str: "TEXT"}
    for option, field in kind.options().items():
        if kind.kind(option) is not None:
            needed = Text("needed: ", style="red") if field.default is dataclasses.MISSING else Text("")
            name = Text(option_of(option), style="bold cyan")
            grid.add_row(name, Text(words[kind.kind(option)], style="yellow"), needed + field.metadata["help"])
    title = f"Options of {kind.title()}"
    out = context.out()
    width = out.width if out.is_terminal else min(out.width, 80)  # as Typer prints the other panels
    out.print(Panel(grid, title=title, title_align="left", border_style="dim"), width=width)


@contextlib.contextmanager
def _current_if_complete() -> Iterator[None]:
    try:
        yield
    except typer.Exit:
        raise
    except BaseException:
        with contextlib.suppress(FedbenchError, OSError):
            context.store().forget_current("partition", "protocol")
        raise


@app.command("partition", cls=PartitionCommand, context_settings=OPEN)
@options.grouped(options=options.of_spec(PartitionerChoice, PartitionSpec))
def partition(
    ctx: typer.Context,
    dataset: Annotated[
        str | None,
        options.argument(
            "The data set, such as cifar10 ('fedbench data list'), hf:NAME or torchvision:NAME.",
            completion=completion.datasets,
        ),
    ] = None,
    *,
    options: dict[str, Any],
    protocol: options.ProtocolName = None,
    as_json: options.Json = False,
) -> None:
    """Partition a data set among clients, with training and test images and covariate shifts.

    The partition becomes the current one, which is the default of 'fedbench train'.
    """
    from fedbench import partitions
    from fedbench import protocol as protocols
    from fedbench.store.provenance import other_code

    store, roots = context.store(), context.roots()
    with _current_if_complete():  # without the printing, which fails if the reader of a pipe is gone
        rules = protocols.load(protocol or protocols.default_for(dataset))
        kind = partitioner({**options, **dict.fromkeys(option_names(ctx.args), "")}, rules)
        options |= scheme_options(ctx.args, kind)
        spec = spec_of(dataset, options, rules, store, roots, context.err().print)
        before = store.get(spec)
        result = partitions.build(spec, store, roots, context.err().print)
        store.set_current(partition=result.id, protocol=rules.name)
    path, remark = store.path("partition", result.id), ""
    if before is not None:
        changed = other_code(before.provenance)
        drawn = ", drawn by code that has changed since: 'train --again' draws it again" if changed else ""
        remark = f"  (was there already{drawn})"
    if as_json:
        printing.print_json({**_describe(result), "path": str(path), "protocol": rules.name, "made": before is None})
        return

    from fedbench.partitions.view import display

    out = context.out()
    display(out, result)
    out.print(Text.assemble("\n", (f"partition {result.id}", "bold"), f"  {_typed(path)}{remark}"))
    out.print("It is the current partition: 'fedbench train --method NAME' uses it.")


def scheme_options(words: Sequence[str], kind: type[Scheme]) -> dict[str, Any]:
    """The values of a partitioner's options among the words."""
    fields = scheme_fields(words, kind)
    return values(hyperparameters.read(words, fields, f"partition by {kind.title()}", partition), kind)


def scheme_fields(words: Sequence[str], kind: type[Scheme], others: Container[str] = ()) -> dict[str, Field[Any]]:
    """A partitioner's options that can be given on the command line. Raises FedbenchError if the words have an option
    of another partitioner, unless `others` contains its name."""
    from fedbench.partitions import schemes

    for option in option_names(words):
        if option not in kind.options() and option in schemes.all_options() and option not in others:
            raise schemes.not_of(kind, option)
    return {option: field for option, field in kind.options().items() if kind.kind(option) is not None}


def option_names(words: Sequence[str]) -> list[str]:
    """The names of the options among the words: test_size for --test-size=5."""
    return [word.removeprefix("--").partition("=")[0].replace("-", "_") for word in words if word.startswith("--")]


def _describe(p: Partition) -> dict[str, Any]:
    counts, train, test = (p.class_counts(side).tolist() for side in (None, False, True))
    described = [one.described(p.classes) for one in p.distributions]

    def details(c: int) -> dict[str, Any]:
        """The entries of a client that exist only with natural groups, validation images or drawn distributions."""
        own: dict[str, Any] = {"name": p.names[c]} if p.names else {}
        own |= {} if p.validation is None else {"n_validation": int(p.n_validation[c])}
        if described:
            phases = [phase[c] for phase in p.phase_groups]
            own |= {"phase_groups": phases, "test_group": p.test_groups[c], "distribution": described[p.groups[c]]}
        return own

    clients = [
        {
            "client": c,
            "n_train": int(p.n_train[c]),
            "n_test": int(p.n_test[c]),
            "class_counts": counts[c],
            "train_counts": train[c],
            "test_counts": test[c],
            "shift": dataclasses.asdict(p.transforms[c]),
            "group": p.groups[c],
            "unseen": bool(p.unseen[c]),
            **details(c),
        }
        for c in range(p.clients)
    ]
    more: dict[str, Any] = {"distributions": described} if described else {}
    more |= {"leaked": p.leaked} if p.leaked else {}
    return {"id": p.id, "spec": p.spec.to_dict(), "classes": list(p.classes), "clients": clients, **more}


def _typed(path: Path) -> str:
    """The path as the user would type it: relative to the working folder, from ~, or absolute."""
    path = path.absolute()
    for base, prefix in ((Path.cwd(), ""), (Path.home(), "~/")):
        if path.is_relative_to(base):
            return prefix + path.relative_to(base).as_posix()
    return str(path)


def partition_of(dataset: str | None, options: Mapping[str, Any], rules: Protocol) -> PartitionSpec:
    """The partition of the data set by these options, built if the store lacks it; None: option `from` has both."""
    from fedbench import partitions

    store, roots, say = context.store(), context.roots(), context.err().print
    spec = spec_of(dataset, options, rules, store, roots, say)
    made = partitions.obtain(spec, store, roots, say)
    if spec.scheme == "file":  # where any image can be anyone's
        from fedbench.partitions.tables import read
        from fedbench.partitions.view import leakage

        if line := leakage(read(made)):
            say(line)
    return spec
