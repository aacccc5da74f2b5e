"""The options of `fedbench partition`: from a data set's name and a user's options to a partition's spec.

`partition`, `train DATASET`, `sweep DATASET` and the Python functions accept the same options: common options of all
partitions (`COMMON`), short forms that select a partitioner (dir, spc, iid, by, equal, counts), and options of the
partitioner. A value is a text, or already converted; a flag is True.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError, check_known
from fedbench.options import check, check_bounds, option, parse
from fedbench.specs import DatasetSpec, PartitionSpec, require
from fedbench.specs.base import native
from fedbench.specs.fields import kind_of, typed
from fedbench.words import counted, path_of

if TYPE_CHECKING:
    from fedbench.partitions import Scheme
    from fedbench.protocol import Protocol
    from fedbench.store import Store

#: Dirichlet parameter if neither the user nor the protocol chooses a partitioner.
ALPHA = 0.3


_short = partial(option, None, panel="Short forms of a partitioner")


@dataclass(frozen=True)
class PartitionerChoice:
    """The options that choose a partitioner: its name, a protocol's preset, or a short form, which also sets one of the
    partitioner's options (`Scheme.short`)."""

    scheme: str | None = option(
        None, "The partitioner, or FILE.py:Class; --scheme NAME --help has its options.", metavar="NAME"
    )
    preset: str | None = option(None, "A partition that the protocol names, such as five (ftw_erm).", metavar="NAME")
    dir: float | None = _short(
        f"Dirichlet label shift (default: {ALPHA}); a smaller value is more uneven.", metavar="ALPHA"
    )
    spc: int | None = _short("Shards per client: at most about S classes each.", metavar="S")
    iid: bool | None = _short("No label shift: samples are assigned at random.")
    by: str | None = _short("Natural groups, such as writer: one client per group.", metavar="COLUMN")
    equal: bool | None = _short("Equal shards of the official training and test images.")
    counts: str | None = _short(
        "A file with each client's class weights: client,split,class,value.", metavar="FILE.csv"
    )
    from_: str | None = _short(
        "A CSV or Parquet file of client,sample,split; or a folder of PFLlib or LEAF, without DATASET.",
        metavar="PATH",
        typed="from",
    )


#: Option that all partitions have -> type of its value. `unseen` also takes names of groups, see `_numbered`.
COMMON: Mapping[str, type] = {
    name: str if (kind := kind_of(cls, field)) is tuple else kind
    for cls in (PartitionerChoice, PartitionSpec)
    for name, field in typed(cls).items()
    if field.name in ("scheme", "preset") or cls is PartitionSpec
}


@cache
def shorts() -> Mapping[str, tuple[type[Scheme], ...]]:
    """Short form -> the partitioners that it can select."""
    from fedbench.partitions import schemes

    kinds = [schemes.load(name) for name in schemes.names()]
    return {short: tuple(scheme for scheme in kinds if short in scheme.short) for kind in kinds for short in kind.short}


def names() -> set[str]:
    """The names of all options, except those of users' partitioners."""
    from fedbench.partitions import schemes

    return {*COMMON, *shorts(), *schemes.all_options()}


def partitioner(options: Mapping[str, Any], rules: Protocol) -> type[Scheme]:
    """The partitioner that the options choose by name or short form, by default the protocol's.

    If a short form can select several partitioners: the first that has all the other options. Raises FedbenchError for
    an unknown partitioner, or if the options choose more than one.
    """
    from fedbench.partitions import schemes

    options = _given_options(options)
    short = [name for name in options if name in shorts()]
    scheme = options.get("scheme")
    named = schemes.load(schemes.named(scheme)) if scheme else None
    ways = [*short, *(name for name in ("preset", "scheme") if name in options)]
    if len(ways) > 1 and not (len(ways) == 2 and named and set(short) <= set(named.short)):
        raise FedbenchError(f"{' and '.join(f'--{way}' for way in ways)} exclude each other", "choose one")
    if named:
        return named
    if short or _unchosen(options, rules):
        others = {name for name in options if name not in COMMON and name not in shorts()}
        fitting = shorts()[short[0] if short else "dir"]
        return next((kind for kind in fitting if others <= set(kind.options())), fitting[0])
    usual = rules.presets.get(options.get("preset") or rules.default_preset or "", rules.partition)
    return schemes.load(schemes.named(usual.get("scheme", "dirichlet")))


