"""Runs: one by its id, or many as data frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedbench.api.shared import Home, roots, say, store_of
from fedbench.errors import FedbenchError
from fedbench.metrics.read import VIEW, headline
from fedbench.options import checked
from fedbench.planner.runs import SEEDS, differing, label, names_of_methods, select, text
from fedbench.results.frame import Frame
from fedbench.results.run import Run as BaseRun
from fedbench.store.provenance import other_code
from fedbench.words import duration

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: Columns that `runs` always has, even if all runs have the same value.
MAIN = ("method", "dataset", "split", "seed")
#: Values that a run's card in a notebook shows.
CARD = ("dataset", "split", "model", "rounds", "epochs", "steps", "lr", "seed", "budget")


@dataclass(frozen=True, repr=False)
class Run(BaseRun):
    """A complete run: its configuration (`values`, `spec`), its results, and how it was made (`provenance`)."""

    @cached_property
    def results(self) -> dict[str, float]:
        """The headline metrics: means over the setting's last evaluated rounds, on test images without augmentation."""
        return headline(self.metrics, self.spec.setting)

    @property
    def accuracy(self) -> float:
        """Mean accuracy of the clients' models on their local test images, weighted by training set size. It is nan for
        multi-label images; their `results` have areas under curves instead."""
        return self.results.get("average_accuracy", float("nan"))

    @property
    def accuracies(self) -> pd.Series[float]:
        """Accuracy of each client after the last round, by the names of natural groups where clients are such (a
        hospital's), else by number."""
        import pandas as pd

        values = self.metrics.per_client("client_accuracy", VIEW)
        index = pd.Index(self.client_names or range(len(values)), name="client")
        return pd.Series(values, index, name="accuracy")

    @property
    def predictions(self) -> pd.DataFrame:
        """The prediction of each model for each test image."""
        return self.artifact.frame("predictions")

    @property
    def rounds(self) -> pd.DataFrame:
        """Loss, learning rate, seconds and bytes of each round."""
        return self.artifact.frame("rounds")

    @property
    def clients(self) -> pd.DataFrame:
        """Sample counts and groups of each client, its name if it is a natural group, and what the method measured."""
        frame = self.artifact.frame("clients")
        if self.client_names:
            frame.insert(1, "name", list(self.client_names))
        return frame

    def plot(self, **options: Any) -> Figure:
        """Its learning curve (`figure("curves", run)`), by `metric`, against round, bytes or seconds."""
        from fedbench.api.figures import figure

        return figure("curves", self, **options)

    def __repr__(self) -> str:
        results = f", accuracy {self.accuracy:.1%}" if "average_accuracy" in self.results else ""
        named = ", ".join([self.title, *(f"{k} {text(v)}" for k, v in self._overrides.items())])
        return f"<run {self.id[:8]}: {named} on {self.values['dataset']} {self.values['split']}{results}>"

    def _repr_html_(self) -> str:
        from fedbench.api.shared import card

        rows = {name.replace("_", " "): f"{value:.2%}" for name, value in self.results.items()}
        rows |= {key: text(self.values[key]) for key in CARD if self.values.get(key) is not None}
        rows |= {name: text(value) for name, value in self.hyper_parameters.items()}
        there = self.provenance
        made = (there.get(key) for key in ("started", "device", "executor"))
        rows["made"] = ", ".join([*(str(one) for one in made if one), duration(there.get("train_seconds", 0.0))])
        rows["code"] = f"{there.get('git') or 'installed'}{' (another version)' if self.stale else ''}"
        return card(f"{self.title}, run {self.id}", rows)

    @property
    def _overrides(self) -> dict[str, Any]:
        return dict(self.provenance.get("overrides", {}))


@checked
def run(id: str, *, store: Home = None) -> Run:
    """The run with this id or unique beginning of an id. A shipped run has no `predictions` and no `rounds`."""
    named = listed([id], store)
    if len(named) > 1:
        raise FedbenchError(f"run: id must name one run, and '{id}' names {len(named)}", "fb.runs lists several")
    return Run.of(named[0].artifact, named[0].store)


def listed(words: Sequence[str], store: Home, shipped: bool = True) -> list[BaseRun]:
    """The runs that match all words: of the store and, if `shipped`, shipped ones. No words: all of the store."""
    home = store_of(store)
    known = Frame.of(home, lambda problem: say(str(problem))) if shipped else Frame(home)
    return select(known, words, roots())


def chosen(filters: Sequence[str | BaseRun], store: Home, shipped: bool = True) -> list[BaseRun]:
    """The given runs, and the runs that match all given words, each once; without arguments, all runs of the store."""
    given = [one for one in filters if isinstance(one, BaseRun)]
    words = [one for one in filters if isinstance(one, str)]
    every = [*given, *(listed(words, store, shipped) if words or not given else [])]
    return list({one.id: one for one in every}.values())


@checked
def runs(*filters: str, shipped: bool = True, store: Home = None) -> pd.DataFrame:
    """A data frame with a row for each run that matches all filters (`method=fedavg,ditto`, `lr=0.1`, an id; none: all
    of the store). Columns: what the run is, in what the runs differ, and the headline metrics of the last rounds. An
    id, `table=feddrm/1`, `paper=`, `protocol=` and `shipped=yes` also match shipped runs, unless `shipped` is false.

    >>> runs("method=fedavg")[["method", "dataset", "split"]].values.tolist()[0]
    ['fedavg', 'digits', 'Dir-0.3']
    """
    import pandas as pd

    named = listed(filters, store, shipped)
    keys = [*MAIN, *(key for key in differing(named) if key not in MAIN)]
    rows = []
    for one in named:
        values = {key: one.values.get(key) for key in keys}
        said = {"stale": one.stale, "other_code": other_code(one.provenance), "shipped": bool(one.shipped)}
        rows.append({**values, **headline(one.metrics, one.spec.setting), **said})
    return pd.DataFrame(rows, index=pd.Index([one.id for one in named], name="run"))


@checked
def curves(
    *filters: str | Run, metric: str | Sequence[str] = "average_accuracy", shipped: bool = True, store: Home = None
) -> pd.DataFrame:
    """A data frame with a row for each round in which a metric of a run was measured (columns run, label, seed, round,
    metric, value). Runs that differ only in their seeds have the same label. A filter is one of `runs`, or a `Run`.

    >>> curves("method=fedavg", metric="train_loss").columns.tolist()
    ['run', 'label', 'seed', 'round', 'metric', 'value']
    """
    import pandas as pd

    shown = chosen(filters, store, shipped)
    keys, names = [key for key in differing(shown) if key not in SEEDS], names_of_methods(shown)
    rows = [
        (one.id, label(one, ["method", *keys], names), one.spec.setting.seed, round, name, value)
        for one in shown
        for name in ([metric] if isinstance(metric, str) else metric)
        for round, value in one.metrics.series(name, VIEW).items()
        if round  # round 0 holds values of the whole run
    ]
    return pd.DataFrame(rows, columns=["run", "label", "seed", "round", "metric", "value"])
