"""`fedbench sweep` from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbench import protocol as protocols
from fedbench.api.reporting import Tables, compare
from fedbench.api.results import Run
from fedbench.api.shared import Home, name_of, options_of, roots, say, screen, store_of
from fedbench.errors import FedbenchError
from fedbench.options import checked, several
from fedbench.specs.base import native
from fedbench.store import Store

if TYPE_CHECKING:
    from fedbench.engine.grid import GridPoint
    from fedbench.engine.job import Job
    from fedbench.store import Artifact


@dataclass(frozen=True, repr=False)
class Sweep:
    """The runs of a grid, and the errors of those that failed."""

    store: Store
    points: Sequence[GridPoint]
    failures: Mapping[str, Exception]  #: title of the run -> its error
    leaves_out: bool = False  #: whether one group after the other is left out

    @property
    def runs(self) -> list[Run]:
        """The complete runs, in the order of the grid."""
        from fedbench.engine import grid as best

        return [Run.of(one.artifact, self.store) for one in best.runs(self.points, self.store)]

    @property
    def table(self) -> Tables:
        """The runs side by side, mean ± standard deviation over seeds; with `unseen="each"` also their accuracy on the
        group that each left out, and the mean over the groups."""
        from fedbench.reports.compare.left_out import left_out

        runs = self.runs
        return Tables((*compare(*runs, store=self.store).grids, *(left_out(runs) if self.leaves_out else ())))

    @property
    def best(self) -> list[dict[str, Any]]:
        """For each method and partition, the values with the highest validation accuracy, and that accuracy. Empty
        without validation images (`validation=0.1`), because test images must not choose hyper-parameters."""
        from fedbench.engine.grid import best

        return [
            {
                "method": one.point.method,
                **one.point.partition,
                **one.point.setting,
                **one.point.params,
                "validation_accuracy": one.mean,
            }
            for one in best(self.points, self.store)
        ]

    def __repr__(self) -> str:
        return self.table.text() if self.runs else "<sweep of no run>"

    def _repr_html_(self) -> str:
        return self.table._repr_html_() if self.runs else repr(self)


@checked
def sweep(
    dataset: str,
    methods: str | type | object | Sequence[Any],
    *,
    seeds: Sequence[int] = (),
    partition_seeds: Sequence[int] = (),
    protocol: str | None = None,
    budget: str = "small",
    store: Home = None,
    device: str = "auto",
    executor: str = "auto",
    engine: str = "here",
    jobs: int | None = None,
    cpus_per_run: float | None = None,
    gpus_per_run: float | None = None,
    progress: bool = True,
    **options: Any,
) -> Sweep:
    """Train every method with every value of every option and every seed, as `fedbench sweep` does. Runs in the store
    are not trained again. An option takes a value or a list of values; `**{"ditto.mu": [0.1, 1]}` sets it for one
    method only, and `unseen="each"` leaves out one group of `by` after the other. `jobs` sets how many runs train at a
    time, each in a separate process; `engine="ray"` uses Ray. `partition_seeds`, one beside each of `seeds`, draw the
    partition anew.

    >>> grid = sweep("digits", ["local", "fedavg"], seeds=[0, 1], dir=0.3, clients=5, rounds=2, validation=0.2)
    >>> len(grid.runs), sorted({one["method"] for one in grid.best})
    (4, ['fedavg', 'local'])
    """
    from fedbench.engine.engines import Where
    from fedbench.engine.grid import SweepGrid, missing
    from fedbench.engine.sweep import End
    from fedbench.engine.sweep import sweep as outcomes_of
    from fedbench.methods import load
    from fedbench.observers import make
    from fedbench.observers.bars import Bars

    home = store_of(store)
    given = _listed("methods", methods)
    names = [name_of(one) for one in given]
    axes = {name.rstrip("_"): _listed(name, value) for name, value in options.items() if value is not None}
    own: dict[str, dict[str, Any]] = {}  # method -> the hyper-parameters of the object that it is given as
    for one, name in zip(given, names, strict=True):
        called = load(name)[0].name
        if own.setdefault(called, options_of(one)) != options_of(one):
            such = f"name it once, with its values as options, such as '{called}.NAME': [0.1, 1]"
            raise FedbenchError(f"sweep: methods has {called} twice, with different values", such)
    for method, values in own.items():
        for option, value in values.items():
            if twice := {option, f"{method}.{option}"} & axes.keys():
                line = f"sweep: {min(twice)} is given twice: as an option, and by the object of {method}"
                raise FedbenchError(line, "leave one of the two out")
            axes[f"{method}.{option}"] = [value]
    grid = SweepGrid.of(dataset, names, axes, seeds, partition_seeds)
    where = Where(device, executor, engine, jobs, cpus_per_run, gpus_per_run)
    rules = protocols.load(protocol or protocols.default_for(dataset))
    running = where.engine_for(home, roots(), str(axes.get("precision", [rules.precision(budget)])[0]))
    points = grid.points(rules, budget, home, roots())
    for line in dict.fromkeys(line for point in points for line in point.remarks):
        say(line)
    lacking = missing(points, home)
    failures = {}
    with running, Bars(screen(), dict.fromkeys((run.spec.id for run in lacking), 1.0)) as bars:
        running.get_ready(len(lacking))

        def execute(jobs: Sequence[Job], title: str) -> list[Artifact]:
            return make(jobs, running, title=title, observers=[bars.twin()] if progress else [], warn=say)

        for outcome in outcomes_of(lacking, running, execute, executor=executor):
            if outcome.end is End.FAILED and outcome.error is not None:
                failures[outcome.title] = outcome.error
            if outcome.end is not End.APART:
                bars.end(1.0)
    return Sweep(home, points, failures, grid.leaves_out)


def _listed(name: str, value: Any) -> Sequence[Any]:
    """The values of an option, as a sequence even if it is a single value. Raises FedbenchError for an empty list."""
    try:
        values = [native(one) for one in several(value)]
    except ValueError:
        return [native(value)]
    if not values:
        raise FedbenchError(f"sweep: {name} has no value", f"leave {name} out, or give some")
    return values
