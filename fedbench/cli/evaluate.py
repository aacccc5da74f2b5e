"""`fedbench evaluate`: compute metrics from predictions, and print the headline ones."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fedbench.cli import completion, context, options, printing
from fedbench.cli.parser import App
from fedbench.errors import FedbenchError
from fedbench.protocol import budgets_of

if TYPE_CHECKING:
    from rich.table import Table

    from fedbench.store import Artifact, Store

app = App()

#: Column, the metric that it shows, and its meaning.
_MEANINGS = (
    (
        "system",
        "system_accuracy",
        "of all clients' test samples, answered by the federation (by routing, else by vote)",
    ),
    ("average", "average_accuracy", "of each client's model on its own test samples, weighted by training samples"),
    ("clients", "client_accuracy_mean", "the same, unweighted mean ± standard deviation over clients"),
    ("unseen", "unseen_client_accuracy", "of the clients that never train, on their own test samples, unweighted mean"),
)
#: Metrics of a run's clusters, one number each.
_CLUSTERS = ("clusters", "true_clusters", "adjusted_rand_index")


@app.command("evaluate")
def evaluate(
    id: Annotated[
        str | None,
        options.argument("A run's id or its beginning (default: the current run).", "[RUN]", completion.runs),
    ] = None,
    all: Annotated[bool, "All runs of the store without metrics."] = False,
    again: Annotated[bool, "Compute existing metrics again, too."] = False,
    json: options.Json = False,
) -> None:
    """Compute a run's metrics (accuracies, times, communication cost) from its predictions."""
    if id is not None and all:
        raise FedbenchError("give either a run's id or --all, not both")
    store = context.store()
    runs = list(store.scan("run")) if all else [_run(store, id)]
    from fedbench.metrics.evaluate import evaluate as compute
    from fedbench.metrics.read import metrics_of

    done: list[Artifact] = []
    failures: list[str] = []
    made = 0
    for run in runs:
        try:
            if isinstance(run, FedbenchError):
                raise run
            fresh = again or metrics_of(run, store) is None
            if all and not fresh:
                continue
            metrics = compute(run, store, again=again)
        except FedbenchError as error:
            if not all:
                raise
            failures.append(str(error))  # a damaged run does not stop the others
            continue
        done.append(run)
        made += fresh
        if not json:
            context.err().print(f"{'wrote' if fresh else 'there already:'} metrics {metrics.id} of run {run.id}")
    if done or json:
        show(done, store, json)
    elif not failures:
        context.err().print("every run has its metrics" if runs else f"no run in {store.home} yet")
    for failure in failures:
        context.err().print(f"not evaluated: {failure}")
    if failures:
        sys.exit(2)


def show(runs: Sequence[Artifact], store: Store, as_json: bool = False) -> None:
    """Print the headline metrics of evaluated runs: means over the last evaluated rounds of their setting."""
    summaries = [_summary(run, store) for run in runs]
    if as_json:
        printing.print_json(summaries)
        return
    for on in dict.fromkeys(one["on"] for one in summaries):
        these = [one for one in summaries if one["on"] == on]
        context.out().print(_table(on, these))
        for heading, metric, meaning in _MEANINGS:
            if _some(these, metric):
                context.out().print(f"{heading}: {meaning}", style="dim")
        for one in these:
            measured = [f"{name} {value:.4g}" for name, value in one["method_metrics"].items() if name not in _CLUSTERS]
            if measured:
                context.out().print(f"{one['run']} {one['method']} measured {', '.join(measured)}")


