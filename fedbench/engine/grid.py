"""A grid of runs: all combinations of methods, option values and seeds; and the best points of the grid."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from fedbench import methods, partition_options
from fedbench.engine.job import Job
from fedbench.engine.sweep import Wanted
from fedbench.errors import FedbenchError, unknown
from fedbench.groups import by_key
from fedbench.partitions import schemes
from fedbench.planner.rounds import AFTER_LAST, Rounds
from fedbench.plugins.load import is_file
from fedbench.protocol import Protocol, value_of
from fedbench.results.run import Run
from fedbench.specs import PartitionSpec, Setting
from fedbench.specs.fields import described
from fedbench.store import Store
from fedbench.store.provenance import other_code
from fedbench.words import counted, option_of

if TYPE_CHECKING:
    from fedbench.methods.base import Method

#: Options whose text may contain a comma: it is not split into values.
WHOLE = ("model", "unseen_as", "counts", "scheme", "preset")
#: Value of `unseen` that leaves out each group in turn.
EACH = "each"
#: As partition seeds: each run draws its partition with its own seed.
SAME = "same"
#: Most runs of a grid; more are probably a typing error.
MOST_RUNS = 100_000

#: Option -> its values, as text or already converted.
Axes = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class GridPoint:
    """The runs of a method with one value of each option; one run per seed."""

    method: str  #: a name, or FILE.py:Class
    partition: Mapping[str, Any]
    setting: Mapping[str, Any]
    params: Mapping[str, Any]
    runs: Sequence[Wanted] = field(default=(), compare=False)
    remarks: Sequence[str] = field(default=(), compare=False)  #: on values of the protocol that are set aside


@dataclass(frozen=True)
class SweepGrid:
    """The options of `fedbench sweep`. Each has one or more values."""

    dataset: str
    methods: Sequence[str]
    partition: Axes
    setting: Axes
    params: Axes  #: hyper-parameters: NAME, or METHOD.NAME for one method only
    seeds: Sequence[int]
    partition_seeds: Sequence[int] = ()  #: the seed of the partition's draws beside each of `seeds`; empty: one draw

    @classmethod
    def of(
        cls,
        dataset: str,
        names: Sequence[str],
        options: Axes,
        seeds: Sequence[int],
        partition_seeds: Sequence[int] = (),
    ) -> SweepGrid:
        """Create a grid from options: fields of the setting (lr), options of the partition (dir), or hyper-parameters
        of a method. Raises FedbenchError for an unknown option, and for partition seeds that do not stand one beside
        each seed."""
        if partition_seeds and len(partition_seeds) != len(seeds):
            raise FedbenchError(
                f"{counted(len(partition_seeds), 'partition seed')} beside {counted(len(seeds), 'seed')}",
                "give one for each of --seeds, or --partition-seeds same",
            )
        having = {kind.name: kind.hyperparameters() for kind, _ in map(methods.load, names)}
        chosen = [schemes.load(schemes.named(one)) for one in options.get("scheme", ())]  # maybe a user's file
        partition = partition_options.names() | {option for one in chosen for option in one.options()}
        of: dict[str, dict[str, Sequence[Any]]] = {"partition": {}, "setting": {}, "params": {}}
        for name, values in options.items():
            method, dot, own = name.rpartition(".")
            if name in ("seed", "partition_seed"):
                raise FedbenchError("a sweep takes --seeds, not --seed", "such as --seeds 0-2 or --seeds 0,1,2")
            if name == "drifts":
                raise FedbenchError("--drifts cannot be swept", "give it to 'fedbench train'")
            if name in settable():
                of["setting"][name] = values
            elif own in (having.get(method, {}) if dot else {k for one in having.values() for k in one}):
                of["params"][name] = values
            elif name in partition:
                of["partition"][name] = values
            else:
                known = {*settable(), *partition, *(k for one in having.values() for k in one)}
                raise unknown(f"option of sweep --method {', '.join(having)}", option_of(name), map(option_of, known))
        return cls(dataset, list(dict.fromkeys(names)), seeds=seeds, partition_seeds=partition_seeds, **of)

    @property
    def varied(self) -> list[str]:
        """The options with more than one value, as points have them: mu for ditto.mu."""
        every = [*self.partition.items(), *self.setting.items(), *self.params.items()]
        several = (name for name, values in every if len(values) > 1 or EACH in _words(name, values))
        return list(dict.fromkeys(map(bare, several)))

    @property
    def leaves_out(self) -> bool:
        """Whether it leaves out one group after the other."""
        return EACH in _words("unseen", self.partition.get("unseen", ()))

    def points(self, rules: Protocol, budget: str, store: Store, roots: Sequence[Path]) -> list[GridPoint]:
        """All points, in the order of the options. Raises FedbenchError for impossible runs or more than MOST_RUNS."""
        size = sum(math.prod(map(len, self._params_of(methods.load(name)[0]).values())) for name in self.methods)
        others = (*self.partition.values(), *self.setting.values(), self.seeds or (None,))
        if size * math.prod(map(len, others)) > MOST_RUNS:
            raise FedbenchError(f"that are more than {MOST_RUNS:,} runs", "leave some values out")
        points: list[GridPoint] = []
        for at in self._partitions(rules, store, roots):
            partition = partition_options.spec_of(self.dataset, at, rules, store, roots)
            for values in _product(self.setting):
                setting = {name: value_of("sweep", name, text) for name, text in values.items()}
                for method in self.methods:
                    points += self._of_method(method, partition, at, setting, rules, budget)
        return points

    def _partitions(self, rules: Protocol, store: Store, roots: Sequence[Path]) -> Iterator[dict[str, Any]]:
        """The values of the options of each partition; `EACH` of `unseen` is one group after the other."""
        for at in _product(self.partition):
            if EACH not in _words("unseen", [at.get("unseen")]):
                yield at
                continue
            groups = partition_options.groups_of(self.dataset, at, rules, store, roots)
            for group in groups:
                yield {**at, "unseen": [group] if "," in group else group}

    def _of_method(
        self,
        method: str,
        partition: PartitionSpec,
        at: Mapping[str, Any],
        values: Mapping[str, Any],
        rules: Protocol,
        budget: str,
    ) -> Iterator[GridPoint]:
        kind, _ = methods.load(method)
        for params in _product(self._params_of(kind)):
            runs, remarks = [], dict[str, None]()
            own = [seed if rules.redraws else None for seed in self.seeds]
            for seed, draw in zip(self.seeds or (None,), self.partition_seeds or own or (None,), strict=True):
                drawn = partition if draw is None or "seed" in at else dataclasses.replace(partition, seed=draw)
                # As values of a table's file, which a saved grid is: they do not make the budget custom.
                setting = rules.setting(drawn, budget, values, seed=seed)
                job = Job.under(rules, budget, setting, method, params)
                runs.append(Wanted(job.spec, method))
                remarks |= dict.fromkeys(job.set_aside)
            yield GridPoint(method, at, values, params, runs, tuple(remarks))

    def _params_of(self, kind: type[Method]) -> Axes:
        """The hyper-parameters of a method; METHOD.NAME has precedence over NAME."""
        own = [name for name in self.params if _is_of(kind, name)]
        return {bare(name): self.params[name] for name in sorted(own, key=lambda name: "." in name)}


def _words(option: str, values: Iterable[Any]) -> list[str]:
    """The words among the values of the option `unseen`; of others none."""
    return [value for value in values if isinstance(value, str)] if option == "unseen" else []


def bare(name: str) -> str:
    """The hyper-parameter's own name: mu for ditto.mu."""
    return name.rpartition(".")[2]


