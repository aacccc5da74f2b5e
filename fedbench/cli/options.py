"""The declarations of options: those that commands share, and how parameters and the fields of specs declare others."""

from __future__ import annotations

import copy
import functools
import inspect
import keyword
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer
from typer.models import OptionInfo

from fedbench.cli.completion import OF_OPTIONS, Completion
from fedbench.specs.fields import kind_of, typed
from fedbench.words import option_of

C = TypeVar("C", bound=Callable[..., Any])

Options = Mapping[str, inspect.Parameter]

#: The panel of what is rarely needed: a help shows it with --help-all only.
MORE = "More"
#: Key of a context's `meta`: the help shows everything.
ALL = "fedbench.help_all"


def _help_all(ctx: typer.Context, value: bool) -> None:
    """Print the help with what --help hides."""
    if value and not ctx.resilient_parsing:
        ctx.meta[ALL] = True
        typer.echo(ctx.get_help(), nl=False)
        raise typer.Exit


#: The option of a command whose help hides anything.
HelpAll = Annotated[
    bool,
    typer.Option("--help-all", callback=_help_all, is_eager=True, help="Show also rarely needed options and commands."),
]


def argument(help: str, metavar: str | None = None, completion: Completion | None = None) -> Any:
    """Typer's declaration of an argument."""
    return typer.Argument(metavar=metavar, help=help, autocompletion=completion)


Budget = Annotated[str, "Budget: small, paper, smoke, or another that the protocol has."]
RunBudget = Annotated[str | None, "Budget of the runs: small (default), paper, ..."]
RunPrecision = Annotated[str | None, "Precision of the runs: fp32, tf32, bf16 (the budget's)."]
ProtocolName = Annotated[
    str | None,
    "Protocol of the defaults: feddrm (a paper's data set), plain (digits, your own), flux, ftw_erm, pfedfda.",
]
Columns = Annotated[list[str] | None, "Only this column of --table; * is any text (repeatable).", "GROUP/LABEL"]
OnDataset = Annotated[str | None, "Another data set for the columns of --table."]
DryRun = Annotated[bool, "Only list the runs and their estimated time here (builds data set and partitions)."]
Folder = Annotated[Path, "Folder to write it to.", "-o", "FOLDER"]
Rounds = Annotated[str, "Rounds that count: last, best (by validation accuracy), or mean:10 (of the last ten)."]
Device = Annotated[str, "Device: auto, cpu or cuda."]
NoShipped = Annotated[bool, "Leave out shipped results (fedbench results list)."]
Format = Annotated[
    str | None,
    "Format: console, latex, markdown, csv, html, json, macros (LaTeX's), bibtex, or long (every value of the runs).",
    "-f",
]
Output = Annotated[Path | None, "Write to this file; its suffix selects the format.", "-o"]
Notes = Annotated[str, "Notes below the table: none, brief or full (deviations, remarks, claims, origin).", "<notes>"]
Width = Annotated[
    str, "LaTeX: fit a column (3.15 in), a page (5.5 in) or so many inches; default: a column, else a page.", "<width>"
]
Cite = Annotated[bool, "LaTeX: rows \\cite their methods, by the keys of -f bibtex."]
Spread = Annotated[str, "LaTeX: form of ±: pm, small, paren as in .76(.02), or none; default: the table's.", "<spread>"]
Json = Annotated[bool, "Print one JSON document.", "--json"]
Filters = Annotated[
    list[str] | None,
    argument(
        "Filters of runs: ids, or KEY=VALUE,VALUE (also KEY!=VALUE) with * for any text, such as "
        "method=fedavg,ditto dataset=mnist lr=0.1; a table (feddrm/1), a paper (feddrm), protocol=, "
        "pack=feddrm/feddrm and shipped=yes include shipped runs; default: all your own runs.",
        "FILTER",
        OF_OPTIONS["table"],
    ),
]


def of_function(function: Callable[..., Any]) -> Options:
    """The options that a command's parameters declare, either as Typer options or by texts in the annotation, such as
    `Annotated[int, "Size.", "-s", "N"]`: the first text is the help, one that begins with - is a name of the option,
    and another one is the metavar. Without a name that begins with --, the option is named after the parameter."""
    return {name: _declared(one) for name, one in inspect.signature(function, eval_str=True).parameters.items()}


