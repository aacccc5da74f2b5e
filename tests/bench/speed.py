"""How fast the trainer core is: one table of fixed workloads, each done by our executors and the usual way.

    python tests/bench/speed.py                       the table of this machine; exit code 1 if a target is missed
    python tests/bench/speed.py --only a,c            two workloads

Every way of doing a workload runs in a process of its own, ours and the usual one in turn; the figures are medians.
The usual way is eager PyTorch: one client after another, default threads, a DataLoader over normalised floats that were
made before the clock starts.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Self

import torch
from ours import Ours, Timed
from tabulate import tabulate
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from workloads import TARGETS, TITLES, WORKLOADS, Workload

from fedbench.core.executors import available_cores
from fedbench.core.precision import arithmetic, autocast
from fedbench.core.usage import peak_bytes
from fedbench.machine import processor

USUAL = "usual"
#: Executors measured unless others are named: those that could win on the device.
EXECUTORS = {"cpu": ("cores", "stacked"), "cuda": ("sequential", "stacked", "graphed")}
#: On a CPU these keep each core busy with one client; stacks of them take only longer and more memory.
LARGE = ("c", "d")
EVALUATION_BATCH = 128


class Usual(Timed):
    """A workload done as plain PyTorch code does it."""

    def __init__(self, workload: Workload, device: torch.device, precision: str = "fp32") -> None:
        self.workload, self.device, self.precision = workload, device, precision
        federation = workload.federation()
        rows = federation.test if workload.answers else federation.train
        images = [(federation.images[r].permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous() for r in rows]
        self.sets = [TensorDataset(x, federation.labels[r]) for x, r in zip(images, rows, strict=True)]
        seeds = range(len(workload.train)) if workload.answers else [0]
        self.models = [workload.build(seed).to(device) for seed in seeds]

    def once(self) -> None:
        self.steps = self.images = 0
        self.evaluate() if self.workload.answers else self.train()

    def train(self) -> None:
        """A round of FedAvg: load the global weights, train, average the state dicts."""
        w, model = self.workload, self.models[0].train()
        start = copy.deepcopy(model.state_dict())
        mean = {name: torch.zeros_like(v) for name, v in start.items()}
        for data in self.sets:
            model.load_state_dict(start)
            optimiser = torch.optim.SGD(model.parameters(), lr=w.lr, momentum=w.momentum, weight_decay=w.weight_decay)
            loader = DataLoader(data, batch_size=min(w.batch, len(data)), shuffle=True, drop_last=w.tail == "drop")
            for x, y in self.batches(loader):
                x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
                with autocast(self.precision, self.device):
                    loss = F.cross_entropy(model(x), y)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                self.steps, self.images = self.steps + 1, self.images + len(y)
            for name, v in model.state_dict().items():
                mean[name] += v * (len(data) / sum(w.train))
        model.load_state_dict(mean)

    def batches(self, loader: DataLoader) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of a client's round: so many passes over its data, or so many steps."""
        endless = itertools.chain.from_iterable(itertools.repeat(loader))
        return itertools.islice(endless, self.workload.steps or (self.workload.epochs or 0) * len(loader))

    @torch.no_grad()
    def evaluate(self) -> Tensor:
        """[models, images] labels: every model answers every client's test images."""
        votes = []
        for model in self.models:
            model.eval()
            for data in self.sets:
                for x, _ in DataLoader(data, batch_size=EVALUATION_BATCH):
                    with autocast(self.precision, self.device):
                        votes.append(model(x.to(self.device, non_blocking=True)).argmax(1).cpu())
                    self.images += len(x)
        return torch.cat(votes).view(len(self.models), -1)


class Failed(Exception):
    """A child raised or died; the message is one line."""


class Child:
    """A process that does a workload in one way: it says what a repeat is, does one for each line that it is sent, and
    says its peak memory at the end. What it sets for the whole process disturbs no other way."""

    def __init__(self, key: str, way: str, device: str, precision: str) -> None:
        words = [sys.executable, __file__, "--child", key, way, "--device", device, "--precision", precision]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, command: str = "") -> Any:
        """Its next answer, to the command if one is given. Raises Failed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if command:
            print(command, file=self.process.stdin, flush=True)
        if not (line := self.process.stdout.readline()):
            raise Failed("the process died")
        if "error" in (answer := json.loads(line)):
            raise Failed(answer["error"])
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def child(key: str, way: str, device: torch.device, precision: str) -> Iterator[dict[str, Any]]:
    """A child's answers; `way` is an executor, or USUAL."""
    with arithmetic(precision, device):
        w = WORKLOADS[key](device.type)
        run = Usual(w, device, precision) if way == USUAL else Ours(w, device, precision, way)
        run.repeat()  # warms up
        steps, images = w.work
        if (getattr(run, "steps", steps), run.images) != (steps, images):
            raise RuntimeError(f"{run.images} images instead of {images} were processed, or in other steps")
        yield {"steps": steps, "images": images, "repeats": w.repeats, "scale": w.scale}
        for _ in iter(sys.stdin.readline, "end\n"):
            yield {"seconds": run.repeat()}
        yield {"peak_mb": peak_bytes(device) / 2**20}
        run.close()


