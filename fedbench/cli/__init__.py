"""The command line: thin. Each command parses, calls and prints; heavy imports wait until they are needed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

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
from fedbench.cli.partition import DatasetCommand, PartitionCommand, partition
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
@context.grouped()
def options(
    home: Annotated[Path | None, "The store (default: FEDBENCH_HOME, else ~/.fedbench)."] = None,
    data: Annotated[
        str | None, f"Folders with data sets, separated by '{os.pathsep}' (default: FEDBENCH_DATA)."
    ] = None,
    debug: Annotated[bool, "Show the traceback of an error."] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that may stand before or after the command."""
    context.configure(home, data, debug)


#: Options of methods and partitioners are options of these commands, too; they read them themselves.
_OPEN = {"context_settings": {"ignore_unknown_options": True, "allow_extra_args": True}}
_OPTIONS: dict[str, dict[str, Any]] = {
    "partition": {"cls": PartitionCommand, **_OPEN},
    "train": {"cls": DatasetCommand, "context_settings": {"ignore_unknown_options": True}},
    "sweep": _OPEN,
    "check": _OPEN,
}
#: Part of the help -> its commands and groups of commands.
_PANELS: dict[str, dict[str, Any]] = {
    "Start here": {"demo": demo},
    "The way to a table": {
        "partition": partition, "train": train, "evaluate": evaluate, "resume": resume, "status": status,
        "report": report, "claims": claims, "compare": compare, "site": site, "figure": figure, "export": export,
    },
    "Your own": {"sweep": sweep, "new": new, "check": check},
    "What there is": {
        "tables": tables, "theory": theory, "metrics": metrics, "methods": browse.methods,
        "data": data_app, "results": results_app, "store": store_app,
        "list": list_artifacts, "show": browse.show, "remove": remove,
    },
}  # fmt: skip

for _panel, _commands in _PANELS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, App):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel, **_OPTIONS.get(_name, {}))(_command)