def spec_of(
    dataset: str | DatasetSpec | None,
    options: Mapping[str, Any],
    rules: Protocol,
    store: Store,
    roots: Sequence[Path] = (),
    remark: Callable[[str], None] = lambda line: None,
) -> PartitionSpec:
    """The spec of a partition of `dataset` (a name, the path of a recipe, or one in the store) with these options;
    defaults are from `rules`. `remark` is called with a line about each default that the user should know. If the
    option `from` is a folder, it contains data set and partition, and `dataset` is None.

    Raises FedbenchError for an unknown option, an invalid value, and options that do not fit the data.
    """
    from fedbench import data, partitions
    from fedbench.partitions import schemes
    from fedbench.partitions.names import column_of

    options = _given_options(options)
    if (folder := _folder(options)) is not None:
        require(dataset is None, f"{options['from']} is a data set with its clients", f"leave {dataset} out")
        others = sorted({"scheme", "preset", *shorts()} & (set(options) - {"from"}))
        require(
            not others,
            f"--from {options['from']} is a partition already, so it takes no --{', --'.join(others)}",
            f"partition its images again: fedbench partition {options['from']} with it",
        )
        dataset, options = folder, {**_of_folder(folder, options, store, roots, remark), **options, "from": None}
        options = _given_options(options)
    if dataset is None:
        if "from" in options and not path_of(str(options["from"]), "--from").exists():
            raise FedbenchError(
                f"there is no file or folder {options['from']}",
                "--from takes a folder of PFLlib or LEAF, or with a data set a file of rows",
            )
        raise FedbenchError("a partition of which data set?", "name one, such as mnist ('fedbench data list')")
    kind = partitioner(options, rules)
    if _unchosen(options, rules):
        if "alpha" not in options:
            remark(f"No partitioner given: taking --dir {ALPHA} (or choose --dir, --spc, --iid, --by or --equal).")
        options["dir"] = options.pop("alpha", ALPHA)
    specific = _specific(options, kind)
    common = {name: value for name, value in options.items() if name in COMMON}
    source = dataset if isinstance(dataset, DatasetSpec) else data.resolve(dataset, store, roots)
    about = data.info(source, store)
    counting = kind.title() == "presplit" and "clients" not in common and "by" in specific
    if counting or not about.shape:  # the files must be read for that
        data.obtain(source, store, roots, remark)
        about = data.info(source, store)
    if counting:
        common["clients"] = len(data.groups(source, store, specific["by"]).keys() - {""})
    if "counts" in options:
        specific |= partitions.read_mixture(_path("counts", options), len(about.classes))
        common.setdefault("clients", len(specific["train_mix"]))
    if "split" in common:
        common["train_fraction"] = common.pop("split")
    if "unseen_as" in common:
        common["unseen_as"] = _corruptions(str(common["unseen_as"]))

    def groups(column: str) -> int:
        data.obtain(source, store, roots, remark)
        return len(_groups(data.groups(source, store, column)))

    preset: Any = common.pop("preset", None)
    unseen = _numbered(common)
    spec = rules.partition_spec(source, about.partition_classes, preset, groups, **{**specific, **common})
    if by := column_of(spec):
        data.obtain(source, store, roots, remark)
        there = data.groups(source, store, by)
        if unseen:
            spec = _without(spec, unseen, there, "clients" in common)
        if none := there.get(""):
            remark(f"{counted(none, source.samples.removesuffix('s'))} of no {by} left out")
    elif unseen:
        raise FedbenchError(
            f"--unseen {','.join(unseen)} names groups, and {schemes.label(spec)} has none",
            "give the number of unseen clients, such as --unseen 2, or partition by a column of groups: --by COLUMN",
        )
    return spec


