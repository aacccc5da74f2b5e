"""`fedbench data`: list, show, fetch and check data sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from fedbench.cli import completion, context, options, printing
from fedbench.cli.parser import App
from fedbench.errors import FedbenchError
from fedbench.words import counted

if TYPE_CHECKING:
    from fedbench.data import Recipe
    from fedbench.data.fetch import Progress

app = App(name="data", help="Data sets: list, show, fetch and check them.", no_args_is_help=True)

Name = Annotated[
    str, options.argument("A data set, or the path of a recipe (./mine.toml).", completion=completion.datasets)
]
Names = Annotated[
    list[str], options.argument("Data sets, or paths of recipes (./mine.toml).", completion=completion.datasets)
]


@app.command("list")
def list_(json: options.Json = False) -> None:
    """List the data sets with a recipe, and which of their sources are available."""
    from fedbench.data import recipes

    rows = [_overview(found) for found in recipes().values()]
    if json:
        printing.print_json(rows)
        return
    from rich.text import Text

    out = context.out()
    headings = ["name", "classes", "shape", "images", "available", "built", "licence", "title"]
    if out.width < context.FILE_WIDTH:
        headings.remove("title")  # `show` prints it
    lines = [
        {
            **{key: str(value or "?") for key, value in row.items()},
            "shape": "x".join(map(str, row["shape"])),
            "available": row["at_hand"] or ("can be fetched" if row["fetchable"] else "no"),
            "built": "yes" if row["built"] else "no",
        }
        for row in rows
    ]
    # On a narrow terminal only `licence` and `title` are cut: rich narrows first the columns that may wrap.
    table = printing.table(*headings, right=("classes", "images"), whole={*headings} - {"licence", "title"})
    for row, cells in zip(rows, lines, strict=True):
        style = None if row["at_hand"] or row["built"] else "dim"
        table.add_row(*(Text(cells[heading], no_wrap=True, overflow="ellipsis") for heading in headings), style=style)
    out.print(table)


@app.command()
def show(name: Name, json: options.Json = False) -> None:
    """Show a data set: sources, files, licence, citation, and class counts once it is built."""
    from fedbench.data import class_counts, info, locate, parts_of, places, recipe, resolve

    store, roots = context.store(), context.roots()
    found = recipe(name)
    folders = places(found, store, roots)
    sources = [
        {
            "name": s.name,
            "kind": s.kind,
            "title": s.title,
            "train": s.train,
            "test": s.test,
            "at_hand": locate(s, folders) is not None,
            "files": [{"path": f.path, "checksum": f.checksum, "urls": list(f.urls)} for f in s.file],
            "parts": [_overview(part) for part in parts_of(s)],
        }
        for s in found.sources
    ]
    try:
        spec = resolve(name, store, roots)
    except FedbenchError:
        spec = None
    if spec is not None and not found.told and store.has(spec):
        about = info(spec, store)
        shape = about.shape[2:] if found.vectors else about.shape
        found = dataclasses.replace(
            found, shape=shape, classes=about.classes, partition_classes=about.partition_classes
        )
    counts = class_counts(spec, store) if spec else None
    report: dict[str, Any] = {
        **_overview(found),
        "class_names": list(found.classes),
        "columns": list(found.columns),
        "partition_label": found.partition_label,
        "partition_classes": found.partition_classes,
        "citation": found.citation,
        "id": spec.id if spec else None,
        "sources": sources,
        "class_counts": {k: {"train": v[0], "test": v[1]} for k, v in counts.items()} if counts else None,
    }
    if json:
        printing.print_json(report)
    else:
        _print(report)


@app.command()
def fetch(
    names: Names,
    source: Annotated[str | None, "Source (default: the first that can be fetched)."] = None,
    json: options.Json = False,
) -> None:
    """Download data sets into the store, with resume, checksums and mirrors."""
    from fedbench.data import fetch as bring
    from fedbench.data import recipe

    for name in names:
        recipe(name)  # an unknown name is an error before the first download
    brought = {}
    with bars() as progress:
        for name in names:
            paths = bring(name, context.store(), progress, source, context.roots())
            brought[name] = [str(path) for path in paths]
            home = context.store().home
            own = [str(path) for path in paths if not path.is_relative_to(home)]
            done = [f"{counted(len(paths) - len(own), 'file')} verified in {home}"] if len(own) < len(paths) else []
            done += [f"available, nothing to download: {', '.join(own)}"] if own else []
            if not json:
                context.err().print(f"{name}: {'; '.join(done) or 'embedded'}")
    if json:
        printing.print_json(brought)


@app.command()
def check(names: Names, json: options.Json = False) -> None:
    """Verify the files and the built artifacts of data sets, and count test images that are also training
    images; exit code 2 if something is damaged."""
    from dataclasses import asdict

    from fedbench.data import check as examine
    from fedbench.data.build import DAMAGED, GOOD, MISSING, REPEATED

    findings = [finding for name in names for finding in examine(name, context.store(), context.roots())]
    if json:
        printing.print_json([asdict(finding) for finding in findings])
    else:
        colours = {GOOD: "green", DAMAGED: "bold red", MISSING: "dim", REPEATED: "yellow"}
        out = context.out()
        for f in findings:
            line = f"{f.dataset:14} {f.state:12} {f.what}" + (f"  {f.detail}" if f.detail else "")
            out.print(line, style=colours.get(f.state))
    damaged = [finding for finding in findings if finding.state == DAMAGED]
    if damaged:
        raise FedbenchError(
            f"{len(damaged)} of {len(findings)} checked are damaged: {damaged[0].dataset}, {damaged[0].what}"
        )


def _overview(found: Recipe) -> dict[str, Any]:
    from fedbench.data import declared, fetchable, locate, places

    store = context.store()
    folders = places(found, store, context.roots())
    hand = next((s for s in found.sources if locate(s, folders) is not None), None)
    built = [a.id for a in store.list("dataset") if a.manifest["spec"].get("name") == found.name]
    return {
        "name": found.name,
        "title": found.title,
        "licence": found.licence,
        "classes": len(found.classes),
        "shape": list(found.shape),
        "images": declared(found, folders),
        "at_hand": hand.name if hand else None,
        "built": built,
        "fetchable": any(s.kind != "builtin" and fetchable(s) for s in found.sources),
    }


def _print(report: dict[str, Any]) -> None:
    out = context.out()
    out.print(report["title"], style="bold")
    shape = " x ".join(map(str, report["shape"]))
    vectors = len(report["shape"]) == 1
    axes = "values of a vector" if vectors else "height x width x channels"
    form = f"{shape} ({axes})" if shape else "what its files say, once they are read"
    lines = {
        "name": report["name"],
        "id": report["id"] or "not available",
        "shape": form,
        "vectors" if vectors else "images": report["images"] or "?",
        "classes": f"{report['classes']}: {', '.join(report['class_names'])}",
        "columns": ", ".join(report["columns"]) or "none",
        "partition by": f"{report['partition_label'] or 'class'} ({report['partition_classes']} values)",
        "built": ", ".join(report["built"]) or "no",
        "licence": report["licence"],
        "cite": report["citation"],
    }
    for key, value in lines.items():
        out.print(f"{key:13}{value}")
    for source in report["sources"]:
        state = "available" if source["at_hand"] else "not available"
        out.print(f"source {source['name']} ({source['kind']}, {state}): {source['title']}")
        for file in source["files"]:
            out.print(f"  {file['path']}  {file['checksum'] or 'no checksum'}")
            for url in file["urls"]:
                out.print(f"    {url}")
        for part in source["parts"]:
            how = f"'fedbench data fetch {part['name']}'" if part["fetchable"] else "bring your own"
            state = f"available ({part['at_hand']})" if part["at_hand"] else f"not available: {how}"
            out.print(f"  {part['name']:14}{state}")
    for name, count in (report["class_counts"] or {}).items():
        out.print(f"  {name:30} {count['train']:7} train {count['test']:7} test")


@contextmanager
def bars() -> Iterator[Progress | None]:
    """On a terminal, a function that shows one progress bar for each downloaded file; else None."""
    console = context.err()
    if not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}", markup=False), *columns, console=console) as shown:
        tasks: dict[str, Any] = {}

        def advance(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = shown.add_task(name, total=total)
            shown.update(tasks[name], completed=done, total=total)

        yield advance
