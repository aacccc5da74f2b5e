"""Shared by all commands: the store, the data folders, the consoles, common options and printing."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import inspect
import json
import keyword
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo

from fedbench.engine.engines import Where
from fedbench.errors import FedbenchError, nearest, unknown
from fedbench.machine import DEBUG
from fedbench.methods import declarations
from fedbench.protocol import budgets_of
from fedbench.resources import RECIPES
from fedbench.screen import Screen
from fedbench.specs import DatasetSpec, MetricsSpec, PartitionSpec, RunSpec, Setting, Spec
from fedbench.specs.base import kind_of, typed
from fedbench.store import Store, default_home
from fedbench.words import folders_of, option_of, path_of, plain

if TYPE_CHECKING:
    from rich.table import Table

    from fedbench.reports.layout.grid import Grid
    from fedbench.results.frame import Frame

C = TypeVar("C", bound=Callable[..., Any])

#: Width of output to a file or a pipe, in characters: enough for every list.
FILE_WIDTH = 160


@dataclass
class Context:
    """The application's options, set once for each call."""

    home: Path | None = None
    roots: list[Path] = field(default_factory=list)
    debug: bool = False


_context = Context()


def configure(home: Path | None, data: str | None, debug: bool) -> None:
    """Set the application's options for the command of this call."""
    where, folders = ("--data", data) if data is not None else ("FEDBENCH_DATA", os.environ.get("FEDBENCH_DATA", ""))
    _context.home = None if home is None else path_of(str(home), "--home")
    _context.roots = folders_of(folders, where)
    _context.debug = debug
    os.environ.pop(DEBUG, None)
    if debug:
        os.environ[DEBUG] = "1"


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection for commands that only read and print: they create few reference cycles, and the
    collector would take a tenth of their time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def home() -> Path:
    """The folder of the store of this call."""
    return default_home().absolute() if _context.home is None else _context.home.absolute()


def store() -> Store:
    """The store of this call."""
    return Store(_context.home)


def frame(mine: bool = False) -> Frame:
    """The runs of the store and, unless `mine`, of result packs; prints a line for each pack that cannot be read."""
    from fedbench.results.frame import Frame

    return Frame(store()) if mine else Frame.of(store(), lambda problem: err().print(str(problem), markup=False))


def roots() -> list[Path]:
    """Folders with the user's data sets, in order of preference."""
    return list(_context.roots)


def debug() -> bool:
    """Whether --debug was given."""
    return _context.debug


def out() -> Console:
    """A console for results on standard output: in colour on a terminal, else plain."""
    console = Screen()
    if not console.is_terminal:
        console.soft_wrap = True
        if "COLUMNS" not in os.environ:
            console.width = FILE_WIDTH
    return console


def err() -> Console:
    """A console for progress and remarks on standard error; lines are wrapped only on a terminal."""
    console = Screen(stderr=True)
    console.soft_wrap = not console.is_terminal
    return console


def print_json(value: Any) -> None:
    """Print a value as one JSON document without colour and wrapping."""
    print(json.dumps(value, indent=1, default=str))


# -- strict ----------------------------------------------------------------------------------------------------
# Commands that reject silent mistakes: an option given twice, and an option without a value.


def parsed_value(option: str, text: str) -> str:
    """The value of an option. Raises FedbenchError if it is empty or is the next option."""
    if not text or text.isspace():
        raise FedbenchError(f"{option} needs a value, not nothing", "leave it out, or give one")
    if text.startswith("--"):
        raise FedbenchError(f"{option} needs a value, not the option {text}", "give one, or leave it out")
    return text


def twice(option: str) -> FedbenchError:
    """The error for an option that is given twice."""
    return FedbenchError(f"{option} is given twice", "leave one of the two out")


