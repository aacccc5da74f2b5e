"""`fedbench partition`: deal a dataset out to clients."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from fedbench.cli import context, hyperparameters
from fedbench.cli.strict import Command
from fedbench.errors import FedbenchError
from fedbench.protocol import DEFAULT

if TYPE_CHECKING:
    from fedbench.partitions import Partition, Scheme
    from fedbench.store import Artifact

_ALPHA = 0.3


class PartitionCommand(Command):
    """Where it fails, by whatever fault, there is no current partition any more: the `train` behind it in a script must
    not take the one before. Its help has the options of the partitioner that is chosen beside it."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _current_if_complete():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _current_if_complete():
            return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["fedbench.words"] = tuple(args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        # First, as an unknown one has no help.
        kind = _named(ctx.meta.get("fedbench.words", ()), _short_forms(self))
        super().format_help(ctx, formatter)
        if kind is not None:
            _print_options(kind)


def _short_forms(command: Any) -> list[str]:
    """The options of `fedbench partition` that stand for a partitioner, those in their own part of its help."""
    return [one.name for one in command.params if getattr(one, "rich_help_panel", "") == _SHORT]


def _named(words: Sequence[str], shorts: Sequence[str]) -> type[Scheme] | None:
    """The partitioner that is chosen among the words of a command, by its name or by a short form."""
    parts = [part for word in words for part in word.split("=", 1)]
    name = next((after for word, after in itertools.pairwise(parts) if word == "--scheme"), None)
    if name is not None:
        from fedbench.partitions import schemes

        return schemes.load(schemes.named(name))
    short = next((word[2:] for word in parts if word.startswith("--") and word[2:] in shorts), None)
    return None if short is None else _of_short(short, ())


def _print_options(kind: type[Scheme]) -> None:
    """The partitioner's own options, below the command's."""
    from rich.panel import Panel
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    words = {bool: "", int: "N", float: "NUMBER", str: "TEXT"}
    for option, field in kind.options().items():
        if kind.kind(option) is not None:
            needed = Text("needed: ", style="red") if field.default is dataclasses.MISSING else Text("")
            name = Text(f"--{option.replace('_', '-')}", style="bold cyan")
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


_SHORT = "Short forms of a partitioner"
_MORE = "Beside any partitioner"


def partition(
    ctx: typer.Context,
    dataset: Annotated[str, typer.Argument(help="The dataset, such as cifar10 ('fedbench data list').")],
    scheme: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The partitioner, or FILE.py:Class; --scheme NAME --help has its options."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="One of the protocol's own partitions, such as ftw_erm's five.")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="How many clients (default: the protocol's).")] = None,
    split: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Each client's share of training images.")
    ] = None,
    shift: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Covariate shift: none, low, mid, high, pool, corrupted; more with --equal."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of all draws of the partition.")] = None,
    protocol: Annotated[str, typer.Option(help="The paper whose setting gives the defaults.")] = DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    dir: Annotated[
        float | None,
        typer.Option(
            metavar="ALPHA", help=f"Dirichlet label shift (default: {_ALPHA}); small is uneven.", rich_help_panel=_SHORT
        ),
    ] = None,
    spc: Annotated[
        int | None,
        typer.Option(metavar="S", help="Shards per client: at most about S classes each.", rich_help_panel=_SHORT),
    ] = None,
    iid: Annotated[
        bool, typer.Option("--iid", help="No label shift: any sample to any client.", rich_help_panel=_SHORT)
    ] = False,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Natural groups, such as writer: one client a group.", rich_help_panel=_SHORT
        ),
    ] = None,
    equal: Annotated[
        bool,
        typer.Option(
            "--equal", help="Equal shards of the official training and of the test images.", rich_help_panel=_SHORT
        ),
    ] = False,
    counts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv",
            help="Class weights of each client's training and test set: client,split,class,value.",
            rich_help_panel=_SHORT,
        ),
    ] = None,
    subsample: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Each client keeps this share of its training images.", rich_help_panel=_MORE
        ),
    ] = None,
    validation: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Share of a client's training images held back from training.", rich_help_panel=_MORE
        ),
    ] = None,
    duplicates: Annotated[
        int | None, typer.Option(metavar="N", help="Every training image is there N times.", rich_help_panel=_MORE)
    ] = None,
    unseen: Annotated[
        int | None,
        typer.Option(metavar="N", help="So many of the clients, the last ones, never train.", rich_help_panel=_MORE),
    ] = None,
    unseen_as: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Corruptions that unseen clients come again under: fog-3,contrast-3 or all-3.",
            rich_help_panel=_MORE,
        ),
    ] = None,
    phases: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Training data drift through N phases (with --equal; FLUX has 3).", rich_help_panel=_MORE
        ),
    ] = None,
) -> None:
    """Deal a dataset out to clients: who holds which image, in which split, seen through which covariate shift.

    The partition becomes the current one: 'fedbench train' uses it unless told otherwise.
    """
    values = {name: ctx.params[name] for name in _short_forms(ctx.command)}
    short = {name: value for name, value in values.items() if value is not None and value is not False}
    ways = [*short, *(name for name, value in (("preset", preset), ("scheme", scheme)) if value is not None)]
    if len(ways) > 1 and not (len(ways) == 2 and scheme and _own_short(scheme, short)):
        raise FedbenchError(f"{' and '.join(f'--{way}' for way in ways)} exclude each other", "choose one")

    from fedbench import data, partitions
    from fedbench import protocol as protocols

    store, roots = context.store(), context.roots()
    rules = protocols.load(protocol)
    if not ways and rules.default_preset is None and "scheme" not in rules.partition:
        short = {"dir": _ALPHA}
        shorts = "--dir, --spc, --iid, --by or --equal"
        context.err().print(f"No partitioner given: taking --dir {_ALPHA} (or choose {shorts}).")
    usual = rules.presets.get(preset or rules.default_preset or "", rules.partition)
    own = _partitioner(ctx.args, scheme, short, usual)
    source = data.resolve(dataset, store, roots)
    about = data.info(source, store)
    if counts is not None:
        own |= partitions.read_mixture(counts, len(about.classes))
        clients = len(own["train_mix"]) if clients is None else clients
    spec = rules.partition_spec(
        source,
        about.partition_classes,
        preset,
        **own,
        clients=clients,
        train_fraction=split,
        shift=shift,
        seed=seed,
        subsample=subsample,
        validation=validation,
        duplicates=duplicates,
        unseen=unseen,
        unseen_as=None if unseen_as is None else _corruptions(unseen_as),
        phases=phases,
    )
    before = store.get(spec)
    result = partitions.build(spec, store, roots, context.err().print)
    store.set_current(partition=result.id, protocol=protocol)
    path = store.path("partition", result.id)
    if as_json:
        context.print_json({**_describe(result), "path": str(path), "protocol": protocol, "made": before is None})
        return

    from fedbench.partitions.view import display

    out = context.out()
    display(out, result)
    out.print(Text.assemble("\n", (f"partition {result.id}", "bold"), f"  {_typed(path)}{_remark(before)}"))
    out.print("It is the current partition: 'fedbench train --method NAME' uses it.")


