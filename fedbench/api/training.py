"""Training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedbench import protocol as protocols
from fedbench.api.own import name_of, options_of
from fedbench.api.parts import Part
from fedbench.api.places import Home, roots, say, screen, store_of
from fedbench.api.results import Run
from fedbench.errors import unknown
from fedbench.observers.observer import Observer
from fedbench.options import checked
from fedbench.specs import PartitionSpec

if TYPE_CHECKING:
    from fedbench.engine.job import Job

#: What can be chosen of a run's setting; the rest is the protocol's.
SETTING = (
    "model", "rounds", "epochs", "steps", "batch_size", "lr", "optimizer", "momentum", "momentum_lives", "weight_decay",
    "select", "every", "participation", "drifts", "seed", "precision",
)  # fmt: skip


@checked
def train(
    part: Part | str,
    method: str | type | object,
    *,
    budget: str = "small",
    protocol: str | None = None,
    device: str = "auto",
    executor: str = "auto",
    again: bool = False,
    observers: Sequence[Observer | str] = (),
    progress: bool = True,
    store: Home = None,
    **options: Any,
) -> Run:
    """Train a method in a partition, or find the run in the store; it goes on where it was interrupted.

    Arguments:
        part: a partition, or its id.
        method: a name, 'FILE.py:Class', or a class or an object of your own, also from a notebook's cell.
        options: of the setting as on the command line (rounds=20, lr=0.1, seed=0, model=...), and hyper-parameters.
        observers: objects, or texts as for --observe ('tensorboard:board').
        progress: whether to show how the training goes.

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
    from fedbench.observers.bars import Bars
    from fedbench.observers.watch import make

    home = part.store if isinstance(part, Part) else store_of(store)
    spec, rules = _where(part, home, protocol)
    job = _job(name_of(method, home), spec, rules, budget, {**options_of(method), **options}, home)
    engine = Where(device=device, executor=executor).engine_for(home, roots(), job.spec.setting.precision)
    job = job.again(home) if again else job
    watching = [named.of(one) if isinstance(one, str) else one for one in observers]
    try:
        with engine, Bars(screen()) as bars:
            (artifact,) = make([job], engine, observers=[*([bars] if progress else []), *watching], warn=say)
    except Interrupted as stop:
        rounds = job.spec.setting.rounds
        raise KeyboardInterrupt(f"round {stop.round} of {rounds} is saved; the same call goes on from there") from None
    return Run(artifact, home)


def _where(part: Part | str, home: Any, protocol: str | None) -> tuple[PartitionSpec, str]:
    """The partition, and the protocol whose defaults hold."""
    if isinstance(part, Part):
        return part.spec, protocol or part.protocol
    spec = home.find(part, ("partition",)).spec
    assert isinstance(spec, PartitionSpec)
    return spec, protocol or protocols.default_for(spec.dataset.name)


def _job(method: str, part: PartitionSpec, protocol: str, budget: str, options: dict[str, Any], home: Any) -> Job:
    """Raises FedbenchError for an option that neither the setting nor the method has."""
    from fedbench import methods
    from fedbench.engine.job import Job

    kind, _ = methods.load(method)
    own = kind.hyperparameters()
    for name in options:
        if name not in own and name not in SETTING:
            raise unknown(f"option of {kind.name}", name, [*own, *SETTING])
    chosen = {name: value for name, value in options.items() if name not in own}
    if chosen.get("model") is not None:
        chosen["model"] = name_of(chosen["model"], home, "model")
    rules = protocols.load(protocol)
    setting = rules.setting(part, budget, **chosen)
    return Job.under(rules, budget, setting, method, options)
