"""Select runs of a store and of result packs by filters, find the keys in which they differ, and group them by seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fedbench import resources
from fedbench.errors import FedbenchError, unknown
from fedbench.groups import by_key
from fedbench.partitions import schemes
from fedbench.results.frame import Frame
from fedbench.results.pack import name_of
from fedbench.results.packs import Shipped
from fedbench.results.run import Run
from fedbench.specs import PartitionSpec
from fedbench.words import plain

#: Keys in which the repetitions of a run with other seeds differ.
SEEDS = ("seed", "partition_seed", "init_seed")
#: Ids: they differ whenever any other key does; and the budget, a name that other keys decide.
DERIVED = ("id", "partition", "budget")
#: Keys that a label leaves out, printing the value only.
UNNAMED = ("row", "method", "title", "dataset", "split", "model")
#: Fields of a partition, which runs lack that leave them out.
_FIELDS = {field.name for field in fields(PartitionSpec)} - {"options"}
#: Filters by where a run is used: tables of a name, of a paper or with a protocol, or a result pack.
OF_TABLES = ("table", "paper", "protocol", "pack")
#: Filter of tuned tables' runs: yes for those that a cell's values were chosen by, too.
TRIALS = "trials"


def select(frame: Frame, filters: Sequence[str] = (), roots: Sequence[Path] = ()) -> list[Run]:
    """The store's complete runs that match every filter, oldest first, those of tables in the order of their rows; all
    without a filter. Skips damaged runs.

    A filter is a run's id or its beginning (with two ids or more: all these runs), the name of a table or a paper (as
    `table=` and `paper=`), or KEY=VALUE, KEY=VALUE,VALUE or KEY!=VALUE, where a * in a value matches any text and
    `none` no value. Keys are those of `Run.values`, `OF_TABLES`, `TRIALS` and `shipped` (yes or no). An id, `OF_TABLES`
    and `shipped` also match runs of packs, which follow the store's runs; a run that is in both comes from the store.
    `roots` are the data folders, from which tables derive the ids of their runs.

    Raises FedbenchError for an unknown key, an id that matches no run or more than one, and if no run matches.
    """
    filters = spelt_out(filters)
    ids = [word for word in filters if "=" not in word]
    conditions, of_tables = _read(filters, frame, roots)
    rows = {id: row for condition, read in of_tables if not condition.negated for id, row in read.items() if row}
    if ids:
        runs = [frame.named(id) for id in dict.fromkeys(ids)]
    else:
        runs = list(frame.complete)
        in_store, packed = {run.id for run in runs}, list[Shipped | None]()
        if any(not condition.negated for condition, _ in of_tables):
            packed = [frame.packs.get(id) for condition, read in of_tables if not condition.negated for id in read]
        elif (origin := [one for one in conditions if one.key == "shipped"]) and all(o.admits(True) for o in origin):
            packed = [*frame.packs.runs()]
        runs += map(frame.of_pack, {run.id: run for run in packed if run and run.id not in in_store}.values())
    if not runs:
        hint = "; shipped=yes or table=feddrm/1 names shipped ones" if frame.packs.places else ""
        raise FedbenchError(f"there is no run in {frame.store.home} yet", f"'fedbench train' makes one{hint}")
    runs = [run for run in runs if all((run.id in read) is not condition.negated for condition, read in of_tables)]
    if not runs:
        raise FedbenchError(f"no table has such a run: {' '.join(condition.word for condition, _ in of_tables)}")
    labelled = [replace(run, row=rows[run.id]) if run.id in rows else run for run in runs]
    place = {id: at for at, id in enumerate(() if ids else rows)}
    return _which(sorted(labelled, key=lambda run: place.get(run.id, 0)), conditions)


def named_values(filters: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Key -> the values that filters KEY=VALUE,VALUE name, in their order; of words without a key "id" -> the words."""
    read = [_Condition.of(word) for word in filters if "=" in word]
    found = {one.key: one.values for one in read if not one.negated}
    return found | ({"id": ids} if (ids := tuple(word for word in filters if "=" not in word)) else {})


def rank_among(named: Sequence[str], value: Any) -> int:
    """The place of the first named value that matches, in which a * is any text; after all of them if none does."""
    return next((at for at, pattern in enumerate(named) if _matches(value, pattern)), len(named))


def spelt_out(filters: Iterable[str]) -> list[str]:
    """The filters, with the bare name of a table or a paper as `table=NAME` or `paper=NAME`. A number stays, as it may
    begin an id."""
    from fedbench.planner import table as tables

    def one(word: str) -> str:
        if "=" in word or word.isdigit():
            return word
        if word in resources.papers():
            return f"paper={word}"
        return f"table={word}" if "/" in word or tables.is_table(word) else word

    return [one(word) for word in filters]