def _partitioner(
    words: Sequence[str], scheme: str | None, shorts: Mapping[str, Any], usual: Mapping[str, Any]
) -> dict[str, Any]:
    """The partitioner and its own options: by name or by a short form, and by the words that the command does not know.
    With neither it is the `usual` one, which goes unsaid. Raises FedbenchError for a short form's value out of bounds.
    """
    from fedbench.options import check_bounds
    from fedbench.partitions import schemes

    if shorts:
        ((short, value),) = shorts.items()
        kind = schemes.load(schemes.named(scheme)) if scheme else _of_short(short, words)
        option = kind.short[short]
        if isinstance(value, int | float) and option:
            check_bounds(kind.title(), short, kind.options()[option], value)
        return {"scheme": scheme or kind.name, **({option: value} if option else {}), **own_options(words, kind)}
    kind = schemes.load(schemes.named(scheme or usual.get("scheme", "dirichlet")))
    return {**({"scheme": scheme} if scheme else {}), **own_options(words, kind)}


def _own_short(scheme: str, shorts: Iterable[str]) -> bool:
    """Whether the short forms are the named partitioner's own, and so no second one."""
    from fedbench.partitions import schemes

    return set(shorts) <= set(schemes.load(schemes.named(scheme)).short)


def _of_short(short: str, words: Sequence[str]) -> type[Scheme]:
    """The partitioner that a short form stands for: of several the first that has all options among the words."""
    from fedbench.partitions import schemes

    fitting = [kind for kind in map(schemes.load, schemes.names()) if short in kind.short]
    options = {_option(word) for word in words if word.startswith("--")}
    return next((kind for kind in fitting if options <= set(kind.options())), fitting[0])


def _option(word: str) -> str:
    """The option that a word such as --test-size=5 gives: test_size."""
    return word.removeprefix("--").partition("=")[0].replace("-", "_")


def own_options(words: Sequence[str], kind: type[Scheme]) -> dict[str, Any]:
    """The options of a partitioner among the words, as their values."""
    from fedbench.options import parse
    from fedbench.partitions import schemes

    fields = {option: field for option, field in kind.options().items() if kind.kind(option) is not None}
    for word in words:
        option = _option(word)
        if word.startswith("--") and option not in kind.options() and option in schemes.all_options():
            raise schemes.not_of(kind, option)
    texts = hyperparameters.read(words, fields, f"partition by {kind.title()}", partition)
    return {option: parse(kind.title(), option, kind.kind(option), text) for option, text in texts.items()}


def _remark(artifact: Artifact | None) -> str:
    if artifact is None:
        return ""
    from fedbench.store.provenance import is_stale

    stale = is_stale(artifact.provenance)
    remark = ", but stale (the code that drew it has changed): 'train --again' draws it anew" if stale else ""
    return f"  (was there already{remark})"


def _corruptions(text: str) -> list[str]:
    """A list such as 'fog-3,contrast-3'; 'all-3' stands for every corruption at severity 3."""
    from fedbench.partitions.transforms import CORRUPTIONS

    names: list[str] = []
    for one in text.split(","):
        name, _, severity = one.strip().rpartition("-")
        names += [f"{c}-{severity}" for c in CORRUPTIONS] if name == "all" else [one.strip()]
    return names


def _describe(p: Partition) -> dict[str, Any]:
    counts, train, test = (p.class_counts(side).tolist() for side in (None, False, True))
    described = [one.described(p.classes) for one in p.distributions]

    def details(c: int) -> dict[str, Any]:
        """What a client has only where validation images are held back, and where distributions were drawn."""
        own: dict[str, Any] = {} if p.validation is None else {"n_validation": int(p.n_validation[c])}
        if described:
            phases = [phase[c] for phase in p.phase_groups]
            own |= {"phase_groups": phases, "test_group": p.test_groups[c], "distribution": described[p.groups[c]]}
        return own

    return {
        "id": p.id,
        "spec": p.spec.to_dict(),
        "classes": list(p.classes),
        "clients": [
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
        ],
        **({"distributions": described} if described else {}),
    }


def _typed(path: Path) -> str:
    """The path as the user would type it: from here, from home, or whole."""
    path = path.absolute()
    for base, prefix in ((Path.cwd(), ""), (Path.home(), "~/")):
        if path.is_relative_to(base):
            return prefix + path.relative_to(base).as_posix()
    return str(path)