def groups_of(
    dataset: str, options: Mapping[str, Any], rules: Protocol, store: Store, roots: Sequence[Path] = ()
) -> list[str]:
    """The names of the groups that are the clients of a partition by these options, to leave out each in turn.

    Raises FedbenchError as `spec_of` does, and if the clients are no groups.
    """
    from fedbench import data
    from fedbench.partitions import schemes
    from fedbench.partitions.names import column_of

    spec = spec_of(dataset, {**options, "unseen": None}, rules, store, roots)
    by = column_of(spec)
    if not by:
        raise FedbenchError(
            f"--unseen each leaves out one group after the other, and {schemes.label(spec)} has none",
            "partition by a column of groups: --by COLUMN",
        )
    order = spec.options.get("order")
    there = _groups(data.groups(spec.dataset, store, by))
    return data.group_names(spec.dataset, by, [group for group in there if not order or str(group) in order])


def _groups(counts: Mapping[str | int, int]) -> list[str | int]:
    """The groups that can be clients: with at least one training and one test image."""
    return [group for group, images in counts.items() if group != "" and images >= 2]


def _numbered(common: dict[str, Any]) -> list[str]:
    """Make the option `unseen` a number, or remove it and return the names of groups that it gives instead."""
    given = common.get("unseen")
    if given is None:
        return []
    if not isinstance(given, str | list | tuple) or re.fullmatch(r"\s*[-+]?[0-9.]+\s*", str(given)):
        common["unseen"] = parse("partition", "unseen", int, given, most=math.inf)
        return []
    del common["unseen"]
    names = [str(name).strip() for name in (given.split(",") if isinstance(given, str) else given)]
    if "" in names or len(set(names)) < len(names):
        raise FedbenchError(
            f"--unseen {','.join(names)} has a name twice or an empty one", "such as --unseen Graz,Zürich"
        )
    return names


def _without(
    spec: PartitionSpec, unseen: Sequence[str], counts: Mapping[str | int, int], chosen: bool
) -> PartitionSpec:
    """The partition with the groups of these names (as its clients are called) last: they never train.

    `counts`: `data.groups`; `chosen`: whether the user gives a number of clients.
    """
    from fedbench.data import group_names
    from fedbench.partitions import schemes
    from fedbench.partitions.names import column_of

    said = f"--unseen {','.join(unseen)} names groups"
    if "order" not in schemes.load(spec.scheme).options() or spec.options.get("round_robin"):
        raise FedbenchError(
            f"{said}, and in {schemes.label(spec)} a client is not just one", "give a number, such as --unseen 2"
        )
    require(not chosen, f"{said}, and --clients draws some of them by chance", "leave one of the two out")
    order = spec.options.get("order")
    groups = [group for group in counts if str(group) in order] if order else _groups(counts)
    names = dict(zip(group_names(spec.dataset, column_of(spec), groups), map(str, groups), strict=True))
    for name in unseen:
        check_known(f"{column_of(spec)} in --unseen", name, names)
    last = [names[name] for name in unseen]
    order = [*(group for group in order or names.values() if group not in last), *last]
    values = {**schemes.facts(spec), "order": order, "clients": len(order), "unseen": len(last)}
    return schemes.spec(**{name: value for name, value in values.items() if name != "version"})


