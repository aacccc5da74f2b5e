"""The cost of papers' tables at a budget, in hours of one core of this machine, and in GPU hours if result packs have
runs of the same network on a GPU. A run that several tables use counts once.

The images are not needed: partitions are drawn from made-up labels, as many as the recipe states and with equal class
frequencies. GPU hours: seconds per image of the packs' runs with the same network, image shape, batch size and
precision, times the images of the run (both by `cost.images_to_process`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedbench import methods, protocol
from fedbench.core.executors import available_cores
from fedbench.data import recipe
from fedbench.data.dataset import Dataset
from fedbench.data.recipe import Recipe
from fedbench.engine import cost
from fedbench.errors import FedbenchError, unknown
from fedbench.partitions.builder import make
from fedbench.planner import table as tables
from fedbench.planner.cells import find
from fedbench.planner.table.spec import Table
from fedbench.plugins import reported
from fedbench.results.frame import Frame
from fedbench.specs import DatasetSpec, PartitionSpec, RunSpec, Setting


class Step(NamedTuple):
    """The properties of a training step that determine its time on a device."""

    network: str
    shape: tuple[int, int, int]  #: (height, width, channels) of an image
    batch_size: int
    precision: str


@dataclass(frozen=True)
class Rate:
    """The time of the packs' runs with this kind of step on a GPU."""

    step: Step
    device: str
    runs: int
    seconds: float
    images: float  #: in training-image equivalents


@dataclass(frozen=True)
class Need:
    """A run that a table needs."""

    spec: RunSpec
    done: bool = False  #: in the store or in a result pack
    core: float | None = None  #: seconds of one core; None if the recipe lacks the number of images
    gpu: float | None = None  #: seconds on `rate.device`; None also if no pack has such a run
    rate: Rate | None = None


@dataclass(frozen=True)
class Line:
    """The cost of one or more tables. Seconds are sums over the runs for which they are known."""

    name: str
    needs: Mapping[str, Need]

    @property
    def runs(self) -> int:
        return len(self.needs)

    @property
    def done(self) -> int:
        return sum(one.done for one in self.needs.values())

    def known(self, of: str) -> int:
        """The number of runs whose seconds `of` "core" or "gpu" are known."""
        return sum(getattr(one, of) is not None for one in self.needs.values())

    def seconds(self, of: str, done: bool) -> float:
        """The sum of the seconds `of` "core" or "gpu", over the runs that are done or over those that are not."""
        return sum(getattr(one, of) or 0.0 for one in self.needs.values() if one.done is done)

    @property
    def rates(self) -> list[Rate]:
        """The rates that the GPU seconds are computed from, in descending order of measured seconds."""
        found = {one.rate.step: one.rate for one in self.needs.values() if one.rate}
        return sorted(found.values(), key=lambda rate: -rate.seconds)


def bill(
    names: Iterable[str], budget: str, frame: Frame, roots: Sequence[Path], precision: str | None = None
) -> list[Line]:
    """A line for each of these tables that has runs at the budget; a run that several tables use is in each line.

    Two kinds of tables are left out: those that need no run (`counted`), and those that tune hyper-parameters, because
    their runs depend on the trials. Raises FedbenchError if no table remains.
    """
    every = [tables.load(name) for name in names]
    runs = [table for table in every if not table.counted]
    chosen = [one for one in runs if not one.tune and budget in protocol.load(one.protocol).budgets]
    if not chosen:
        which = ", ".join(table.id for table in every)
        if not runs:
            raise FedbenchError(f"{which}: counted, so that no run is needed", "name another table, or a paper")
        if all(table.tune for table in runs):
            raise FedbenchError(f"{which}: the runs follow from trials, so nobody knows them", "name another table")
        raise unknown("budget", budget, {b for table in runs for b in protocol.load(table.protocol).budgets})
    costs = _Costs(frame)
    runs_of = {table.id: costs.of(table, budget, roots, precision) for table in chosen}
    return [Line(id, {key: costs.needs[key] for key in keys}) for id, keys in runs_of.items()]


def summed(name: str, lines: Iterable[Line]) -> Line:
    """Merge lines into one; a run in several of them counts once."""
    return Line(name, {key: need for line in lines for key, need in line.needs.items()})