def _is_of(kind: type[Method], name: str) -> bool:
    """Whether NAME or METHOD.NAME is a hyper-parameter of this method."""
    method, dot, option = name.rpartition(".")
    return option in kind.hyperparameters() and (not dot or method == kind.name)


def settable() -> list[str]:
    """The names of the fields of a setting that a sweep can vary."""
    fixed = ("drifts", "executor", "seed", "votes", "window")
    return [name for name in described(Setting) if name not in fixed]


def values(option: str, text: str) -> list[str]:
    """Split the values of an option, such as 0.01,0.1. Raises FedbenchError for an empty value."""
    texts = [text] if option in WHOLE else [one.strip() for one in text.split(",")]
    if "" in texts:
        raise FedbenchError(f"{option_of(option)} has an empty value in '{text}'", "such as 0.01,0.1")
    return list(dict.fromkeys(texts))


def seeds(text: str) -> list[int]:
    """Parse seeds such as 0-2 or 0,1,2, or both. Raises FedbenchError for an invalid text."""
    out: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < first + MOST_RUNS:
            raise FedbenchError(f"--seeds takes seeds such as 0-2 or 0,1,2, not '{text}'")
        out += range(first, last + 1)
    return list(dict.fromkeys(out))


def partition_seeds(text: str, of_runs: Sequence[int]) -> list[int]:
    """Parse the seeds of partitions: as `seeds`, or SAME for those of the runs."""
    return list(of_runs) if text == SAME else seeds(text)


def _product(axes: Axes) -> Iterator[dict[str, Any]]:
    for one in itertools.product(*axes.values()):
        yield dict(zip(axes, one, strict=True))


# The best values of a grid by validation accuracy; test images are not used.


@dataclass(frozen=True)
class Score:
    """The validation accuracy of a point in the rounds that count, over its seeds."""

    point: GridPoint
    seeds: int
    mean: float
    std: float | None  #: over seeds (ddof 1); None with one seed


def score(point: GridPoint, store: Store, rule: Rounds = AFTER_LAST) -> Score | None:
    """The score of a point; None if a run is missing or has no validation images."""
    accuracies = []
    for wanted in point.runs:
        artifact = store.whole(wanted.spec)
        metrics = None if artifact is None else Run.of(artifact, store).metrics
        by_round = {} if metrics is None else metrics.series("validation_accuracy")
        if metrics is None or not by_round:
            return None
        chosen = rule.chosen(metrics, wanted.spec.setting, f"run {wanted.spec.id}")
        accuracies.append(fmean(by_round[t] for t in chosen))
    return Score(point, len(accuracies), fmean(accuracies), stdev(accuracies) if len(accuracies) > 1 else None)


