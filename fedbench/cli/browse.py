"""`fedbench list`, `show`, `remove`, `methods`: what is there, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbench.cli import context
from fedbench.errors import FedbenchError, unknown
from fedbench.measure import stored
from fedbench.plain import plain
from fedbench.plugins.mistakes import reported
from fedbench.specs import DatasetSpec, MetricsSpec, PartitionSpec, RunSpec, Setting, Spec
from fedbench.store import KINDS, Artifact

if TYPE_CHECKING:
    from fedbench.declaration import Declaration
    from fedbench.store import Store


def describe(spec: Spec, telling: Mapping[str, Sequence[str]] | None = None) -> str:
    """One line that tells a person what an artifact is; of a run with its method's `telling` hyper-parameters."""
    if isinstance(spec, DatasetSpec):
        return f"{spec.name} ({spec.source})"
    if isinstance(spec, PartitionSpec):
        from fedbench.partitions import schemes

        head = f"{spec.dataset.name} {schemes.label(spec)}, {spec.clients} clients, shift {spec.shift}"
        return ", ".join([head, f"seed {spec.seed}", *schemes.details(spec)])
    if isinstance(spec, RunSpec):
        from fedbench.partitions import schemes

        setting, part = spec.setting, spec.setting.partition
        precision = None if setting.precision == Setting.precision else setting.precision
        differing = (setting.optimizer, setting.select and f"{setting.select} round", precision)
        more = "".join(f", {value}" for value in differing if value)
        values = ", ".join(f"{k} {spec.params[k]}" for k in (telling or {}).get(spec.method, ()) if k in spec.params)
        method = f"{spec.method} ({values})" if values else spec.method
        return (
            f"{method} on {part.dataset.name} {schemes.label(part)}, {part.clients} clients, "
            f"{setting.budget} budget ({setting.rounds} rounds, {setting.model}{more}), seed {setting.seed}"
        )
    if isinstance(spec, MetricsSpec):
        return f"of run {spec.run.id}: {describe(spec.run, telling)}"
    raise TypeError(spec)


def _telling(specs: Iterable[Spec]) -> dict[str, list[str]]:
    """By method, the hyper-parameters in which these runs of it differ."""
    values: dict[str, dict[str, set[str]]] = {}
    for spec in specs:
        if isinstance(spec, RunSpec):
            for name, value in spec.params.items():
                values.setdefault(spec.method, {}).setdefault(name, set()).add(repr(value))
    return {method: [k for k, seen in of.items() if len(seen) > 1] for method, of in values.items()}


