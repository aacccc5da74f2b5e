"""Observers, which record the progress of training; on the command line NAME or NAME:WHERE (README.md).

A library that an observer needs is imported when the observer is created.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError, check_known
from fedbench.plugins import in_words
from fedbench.words import path_of

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress
    from fedbench.engine.engines import Engine
    from fedbench.engine.job import Job
    from fedbench.specs import Plain
    from fedbench.store import Artifact


@dataclass(frozen=True)
class Training:
    """What is being trained: one run, or several runs at the same time that differ only in their seeds."""

    ids: tuple[str, ...]
    title: str  #: as printed
    rounds: int
    values: Mapping[str, Plain]  #: configuration of the (first) run: method, data, setting, hyper-parameters


class Observer:
    """Base class of observers; override the methods that you need. The defaults do nothing.

    One observer can observe several trainings in sequence; simultaneous trainings get a `twin` each. If an observer
    raises an exception, one line reports it, and the observer is not called again for that training; the run continues.
    """

    def twin(self) -> Observer:
        """A copy of this observer, with shared attributes, for one of several simultaneous trainings."""
        return copy(self)

    def on_start(self, training: Training) -> None:
        """Called before the first round, or the next one of a resumed run; not called for a run that is complete."""

    def on_round(self, now: Progress) -> None:
        """Called after a round (means if there are several runs), and before the first round with `now.doing` set."""

    def on_end(self, results: Mapping[str, float] | None) -> None:
        """Called at the end with metric -> value, as in `fedbench evaluate`; None if the training stopped or failed."""


class JsonLines(Observer):
    """Append one JSON line for each event to a file: {"event": "start" | "round" | "end", "time": Unix seconds,
    "runs": [ids], ...}; losses in nats, accuracies as fractions. Raises FedbenchError if the file cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ids: tuple[str, ...] = ()
        try:
            path.open("a").close()
        except OSError as error:
            raise FedbenchError(f"cannot write {path} ({error.strerror})", "choose another file") from error

    def on_start(self, training: Training) -> None:
        self.ids = training.ids
        self._write("start", title=training.title, rounds=training.rounds, values=dict(training.values))

    def on_round(self, now: Progress) -> None:
        if not now.doing:
            self._write("round", round=now.round, loss=now.loss, accuracy=now.accuracy)

    def on_end(self, results: Mapping[str, float] | None) -> None:
        self._write("end", complete=results is not None, results=dict(results or {}))

    def _write(self, event: str, **more: Any) -> None:
        line = json.dumps({"event": event, "time": round(time.time(), 3), "runs": self.ids, **more})
        with self.path.open("a") as file:
            file.write(f"{line}\n")


