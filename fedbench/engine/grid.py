"""A grid of runs: every method under every value of every option, with every seed; and what is best of it."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbench import methods, partition_options
from fedbench.engine.job import Job
from fedbench.engine.sweep import Wanted
from fedbench.errors import FedbenchError, unknown
from fedbench.partitions import schemes
from fedbench.protocol import Protocol, value_of
from fedbench.specs import PartitionSpec, Setting
from fedbench.store import Store

#: Options whose texts may hold a comma, so that several values of them are given one by one.
WHOLE = ("model", "unseen_as", "counts", "scheme", "preset")
#: Runs of a grid at most: more are a slip of the pen.
MOST_RUNS = 100_000

#: Option -> its values as texts.
Axes = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Point:
    """The runs of a method at one value of each option: one a seed."""

    method: str  #: as the user names it
    partition: Mapping[str, str]
    setting: Mapping[str, Any]
    params: Mapping[str, str]
    runs: Sequence[Wanted] = field(default=(), compare=False)


@dataclass(frozen=True)
class Grid:
    """What `fedbench sweep` was asked for. Options of one value hold for all runs."""

    dataset: str
    methods: Sequence[str]
    partition: Axes
    setting: Axes
    params: Axes  #: by name, or METHOD.NAME for one method alone
    seeds: Sequence[int]

    @classmethod
    def of(cls, dataset: str, names: Sequence[str], options: Axes, seeds: Sequence[int]) -> Grid:
        """The grid of these options, each of which is one of the setting (lr), of the partition (dir) or a
        hyper-parameter of a method. Raises FedbenchError for one that is none."""
        having = {kind.name: kind.hyperparameters() for kind, _ in map(methods.load, names)}
        partition = partition_options.names() | {k for one in options.get("scheme", ()) for k in _of_scheme(one)}
        of: dict[str, dict[str, Sequence[str]]] = {"partition": {}, "setting": {}, "params": {}}
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
                raise unknown(
                    f"option of sweep --method {', '.join(having)}", f"--{name.replace('_', '-')}",
                    [f"--{one.replace('_', '-')}" for one in known],
                )  # fmt: skip
        return cls(dataset, names, seeds=seeds, **of)

    @property
    def varied(self) -> list[str]:
        """The options of more than one value."""
        return [
            k for axes in (self.partition, self.setting, self.params) for k, values in axes.items() if len(values) > 1
        ]

    def points(self, rules: Protocol, budget: str, store: Store, roots: Sequence[Path]) -> list[Point]:
        """All of it, in the order of the options. Raises FedbenchError for what cannot be run, before anything is."""
        points: list[Point] = []
        for at in _product(self.partition):
            partition = partition_options.spec_of(self.dataset, at, rules, store, roots)
            for values in _product(self.setting):
                setting = {name: value_of("sweep", name, text) for name, text in values.items()}
                for method in self.methods:
                    points += self._of_method(method, partition, at, setting, rules, budget)
        if sum(len(point.runs) for point in points) > MOST_RUNS:
            raise FedbenchError(f"that are more than {MOST_RUNS:,} runs", "leave some values out")
        return points

    def _of_method(
        self, method: str, partition: PartitionSpec, at: Mapping[str, str], values: Mapping[str, Any], rules: Protocol,
        budget: str,
    ) -> Iterator[Point]:  # fmt: skip
        kind, _ = methods.load(method)
        own = {}
        for name, texts in self.params.items():
            of, dot, option = name.rpartition(".")
            if option in kind.hyperparameters() and (not dot or of == kind.name):
                own[option] = texts
        for params in _product(own):
            runs = []
            for seed in self.seeds or (None,):
                drawn = partition
                if rules.redraws and seed is not None and "seed" not in at:
                    drawn = dataclasses.replace(partition, seed=seed)
                # As a table's file would say it: a saved grid is one.
                setting = rules.setting(drawn, budget, values, seed=seed)
                runs.append(Wanted(Job.under(rules, budget, setting, method, params).spec, method))
            yield Point(method, at, values, params, runs)


def settable() -> list[str]:
    """The fields of a setting that a sweep may vary."""
    fixed = ("partition", "budget", "seed", "version", "votes", "executor", "window")
    return [f.name for f in dataclasses.fields(Setting) if f.name not in fixed]


def values(option: str, text: str) -> list[str]:
    """The values of an option, such as 0.01,0.1. Raises FedbenchError where one is missing."""
    texts = [text] if option in WHOLE else [one.strip() for one in text.split(",")]
    if "" in texts:
        raise FedbenchError(f"--{option.replace('_', '-')} has an empty value in '{text}'", "such as 0.01,0.1")
    return list(dict.fromkeys(texts))


def seeds(text: str) -> list[int]:
    """Seeds such as 0-2 or 0,1,2, or both. Raises FedbenchError for what is none."""
    out: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < first + MOST_RUNS:
            raise FedbenchError(f"--seeds takes seeds such as 0-2 or 0,1,2, not '{text}'")
        out += range(first, last + 1)
    return list(dict.fromkeys(out))


def _of_scheme(name: str) -> Iterable[str]:
    """The options of a partitioner by name, or of a user's own."""
    return schemes.load(schemes.named(name)).options()


def _product(axes: Axes) -> Iterator[dict[str, str]]:
    for one in itertools.product(*axes.values()):
        yield dict(zip(axes, one, strict=True))