def _declared(parameter: inspect.Parameter) -> inspect.Parameter:
    about = getattr(parameter.annotation, "__metadata__", ())
    if not about or not isinstance(about[0], str):
        return parameter
    help, *more = about
    names, metavar = [text for text in more if text[0] == "-"], next((text for text in more if text[0] != "-"), None)
    if not any(name.startswith("--") for name in names):
        names.insert(0, option_of(parameter.name))
    option = typer.Option(*names, metavar=metavar, help=help, autocompletion=OF_OPTIONS.get(parameter.name))
    return parameter.replace(annotation=Annotated[parameter.annotation.__origin__, option])


def of_spec(*classes: type, panel: str = "", native: bool = False) -> Options:
    """The options that the fields of specs declare, first those without a help panel; `panel` puts all into one panel.
    Option values are texts (True for flags), which the code that makes the spec converts. With `native`, they have the
    types and defaults of the fields."""
    fields = [(cls, name, one) for cls in classes for name, one in typed(cls).items()]
    options = {}
    for cls, name, one in sorted(fields, key=lambda field: bool(field[2].metadata["panel"])):
        about, kind = one.metadata, kind_of(cls, one)
        option = typer.Option(
            option_of(name),
            metavar=about["metavar"] or (None if native or kind is bool else f"<{kind.__name__}>"),
            help=about["help"],
            rich_help_panel=panel or about["panel"] or None,
            autocompletion=OF_OPTIONS.get(name),
        )
        default, hint = (one.default, kind) if native else (None, bool if kind is bool else str)
        hint = Annotated[hint if default is not None else hint | None, option]
        name += "_" * keyword.iskeyword(name)
        options[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
    return options


def grouped(**groups: Options) -> Callable[[C], C]:
    """Decorator for a command: replace the parameters of these names by groups of options. The command receives each
    group as a dictionary of the options that the user gave, by name."""

    def decorate(command: C) -> C:
        parameters: list[inspect.Parameter] = []
        for parameter in of_function(command).values():
            parameters += groups.get(parameter.name, {parameter.name: parameter}).values()

        @functools.wraps(command)
        def call(**given: Any) -> None:
            for group, options in groups.items():
                values = {name.rstrip("_"): given.pop(name) for name in options}
                given[group] = {k: value for k, value in values.items() if value is not None and value is not False}
            command(**given)

        only = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        call.__signature__ = inspect.Signature(only)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in only}
        return cast(C, call)

    return decorate


def paneled(panels: Mapping[str, Collection[str]]) -> Callable[[C], C]:
    """Decorator for a command (below it `grouped`): the options of these names stand in these panels of its help, in
    this order; those that no panel names come first. Of several panels the last one counts; those of MORE are hidden.
    """
    panel_of = {name: panel for panel, names in panels.items() for name in names}
    order = ["", *panels]

    def decorate(command: C) -> C:
        parameters = [_in_panel(one, panel_of.get(one.name, "")) for one in of_function(command).values()]
        more = inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll)
        parameters = sorted([*parameters, more], key=lambda one: order.index(panel_of.get(one.name, "")))

        @functools.wraps(command)
        def call(help_all: bool = False, **given: Any) -> None:
            command(**given)

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in parameters}
        return cast(C, call)

    return decorate


def _in_panel(parameter: inspect.Parameter, panel: str) -> inspect.Parameter:
    kind, *about = getattr(parameter.annotation, "__origin__", None), *getattr(parameter.annotation, "__metadata__", ())
    if not panel or not any(isinstance(one, OptionInfo) for one in about):
        return parameter
    option = copy.copy(next(one for one in about if isinstance(one, OptionInfo)))
    option.rich_help_panel, option.hidden = panel, panel == MORE
    return parameter.replace(annotation=Annotated[kind, option])


def declared(command: Callable[..., Any]) -> list[str]:
    """The options that the command declares, without --, as the user types them (json for as_json); no arguments."""
    out: list[str] = []
    for name, parameter in of_function(command).items():
        for option in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(option, OptionInfo):
                # Typer stores the first name of an annotated option as its default.
                declared = [str(o) for o in (option.default, *(option.param_decls or ())) if str(o).startswith("--")]
                out += [o[2:] for o in declared or [option_of(name)]]
    return out
