"""The command line. A command parses options, calls the library and prints; its file is imported on look-up."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer.main

from fedbench import __version__
from fedbench.cli import context
from fedbench.cli.options import ALL, MORE, HelpAll, grouped
from fedbench.cli.parser import App, Group

#: Panel of the help (MORE: only with --help-all) -> command or group of commands -> its file in this folder.
PANELS = {
    "From data to a table": {
        "demo": "demo",
        "partition": "partition",
        "train": "train",
        "evaluate": "evaluate",
        "report": "report",
        "compare": "report",
        "figure": "figure",
    },
    "What there is": {
        "tables": "tables",
        "claims": "report",
        "methods": "browse",
        "data": "data",
        "list": "listing",
        "status": "status",
    },
    "Your own": {"new": "new", "check": "check", "sweep": "sweep", "results": "results"},
    MORE: {
        "show": "browse",
        "remove": "remove",
        "store": "store",
        "metrics": "browse",
        "export": "export",
        "site": "site",
    },
}
_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}


class Commands(Mapping[str, Any]):
    """The commands by name. Looking one up imports its file, so that a run waits for no other command's imports."""

    def __getitem__(self, name: str) -> Any:
        panel = _PANEL_OF[name]
        group = typer.main.get_group(importlib.import_module(f"fedbench.cli.{PANELS[panel][name]}").app)
        command: Any = group.commands.get(name, group)
        command.rich_help_panel = panel
        command.hidden = panel == MORE
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(_PANEL_OF)

    def __len__(self) -> int:
        return len(_PANEL_OF)


class Fedbench(Group):
    """The application, with `Commands` as its commands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Commands()  # type: ignore[assignment]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None and ctx.meta.get(ALL):
            command.hidden = False
        return command

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)


app = App(
    cls=Fedbench,
    name="fedbench",
    help="Benchmarks for federated learning: from a data set to the tables of a paper.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"fedbench {__version__}")
        raise typer.Exit


@app.callback()
@grouped()
def _application(
    home: Annotated[Path | None, "The store (default: FEDBENCH_HOME, else ~/.fedbench)."] = None,
    data: Annotated[
        str | None, f"Folders with data sets, separated by '{os.pathsep}' (default: FEDBENCH_DATA)."
    ] = None,
    debug: Annotated[bool, "Show the traceback of an error; store the state and batch of a client that fails."] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    help_all: HelpAll = False,
) -> None:
    """Options that may stand before or after the command."""
    context.configure(home, data, debug)