def _read(
    filters: Iterable[str], frame: Frame, roots: Sequence[Path]
) -> tuple[list[_Condition], list[tuple[_Condition, Mapping[str, str]]]]:
    """The filters KEY=VALUE: those by keys of runs, and those by tables, each with the runs that it names."""
    conditions = [_Condition.of(word) for word in filters if "=" in word]
    trials = [condition for condition in conditions if condition.key == TRIALS]
    of_tables = [condition for condition in conditions if condition.key in OF_TABLES]
    if trials and not any(condition.key != "pack" for condition in of_tables):
        raise FedbenchError(f"{TRIALS} are those of a tuned table, and no filter names one", f"table=NAME {TRIALS}=yes")
    too = any(condition.admits(True) for condition in trials)
    read = [(one, _read_by(one, frame, roots, trials=too or one.negated)) for one in of_tables]
    return [one for one in conditions if one not in trials and one not in of_tables], read


def _read_by(condition: _Condition, frame: Frame, roots: Sequence[Path], *, trials: bool) -> Mapping[str, str]:
    """Run's id -> label of its row, for the runs of the tables that a filter names; the label is "" for a pack's.
    `trials`: also those that the values of tuned tables were chosen by."""
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
        known = tables.names() if condition.key == "table" else [*resources.papers()]
        return of_tables(_matched(condition.values, known), frame, roots, trials=trials)
    under = {protocol.load(value).name for value in _matched(condition.values, protocol.names())}
    chosen = [name for name in tables.names() if tables.load(name).protocol in under]
    return of_tables(chosen, frame, roots, trials=trials)


def _matched(values: Iterable[str], known: Sequence[str]) -> list[str]:
    """The values, those with a * replaced by the known names that they match, if any."""
    hits = ((value, [name for name in known if _matches(name, value)] if "*" in value else []) for value in values)
    return [name for value, names in hits for name in names or [value]]


def shipped(frame: Frame, filters: Sequence[str] = (), roots: Sequence[Path] = ()) -> list[Run]:
    """The runs of packs that match every filter, oldest first, also those that the store has; all without a filter.
    Filters, `roots` and errors are those of `select`."""
    filters = spelt_out(filters)
    ids = [word for word in filters if "=" not in word]
    hits = [(id, frame.packs.find(id)) for id in ids]
    if missing := [id for id, run in hits if run is None]:
        raise FedbenchError(f"no shipped run '{missing[0]}'", "'fedbench results list' shows the packs")
    runs = [run for _, run in hits if run is not None] if ids else frame.packs.runs()
    conditions, of_tables = _read(filters, frame, roots)
    for condition, read in of_tables:
        runs = [run for run in runs if (run.id in read) is not condition.negated]
    if of_tables and not runs:
        raise FedbenchError(
            f"no table has such a shipped run: {' '.join(condition.word for condition, _ in of_tables)}"
        )
    return _which(list(map(frame.of_pack, runs)), conditions)


def _which(runs: Sequence[Run], conditions: Sequence[_Condition]) -> list[Run]:
    """The runs for which all conditions hold. Raises FedbenchError if there are none."""
    if not conditions:
        return list(runs)
    keys = {"shipped", *_FIELDS, *(key for run in runs for key in run.values)}
    for condition in conditions:
        if condition.key not in keys:
            raise unknown_key("key of runs", condition.key, {*keys, *OF_TABLES, TRIALS})
    hits = [run for run in runs if all(condition.holds(run) for condition in conditions)]
    if not hits:
        values = {c.key: sorted({text(c.of_run(run)) for run in runs}) for c in conditions}
        values_of = "; ".join(f"{key}: {', '.join(known[:8])}" for key, known in values.items())
        raise FedbenchError(f"no run is {' and '.join(c.word for c in conditions)}", f"there are {values_of}")
    return hits


