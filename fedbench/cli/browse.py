"""`fedbench show`, `methods`: where something comes from, and what can be trained."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbench.cli import complete, context
from fedbench.errors import FedbenchError
from fedbench.measure import stored
from fedbench.plugins.mistakes import reported

if TYPE_CHECKING:
    from fedbench.declaration import Declaration
    from fedbench.store import Artifact, Store


def show(
    id: Annotated[str, typer.Argument(help="Id of an artifact, or its beginning.", autocompletion=complete.artifacts)],
    json: Annotated[bool, typer.Option("--json", help="The manifests, machine-readable.")] = False,
) -> None:
    """Show where an artifact comes from, from a metric back to the images; also a shipped run, which is not in the
    store."""
    from fedbench.cli.origin import chain, details, document

    store = context.store()
    links = chain(store, _artifact(store, id))
    if json:
        context.print_json([document(a) if a else {"missing": what} for what, a in links])
        return
    from rich.text import Text
    from rich.tree import Tree

    tree: Tree | None = None
    node: Tree | None = None
    for what, artifact in links:
        line = Text.assemble((what, "bold"), ("" if artifact else "  (not in this store, or damaged)", "yellow"))
        node = node.add(line) if node is not None else Tree(line)
        tree = tree or node
        if artifact:
            for detail in details(artifact):
                node.add(detail)
    assert tree is not None
    # Cut nowhere: what does not fit goes on in the next line.
    context.out().print(tree, soft_wrap=False)


def _artifact(store: Store, prefix: str) -> Artifact:
    """The store's artifact, or else the shipped run. Raises FedbenchError if there is neither."""
    try:
        return store.find(prefix)
    except FedbenchError:
        if (run := context.shelf().find(prefix)) is None:
            raise
        return run


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