class _Strict:
    """Checks the option values before the command's parser converts them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        parsed, _, order = self.make_parser(ctx).parse_args(args=list(args))  # type: ignore[attr-defined]
        # The command itself checks the words of an argument that takes any number of them.
        called = {p.name: max(p.opts, key=len) for p in order if p.nargs != -1}
        for parameter, count in Counter(order).items():
            once = parameter.param_type_name == "option" and not parameter.multiple and not parameter.is_eager
            if once and count > 1:
                raise twice(called[parameter.name])
        for name, words in parsed.items():
            for word in words if isinstance(words, list | tuple) else [words]:
                if isinstance(word, str) and name in called:
                    parsed_value(called[name], word)
        return super().parse_args(ctx, args)  # type: ignore[misc, no-any-return]


class Command(_Strict, TyperCommand):
    """A command of fedbench."""


class Group(_Strict, TyperGroup):
    """The application, or a group of commands such as `data`."""


#: Of commands that read the options of methods and partitioners themselves.
OPEN = {"ignore_unknown_options": True, "allow_extra_args": True}


class App(typer.Typer):
    """An application whose commands all make the strict checks."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"cls": Group, **options})

    def command(self, name: str | None = None, **options: Any) -> Any:
        """Register a command, as Typer does, with the options that `of_function` finds."""
        register = super().command(name, **{"cls": Command, **options})

        def declare(function: C) -> C:
            register(grouped()(function))
            return function

        return declare


# -- shared ----------------------------------------------------------------------------------------------------
# Options that several commands share; each is declared once.