class _Costs:
    """Computes the costs of runs, each once."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.needs: dict[str, Need] = {}

    def of(self, table: Table, budget: str, roots: Sequence[Path], precision: str | None) -> list[str]:
        """The keys of a table's runs in `needs`. Runs on different copies of a data set have the same key."""
        cells = find(table, budget, self.frame, roots, precision=precision, sketched=True)
        keys: dict[str, None] = {}  # an ordered set
        for cell in cells.all:
            for spec, record in zip(cell.specs, cell.records, strict=True):
                key = f"{_of_any_copy(spec.setting)} {spec.method} {spec.source} {spec.params}"
                need = self.needs.get(key) or self._need(spec, cell.row.method)
                if record is not None and record.complete is not None:
                    need = replace(need, done=True)
                self.needs[key], keys[key] = need, None
        return list(keys)

    def _need(self, spec: RunSpec, method: str) -> Need:
        if (work := _work(spec, method)) is None:
            return Need(spec)
        step, images, classes = work
        speed = cost.speed(step.network, step.shape, classes, "cpu", step.batch_size, step.precision)
        rate = self.rates.get(step)
        gpu = images * rate.seconds / rate.images if rate else None
        return Need(spec, False, images / speed * available_cores(), gpu, rate)

    @cached_property
    def rates(self) -> dict[Step, Rate]:
        """Kind of step -> rate of the GPU on which the packs have processed the most images."""
        sums: dict[tuple[Step, str], Rate] = {}
        for pack in self.frame.packs.whole:
            for row, about in enumerate(pack.heads["about"]):
                device = str(json.loads(about).get("device", "cpu"))
                if device == "cpu":
                    continue
                with contextlib.suppress(FedbenchError):  # a method or partitioner of another fedbench
                    spec = pack.spec(row)
                    if work := _work(spec, spec.method):
                        step, images, _ = work
                        old = sums.get((step, device), Rate(step, device, 0, 0.0, 0.0))
                        seconds = old.seconds + pack.heads["seconds"][row]
                        sums[step, device] = Rate(step, device, old.runs + 1, seconds, old.images + images)
        return {rate.step: rate for rate in sorted(sums.values(), key=lambda rate: rate.images)}


@cache
def _of_any_copy(setting: Setting) -> str:
    """An id of the setting that does not depend on the copy of the data set."""
    part = setting.partition
    return replace(setting, partition=replace(part, dataset=DatasetSpec(part.dataset.name, "", ""))).id


def _work(spec: RunSpec, method: str) -> tuple[Step, float, int] | None:
    """(kind of step, images in training-image equivalents, number of classes) of a run; None if the recipe does not
    state the number of images."""
    setting, part = spec.setting, spec.setting.partition
    if (drawn := _sizes(replace(part, dataset=replace(part.dataset, content=""), seed=0))) is None:
        return None
    n_train, n_test, shape, classes = drawn
    with reported():
        relative = methods.load(method)[0].create(spec.params).relative_compute(setting)
    images = cost.images_to_process(setting, n_train, n_test, relative)
    return Step(setting.model, shape, min(setting.batch_size, max(n_train)), setting.precision), images, classes


@cache
def _sizes(part: PartitionSpec) -> tuple[list[int], int, tuple[int, int, int], int] | None:
    """(training images of each client, per drift phase; test images of all clients; image shape; number of classes) of
    the partition, drawn from made-up labels; None if the recipe has too little information for that."""
    try:
        chosen = recipe(part.dataset.name)
        sizes = np.array(_images(chosen, part.dataset.source)).T  # [2, parts]
        split = np.repeat(np.array([0, 1], np.uint8), sizes.sum(1))
        number = np.arange(len(split))
        columns = {chosen.partition_label: number % chosen.partition_classes} if chosen.partition_label else {}
        if sizes.shape[1] > 1:
            columns |= dict.fromkeys(chosen.columns, np.repeat([*range(sizes.shape[1])] * 2, sizes.ravel()))
        images = np.broadcast_to(np.zeros((1, *chosen.shape), np.uint8), (len(split), *chosen.shape))
        made_up = Dataset(
            part.dataset, images, number % len(chosen.classes), split, columns, chosen.classes, chosen.partition_label,
            chosen.partition_classes,
        )  # fmt: skip
        drawn = make(part, made_up)
    except FedbenchError:
        return None
    n_train = [int(n) // (part.phases or 1) for n in drawn.n_train]
    return n_train, int(drawn.n_test.sum()), drawn.image_shape(chosen.shape), len(drawn.classes)


def _images(of: Recipe, source: str = "") -> list[tuple[int, int]]:
    """(training images, test images) of the source, by default the first; for a union one pair per part. Raises
    FedbenchError if the recipe does not state them."""
    chosen = next((one for one in of.sources if one.name == source), of.sources[0])
    if chosen.parts:
        return [one for part in chosen.parts for one in _images(recipe(part))]
    if chosen.train is None or chosen.test is None or of.multi_label:
        raise FedbenchError(f"the recipe of {of.name} does not say how many images there are of each class")
    return [(chosen.train, chosen.test)]
