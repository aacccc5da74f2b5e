"""`fedbench demo`: the whole way on the embedded digits, from partition to table, in a few minutes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from fedbench.cli import context
from fedbench.words import duration

DATASET = "digits"
#: Headline tables, and the methods that the demo trains for each beside their built rows.
TABLES = ("1", "2", "5")
METHODS = ("local", "fedavg", "fedavgft", "pfedfda", "feddrm")


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the tables.")] = Path("fedbench-demo"),
    budget: Annotated[str, typer.Option(help="small or smoke.")] = "small",
) -> None:
    """Partition, train five methods, evaluate and print the headline tables on scikit-learn's handwritten digits.

    Real images, no download. Tables go to the terminal and, as LaTeX and HTML, to a folder.
    """
    from fedbench import data, partitions, protocol
    from fedbench.cli.making import train_table
    from fedbench.cli.report import report
    from fedbench.files import disk_errors
    from fedbench.partitions.view import display

    began = time.perf_counter()
    protocol.load(protocol.DEFAULT).method_params(METHODS[0], budget)  # an unknown budget ends here
    console, store, roots = context.err(), context.store(), context.roots()
    with disk_errors("making the folder for the tables", output):
        output.mkdir(parents=True, exist_ok=True)
    _rule(console, "1. partition", "who holds which digits, seen through which shift")
    source = data.resolve(DATASET, store, roots)
    classes = data.info(source, store).partition_classes
    spec = protocol.load(protocol.DEFAULT).partition_spec(source, classes, scheme="dirichlet", alpha=0.3)
    display(console, partitions.build(spec, store, roots))
    store.set_current(partition=spec.id, protocol=protocol.DEFAULT)
    _rule(console, "2. train", "five methods in the settings of the headline tables")
    for table in TABLES:
        train_table(table, methods=METHODS, dataset=DATASET, budget=budget, quiet=True)
    _rule(console, "3. report", "the headline tables on digits")
    of: dict[str, Any] = {"table": list(TABLES), "budget": budget, "dataset": DATASET}
    report(**of)
    for suffix in ("tex", "html"):
        report(**of, output=output / f"tables.{suffix}", standalone=suffix == "tex")
    console.print(f"The tables are in {output}/tables.tex and tables.html; every artifact is in {store.home}.")
    console.print(f"The demo took {duration(time.perf_counter() - began)}. Next, on real CIFAR-10:")
    for line in ("data fetch cifar10", "partition cifar10 --dir 0.3", "train --method pfedfda", "report --table 1"):
        console.print(f"  fedbench {line}")


def _rule(console: Console, step: str, what: str) -> None:
    console.rule(Text.assemble((step, "bold"), f": {what}"))
