"""The runs of a store and of result packs: which ones a filter names, in what they differ, and which are seeds of one
another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fedbench.errors import FedbenchError, unknown
from fedbench.groups import by_key
from fedbench.partitions import schemes
from fedbench.results.frame import Frame, Run
from fedbench.results.pack import name_of
from fedbench.results.packs import Shipped
from fedbench.words import plain

#: What two seeds of one run differ in.
SEEDS = ("seed", "partition_seed", "init_seed")
#: What names an artifact and so differs wherever anything does.
IDS = ("id", "partition")
#: Keys whose values a label gives without their names.
UNNAMED = ("row", "method", "title", "dataset", "split", "model")
#: Filters by what has a run: the tables of a name, of a paper or under a protocol that read it, or a result pack.
OF_TABLES = ("table", "paper", "protocol", "pack")


def select(frame: Frame, filters: Sequence[str] = (), roots: Sequence[Path] = ()) -> list[Run]:
    """The store's complete runs that every filter names, oldest first; all without a filter. Damaged ones are left out.

    A filter is a run's id or the beginning of it (several ids: each of these runs), or KEY=VALUE, KEY=VALUE,VALUE or
    KEY!=VALUE, where a * in a value stands for any text and `none` for no value. Keys are those of `Run.values`,
    `OF_TABLES` and `shipped` (yes or no). An id and the latter two also name runs of packs, which come after the
    store's; one that the store has is taken from there. `roots` are the data folders, by which tables know their runs.

    Raises FedbenchError for an unknown key, for an id that names no run or several, and if no run is left.
    """
    ids = [word for word in filters if "=" not in word]
    conditions = [_Condition.of(word) for word in filters if "=" in word]
    of_tables = [(one, _read_by(one, frame, roots)) for one in conditions if one.key in OF_TABLES]
    rows = {id: row for one, read in of_tables if not one.negated for id, row in read.items() if row}
    if ids:
        runs = [_of_id(frame, id) for id in dict.fromkeys(ids)]
    else:
        runs = list(frame.complete)
        own, packed = {run.id for run in runs}, list[Shipped | None]()
        if any(not one.negated for one, _ in of_tables):
            packed = [frame.packs.get(id) for one, read in of_tables if not one.negated for id in read]
        elif any(one.key == "shipped" for one in conditions):
            packed = [*frame.packs.runs()]
        runs += map(frame.of_pack, {run.id: run for run in packed if run and run.id not in own}.values())
    if not runs:
        named = "; shipped=yes or table=feddrm/1 names shipped ones" if frame.packs.places else ""
        raise FedbenchError(f"there is no run in {frame.store.home} yet", f"'fedbench train' makes one{named}")
    runs = [run for run in runs if all((run.id in read) is not one.negated for one, read in of_tables)]
    if not runs:
        raise FedbenchError(f"no table has such a run: {' '.join(one.word for one, _ in of_tables)}")
    labelled = [replace(run, row=rows[run.id]) if run.id in rows else run for run in runs]
    return _which(labelled, [one for one in conditions if one.key not in OF_TABLES])


def _of_id(frame: Frame, prefix: str) -> Run:
    """The run of an id or the beginning of it."""
    if "/" in prefix:
        raise FedbenchError(
            f"'{prefix}' is no run and no filter",
            f"of a table: fedbench report --table {prefix}, fedbench figure {prefix}",
        )
    return frame.named(prefix)


def _read_by(condition: _Condition, frame: Frame, roots: Sequence[Path]) -> Mapping[str, str]:
    """Id of each run that the tables which a filter names read -> what they call it; "" of those that a pack has."""
    from fedbench import protocol
    from fedbench.planner import table as tables
    from fedbench.planner.cells import of_tables

    if condition.key == "pack":
        packs = {name_of(pack.path): pack for pack in frame.packs.whole}
        chosen = [pack for name, pack in packs.items() if any(_matches(name, value) for value in condition.values)]
        if not chosen:
            raise unknown("result pack", ",".join(condition.values), packs)
        return {id: "" for pack in chosen for id in pack.places}
    if condition.key != "protocol":
        return of_tables(condition.values, frame, roots)
    under = {protocol.load(value).name for value in condition.values}
    return of_tables([name for name in tables.names() if tables.load(name).protocol in under], frame, roots)


def shipped(frame: Frame, filters: Sequence[str] = ()) -> list[Run]:
    """The runs of packs that every filter names, oldest first, whether the store has them or not; all without a
    filter. Raises FedbenchError as `select` does."""
    ids = [word for word in filters if "=" not in word]
    hits = [(id, frame.packs.find(id)) for id in ids]
    if missing := [id for id, run in hits if run is None]:
        raise FedbenchError(f"no shipped run '{missing[0]}'", "'fedbench results list' shows the packs")
    runs = [run for _, run in hits if run is not None] if ids else frame.packs.runs()
    conditions = [_Condition.of(word) for word in filters if "=" in word]
    for one in (one for one in conditions if one.key == "pack"):
        there = _read_by(one, frame, ())
        runs = [run for run in runs if (run.id in there) is not one.negated]
    return _which(list(map(frame.of_pack, runs)), [one for one in conditions if one.key != "pack"])


def _which(runs: Sequence[Run], conditions: Sequence[_Condition]) -> list[Run]:
    """Those of the runs that all conditions hold of. Raises FedbenchError if none is."""
    if not conditions:
        return list(runs)
    keys = {"shipped", *(key for run in runs for key in run.values)}
    for condition in conditions:
        if condition.key not in keys:
            raise unknown_key("key of runs", condition.key, {*keys, *OF_TABLES})
    hits = [run for run in runs if all(condition.holds(run) for condition in conditions)]
    if not hits:
        values = {c.key: sorted({text(c.of_run(run)) for run in runs}) for c in conditions}
        there = "; ".join(f"{key}: {', '.join(few[:8])}" for key, few in values.items())
        raise FedbenchError(f"no run is {' and '.join(c.word for c in conditions)}", f"there are {there}")
    return hits


def unknown_key(kind: str, key: str, known: Iterable[str]) -> FedbenchError:
    """The error for a key that no run has: it offers the nearest, else the usual ones of the many that there are."""
    error = unknown(kind, key, known, "...")
    if error.hint.startswith("did you mean"):
        return error
    return FedbenchError(error.message, "such as method, dataset, split, model, lr, seed, table, paper, shipped")


@dataclass(frozen=True)
class _Condition:
    """One filter KEY=VALUE,VALUE or KEY!=VALUE,VALUE."""

    word: str
    key: str
    values: tuple[str, ...]
    negated: bool

    @classmethod
    def of(cls, word: str) -> _Condition:
        key, _, values = word.partition("=")
        negated = key.endswith("!")
        key = key.removesuffix("!").strip().lstrip("-").replace("-", "_")
        return cls(word, key, tuple(value.strip() for value in values.split(",")), negated)

    def of_run(self, run: Run) -> Any:
        """The run's value of the key."""
        return run.shipped is not None if self.key == "shipped" else run.values.get(self.key)

    def holds(self, run: Run) -> bool:
        value = self.of_run(run)
        return self.negated is not any(_matches(value, pattern) for pattern in self.values)