def list_artifacts(
    kind: Annotated[str | None, typer.Argument(help="dataset, partition, run or metrics (default: all).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """List the artifacts of the store, oldest first; * marks the current partition and run."""
    if kind is not None and kind not in KINDS:
        raise unknown("kind of artifact", kind, KINDS)
    store = context.store()
    there = [a for k in ([kind] if kind else KINDS) for a in store.scan(k)]
    artifacts = [a for a in there if isinstance(a, Artifact)]
    damaged = [a for a in there if isinstance(a, FedbenchError)]
    telling = _telling(a.spec.run if isinstance(a.spec, MetricsSpec) else a.spec for a in artifacts)
    for error in damaged:
        context.err().print(str(error))
    if json:
        context.print_json([_brief(a, telling) for a in artifacts])
        return
    console = context.out()
    if not there:
        console.print(f"nothing in {store.home} yet; 'fedbench demo' or 'fedbench partition' makes a start")
        return
    from rich.table import Table

    table = Table("kind", "id", "what", "made", box=None, header_style="bold", pad_edge=False)
    table.add_column("size", justify="right", no_wrap=True)
    current = set(store.current.values())
    for a in artifacts:
        mark = "*" if a.id in current else " "
        size = _size(sum(f["bytes"] for f in a.manifest["files"].values()))
        table.add_row(a.kind, f"{a.id}{mark}", describe(a.spec, telling), a.provenance["started"], size)
    console.print(table)


def _size(bytes: int) -> str:
    return f"{bytes / 1e6:.1f} MB" if bytes >= 1e6 else f"{bytes / 1e3:.0f} kB"


def _brief(artifact: Artifact, telling: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    what = describe(artifact.spec, telling)
    return {
        "kind": artifact.kind, "id": artifact.id, "what": what, "path": str(artifact.path),
        "made": artifact.provenance["started"],
    }  # fmt: skip


def show(
    id: Annotated[str, typer.Argument(help="Id of an artifact, or its beginning.")],
    json: Annotated[bool, typer.Option("--json", help="The manifests, machine-readable.")] = False,
) -> None:
    """Show where an artifact comes from: from a metric back to the images."""
    store = context.store()
    chain = _chain(store, store.find(id))
    if json:
        context.print_json([dict(a.manifest) if a else {"missing": what} for what, a in chain])
        return
    from rich.text import Text
    from rich.tree import Tree

    tree: Tree | None = None
    node: Tree | None = None
    for what, artifact in chain:
        line = Text.assemble((what, "bold"), ("" if artifact else "  (not in this store, or damaged)", "yellow"))
        node = node.add(line) if node is not None else Tree(line)
        tree = tree or node
        if artifact:
            for detail in _details(artifact):
                node.add(detail)
    assert tree is not None
    # Cut nowhere: what does not fit goes on in the next line.
    context.out().print(tree, soft_wrap=False)


def _chain(store: Store, artifact: Artifact) -> list[tuple[str, Artifact | None]]:
    """The artifact and all that it was made from; the specs are nested, so this works for what is missing too."""
    specs: list[Spec] = [artifact.spec]
    while not isinstance(specs[-1], DatasetSpec):
        spec = specs[-1]
        if isinstance(spec, MetricsSpec):
            specs.append(spec.run)
        elif isinstance(spec, RunSpec):
            specs.append(spec.setting.partition)
        elif isinstance(spec, PartitionSpec):
            specs.append(spec.dataset)
    return [(f"{spec.kind} {spec.id}: {describe(spec)}", store.whole(spec)) for spec in specs]


def _details(artifact: Artifact) -> list[str]:
    from fedbench.engine import keep
    from fedbench.metrics.method_metrics import MEASURES, measures_of

    spec, p = artifact.spec, artifact.provenance
    libraries = ", ".join(f"{k} {v}" for k, v in p["libraries"].items())
    lines = [
        f"made {p['started']} on {p['host']} ({p['platform']})",
        f"by {libraries}" + (f", revision {p['git'][:12]}{'+' if p['git'].endswith('+') else ''}" if p["git"] else ""),
        f"files in {artifact.path}: " + ", ".join(artifact.manifest["files"]),
    ]
    if isinstance(spec, RunSpec):
        setting = {k: v for k, v in spec.setting.to_dict().items() if k != "partition"}
        lines.insert(0, "setting: " + ", ".join(f"{k} {v}" for k, v in setting.items()))
        lines.insert(0, "method: " + (", ".join(f"{k} {v}" for k, v in spec.params.items()) or "no hyper-parameters"))
        lines.append(f"trained {p['train_seconds']:.1f} s on {p['device']}, {_executor(p)}")
        if keeps := keep.line(artifact):
            lines.append(keeps)
        lines += [f"measures {one}" for one in measures_of(artifact).values() if MEASURES in p]
    if isinstance(spec, DatasetSpec):
        lines.insert(0, f"content {spec.content}")
    return lines


def _executor(provenance: Mapping[str, Any]) -> str:
    """Which executor ran, and why: what was measured of each, in client-steps a second."""
    rates = provenance.get("executor_choice", {}).get("steps_per_second", {})
    measured = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
    others = f", together with {provenance['together'] - 1} other seeds" if "together" in provenance else ""
    return f"executor {provenance['executor']}" + (f" ({measured} client-steps/s)" if measured else "") + others


def remove(
    id: Annotated[str, typer.Argument(help="Id of an artifact, or its beginning.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete an artifact from the store."""
    store = context.store()
    kind, name = store.locate(id)
    if not yes:
        try:
            what = describe(store.open(kind, name).spec)
        except FedbenchError as error:
            what = error.message
        try:
            sure = typer.confirm(plain(f"Delete {kind} {name}: {what}?"))
        except typer.Abort:
            raise FedbenchError("nothing was removed: there was no answer", "--yes removes without asking") from None
        if not sure:
            raise typer.Exit(1)
    store.remove(kind, name)
    context.out().print(f"removed {kind} {name}")


def methods(
    name: Annotated[str | None, typer.Argument(help="One method, or FILE.py:Class.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """List the methods, or one method's hyper-parameters and deviations."""
    from fedbench import declared
    from fedbench.declaration import of_class
    from fedbench.plugins.classes import is_file

    if name is None:
        declarations = list(declared.built_in().values())
    elif is_file(name):  # which is run, to find its mistakes
        from fedbench.methods import load

        with reported():
            declarations = [of_class(*load(name))]
    else:
        declarations = [declared.of(name)]
    if json:
        context.print_json([_method(one) for one in declarations])
        return
    console = context.out()
    if name is None:
        from rich.table import Table

        wide = console.width >= context.FILE_WIDTH
        table = Table("method", "title", "what", box=None, header_style="bold", pad_edge=False)
        if wide:
            table.add_column("options")
        for one in declarations:
            options = " ".join(f"--{k.replace('_', '-')}" for k in one.hyper_parameters)
            table.add_row(one.name, one.title, one.summary, *([options] if wide else []))
        console.print(table)
        console.print("The options and deviations of one: fedbench methods NAME.")
        return
    from rich.text import Text

    for one in declarations:
        console.print(Text.assemble((one.title, "bold"), f" ({one.name}, version {one.version})\n"))
        console.print(f"{one.text}\n")
        for option, it in one.hyper_parameters.items():
            symbol = f" {it.symbol}" if it.symbol else ""
            source = f" [{it.source}]" if it.source else ""
            choices = f" ({', '.join(it.choices)})" if it.choices else ""
            line = f"  --{option.replace('_', '-')} {it.default}{symbol}: {it.help}{choices}{source}"
            console.print(line)
        if one.measures:
            console.print("\nmeasures, by the names of its runs' metrics:")
        for measure in one.measures:
            console.print(f"  {measure}")


def _method(one: Declaration) -> dict[str, Any]:
    options = [{"name": name, **asdict(it)} for name, it in one.hyper_parameters.items()]
    return {
        "name": one.name, "title": one.title, "version": one.version, "summary": one.summary,
        "options": options, "deviations": one.deviations, "measures": stored(one.measures),
    }  # fmt: skip
