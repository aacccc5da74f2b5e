"""The measurement: workloads by ways, each way in its own process, repeats of ours and the usual way in turn."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rows import Row, judge, measured
from station import Failed, Station
from ways import EXPERIMENT_WORKLOADS, EXPERIMENTS, PEERS, USUAL, Way, of
from workloads import WORKLOADS

NO_TARGET = (*EXPERIMENTS, *PEERS)


@dataclass
class Bench:
    """What is measured, and what came out so far."""

    workloads: Sequence[str]
    device: str = "auto"
    precision: str = "fp32"
    executors: Sequence[str] = ()  #: none: those worth measuring
    experiments: bool = False
    peers: bool = False  #: BlazeFL's way too, of the workloads that train
    profile: bool = False
    seconds: float = float("inf")  #: when so much time is gone, what is left is not begun
    tell: Callable[[Bench, Row], None] = lambda _bench, _row: None  #: reports after each row

    facts: dict[str, Any] = field(default_factory=dict)
    peak: dict[str, float] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def run(self) -> None:
        """Measure. Raises Failed if the device does not work; what else fails has a row that says so."""
        self.deadline = time.monotonic() + self.seconds
        self._peak()
        self.device = self.facts["kind"]
        for workload in self.workloads:
            peers = self.peers and not WORKLOADS[workload](self.device).answers
            self._try(workload, of(workload, self.device, self.executors, peers))
        with contextlib.suppress(Failed):
            self._peak()
        if self.experiments:
            for workload in EXPERIMENT_WORKLOADS:
                if workload in self.workloads:
                    self._try(workload, EXPERIMENTS)

    def _peak(self) -> None:
        """The device's figures, the best seen so far: on a shared machine one look may meet others at work."""
        with self._station() as station:
            station.loaded()
            self.facts = station.ask("facts")
            seen = station.ask("peak")
        self.peak = {name: max(figure, self.peak.get(name, 0.0)) for name, figure in seen.items()}
        self._judge()

    def _judge(self) -> None:
        judge(self.rows, self.facts["kind"], self.highest[1], self.peak["conv_product"])

    @property
    def highest(self) -> tuple[str, float]:
        """(which, GFLOP/s) of the measurement that stands for the device's peak.

        On a CPU convolutions count too: their kernels can be faster than those of products.
        """
        names = ["product", "conv_product", *(["convolution"] if self.facts["kind"] == "cpu" else [])]
        name = max(names, key=self.peak.__getitem__)
        return name, self.peak[name]

    @property
    def missed(self) -> list[Row]:
        return [row for row in self.rows if row.met is False]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        rows = [asdict(row) for row in self.rows]
        return {"facts": self.facts, "precision": self.precision, "peak": self.peak, "rows": rows}

    def _station(self, workload: str = "", way: Way | None = None) -> Station:
        return Station(self.device, self.precision, workload, way, self.deadline)

    def _try(self, workload: str, ways: Sequence[Way]) -> None:
        if time.monotonic() > self.deadline:
            for way in ways:
                self._add(Row(workload, way.title, error="not run: out of time", experiment=way in NO_TARGET))
            return
        try:
            self._measure(workload, ways)
        except Failed as error:
            self._add(Row(workload, USUAL.title, error=str(error)), first_of=workload)

    def _measure(self, workload: str, ways: Sequence[Way]) -> None:
        """The rows of a workload. Ways without the usual one are held against its earlier row."""
        with contextlib.ExitStack() as stack:
            # On a GPU all load at once; two cores would only slow one another down.
            ahead = {w.title: stack.enter_context(self._station(workload, w)) for w in ways if self.device == "cuda"}

            def start(way: Way) -> Station:
                station = ahead.get(way.title) or stack.enter_context(self._station(workload, way))
                station.loaded()
                return station

            rival: Station | None = None
            rivals: list[dict[str, Any]] = []
            if USUAL in ways:
                rival = start(USUAL)
                told = rival.ask("prepare")
            else:
                usual = [r for r in self.rows if (r.workload, r.way) == (workload, "usual")]
                rivals += [{"seconds": s, "others": r.others} for r in usual for s in r.seconds]
            for way in ways:
                if way == USUAL:
                    continue
                try:
                    self._add(self._row(workload, way, start(way), rival, rivals))
                except Failed as error:
                    self._add(Row(workload, way.title, error=str(error), experiment=way in NO_TARGET))
            if rival is not None:
                if not rivals:  # nobody ran beside it
                    rivals = [rival.ask("repeat") for _ in range(told["repeats"])]
                row = measured(workload, "usual", told, rivals, self._finish(rival))
                self._add(row, first_of=workload)

    def _row(
        self, workload: str, way: Way, station: Station, rival: Station | None, rivals: list[dict[str, Any]]
    ) -> Row:
        if time.monotonic() > self.deadline:
            raise Failed("not run: out of time")
        with station:
            told = station.ask("prepare")
            repeats, beside = [], []
            for _ in range(told["repeats"]):
                repeats.append(station.ask("repeat"))
                if rival is not None:
                    beside.append(rival.ask("repeat"))
            rivals += beside
            finished = self._finish(station)
        row = measured(workload, way.title, told, repeats, finished, beside or rivals)
        row.experiment = way in NO_TARGET
        return row

    def _finish(self, station: Station) -> dict[str, Any]:
        told = station.ask("finish")
        if self.profile:
            with contextlib.suppress(Failed):  # a profile that fails costs no measurement
                told["profile"] = station.ask("profile")
        return told

    def _add(self, row: Row, first_of: str = "") -> None:
        """`first_of`: put it before the workload's other rows."""
        at = next((i for i, r in enumerate(self.rows) if r.workload == first_of), len(self.rows))
        self.rows.insert(at, row)
        self._judge()
        self.tell(self, row)