def _matches(value: Any, pattern: str) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(pattern) == value
        except ValueError:
            pass
    if isinstance(value, bool):
        pattern = {"yes": "true", "no": "false"}.get(pattern.lower(), pattern)
    pattern = pattern.replace("[", "[[]").replace("?", "[?]")
    return fnmatchcase(text(value).lower(), pattern.lower())


def text(value: Any) -> str:
    """A value in print, as a filter writes it."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, tuple | list):
        return "+".join(text(one) for one in value)
    return plain(str(value).lower() if value is None or isinstance(value, bool) else str(value))


def differing(runs: Sequence[Run]) -> list[str]:
    """The keys in which these runs differ, in the order of `Run.values`; a hyper-parameter only where runs of a method
    do. Ids are left out, and what follows from others, such as a title from the method. These keys tell any two of the
    runs apart."""
    of_methods = by_key(
        (((key, run.spec.method), text(run.values[key])) for run in runs for key in run.hyper_parameters), once=True
    )
    varied = {key for (key, _), values in of_methods.items() if len(values) > 1}
    different = []
    for key in dict.fromkeys(key for run in runs for key in run.values if key not in IDS):
        differs = len({text(run.values.get(key)) for run in runs if key not in run.hyper_parameters}) > 1
        if differs or key in varied:
            different.append(key)
    options = {key for run in runs for key in run.spec.setting.partition.options}
    sources = {**dict.fromkeys(options, ("split",)), **_FROM}
    if "row" in different:  # a table's row says of which method it is, and with which hyper-parameters
        sources |= {key: ("row", "method") for key, _ in of_methods} | {"method": ("row",)}
    return [
        key
        for key in different
        if not ((by := [one for one in sources.get(key, ()) if one in different]) and _follows(key, by, runs))
    ]


#: Key -> those that, together, it may follow from.
_FROM = {
    **dict.fromkeys(("title", "method_version", "file", "version"), ("method",)),
    **dict.fromkeys(("scheme", "alpha", "per_client", "level", "partition_version"), ("split",)),
    **dict.fromkeys(("init_seed", "partition_seed"), ("seed",)),
    "source": ("dataset",),
    "dataset_id": ("dataset", "source"),
}


def keys_of_places(runs: Iterable[Run]) -> set[str]:
    """The keys of `Run.values` that say on what data runs are: data set and partition, but for its seed."""
    partitions = {run.values["partition"]: run.spec.setting.partition for run in runs}.values()
    facts = (key for one in partitions for key in schemes.facts(one))
    return {"dataset", "source", "dataset_id", "split", "partition_version", *facts} - {*SEEDS, "version"}


def _follows(key: str, by: Sequence[str], runs: Sequence[Run]) -> bool:
    """Whether runs of the same values of `by` all have one value of `key`."""
    pairs = {(tuple(text(run.values.get(one)) for one in by), text(run.values.get(key))) for run in runs}
    return len(pairs) == len({value for value, _ in pairs})


def distinguishing(runs: Sequence[Run], keys: Iterable[str]) -> list[str]:
    """Those of the keys, the first ones first, that tell the runs apart as well as all of them do."""
    needed: list[str] = []
    parts = 1
    for key in dict.fromkeys(keys):
        finer = len({tuple(text(run.values.get(k)) for k in (*needed, key)) for run in runs})
        if finer > parts:
            needed, parts = [*needed, key], finer
    return needed


def by_seed(runs: Iterable[Run]) -> list[list[Run]]:
    """The runs in groups that differ in nothing but their seeds, each in the order of its seeds."""
    groups = by_key((run.spec.but_for_seeds, run) for run in runs)
    return [sorted(group, key=lambda run: (run.spec.setting.seed, run.id)) for group in groups.values()]


def names_of_methods(runs: Sequence[Run]) -> dict[str, str]:
    """Run's id -> its method in print: the title, and behind it the method where runs of another one have that title,
    as a user's own variant may."""
    methods = by_key(((run.title, run.values["method"]) for run in runs), once=True)
    return {
        run.id: f"{run.title} ({text(run.values['method'])})" if len(methods[run.title]) > 1 else run.title
        for run in runs
    }


