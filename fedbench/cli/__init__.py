"""The command line: thin. Each command parses, calls and prints; heavy imports wait until they are needed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fedbench import __version__
from fedbench.cli import browse, context
from fedbench.cli.browse import metrics, tables, theory
from fedbench.cli.context import App
from fedbench.cli.data import data_app
from fedbench.cli.demo import demo
from fedbench.cli.evaluate import evaluate, export
from fedbench.cli.listing import list_artifacts, remove, store_app
from fedbench.cli.new import check, new
from fedbench.cli.partition import DealtCommand, PartitionCommand, partition
from fedbench.cli.report import claims, compare, figure, report, site
from fedbench.cli.results import results_app
from fedbench.cli.status import resume, status
from fedbench.cli.sweep import sweep
from fedbench.cli.train import train

app = App(
    name="fedbench",
    help="Benchmarks for federated learning: from a data recipe to the table in the paper.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"fedbench {__version__}")
        raise typer.Exit


@app.callback()
def options(
    home: Annotated[Path | None, typer.Option(help="The store (default: FEDBENCH_HOME, else ~/.fedbench).")] = None,
    data: Annotated[
        str | None, typer.Option(help=f"Folders with data sets, separated by '{os.pathsep}' (default: FEDBENCH_DATA).")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that may stand before or after the command."""
    context.configure(home, data, debug)


app.command("demo", rich_help_panel="Start here")(demo)
app.command(
    "partition",
    cls=PartitionCommand,
    rich_help_panel="The way to a table",
    # A partitioner's options are options too; the command reads them itself.
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)(partition)
app.command(
    "train",
    cls=DealtCommand,
    rich_help_panel="The way to a table",
    # A method's hyper-parameters are options too, and a partitioner's; the command reads them itself.
    context_settings={"ignore_unknown_options": True},
)(train)
app.command("evaluate", rich_help_panel="The way to a table")(evaluate)
app.command("resume", rich_help_panel="The way to a table")(resume)
app.command("status", rich_help_panel="The way to a table")(status)
app.command("report", rich_help_panel="The way to a table")(report)
app.command("claims", rich_help_panel="The way to a table")(claims)
app.command("compare", rich_help_panel="The way to a table")(compare)
app.command("site", rich_help_panel="The way to a table")(site)
app.command("figure", rich_help_panel="The way to a table")(figure)
app.command("export", rich_help_panel="The way to a table")(export)
app.command(
    "sweep",
    rich_help_panel="Your own",
    # Options of partitions, settings and methods are all options; the command reads them itself.
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)(sweep)
app.command("new", rich_help_panel="Your own")(new)
app.command(
    "check",
    rich_help_panel="Your own",
    # A method's hyper-parameters are options too; the command reads them itself.
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)(check)
app.command("tables", rich_help_panel="What there is")(tables)
app.command("theory", rich_help_panel="What there is")(theory)
app.command("metrics", rich_help_panel="What there is")(metrics)
app.command("methods", rich_help_panel="What there is")(browse.methods)
app.add_typer(data_app, name="data", rich_help_panel="What there is")
app.add_typer(results_app, name="results", rich_help_panel="What there is")
app.add_typer(store_app, name="store", rich_help_panel="What there is")
app.command("list", rich_help_panel="What there is")(list_artifacts)
app.command("show", rich_help_panel="What there is")(browse.show)
app.command("remove", rich_help_panel="What there is")(remove)
