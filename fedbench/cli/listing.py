"""`fedbench list`: artifacts with results, and unfinished runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any

from fedbench.cli import context, options, printing
from fedbench.cli.describe import describe, differing_params, method_words, model_words
from fedbench.cli.parser import App
from fedbench.errors import FedbenchError, unknown
from fedbench.protocol import budgets_of
from fedbench.specs import DatasetSpec, MetricsSpec, PartitionSpec, RunSpec
from fedbench.store import KINDS, Artifact, Store
from fedbench.store.unfinished import Unfinished, unfinished
from fedbench.words import size

app = App()

#: A kind that can be listed in addition to the kinds of artifacts.
UNFINISHED = "unfinished"
#: Right-aligned columns, and columns that are left out on a narrow terminal.
_RIGHT = ("rounds", "lr", "seed", "accuracy", "AUC", "system", "size", "clients")
_SPARE = ("size", "clients", "budget", "rounds", "system", "made", "model")

#: Columns of a run's row that identify it or hold its results.
_RESULTS = ("run", "accuracy", "AUC", "system", "made", "size")

Headlines = Mapping[str, Mapping[str, Any]]


@app.command("list")
def list_artifacts(
    what: Annotated[
        list[str] | None,
        options.argument(
            "dataset, partition, run, metrics or unfinished (default: all), or filters of runs: "
            "method=fedavg,ditto lr=0.1 dataset=mnist, an id.",
            "[KIND] [FILTER]...",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """List the contents of the store, newest last; * marks the current partition and run.

    accuracy is the average accuracy in % of the clients' models, weighted by training images, as in 'train' and
    'compare'; system is that of the whole federation; both over the last rounds that count.
    """
    kinds, filters = _kinds_and_filters(what or [])
    store = context.store()
    artifacts, problems = _artifacts(store, kinds, filters)
    incomplete = unfinished(store) if UNFINISHED in kinds else []
    for error in problems:
        context.err().print(str(error))
    differing = differing_params([*(a.spec for a in artifacts), *(run.spec for run in incomplete)])
    headlines = _headlines(store, artifacts) if "run" in kinds else {}
    if json:
        documents = [_document(a, headlines, differing) for a in artifacts]
        printing.print_json(
            documents + [{"kind": UNFINISHED, **unfinished_document(run, differing)} for run in incomplete]
        )
        return
    if not artifacts and not problems and not incomplete:
        if what:
            context.out().print(f"nothing in {store.home} of the kind {what[0]}")
        else:
            context.out().print(f"nothing in {store.home} yet; 'fedbench demo' or 'fedbench partition' makes a start")
        return
    _print(store, artifacts, incomplete, headlines, differing, with_metrics=kinds == ["metrics"])


def _kinds_and_filters(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The kinds to list, and the filters of runs."""
    from fedbench.planner.runs import spelt_out

    known = (*KINDS, UNFINISHED)
    if words and words[0] in known:
        kind, *filters = words
        if filters and kind != "run":
            raise FedbenchError(f"filters are for runs, not for {kind}", f"fedbench list run {' '.join(filters)}")
        return [kind], filters
    if len(words) == 1 and not re.fullmatch("[0-9a-f]+|.*=.*", spelt_out(words)[0], re.DOTALL):  # no id, no filter
        raise unknown("kind of artifact", words[0], known)
    return (["run"], list(words)) if words else (list(known), [])


def _artifacts(
    store: Store, kinds: Sequence[str], filters: Sequence[str]
) -> tuple[list[Artifact], list[FedbenchError]]:
    """The artifacts of these kinds, oldest first, and an error for each that is damaged or unreadable."""
    if filters:
        from fedbench.planner.runs import select

        return [run.artifact for run in select(context.frame(shipped=False), filters, context.roots())], []
    there = [one for kind in kinds if kind != UNFINISHED for one in store.scan(kind)]
    return [a for a in there if isinstance(a, Artifact)], [a for a in there if isinstance(a, FedbenchError)]


def _headlines(store: Store, artifacts: Iterable[Artifact]) -> Headlines:
    """Run id -> its headline metrics, if the store has them and they belong to this training of the run."""
    from fedbench.metrics.read import of_this_making, read_listed, spec_of

    artifacts = list(artifacts)
    listed = {a.spec.run.id: a for a in artifacts if isinstance(a.spec, MetricsSpec)}
    headlines = {}
    for run in (a for a in artifacts if a.kind == "run"):
        try:
            metrics = listed.get(run.id) if listed else store.get(spec_of(run))
            if metrics is not None and of_this_making(metrics, run):
                headlines[run.id] = read_listed(metrics)
        except FedbenchError:
            continue  # the listing of metrics reports damaged metrics
    return headlines