def label(run: Run, keys: Iterable[str], names: Mapping[str, str] | None = None) -> str:
    """What tells this run from others that differ in these keys, such as 'FedAvg, lr 0.1'; its method by `names`
    (`names_of_methods`)."""
    keys = list(keys)
    name = (names or {}).get(run.id, run.title)
    values = {**run.values, "title": name if "method" in keys else run.title}
    keys = ["title" if key == "method" else key for key in keys]
    parts = [
        text(values[k]) if k in UNNAMED else f"{k.replace('_', ' ')} {text(values[k])}"
        for k in dict.fromkeys(keys)
        if values.get(k) is not None
    ]
    return ", ".join(parts) or name


# -- groups ----------------------------------------------------------------------------------------------------
# Runs as figures show them: a panel for each partition, a line for each group, named by what it differs in.


@dataclass(frozen=True)
class RunPanel:
    """Runs on one partition, or on its draws by several seeds."""

    title: str
    lines: Mapping[str, Sequence[Run]]  #: label -> runs, which differ in their seeds only unless grouped by a key


def grouped(runs: Sequence[Run], by: Sequence[str] = ()) -> list[RunPanel]:
    """The runs by partition and within it by all that they differ in besides their seeds, or by these keys only.

    Panels are titled by as much as tells them apart. Raises FedbenchError for an unknown key.
    """
    keys = {key for run in runs for key in run.values}
    for key in by:
        if key not in keys:
            raise unknown_key("key of runs", key, keys)
    different = [key for key in differing(runs) if key not in SEEDS]
    data = keys_of_places(runs)
    places = [key for key in different if key in data and key not in by]
    panels = by_key((tuple(text(run.values.get(key)) for key in places), run) for run in runs)
    within = {key for own in panels.values() for key in differing(own)}
    within |= {key for run in runs for key in run.hyper_parameters}  # which say nothing of a panel's other methods
    own = list(by) or [key for key in different if key in within and key not in places]
    apart = distinguishing([group[0] for group in panels.values()], ("dataset", "split", *places))
    names = names_of_methods(runs)
    return [
        RunPanel(label(group[0], dict.fromkeys(("dataset", "split", *apart))), _lines(group, own, by, names))
        for group in panels.values()
    ]


def _lines(
    runs: Sequence[Run], keys: Sequence[str], by: Sequence[str], names: Mapping[str, str]
) -> dict[str, list[Run]]:
    if not by:
        lines: dict[str, list[Run]] = {}
        for group in by_seed(runs):
            name = label(group[0], keys, names)
            lines[f"{name} ({group[0].id})" if name in lines else name] = group
        return lines
    return by_key((_named(run, by, names), run) for run in runs)


def _named(run: Run, by: Iterable[str], names: Mapping[str, str]) -> str:
    """A run by the values of these keys, also of those that it does not have."""
    none = [f"no {key.replace('_', ' ')}" for key in by if run.values.get(key) is None]
    there = [key for key in by if run.values.get(key) is not None]
    return ", ".join(([label(run, there, names)] if there else []) + none)