def _of_folder(
    folder: str, options: Mapping[str, Any], store: Store, roots: Sequence[Path], remark: Callable[[str], None]
) -> dict[str, Any]:
    """The options of the partition that a folder of PFLlib or LEAF is: its clients with their own split, or if none is
    on both sides (LEAF's split by user) those of its test side as unseen clients."""
    from fedbench import data

    source = data.resolve(folder, store, roots)
    data.obtain(source, store, roots, remark)
    unseen = data.groups_of_test(source, store, "client")
    if not unseen:
        return {"scheme": "presplit", "by": "client"}
    remark(
        f"No client of {source.name} is in both train and test: the {len(unseen)} of test are unseen clients, and each "
        "client's images are split at random (--split)."
    )
    require(
        "clients" not in options,
        f"--clients draws some clients, and those of test in {folder} are unseen",
        "leave it out",
    )
    # Who has a single image cannot be a client.
    sizes = data.groups(source, store, "client")
    able = [group for group in unseen if sizes[group] >= 2]
    return {"scheme": "natural", "by": "client", "unseen": data.group_names(source, "client", able)}


def _folder(options: Mapping[str, Any]) -> str | None:
    """The path in the option `from` if it is a folder, else None."""
    path = _path("from", options) if "from" in options else None
    return str(path.resolve()) if path is not None and path.is_dir() else None


def _path(name: str, options: Mapping[str, Any]) -> Path:
    return path_of(str(parse("partition", name, str, options[name])), f"--{name}")


def values(options: Mapping[str, Any], kind: type[Scheme]) -> dict[str, Any]:
    """Convert the values of a partitioner's options. Raises FedbenchError for an unknown option or invalid value."""
    from fedbench.partitions import schemes

    for name in options:
        if name not in kind.options():
            raise schemes.not_of(kind, name)
    return {name: _value(kind, name, value) for name, value in options.items()}


def _value(kind: type[Scheme], name: str, value: Any) -> Any:
    # `of` is None for a list (such as the order of natural groups) from Python or TOML, which the spec checks.
    of = kind.kind(name)
    return value if of is None else parse(kind.title(), name, of, value)


def _specific(options: Mapping[str, Any], kind: type[Scheme]) -> dict[str, Any]:
    """The partitioner's options, including that of a short form; "scheme" is added unless it is the default."""
    found = values({k: v for k, v in options.items() if k not in COMMON and k not in shorts()}, kind)
    short = next((name for name in options if name in shorts()), None)
    if "scheme" not in options and short is None:
        return found  # the default partitioner
    if short and (option := kind.short[short]):
        require(option not in found, f"--{short} and --{option.replace('_', '-')} say the same", "leave one out")
        found[option] = parse(kind.title(), short, kind.kind(option), options[short])
        check_bounds(kind.title(), short, kind.options()[option], found[option])
    elif short and short != "counts":  # a flag
        flag = parse(kind.title(), short, bool, options[short])
        check(flag is True, kind.title(), short, flag, "true, or left out")
    return {"scheme": options.get("scheme", kind.name), **found}


def _given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Name -> value of the options that are not None or False. Names get underscores for dashes, without a trailing
    one (`from_`). Converts the `COMMON` options; the spec checks their bounds."""
    converted = {
        name.replace("-", "_").rstrip("_"): value
        for name, given in options.items()
        if (value := native(given)) is not None and value is not False
    }
    common = {name: value for name, value in converted.items() if name in COMMON and name != "unseen"}
    return converted | {k: parse("partition", k, COMMON[k], value, most=math.inf) for k, value in common.items()}


def _unchosen(options: Mapping[str, Any], rules: Protocol) -> bool:
    """Whether neither the options nor the protocol choose a partitioner."""
    chosen = {"scheme", "preset", *shorts()} & set(options)
    return not chosen and rules.default_preset is None and "scheme" not in rules.partition


def _corruptions(text: str) -> list[str]:
    """Parse a list such as 'fog-3,contrast-3'; 'all-3' means every corruption at severity 3."""
    from fedbench.partitions.transforms.corruption import CORRUPTIONS

    listed: list[str] = []
    for item in text.split(","):
        name, _, severity = item.strip().rpartition("-")
        listed += [f"{c}-{severity}" for c in CORRUPTIONS] if name == "all" else [item.strip()]
    return listed