def _table(on: str, summaries: list[dict[str, Any]]) -> Table:
    """A table with a line for each view of each run: accuracies, or areas under curves for multi-label images."""
    from fedbench.metrics.read import AREAS, UNSEEN

    if any(_some(summaries, name) for name in AREAS):
        what, metrics = (
            "macro ROC AUC in %, mean over the last rounds",
            dict(zip(("clients", "test phase"), AREAS, strict=True)),
        )
        always, grouped = {*metrics}, False
    else:
        rounds = {values["rounds"] for one in summaries for values in one["headline"].values()}
        when = [f"mean over rounds {one}" if "-" in one else f"after round {one}" for one in rounds]
        what = f"accuracy in %, {''.join(when) if len(rounds) < 2 else 'mean over the last rounds'}"
        always = {"average", "clients"}
        metrics = {
            "system": "system_accuracy",
            "average": "average_accuracy",
            "clients": "client_accuracy_mean",
            "unseen": UNSEEN,
            "test phase": "test_phase_accuracy_mean",
            "routing": "routing_accuracy",
        }
        grouped = any("clusters" in one["clusters"] for one in summaries)
    headings = [name for name, metric in metrics.items() if name in always or _some(summaries, metric)]
    if grouped:
        at = len(headings) - ("routing" in headings)
        headings[at:at] = ["clusters", "adj. Rand"]
    first = ("run", "method", "view", "rounds")
    table = printing.table(*first, *headings, right=headings, whole=(*first, *headings), title=f"{on}: {what}")
    for one in summaries:
        for view, values in one["headline"].items():
            texts = {name: f"{100 * values[m]:.2f}" if m in values else "–" for name, m in metrics.items()}
            if "client_accuracy_std" in values:
                texts["clients"] += f" ± {100 * values['client_accuracy_std']:.2f}"
            found, true, index = (one["clusters"].get(name) for name in _CLUSTERS)
            texts["clusters"] = "–" if found is None else f"{found:.0f} (true {true:.0f})"
            texts["adj. Rand"] = "–" if found is None or index is None else f"{index:.2f}"
            table.add_row(one["run"], one["method"], view, values["rounds"], *(texts[name] for name in headings))
    return table


def _some(summaries: list[dict[str, Any]], metric: str) -> bool:
    return any(metric in values for one in summaries for values in one["headline"].values())


def _run(store: Store, id: str | None) -> Artifact:
    if id is not None:
        return store.find(id, ("run",))
    current = store.current.get("run")
    if current is None:
        raise FedbenchError("there is no current run", "'fedbench train' makes one, or give a run's id or --all")
    return store.open("run", current)


def _summary(run: Artifact, store: Store) -> dict[str, Any]:
    """What `show` prints about one run."""
    from fedbench.metrics.evaluate import measures_of
    from fedbench.metrics.read import headline as means
    from fedbench.metrics.read import load, spec_of
    from fedbench.partitions import schemes

    spec = spec_of(run)
    metrics = store.open(spec.kind, spec.id)
    values, setting = load(metrics), spec.run.setting
    headline: dict[str, dict[str, Any]] = {}
    for view in (v for v in values.views if v):
        evaluated = [*(values.series("average_accuracy", view) or values.series("client_auc_mean", view))]
        if not evaluated:  # no AUC is defined: each label is constant on each client
            continue
        last = [t for t in evaluated if t > evaluated[-1] - setting.window]
        headline[view] = {"rounds": f"{last[0]}-{last[-1]}" if len(last) > 1 else f"{last[0]}"}
        headline[view] |= means(values, setting, view)
    partition, of_method = setting.partition, [m for m in measures_of(run) if m in values.names]
    whole = {m: values.whole_run(m) for m in (*_CLUSTERS, *of_method)}
    return {
        "run": run.id,
        "metrics": metrics.id,
        "path": str(metrics.path),
        "method": spec.run.method,
        "on": f"{partition.dataset.name} {schemes.label(partition)}",
        "budget": budgets_of(setting),
        "seed": setting.seed,
        "headline": headline,
        "clusters": {m: whole[m] for m in _CLUSTERS if whole[m] is not None},
        "method_metrics": {m: whole[m] for m in of_method if whole[m] is not None},
        "local_training_seconds": values.whole_run("local_training_seconds"),
        "total_runtime_seconds": values.whole_run("total_runtime_seconds"),
    }
