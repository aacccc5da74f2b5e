"""A command that takes a data set and the options of `fedbench partition` too, such as `train digits --dir 0.3`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import typer

from fedbench.cli import context
from fedbench.cli.partition import partition
from fedbench.cli.strict import Command
from fedbench.errors import FedbenchError
from fedbench.partition_options import spec_of

if TYPE_CHECKING:
    from fedbench.protocol import Protocol
    from fedbench.specs import PartitionSpec

#: Options of `partition` that a command has itself, and its seed, which is the training's there.
_OTHERS = ("dataset", "protocol", "as_json", "seed")
_META = "fedbench.partition"


class DealtCommand(Command):
    """A command with the options of `partition` beside its own; `dealing` gives what was said by them."""

    def __init__(self, *args: Any, params: list[Any] | None = None, **kwargs: Any) -> None:
        own = params or []
        there = {one.name for one in own}
        super().__init__(*args, params=[*own, *(one for one in _parameters() if one.name not in there)], **kwargs)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.removesuffix("...") for piece in super().collect_usage_pieces(ctx)]


@cache
def _parameters() -> list[Any]:
    """The options of `partition`, whose values go to the context instead of to the command's function."""
    app = typer.Typer(add_completion=False)
    app.command()(partition)
    parameters = [one for one in typer.main.get_command(app).params if one.name not in (*_OTHERS, "help")]
    for one in parameters:
        one.expose_value = False
        one.callback = _kept
        one.rich_help_panel = "With DATASET: how it is dealt out"  # type: ignore[attr-defined]
    return parameters


def _kept(ctx: Any, parameter: Any, value: Any) -> None:
    if value is not None and value is not False:
        ctx.meta.setdefault(_META, {})[parameter.name.rstrip("_")] = value


def dealing(ctx: typer.Context) -> dict[str, Any]:
    """What was said of the partition by options that any partitioner knows, by their names in Python."""
    return dict(ctx.meta.get(_META, {}))


def dataset_among(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The one word that is neither an option nor an option's value: the data set; and the other words.

    Raises FedbenchError for a second one.
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


def partition_of(dataset: str | None, options: Mapping[str, Any], rules: Protocol) -> PartitionSpec:
    """The partition of the data set (None: `from` is both) by these options; made if it is not there."""
    from fedbench import partitions

    store, roots, say = context.store(), context.roots(), context.err().print
    spec = spec_of(dataset, options, rules, store, roots, say)
    partitions.obtain(spec, store, roots, say)
    return spec