def _print(
    store: Store,
    artifacts: Sequence[Artifact],
    incomplete: Sequence[Unfinished],
    headlines: Headlines,
    differing: Mapping[str, Sequence[str]],
    with_metrics: bool,
) -> None:
    """Print a table for each kind. Metrics appear as accuracies of their runs, unless only metrics are listed."""
    from fedbench.results.run import by_other_code

    console, current = context.out(), set(store.current.values())
    rows: dict[str, list[dict[str, str]]] = {}
    images = {a.spec.dataset for a in artifacts if isinstance(a.spec, PartitionSpec)}
    twins = {one.id for one in images if any(one.name == other.name and one != other for other in images)}
    for a in artifacts:
        if a.kind == "metrics" and not with_metrics:
            continue
        row = {a.kind: a.id + ("*" if a.id in current else ""), **_row(a, headlines, differing, twins)}
        made = str(a.provenance["started"])[:16].replace("T", " ")  # day and minute, UTC
        row |= {"made": made, "size": size(bytes_of(a))}
        rows.setdefault(a.kind, []).append(row)
    _add_differences(store, [a for a in artifacts if a.kind == "run"], rows.get("run", []))
    if incomplete:
        rows[UNFINISHED] = [_unfinished_row(run, differing) for run in incomplete]
    for n, table in enumerate(rows.values()):
        if n:
            console.print()
        printing.columns(console, table, _RIGHT, _SPARE)
    for line in by_other_code(a for a in artifacts if a.kind == "run"):
        console.print(line, soft_wrap=True)


def _add_differences(store: Store, runs: Sequence[Artifact], rows: Sequence[dict[str, str]]) -> None:
    """Fill the column "more" of runs whose rows differ only in id and results: in what these runs differ."""
    same_rows: dict[tuple[str, ...], list[int]] = {}
    for k, row in enumerate(rows):
        same_rows.setdefault(tuple(text for name, text in row.items() if name not in _RESULTS), []).append(k)
    for places in (those for those in same_rows.values() if len(those) > 1):
        from fedbench.planner.runs import differing, label
        from fedbench.results.run import Run

        same = [Run.of(runs[k], store) for k in places]
        keys = differing(same)
        for k, run in zip(places, same, strict=True):
            rows[k]["more"] = label(run, keys)
    if any("more" in row for row in rows):
        for row in rows:
            row.setdefault("more", "")


def _row(
    a: Artifact, headlines: Headlines, differing: Mapping[str, Sequence[str]], twins: Collection[str]
) -> dict[str, str]:
    """Heading -> text of an artifact's line; `twins` are ids of data sets that share their name with another."""
    from fedbench.partitions import schemes

    spec = a.spec
    if isinstance(spec, DatasetSpec):
        return {"data set": spec.name, "source": spec.source}
    if isinstance(spec, MetricsSpec):
        return {"what": describe(spec, differing)}
    if isinstance(spec, PartitionSpec):
        details = [*schemes.details(spec), *([f"data set {spec.dataset.id[:8]}"] if spec.dataset.id in twins else [])]
        return {
            "data set": spec.dataset.name,
            "split": schemes.label(spec),
            "clients": str(spec.clients),
            "shift": spec.shift,
            "seed": str(spec.seed),
            "more": ", ".join(details),
        }
    assert isinstance(spec, RunSpec)
    setting, part, reached = spec.setting, spec.setting.partition, headlines.get(a.id, {})
    metrics = {"accuracy": "average_accuracy", "AUC": "client_auc_mean", "system": "system_accuracy"}
    results = {heading: reached.get(metric) for heading, metric in metrics.items()}
    return {
        "method": method_words(spec, differing),
        "data set": part.dataset.name,
        "split": schemes.label(part),
        "clients": str(part.clients),
        "model": model_words(setting),
        "budget": budgets_of(setting),
        "rounds": str(setting.rounds),
        "lr": f"{setting.lr:g}",
        "seed": str(setting.seed),
        **{heading: "" if share is None else f"{100 * share:.2f}" for heading, share in results.items()},
    }


def _unfinished_row(run: Unfinished, differing: Mapping[str, Sequence[str]]) -> dict[str, str]:
    state = f"{run.state}: {run.reason}" if run.reason else str(run.state)
    where = f" (process {run.holder['pid']} on {run.holder['host']})" if run.holder else ""
    rounds = f"{run.round} of {run.spec.setting.rounds}"
    return {UNFINISHED: run.id, "rounds": rounds, "run": describe(run.spec, differing), "state": state + where}


def bytes_of(artifact: Artifact) -> int:
    """Size on disk."""
    return sum(file["bytes"] for file in artifact.manifest["files"].values())


def _document(a: Artifact, headlines: Headlines, differing: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """An artifact as JSON."""
    document: dict[str, Any] = {
        "kind": a.kind,
        "id": a.id,
        "what": describe(a.spec, differing),
        "path": str(a.path),
        "made": a.provenance["started"],
        "bytes": bytes_of(a),
    }
    if isinstance(a.spec, RunSpec):
        from fedbench.store.provenance import other_code

        document |= _of_run(a.spec) | {"other_code": other_code(a.provenance)} | dict(headlines.get(a.id, {}))
    return document


def _of_run(spec: RunSpec) -> dict[str, Any]:
    from fedbench.partitions import schemes

    setting, part = spec.setting, spec.setting.partition
    return {
        "method": spec.method,
        "dataset": part.dataset.name,
        "dataset_id": part.dataset.id[:8],
        "split": schemes.label(part),
        "partition": part.id,
        "model": setting.model,
        "rounds": setting.rounds,
        "lr": setting.lr,
        "seed": setting.seed,
    }


def unfinished_document(run: Unfinished, differing: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """An unfinished run, which is no artifact yet, as JSON."""
    return {
        **_of_run(run.spec),
        "id": run.id,
        "what": describe(run.spec, differing),
        "state": str(run.state),
        "round": run.round,
        "accuracy": run.accuracy,
        "reason": run.reason,
        "bytes": run.bytes,
        "time": run.time,
        "holder": dict(run.holder) if run.holder else None,
        "seconds_left": run.seconds_left,
        "progress": dict(run.progress),
    }