def best(points: Iterable[GridPoint], store: Store, rule: Rounds = AFTER_LAST) -> list[Score]:
    """The best scored point of each method in each partition; the first one of equal scores."""
    scores: dict[tuple[str, str], list[Score]] = {}
    for one in (score(point, store, rule) for point in points):
        if one is not None:
            scores.setdefault((one.point.method, repr(sorted(one.point.partition.items()))), []).append(one)
    return [max(of, key=lambda one: one.mean) for of in scores.values()]


def unique(points: Iterable[GridPoint]) -> list[Wanted]:
    """The runs of the points, each once: two spellings of a value are one run."""
    return list({run.spec.id: run for point in points for run in point.runs}.values())


def missing(points: Iterable[GridPoint], store: Store, *, again: bool = False) -> list[Wanted]:
    """The runs of the points that are not in the store, or damaged there, each once; with `again` also those that other
    code made."""
    there = ((run, store.whole(run.spec)) for run in unique(points))
    return [run for run, one in there if one is None or (again and other_code(one.provenance))]


def runs(points: Sequence[GridPoint], store: Store) -> list[Run]:
    """The runs of the points that are in the store, each once: 0.1 and 0.10 are one value."""
    specs = {wanted.spec.id: wanted.spec for point in points for wanted in point.runs}
    artifacts = map(store.whole, specs.values())
    return [Run.of(artifact, store) for artifact in artifacts if artifact is not None]


# Save a grid as a table's file, from which `report --table` prints the same runs.


def text(
    grid: SweepGrid, points: Sequence[GridPoint], rules: Protocol, folder: Path, rounds: Rounds = AFTER_LAST
) -> str:
    """The TOML text of a table with a row for each method and its option values, and a column for each partition. Paths
    of users' files are relative to `folder`."""
    rows = {(one.method, tuple(one.setting.items()), tuple(one.params.items())): one for one in points}
    columns = {tuple(point.partition.items()): point for point in points}
    seen = by_key(
        (
            ((one.method, k), str(v))
            for one in points
            for k, v in {**one.partition, **one.setting, **one.params}.items()
        ),
        once=True,
    )
    varied = {name for (_, name), values in seen.items() if len(values) > 1}
    over = f"the seeds {', '.join(map(str, grid.seeds))}" if grid.seeds else "one seed, so there is no deviation"
    lines = [f"# Written by fedbench sweep, for report --table: mean and standard deviation over {over}."]
    head = {
        "title": f"Sweep on {grid.dataset}",
        "protocol": rules.name,
        "metric": "average_accuracy",
        "statistic": str(rounds),
        "view": "plain",
        "unit": "percent",
        "decimals": 2,
        "std_decimals": 2,
        "best": "max",
        "seeds": list(grid.seeds) or None,
        "partition_seeds": list(grid.partition_seeds) or None,
    }
    lines += _entries(head)
    for point in rows.values():
        kind, _ = methods.load(point.method)
        values = {k.replace("_", " "): v for k, v in {**point.setting, **point.params}.items() if k in varied}
        params = point.runs[0].spec.params
        row = {
            "label": ", ".join([kind.title or kind.name, *(f"{k} {v}" for k, v in values.items())]),
            "method": _relative(point.method, folder),
            "params": {name: params[name] for name in point.params} or None,
            "train": point.setting or None,
        }
        lines += ["", "[[rows]]", *_entries(row)]
    for point in columns.values():
        spec = point.runs[0].spec.setting.partition
        at = ", ".join(f"{k} {v}" for k, v in point.partition.items() if k in varied)
        # A seed of each run draws the partition.
        unsaid = {"dataset", "version", *(["seed"] if rules.redraws or grid.partition_seeds else [])}
        options = {k: v for k, v in schemes.facts(spec).items() if k not in unsaid and v is not None}
        column = {"label": at or schemes.label(spec), "dataset": spec.dataset.name, "partition": options}
        lines += ["", "[[column]]", *_entries(column)]
    return "\n".join(lines) + "\n"


def _relative(method: str, folder: Path) -> str:
    """A method's name; the path of a user's file is made relative to `folder`."""
    if not is_file(method):
        return method
    path, colon, name = method.rpartition(":") if ".py:" in method else (method, "", "")
    near = Path(os.path.relpath(path, folder)).as_posix()
    return f"{near if near.startswith('..') else f'./{near}'}{colon}{name}"


def _entries(values: Mapping[str, Any]) -> list[str]:
    """TOML lines of the values that are not None."""
    return [f"{name} = {_value(value)}" for name, value in values.items() if value is not None]


def _value(value: Any) -> str:
    """A value as TOML text."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
