"""`fedbench show`: origins of artifacts. `fedbench methods` and `metrics`: lists of what there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from fedbench.cli import completion, context, options, printing
from fedbench.cli.parser import App
from fedbench.errors import FedbenchError, check_known
from fedbench.measure import stored
from fedbench.plugins import reported
from fedbench.words import option_of

if TYPE_CHECKING:
    from fedbench.declaration import Declaration

app = App()


@app.command("show")
def show(
    id: Annotated[str, options.argument("Id of an artifact, or its beginning.", completion=completion.artifacts)],
    json: options.Json = False,
) -> None:
    """Show the origin of an artifact or a shipped run, from the metrics back to the images."""
    from fedbench.cli.origin import chain, details, document

    store = context.store()
    try:
        artifact = store.find(id)
    except FedbenchError:
        if (shipped := context.frame().packs.find(id)) is None:
            raise
        artifact = shipped
    links = chain(store, artifact)
    if json:
        printing.print_json([document(a) if a else {"missing": what} for what, a in links])
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
    # Wrap long lines instead of cutting them.
    context.out().print(tree, soft_wrap=False)


@app.command("methods")
def methods(
    name: Annotated[
        str | None, options.argument("One method, or FILE.py:Class.", completion=completion.methods)
    ] = None,
    serves: Annotated[
        str | None,
        "Only methods with a model for these clients: member, unseen (never trained), unlabelled.",
        "<kind>",
    ] = None,
    json: options.Json = False,
) -> None:
    """List the methods by family, or one method's hyper-parameters and deviations."""
    from fedbench.methods.agreement import summary
    from fedbench.methods.declarations import built_in, of
    from fedbench.reports.layout import references

    check_known("kind of client", serves, sorted({kind for one in built_in().values() for kind in one.serves}))
    with reported():
        declarations = list(built_in().values()) if name is None else [of(name)]
    declarations = [one for one in declarations if serves is None or serves in one.serves]
    if json:
        documents = [
            {
                "name": one.name,
                "title": one.title,
                "version": one.version,
                "summary": one.summary,
                "family": references.family(one),
                "references": [] if one.source else [key for key, _ in references.of_method(one.name)],
                "options": [{"name": name, **asdict(it)} for name, it in one.hyper_parameters.items()],
                "deviations": one.deviations,
                "serves": one.serves,
                "measures": stored(one.measures),
                "agreement": summary(one.name),
            }
            for one in declarations
        ]
        printing.print_json(documents)
        return
    console = context.out()
    if name is None:
        _list(declarations)
        return
    from rich.text import Text

    for one in declarations:
        console.print(Text.assemble((one.title, "bold"), f" ({one.name}, version {one.version})\n"))
        papers = [] if one.source else [paper.words for _, paper in references.of_method(one.name)]
        console.print(" ".join([f"{references.family(one)}.", *papers]) + "\n", style="dim")
        console.print(f"{one.text}\n")
        console.print(f"serves: {', '.join(f'{kind} clients' for kind in one.serves)}.\n")
        if agreement := summary(one.name):
            console.print(f"agreement: {agreement}.\n")
        for option, it in one.hyper_parameters.items():
            symbol = f" {it.symbol}" if it.symbol else ""
            source = f" [{it.source}]" if it.source else ""
            choices = f" ({', '.join(it.choices)})" if it.choices else ""
            line = f"  {option_of(option)} {it.default}{symbol}: {it.help}{choices}{source}"
            console.print(line)
        if one.measures:
            console.print("\nmeasures, by the names of its runs' metrics:")
        for measure in one.measures:
            console.print(f"  {measure}")


def _list(methods: Sequence[Declaration]) -> None:
    """Print a line a method under the heading of its family: name, first author and year of its paper, what it is."""
    from rich.text import Text

    from fedbench.reports.layout import references

    papers = {one.name: next((paper for _, paper in references.of_method(one.name)), None) for one in methods}
    cited = {name: f"{paper.year} {paper.surnames[0]}" if paper else "" for name, paper in papers.items()}
    names, works = (max(map(len, texts)) for texts in (cited, cited.values()))
    console = context.out()
    for family, those in references.by_family(methods).items():
        console.print(Text(family, "bold"), soft_wrap=True)
        for one in those:
            name = f"  {one.name:<{names}}  "
            line = Text.assemble((name, "cyan"), (f"{cited[one.name]:<{works}}  ", "dim"), one.summary)
            line.truncate(console.width, overflow="ellipsis")
            console.print(line, soft_wrap=True)
    console.print("The options, paper and deviations of one: fedbench methods NAME.", style="dim")


@app.command("metrics")
def metrics(json: options.Json = False) -> None:
    """List the metrics of runs and tables, also those that methods declare."""
    from fedbench.methods.declarations import built_in
    from fedbench.metrics.definitions import all_metrics
    from fedbench.planner.table.statistic import over_clients
    from fedbench.results import beside_local, reached

    owners: dict[str, list[str]] = {}
    for method in built_in().values():
        for measure in method.measures:
            owners.setdefault(measure.name, []).append(method.name)
    if json:
        lines = [{"metric": k, **asdict(one), "methods": owners.get(k)} for k, one in all_metrics().items()]
        printing.print_json(lines)
        return
    table = printing.table("metric", "unit", "what", whole=("metric",))  # users copy the names
    for name, one in all_metrics().items():
        methods = f" ({', '.join(owners[name])})" if name in owners else ""
        table.add_row(name, one.unit, one.description + methods)
    context.out().print(table)
    context.out().print("A metric with methods in brackets exists only for runs of these methods.")
    context.out().print("'fedbench compare' also takes statistics of the clients' values:")
    for name in over_clients():
        context.out().print(f"  client_accuracy_{name}")
    context.out().print("when a run reaches a value (also in a table, with statistic whole_run):")
    for name in reached.names():
        context.out().print(f"  {name}")
    context.out().print("clients that are worse than in Local's run (in a table, with statistic last):")
    for name in beside_local.NUMBERS:
        context.out().print(f"  {name}")
