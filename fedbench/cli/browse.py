"""`fedbench show`, `methods`: where something comes from, and what can be trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbench.cli import complete, context
from fedbench.cli.describe import describe
from fedbench.measure import stored
from fedbench.plugins.mistakes import reported
from fedbench.specs import DatasetSpec, MetricsSpec, PartitionSpec, RunSpec, Spec
from fedbench.store import Artifact

if TYPE_CHECKING:
    from fedbench.declaration import Declaration
    from fedbench.store import Store


def show(
    id: Annotated[str, typer.Argument(help="Id of an artifact, or its beginning.", autocompletion=complete.artifacts)],
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


def methods(
    name: Annotated[
        str | None, typer.Argument(help="One method, or FILE.py:Class.", autocompletion=complete.methods)
    ] = None,
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