@dataclass
class Row:
    """A workload done in one way. Speeds are of the median repeat; None stands for what does not apply."""

    workload: str
    way: str
    error: str = ""
    scale: str = ""
    client_steps_s: float | None = None
    images_s: float | None = None
    peak_mb: float | None = None
    ratio: float | None = None  #: median over pairs of the usual way's time over this one's
    target: str = ""  #: of the fastest executor of its workload
    met: bool | None = None


def measured(key: str, way: str, about: Mapping[str, Any], seconds: Sequence[float], usual: Sequence[float]) -> Row:
    """The row of repeats of so many `seconds`; `usual` are the usual way's, each measured right after one of ours."""
    typical, ratio = median(seconds), median(b / a for a, b in zip(seconds, usual, strict=True))
    speeds = (about["steps"] / typical or None, about["images"] / typical)
    return Row(key, way, "", about["scale"], *speeds, about["peak_mb"], ratio)


def judge(rows: Sequence[Row], target: float | None) -> None:
    """Whether the fastest executor of a workload meets its target; all having failed, it is missed."""
    ours = [row for row in rows if row.way != USUAL]
    if target is not None and ours:
        best = max(ours, key=lambda row: row.ratio or 0.0)
        best.target, best.met = f"{target:g}x", (best.ratio or 0.0) >= target


def in_turn(key: str, ways: Sequence[str], where: tuple[str, str]) -> list[Row]:
    """The rows of a workload: repeats of each way and of the usual one in turn. Raises Failed where that one fails."""
    rows: list[Row] = []
    theirs: list[float] = []
    with Child(key, USUAL, *where) as rival:
        usual = rival.ask()
        for way in ways:
            try:
                with Child(key, way, *where) as own:
                    about = own.ask()
                    turns = [[c.ask("repeat")["seconds"] for c in (own, rival)] for _ in range(about["repeats"])]
                    about |= own.ask("end")
            except Failed as error:
                rows.append(Row(key, way, str(error)))
                continue
            mine, beside = zip(*turns, strict=True)
            theirs += beside
            rows.append(measured(key, way, about, mine, beside))
        theirs = theirs or [rival.ask("repeat")["seconds"] for _ in range(usual["repeats"])]
        return [measured(key, USUAL, usual | rival.ask("end"), theirs, theirs), *rows]


FORMS = {"client_steps_s": ",.1f", "images_s": ",.0f", "peak_mb": ",.0f", "ratio": ".2f"}
HEADS = ("way", "client-steps/s", "images/s", "peak MB", "x usual", "target", "met")


def table(rows: Sequence[Row], head: str) -> str:
    """The rows as text, under where and how they were measured."""

    def cells(row: Row) -> list[str]:
        values = [(getattr(row, name), form) for name, form in FORMS.items()]
        shown = ["" if value is None else format(value, form) for value, form in values]
        return [row.way, *shown, row.target, {None: "", True: "yes", False: "NO"}[row.met]]

    text = [head]
    for key in dict.fromkeys(row.workload for row in rows):
        own = [row for row in rows if row.workload == key]
        scale = next((f" [{row.scale}]" for row in own if row.scale not in ("", "whole")), "")
        aligned = ("left", *["right"] * (len(HEADS) - 1))
        lines = tabulate(map(cells, own), HEADS, "plain", colalign=aligned, disable_numparse=True)
        text += ["", TITLES[key] + scale, lines, *(f"{row.way}: {row.error}" for row in own if row.error)]
    return "\n".join(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default=",".join(WORKLOADS), metavar="KEY,...", help="workloads")
    parser.add_argument("--executors", default="", metavar="NAME,...", help="default: by device")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    device = torch.device(args.device)
    if args.child:
        try:
            for answer in child(*args.child, device, args.precision):
                print(json.dumps(answer), flush=True)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"[:200]}), flush=True)
        return 0
    rows: list[Row] = []
    for key in args.only.split(","):
        ways = [way for way in EXECUTORS[args.device] if (args.device, way) != ("cpu", "stacked") or key not in LARGE]
        try:
            own = in_turn(key, args.executors.split(",") if args.executors else ways, (args.device, args.precision))
        except Failed as error:
            own = [Row(key, USUAL, str(error), met=False)]
        judge(own, TARGETS[args.device].get(key))
        for row in own:
            print(f"{row.workload} {row.way}: {row.error or f'{row.ratio:.2f}x'}", file=sys.stderr, flush=True)
        rows += own
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    print(table(rows, f"{name}, {available_cores()} cores, torch {torch.__version__}, {args.precision}"))
    return int(any(row.met is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
