"""`fedbench partition`: deal a dataset out to clients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from fedbench.cli import context
from fedbench.cli.strict import Command
from fedbench.errors import FedbenchError
from fedbench.protocol import DEFAULT

if TYPE_CHECKING:
    from fedbench.partition import Partition
    from fedbench.store import Artifact

_ALPHA = 0.3


class PartitionCommand(Command):
    """Where it fails, by whatever fault, there is no current partition any more: the `train` behind it in a script must
    not take the one before."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _current_only_if_made():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _current_only_if_made():
            return super().invoke(ctx)


@contextlib.contextmanager
def _current_only_if_made() -> Iterator[None]:
    try:
        yield
    except typer.Exit:
        raise
    except BaseException:
        with contextlib.suppress(FedbenchError, OSError):
            context.store().forget_current("partition", "protocol")
        raise


def partition(
    dataset: Annotated[str, typer.Argument(help="The dataset, such as cifar10 ('fedbench data list').")],
    dir: Annotated[
        float | None,
        typer.Option("--dir", metavar="ALPHA", help=f"Dirichlet label shift (default: {_ALPHA}); small is uneven."),
    ] = None,
    spc: Annotated[
        int | None, typer.Option("--spc", metavar="S", help="Shards per client: at most about S classes each.")
    ] = None,
    iid: Annotated[bool, typer.Option("--iid", help="No label shift: any sample to any client.")] = False,
    by: Annotated[
        str | None, typer.Option("--by", metavar="COLUMN", help="Natural groups, such as writer: one client a group.")
    ] = None,
    equal: Annotated[
        bool, typer.Option("--equal", help="Equal shards of the official training and of the test images.")
    ] = False,
    layout: Annotated[
        str | None, typer.Option(metavar="NAME", help="One of the protocol's own partitions, such as ftw_erm's five.")
    ] = None,
    counts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv", help="Class weights of each client's training and test set: client,split,class,value."
        ),
    ] = None,
    clients: Annotated[int | None, typer.Option(help="How many clients (default: the protocol's).")] = None,
    shift: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Covariate shift: none, low, mid, high, pool or corrupted; with --equal px, py, pyx, pxy, or mixed "
            "px+py, pxy+py, pyx+py.",
        ),
    ] = None,
    level: Annotated[
        int | None, typer.Option(metavar="1-8", help="Of px, py, pyx, pxy and their mixtures; in stages 1 to 3.")
    ] = None,
    split: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Each client's share of training images.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of all draws of the partition.")] = None,
    min_size: Annotated[
        int | None, typer.Option(help="Draw again until every client holds as many samples (with --dir).")
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(metavar="N", help="Each client draws N samples by a label prior of its own (with --dir)."),
    ] = None,
    within: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Deal each group, such as a domain, out apart (with --dir).")
    ] = None,
    cap: Annotated[int | None, typer.Option(metavar="N", help="Samples of a group at most (with --within).")] = None,
    subsample: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Each client keeps this share of its training images.")
    ] = None,
    newcomers: Annotated[
        int | None, typer.Option(metavar="N", help="So many of the clients, the last ones, never train.")
    ] = None,
    newcomers_as: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Corruptions that newcomers come again under: fog-3,contrast-3 or all-3."),
    ] = None,
    validation: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of a client's training images held back from training.")
    ] = None,
    duplicates: Annotated[
        int | None, typer.Option(metavar="N", help="Every training image is there N times (with --equal).")
    ] = None,
    data_share: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Clients hold shares of all training images drawn around this (with --equal)."
        ),
    ] = None,
    stages: Annotated[
        int | None, typer.Option(metavar="N", help="Training data drift through N stages (with --equal; FLUX has 3).")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Under pxy all classes that a client sees turned share one angle.")
    ] = False,
    fewer_classes: Annotated[
        bool, typer.Option("--fewer-classes", help="Mixed shifts keep 11 - level classes instead of 4.")
    ] = False,
    round_robin: Annotated[
        bool, typer.Option("--round-robin", help="Deal natural groups to the clients in turn (with --by).")
    ] = False,
    protocol: Annotated[str, typer.Option(help="The paper whose setting gives the defaults.")] = DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Deal a dataset out to clients: who holds which image, in which split, seen through which covariate shift.

    The partition becomes the current one: 'fedbench train' uses it unless told otherwise.
    """
    chosen = _scheme(dir, spc, iid, by, equal, layout, counts)
    if size is not None:
        if dir is None:
            raise FedbenchError("--size goes with --dir ALPHA only", "leave it out")
        chosen |= {"scheme": "limited", "size": size}

    from fedbench import data
    from fedbench import partition as partitions
    from fedbench import protocol as protocols

    store, roots = context.store(), context.roots()
    rules = protocols.load(protocol)
    if not chosen and rules.default_layout is None and "scheme" not in rules.partition:
        chosen = {"scheme": "dirichlet", "alpha": _ALPHA}
        context.err().print(f"No scheme given: taking --dir {_ALPHA} (or choose --dir, --spc, --iid, --by or --equal).")
    source = data.resolve(dataset, store, roots)
    about = data.info(source, store)
    if counts is not None:
        chosen = partitions.read_mixture(counts, len(about.classes))
        clients = len(chosen["train_mix"]) if clients is None else clients
    spec = rules.partition_spec(
        source,
        about.partition_classes,
        **chosen,
        clients=clients,
        shift=shift,
        train_fraction=split,
        seed=seed,
        min_size=min_size,
        within=within,
        cap=cap,
        subsample=subsample,
        newcomers=newcomers,
        newcomers_as=None if newcomers_as is None else _corruptions(newcomers_as),
        level=level,
        validation=validation,
        duplicates=duplicates,
        data_share=data_share,
        stages=stages,
        strict=strict or None,
        fewer_classes=fewer_classes or None,
        round_robin=round_robin or None,
    )
    if min_size is not None and spec.scheme != "dirichlet":
        raise FedbenchError("--min-size goes with --dir only" + (", without --size" if size else ""), "leave it out")
    known = store.get(spec)
    made = partitions.build(spec, store, roots, context.err().print)
    store.set_current(partition=made.id, protocol=protocol)
    path = store.path("partition", made.id)
    if as_json:
        context.print_json({**_describe(made), "path": str(path), "protocol": protocol, "made": known is None})
        return

    from fedbench.partition.view import display

    out = context.out()
    display(out, made)
    out.print(Text.assemble("\n", (f"partition {made.id}", "bold"), f"  {_shown(path)}{_known(known)}"))
    out.print("It is the current partition: 'fedbench train --method NAME' uses it.")


def _known(artifact: Artifact | None) -> str:
    if artifact is None:
        return ""
    from fedbench.store.provenance import is_stale

    older = ", drawn by older code: 'train --again' draws it anew" if is_stale(artifact.provenance) else ""
    return f"  (was there already{older})"


def _scheme(
    dir: float | None,
    spc: int | None,
    iid: bool,
    by: str | None,
    equal: bool,
    layout: str | None,
    counts: Path | None,
) -> dict[str, Any]:
    """What the exclusive options stand for; nothing if none of them is given (the file of --counts is read later)."""
    given = {
        "--dir": dir is not None, "--spc": spc is not None, "--iid": iid, "--by": by is not None,
        "--equal": equal, "--layout": layout is not None, "--counts": counts is not None,
    }  # fmt: skip
    chosen = [name for name, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise FedbenchError(f"{' and '.join(chosen)} exclude each other", "choose one")
    if dir is not None:
        return {"scheme": "dirichlet", "alpha": dir}
    if spc is not None:
        return {"scheme": "shards", "shards": spc}
    if iid:
        return {"scheme": "iid"}
    if by is not None:
        return {"scheme": "natural", "by": by}
    if equal:
        return {"scheme": "equal"}
    if counts is not None:
        return {"scheme": "mixture"}
    return {"layout": layout} if layout is not None else {}


def _corruptions(text: str) -> list[str]:
    """A list such as 'fog-3,contrast-3'; 'all-3' stands for every corruption at severity 3."""
    from fedbench.specs import CORRUPTIONS

    found: list[str] = []
    for one in text.split(","):
        name, _, severity = one.strip().rpartition("-")
        found += [f"{c}-{severity}" for c in CORRUPTIONS] if name == "all" else [one.strip()]
    return found


def _describe(p: Partition) -> dict[str, Any]:
    import dataclasses

    counts, train, test = (p.class_counts(side).tolist() for side in (None, False, True))
    described = [one.described(p.classes) for one in p.distributions]

    def drawn(c: int) -> dict[str, Any]:
        """What a client has only where validation images are held back, and where distributions were drawn."""
        own: dict[str, Any] = {} if p.validation is None else {"n_validation": int(p.n_validation[c])}
        if described:
            stages = [stage[c] for stage in p.stage_groups]
            own |= {"stage_groups": stages, "test_group": p.test_groups[c], "distribution": described[p.groups[c]]}
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
                "shift": dataclasses.asdict(p.shifts[c]),
                "group": p.groups[c],
                "newcomer": bool(p.newcomer[c]),
                **drawn(c),
            }
            for c in range(p.clients)
        ],
        **({"distributions": described} if described else {}),
    }


def _shown(path: Path) -> str:
    """The path as the user would type it: from here, from home, or whole."""
    path = path.absolute()
    for base, prefix in ((Path.cwd(), ""), (Path.home(), "~/")):
        if path.is_relative_to(base):
            return prefix + path.relative_to(base).as_posix()
    return str(path)
