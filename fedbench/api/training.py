"""Train one run (`train`) or a grid of runs (`sweep`)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from fedbench import protocol as protocols
from fedbench.api.parts import Part
from fedbench.api.reporting import Runs
from fedbench.api.results import Run
from fedbench.api.shared import Home, name_of, options_of, roots, say, screen, store_of
from fedbench.errors import FedbenchError, check_known
from fedbench.observers import Observer
from fedbench.options import checked
from fedbench.specs import PartitionSpec, Setting
from fedbench.specs.fields import typed

if TYPE_CHECKING:
    from fedbench.engine.job import Job


@overload
def train(part: Part | str, method: str | type | object, *, seeds: Sequence[int], **options: Any) -> Runs: ...
@overload
def train(part: Part | str, method: str | type | object, **options: Any) -> Run: ...
@checked
def train(
    part: Part | str,
    method: str | type | object,
    *,
    seeds: Sequence[int] | None = None,
    budget: str = "small",
    protocol: str | None = None,
    device: str = "auto",
    executor: str = "auto",
    again: bool = False,
    observers: Sequence[Observer | str] = (),
    progress: bool = True,
    store: Home = None,
    **options: Any,
) -> Run | Runs:
    """Train a method on a partition, or load the run from the store. An interrupted run resumes where it stopped.

    Arguments:
        part: a partition, or its id.
        method: a name, 'FILE.py:Class', or a class or an object of a class that you import from a file. An
            object's values hold, and the protocol's for those that it was not given; options have precedence over both.
        options: the setting's, as on the command line (rounds=20, lr=0.1, seed=0, model=...), and hyper-parameters
            (lambda_=0.8 for --lambda).
        seeds: train a run with each, on this one partition; the result is a `Runs`, with their mean ± std.
        observers: objects, or texts as for --observe ('tensorboard:board').
        progress: whether to show a progress bar.

    >>> part = partition("digits", dir=0.3, clients=5)
    >>> one = train(part, "fedavg", rounds=2, steps=4, progress=False)
    >>> one
    <run ...: FedAvg on digits Dir-0.3, accuracy ...%>
    >>> len(one.accuracies), one.predictions["client"].nunique()
    (5, 5)
    """
    from fedbench import observers as named
    from fedbench.core.trainer import Interrupted
    from fedbench.engine.engines import Where
    from fedbench.observers import make
    from fedbench.observers.bars import Bars
    from fedbench.results.learnt import not_learnt

    if isinstance(part, Part):
        if store is not None and store_of(store).home != part.store.home:
            raise FedbenchError(f"train: the partition is in the store {part.store.home}", "leave store out")
        home, spec, rules = part.store, part.spec, protocol or part.protocol
    else:
        home = store_of(store)
        found = home.find(part, ("partition",)).spec
        assert isinstance(found, PartitionSpec)
        spec, rules = found, protocol or protocols.default_for(found.dataset.name)
    options = {name.rstrip("_"): value for name, value in options.items()}  # lambda_, as lambda is a Python keyword
    if seeds is not None and ("seed" in options or not seeds or len(set(seeds)) < len(seeds)):
        raise FedbenchError("train: seeds are different ones, at least one, and instead of seed", "seeds=[0, 1, 2]")
    given = {**options_of(method), **options}
    every = [given] if seeds is None else [{**given, "seed": seed} for seed in seeds]
    jobs = [_job(name_of(method), spec, rules, budget, one) for one in every]
    engine = Where(device=device, executor=executor).engine_for(home, roots(), jobs[0].spec.setting.precision)
    jobs = [job.again(home) for job in jobs] if again else jobs
    for line in dict.fromkeys(line for job in jobs for line in job.set_aside):
        say(line)
    watching: list[Observer] = [named.of(one) if isinstance(one, str) else one for one in observers]
    try:
        with engine, Bars(screen()) as bars:
            watching = [*([bars] if progress else []), *watching]
            if len(jobs) > 1:  # seeds in one stack, where that is faster; what fails there is said by its own run
                with contextlib.suppress(FedbenchError):
                    make(jobs, engine, observers=watching, warn=say)
            artifacts = [one for job in jobs for one in make([job], engine, observers=watching, warn=say)]
    except Interrupted as stop:
        rounds = jobs[0].spec.setting.rounds
        raise KeyboardInterrupt(f"round {stop.round} of {rounds} is saved; the same call continues there") from None
    for line in not_learnt(artifacts):
        say(line)
    runs = [Run.of(artifact, home) for artifact in artifacts]
    return runs[0] if seeds is None else Runs(runs)


def _job(method: str, part: PartitionSpec, protocol: str, budget: str, options: dict[str, Any]) -> Job:
    """The job of one run. Raises FedbenchError for an option that neither the setting nor the method has."""
    from fedbench import methods
    from fedbench.engine.job import Job

    kind, _ = methods.load(method)
    own = kind.hyperparameters()
    for name in options:
        check_known(f"option of {kind.name}", name, [*own, *typed(Setting)])
    chosen = {name: value for name, value in options.items() if name not in own}
    if chosen.get("model") is not None:
        chosen["model"] = name_of(chosen["model"], "model")
    rules = protocols.load(protocol)
    setting = rules.setting(part, budget, **chosen)
    return Job.under(rules, budget, setting, method, options)