class TensorBoard(Observer):
    """TensorBoard: one folder of event files for each run, in a common log folder. Scalars `loss` and `accuracy` by
    round, the results as `end/METRIC`, and the configuration as text."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder, self.open = folder, SummaryWriter
        self.writer: Any = None
        self.rounds = 0

    def on_start(self, training: Training) -> None:
        self.rounds = training.rounds
        more = [f"and-{len(training.ids) - 16}-more"] if training.ids[16:] else []  # a name has at most 255 bytes
        name = "-".join([str(training.values["method"]), *training.ids[:16], *more])
        self.writer = self.open(f"{self.folder}/{name}")
        rows = "\n".join(f"| {name} | {value} |" for name, value in training.values.items())
        self.writer.add_text("run", f"{training.title}\n\n| | |\n|---|---|\n{rows}")

    def on_round(self, now: Progress) -> None:
        if now.doing:
            return
        if now.loss is not None:
            self.writer.add_scalar("loss", now.loss, now.round)
        if now.accuracy is not None:
            self.writer.add_scalar("accuracy", now.accuracy, now.round)

    def on_end(self, results: Mapping[str, float] | None) -> None:
        for name, value in (results or {}).items():
            self.writer.add_scalar(f"end/{name}", value, self.rounds)
        self.writer.close()


class WandB(Observer):
    """Weights & Biases: one run for each training, in a project; WANDB_MODE chooses offline or online. It logs the
    configuration as config, `loss` and `accuracy` by round, and the results as summary."""

    def __init__(self, project: str = "") -> None:
        import wandb

        self.project, self.init = project or "fedbench", wandb.init
        self.run: Any = None

    def on_start(self, training: Training) -> None:
        config = {**training.values, "fedbench_runs": " ".join(training.ids)}
        self.run = self.init(project=self.project, name=training.title, config=config, reinit="create_new")

    def on_round(self, now: Progress) -> None:
        if not now.doing:
            accuracy = {} if now.accuracy is None else {"accuracy": now.accuracy}
            loss = {} if now.loss is None else {"loss": now.loss}
            self.run.log({**loss, **accuracy}, step=now.round)

    def on_end(self, results: Mapping[str, float] | None) -> None:
        self.run.summary.update(dict(results or {}))
        self.run.finish(exit_code=1 if results is None else 0)


#: Name -> metavar of the text after the colon, and the function that makes the observer from that text.
_OBSERVERS: Mapping[str, tuple[str, Callable[[str], Observer]]] = {
    "jsonl": ("FILE", lambda where: JsonLines(path_of(where, "--observe"))),
    "tensorboard": ("DIR", lambda where: TensorBoard(path_of(where, "--observe"))),
    "wandb": ("PROJECT", WandB),
}
#: Observers that write files -> an example path for error messages.
_FILES = {"jsonl": "log.jsonl", "tensorboard": "board"}


def of(text: str) -> Observer:
    """The observer for the text 'NAME' or 'NAME:WHERE', such as 'tensorboard:logs'.

    Raises FedbenchError for an unknown name, and if a library that the observer needs is not installed.
    """
    name, colon, where = text.partition(":")
    check_known("observer", name, _OBSERVERS)
    place, made_of = _OBSERVERS[name]
    if not where and (colon or name in _FILES):
        raise FedbenchError(f"--observe {text} names no {place}", f"such as {name}:{_FILES.get(name, place)}")
    try:
        return made_of(where)
    except ImportError as error:
        raise FedbenchError(
            f"the observer {name} needs a library that is not installed ({error})", f"pip install 'fedbench-fl[{name}]'"
        ) from error


def make(
    jobs: Sequence[Job],
    engine: Engine,
    *,
    title: str = "",
    observers: Sequence[Observer] = (),
    warn: Callable[[str], object] = lambda line: None,
) -> list[Artifact]:
    """Train and evaluate a run, or load it from the store if it is complete. Several runs, which differ only in their
    seeds, are trained at the same time where possible (see `engine.run.execute_all` for what is raised).

    `warn` receives a line if an observer fails or if a run has a remark.
    """
    from fedbench.metrics.evaluate import evaluate
    from fedbench.metrics.read import headline, load

    store = engine.store
    watched = [] if all(job.done(store) for job in jobs) else observers
    with Watch(_training(jobs, title), watched, warn) as watching:
        made = engine.make(jobs, watching.on_round)
        evaluated = []
        for artifact in made:
            if remark := artifact.provenance.get("remark"):
                warn(str(remark))
            evaluated.append(evaluate(artifact, store))
        if made and watching.observers:  # with several seeds: means of the metrics that all of them have
            each = [headline(load(one), jobs[0].spec.setting) for one in evaluated]
            shared = [name for name in each[0] if all(name in one for one in each)]
            watching.results = {name: fmean(one[name] for one in each) for name in shared}
    return made


def _training(jobs: Sequence[Job], title: str) -> Training:
    spec = jobs[0].spec
    setting, part = spec.setting.to_dict(), spec.setting.partition
    own = {k: v for k, v in setting.items() if k != "partition" and not isinstance(v, list)}
    values = {"method": spec.method, "dataset": part.dataset.name, "partition": part.id, **own, **spec.params}
    return Training(tuple(job.spec.id for job in jobs), title or jobs[0].method.title, own["rounds"], values)


class Watch:
    """Calls observers; one that fails is not called again.

    For several runs, `on_start` is called only at the first round: only then is it certain that they train together.
    """

    def __init__(self, training: Training, observers: Sequence[Observer], warn: Callable[[str], object]) -> None:
        self.training, self.observers, self.warn = training, list(observers), warn
        self.begun = False
        self.results: Mapping[str, float] | None = None

    def __enter__(self) -> Watch:
        if len(self.training.ids) == 1:
            self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        if self.begun:
            self._tell("on_end", self.results)

    def on_round(self, now: Progress) -> None:
        if not self.begun:
            self._begin()
        self._tell("on_round", now)

    def _begin(self) -> None:
        self.begun = True
        self._tell("on_start", self.training)

    def _tell(self, what: str, *values: Any) -> None:
        for observer in list(self.observers):
            try:
                getattr(observer, what)(*values)
            except Exception as error:
                self.observers.remove(observer)
                called = f"{type(observer).__module__}.{type(observer).__name__}"
                self.warn(f"the observer {called} failed in {what} and watches no more: {in_words(error)}")