Options = Mapping[str, inspect.Parameter]


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
Columns = Annotated[list[str] | None, "Only this column of --table, * is any text (repeatable).", "GROUP/LABEL"]
OnDataset = Annotated[str | None, "Data set for the columns of --table, in place of its own."]
DryRun = Annotated[bool, "Only list the runs and what they cost here (builds data set and partitions)."]
Folder = Annotated[Path, "Folder to write it to.", "-o", "FOLDER"]
Device = Annotated[str, "Device: auto, cpu or cuda."]
Mine = Annotated[bool, "Leave out shipped results (fedbench results list)."]
Format = Annotated[str | None, "Format: console, latex, markdown, csv, html or json.", "-f"]
Output = Annotated[Path | None, "Write to this file; its suffix tells the format.", "-o"]
Json = Annotated[bool, "Print one JSON document.", "--json"]
Filters = Annotated[
    list[str] | None,
    argument(
        "Filters of runs: ids, or KEY=VALUE,VALUE (also KEY!=VALUE) with * for any text, such as "
        "method=fedavg,ditto dataset=mnist lr=0.1; table=feddrm/1, paper= and protocol= (those that its tables "
        "read), pack=feddrm/feddrm and shipped=yes name shipped runs, too; default: all of one's own.",
        "FILTER",
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
    option = typer.Option(*names, metavar=metavar, help=help, autocompletion=_COMPLETIONS.get(parameter.name))
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
            autocompletion=_COMPLETIONS.get(name),
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


# -- hyperparameters -------------------------------------------------------------------------------------------
# Options of a method or a partitioner among the words of a command that does not declare them.


#: If there are more options than this, the error refers to --help instead of listing them.
LINE = 30


def read(
    arguments: Sequence[str], options: Mapping[str, Field[Any]], called: str, *commands: Callable[..., Any]
) -> dict[str, str]:
    """Option -> its text, for the words that are not options of `commands`. Errors name the command `called` (such as
    "train --method prox"). Raises FedbenchError for an option that is unknown, is given twice or has no value."""
    known = {option_of(name): name for name in options}
    out: dict[str, str] = {}
    booleans = (bool, "bool", bool | None, "bool | None")
    flags = {option for option, name in known.items() if options[name].type in booleans}
    for option, value in options_among(arguments, flags):
        if option not in known:
            offered = {*known, *(f"--{own}" for command in commands for own in _options(command))}
            listed = f"fedbench {called.split()[0]} --help" if len(offered) > LINE else ""
            raise unknown(f"option of {called}", option, offered, listed)
        if value is None:
            raise FedbenchError(f"{option} needs a value")
        if known[option] in out:
            raise twice(option)
        out[known[option]] = parsed_value(option, value)
    return out


def options_among(words: Sequence[str], flags: Collection[str] | None = None) -> Iterator[tuple[str, str | None]]:
    """Each option among the words, such as --lr, with its text: "true" for a flag without a text (`flags` None: any
    option can be a flag), None if the text is missing. Raises FedbenchError for any other word."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise FedbenchError(f"unexpected argument '{word}'", "options begin with --")
        option, equals, text = word.partition("=")
        if equals:
            yield option, text
        elif (flags is None or option in flags) and (not rest or rest[0].startswith("--")):
            yield option, "true"
        else:
            yield option, rest.pop(0) if rest else None


def check_spelling(words: Sequence[str], methods: Sequence[str], called: str, command: Callable[..., Any]) -> None:
    """Raise FedbenchError for a misspelt option: one that resembles an option of the command and is no hyper-parameter
    of these methods or of a built-in method."""
    every = (*declarations.built_in().values(), *map(declarations.of, methods))
    theirs = {option_of(name) for one in every for name in one.hyper_parameters}
    own = {f"--{option}" for option in _options(command)}
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        if option not in theirs and nearest(option, own):
            raise unknown(f"option of {called}", option, own)


def _options(command: Callable[..., Any]) -> list[str]:
    """The options that the command declares, without --, as the user types them (json for as_json); no arguments."""
    out: list[str] = []
    for name, parameter in of_function(command).items():
        for option in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(option, OptionInfo):
                # Typer stores the first name of an annotated option as its default.
                declared = [str(o) for o in (option.default, *(option.param_decls or ())) if str(o).startswith("--")]
                out += [o[2:] for o in declared or [option_of(name)]]
    return out


# -- printing --------------------------------------------------------------------------------------------------
# Print grids on the terminal, on standard output in a format, or to a file.


def form(format: str | None, output: Path | None, as_json: bool) -> str:
    """The format that --format, --output and --json select. Raises FedbenchError if they contradict."""
    from fedbench.reports import render

    if as_json and format not in (None, "json"):
        raise FedbenchError(f"--json or --format {format}?", "give one of them")
    return render.choose("json" if as_json else format, output)


def put(grids: Sequence[Grid], format: str, output: Path | None, *, full: bool = False, **latex: bool) -> None:
    """Print the grids, or write them to the file `output`; `full` and `latex` are options of `render.render`."""
    from fedbench.files import write_whole
    from fedbench.reports import render

    if format == "console" and output is None:
        from fedbench.reports.render.console import show

        show(grids, out(), full, fit=True)
        return
    if format == "csv":  # CSV has no place for problems
        for problem in dict.fromkeys(problem for grid in grids for problem in grid.problems):
            err().print(problem, soft_wrap=True, markup=False)
    text = render.render(grids, format, full=full, **latex)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_whole(output, text.encode())
        err().print(f"{', '.join(g.id for g in grids)} written to {output}", soft_wrap=True)


# -- columns ---------------------------------------------------------------------------------------------------
# Lists: rich's tables for short ones; plain columns for long ones, as rich takes milliseconds for each line.


def table(*headings: str, right: Collection[str] = (), whole: Collection[str] = (), title: str | None = None) -> Table:
    """An empty table without borders; columns in `right` are right-aligned, columns in `whole` are never wrapped."""
    from rich.table import Table

    grid = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        grid.add_column(heading, justify="right" if heading in right else "left", no_wrap=heading in whole)
    return grid


#: Text between two columns.
GAP = "  "


def columns(
    console: Console, rows: Sequence[Mapping[str, str]], right: Collection[str] = (), spare: Sequence[str] = ()
) -> None:
    """Print rows, which map headings to texts, under bold headings; the columns in `right` are right-aligned.

    Columns without any text are left out. If the terminal is too narrow, columns in `spare` are left out in their
    order until the rest fits.
    """
    cells = {heading: [heading, *(plain(row[heading]) for row in rows)] for heading in rows[0]}
    cells = {heading: texts for heading, texts in cells.items() if any(texts[1:])}
    widths = {heading: max(map(cell_len, texts)) for heading, texts in cells.items()}
    for heading in spare if console.is_terminal else ():
        if sum(widths.values()) + len(GAP) * (len(widths) - 1) <= console.width:
            break
        widths.pop(heading, None)
    padded = []
    for heading, width in widths.items():
        room = [" " * (width - cell_len(text)) for text in cells[heading]]
        pairs = zip(room, cells[heading], strict=True)
        padded.append([space + text if heading in right else text + space for space, text in pairs])
    head, *lines = (GAP.join(line).rstrip() for line in zip(*padded, strict=True))
    console.print(Text(head, "bold"), soft_wrap=True)
    console.print(Text("\n".join(lines)), soft_wrap=True)


# -- complete --------------------------------------------------------------------------------------------------
# Shell completion of options and arguments: names from files, and ids from the store.


Completion = Callable[[str], list[str]]


def _offering(names: Callable[[], Iterable[str]]) -> Completion:
    """A completion function: the names that begin with the typed text; no names if they cannot be read."""

    def complete(incomplete: str) -> list[str]:
        try:
            return [name for name in names() if name.startswith(incomplete)]
        except (FedbenchError, OSError):
            return []

    return complete


def _names_in(module: str) -> Completion:
    """Completion with what the module's function `names` returns; the module is imported only when the shell asks."""
    return _offering(lambda: importlib.import_module(module).names())


def _ids(*kinds: str) -> Completion:
    """Completion with ids of artifacts of these kinds in the store of FEDBENCH_HOME."""
    return _offering(lambda: [path.name for kind in kinds for path in sorted((Store().home / kind).glob("*"))])


def _tables() -> Iterable[str]:
    from fedbench.planner import table

    return [*table.headline(), *table.names()]


datasets, tables = _offering(lambda: sorted(path.stem for path in RECIPES.glob("*.toml"))), _offering(_tables)
methods, protocols = _names_in("fedbench.methods"), _names_in("fedbench.protocol")
networks, partitioners = _names_in("fedbench.models"), _names_in("fedbench.partitions.schemes")
runs, partitions = _ids("run"), _ids("partition")
artifacts = _ids("run", "partition", "dataset", "metrics")
#: Name of an option -> its completion.
_COMPLETIONS = {
    "model": networks, "scheme": partitioners, "method": methods, "protocol": protocols, "dataset": datasets,
    "table": tables, "partition": partitions,
}  # fmt: skip
#: Options that choose device, executor and engine.
WHERE = of_spec(Where, native=True)


# -- describe --------------------------------------------------------------------------------------------------
# One-line descriptions of artifacts.


def describe(spec: Spec, differing: Mapping[str, Sequence[str]] | None = None) -> str:
    """One line that describes an artifact; for a run it includes the `differing` hyper-parameters of its method."""
    if isinstance(spec, DatasetSpec):
        return f"{spec.name} ({spec.source})"
    if isinstance(spec, PartitionSpec):
        from fedbench.partitions import schemes

        head = f"{spec.dataset.name} {schemes.label(spec)}, {spec.clients} clients, shift {spec.shift}"
        return ", ".join([head, f"seed {spec.seed}", *schemes.details(spec)])
    if isinstance(spec, RunSpec):
        from fedbench.partitions import schemes

        setting, part = spec.setting, spec.setting.partition
        method = method_words(spec, differing or {})
        return (
            f"{method} on {part.dataset.name} {schemes.label(part)}, {part.clients} clients, "
            f"budget {budgets_of(setting)} ({setting.rounds} rounds, {model_words(setting)}), seed {setting.seed}"
        )
    if isinstance(spec, MetricsSpec):
        return f"of run {spec.run.id}: {describe(spec.run, differing)}"
    raise TypeError(spec)


def differing_params(specs: Iterable[Spec]) -> dict[str, list[str]]:
    """Method -> the hyper-parameters in which its runs (also those of the metrics) among the specs differ."""
    values: dict[str, dict[str, set[str]]] = {}
    for spec in specs:
        spec = spec.run if isinstance(spec, MetricsSpec) else spec
        if isinstance(spec, RunSpec):
            for name, value in spec.params.items():
                values.setdefault(spec.method, {}).setdefault(name, set()).add(repr(value))
    return {method: [k for k, seen in of.items() if len(seen) > 1] for method, of in values.items()}


def model_words(setting: Setting) -> str:
    """A setting's network and, if they are not the defaults, its optimiser, model selection and precision."""
    precision = None if setting.precision == Setting.precision else setting.precision
    return ", ".join(
        filter(None, (setting.model, setting.optimizer, setting.select and f"{setting.select} round", precision))
    )


def method_words(spec: RunSpec, differing: Mapping[str, Sequence[str]]) -> str:
    """A run's method with those hyper-parameters that `differing` names."""
    values = ", ".join(f"{k} {spec.params[k]}" for k in differing.get(spec.method, ()) if k in spec.params)
    return f"{spec.method} ({values})" if values else spec.method