def unknown_key(kind: str, key: str, known: Iterable[str]) -> FedbenchError:
    """The error for a key that no run has. It suggests the nearest key, else some usual ones."""
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
        """The run's value for the key."""
        return run.shipped is not None if self.key == "shipped" else run.values.get(self.key)

    def holds(self, run: Run) -> bool:
        return self.admits(self.of_run(run))

    def admits(self, value: Any) -> bool:
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
    """A value as text, as a filter writes it."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, tuple | list):
        return "+".join(text(item) for item in value)
    return plain(str(value).lower() if value is None or isinstance(value, bool) else str(value))


def differing(runs: Sequence[Run]) -> list[str]:
    """The keys in which these runs differ, in the order of `Run.values`; a hyper-parameter only if runs of one method
    differ in it. Without ids, and without keys that follow from others, such as the title from the method. Any two
    of the runs differ in one of the keys."""
    of_methods = by_key(
        (((key, run.spec.method), text(run.values[key])) for run in runs for key in run.hyper_parameters), once=True
    )
    varied = {key for (key, _), values in of_methods.items() if len(values) > 1}
    different = []
    for key in dict.fromkeys(key for run in runs for key in run.values if key not in DERIVED):
        differs = len({text(run.values.get(key)) for run in runs if key not in run.hyper_parameters}) > 1
        if differs or key in varied:
            different.append(key)
    options = {key for run in runs for key in run.spec.setting.partition.options}
    sources = {**dict.fromkeys(options, ("split",)), **_FROM}
    if "row" in different:  # a table's row determines method and hyper-parameters
        sources |= {key: ("row", "method") for key, _ in of_methods} | {"method": ("row",)}
    return [
        key
        for key in different
        if not ((by := [source for source in sources.get(key, ()) if source in different]) and _follows(key, by, runs))
    ]


#: Key -> the keys from which it may follow.
_FROM = {
    **dict.fromkeys(("title", "method_version", "file", "version"), ("method",)),
    **dict.fromkeys(("scheme", "alpha", "per_client", "level", "partition_version"), ("split",)),
    **dict.fromkeys(("init_seed", "partition_seed"), ("seed",)),
    "source": ("dataset",),
    "dataset_id": ("dataset", "source"),
}


def keys_of_places(runs: Iterable[Run]) -> set[str]:
    """The keys of `Run.values` that describe the data of these runs: data set, and partition without its seed."""
    partitions = {run.values["partition"]: run.spec.setting.partition for run in runs}.values()
    facts = (key for partition in partitions for key in schemes.facts(partition))
    return {"dataset", "source", "dataset_id", "split", "partition_version", *facts} - {*SEEDS, "version"}


def _follows(key: str, by: Sequence[str], runs: Sequence[Run]) -> bool:
    """Whether runs with the same values of `by` have the same value of `key`."""
    pairs = {(tuple(text(run.values.get(k)) for k in by), text(run.values.get(key))) for run in runs}
    return len(pairs) == len({value for value, _ in pairs})


def distinguishing(runs: Sequence[Run], keys: Iterable[str]) -> list[str]:
    """The keys, in order, without those that split the runs no further than the keys before them."""
    needed: list[str] = []
    parts = 1
    for key in dict.fromkeys(keys):
        finer = len({tuple(text(run.values.get(k)) for k in (*needed, key)) for run in runs})
        if finer > parts:
            needed, parts = [*needed, key], finer
    return needed


def by_seed(runs: Iterable[Run]) -> list[list[Run]]:
    """The runs in groups that differ only in their seeds, each sorted by seed."""
    groups = by_key((run.spec.but_for_seeds, run) for run in runs)
    return [sorted(group, key=lambda run: (run.spec.setting.seed, run.id)) for group in groups.values()]


def names_of_methods(runs: Sequence[Run]) -> dict[str, str]:
    """Run's id -> printed name of its method: the title, followed by the method's name if runs of another method (such
    as a user's variant) have the same title."""
    methods = by_key(((run.title, run.values["method"]) for run in runs), once=True)
    return {
        run.id: f"{run.title} ({text(run.values['method'])})" if len(methods[run.title]) > 1 else run.title
        for run in runs
    }


def label(run: Run, keys: Iterable[str], names: Mapping[str, str] | None = None) -> str:
    """The run's values of these keys, such as 'FedAvg, lr 0.1'; `names` (of `names_of_methods`) name its method."""
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


@dataclass(frozen=True)
class RunPanel:
    """Runs on one partition, or on the same partition with other seeds."""

    title: str
    lines: Mapping[str, Sequence[Run]]  #: label -> runs, which differ only in their seeds unless grouped by a key


def grouped(runs: Sequence[Run], by: Sequence[str] = ()) -> list[RunPanel]:
    """The runs by partition, and within it by the keys `by`, or else by all keys in which they differ but seeds.

    A panel's title has the values that distinguish it. Raises FedbenchError for an unknown key.
    """
    keys = {key for run in runs for key in run.values}
    for key in by:
        if key not in keys:
            raise unknown_key("key of runs", key, keys)
    different = [key for key in differing(runs) if key not in SEEDS]
    data = keys_of_places(runs)
    places = [key for key in different if key in data and key not in by]
    panels = by_key((tuple(text(run.values.get(key)) for key in places), run) for run in runs)
    within = {key for line_keys in panels.values() for key in differing(line_keys)}
    within |= {key for run in runs for key in run.hyper_parameters}  # which other methods in a panel may lack
    line_keys = list(by) or [key for key in different if key in within and key not in places]
    apart = distinguishing([group[0] for group in panels.values()], ("dataset", "split", *places))
    names = names_of_methods(runs)
    return [
        RunPanel(label(group[0], dict.fromkeys(("dataset", "split", *apart))), _lines(group, line_keys, by, names))
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
    """The run's values of these keys; 'no KEY' for a key that it lacks."""
    absent = [f"no {key.replace('_', ' ')}" for key in by if run.values.get(key) is None]
    present = [key for key in by if run.values.get(key) is not None]
    return ", ".join(([label(run, present, names)] if present else []) + absent)
