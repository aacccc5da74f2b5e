"""Train and evaluate runs, and notify observers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedbench.observers import Observer, Training
from fedbench.plugins import in_words

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress
    from fedbench.engine.engines import Engine
    from fedbench.engine.job import Job
    from fedbench.store import Artifact


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
