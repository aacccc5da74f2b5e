"""`fedbench new`: write a commented template of a method, a model, a partitioner, a data set or a table, or a folder
for a paper. `fedbench check`: run the conformance checks."""

from __future__ import annotations

import ast
import keyword
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from fedbench import resources
from fedbench.cli import context
from fedbench.cli.context import OPEN, App
from fedbench.errors import FedbenchError, check_known
from fedbench.files import whole_folder, write_whole

if TYPE_CHECKING:
    from rich.console import Console

    from fedbench.conformance.suite import Outcome
    from fedbench.methods.base import Method
    from fedbench.partitions import Scheme

app = App()

#: Templates, named after the kind of file; $NAME and $CLASS are replaced.
TEMPLATES = Path(__file__).parent.parent / "templates"
#: Kind of file -> the commands to continue with.
NEXT = {
    "method": ("check {file}:{cls}", "train --method {file}:{cls}"),
    "model": ("check {file}:{cls}", "train --method fedavg --model {file}:{cls}"),
    "partitioner": ("check {file}:{cls}", "partition digits --scheme {file}:{cls} --clients 4"),
    "dataset": ("partition {file} --dir 0.5",),
    "table": ("train --table {file}", "report --table {file}"),
    "paper": ("train --table {file}/1", "report --table {file}/1 --compare", "claims {file}"),
}


@app.command("new")
def new(
    what: Annotated[str, context.argument(f"What to begin: {', '.join(NEXT)}.", "KIND")],
    name: Annotated[str, context.argument("Name, of small letters, digits and _.", "NAME")],
    output: context.Folder = Path(),
) -> None:
    """Write a commented file: NAME.py for a method, a model or a partitioner, NAME.toml for a data set or a table.

    For a paper a folder: its protocol, a table and reported numbers.

    It works as it is (a data set wants its images). What is there is left alone.
    """
    check_known("kind of file", what, NEXT)
    cls = "".join(part.capitalize() for part in name.split("_")) or name
    fit = name.isidentifier() and name.isascii() and name == name.lower()
    if not fit or keyword.iskeyword(name) or keyword.iskeyword(cls):  # none would be a class None
        raise FedbenchError(f"'{name}' is no name for a {what}", "small letters, digits and _, such as my_idea")
    if what == "paper" and (resources.TABLES / name).is_dir():
        raise FedbenchError(f"fedbench has a paper {name} of its own", "choose another name")
    (template,) = TEMPLATES.glob(f"{what}*")
    path = output / f"{name}{Path(template.stem).suffix}"
    if os.path.lexists(path):
        raise FedbenchError(f"{path} is there already", "choose another name, or another folder with -o")
    if path.suffix == ".py" and _is_installed(name):
        raise FedbenchError(f"{path} would hide the module {name} from files beside it", "choose another name")
    files = {path: template}
    if template.is_dir():
        every = (one for one in template.rglob("*") if one.is_file())
        files = {path / one.relative_to(template).with_suffix(""): one for one in every}
    texts = {
        file: Template(source.read_text(encoding="utf-8")).substitute(NAME=name, CLASS=cls)
        for file, source in files.items()
    }
    if path.suffix == ".py" and cls in _imported(ast.parse(texts[path])):
        raise FedbenchError(f"the template of {what} has a {cls} of its own", "choose another name")
    if template.is_dir():
        with whole_folder(path, f"writing a {what}", "-o FOLDER") as part:
            for file, text in texts.items():
                (part / file.relative_to(path)).parent.mkdir(exist_ok=True)
                (part / file.relative_to(path)).write_bytes(text.encode())
    else:
        write_whole(path, texts[path].encode(), "choose a folder with -o FOLDER")
    console = context.out()
    console.print(f"wrote {path}")
    place = shlex.quote(str(path) if path.is_absolute() or path.parts[0] == ".." else f"./{path}")
    for command in NEXT[what]:
        console.print(f"  fedbench {command.format(file=place, cls=cls)}")


def _imported(tree: ast.Module) -> list[str]:
    """The names that a file imports."""
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return [alias.asname or alias.name for node in imports for alias in node.names]


def _is_installed(name: str) -> bool:
    """Whether `import NAME` imports a module of Python, fedbench or an installed package."""
    other_folders = [path for path in sys.path if path and Path(path).resolve() != Path.cwd()]
    spec = PathFinder.find_spec(name, other_folders)
    return name in sys.stdlib_module_names or name == "fedbench" or (spec is not None and spec.origin is not None)


# -- check -----------------------------------------------------------------------------------------------------
# `fedbench check`: whether a user's method, model or partitioner meets the rules of the built-in ones.


#: holds -> (mark, colour)
_MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("-", "yellow")}


@app.command("check", context_settings=OPEN)
def check(
    ctx: typer.Context,
    what: Annotated[
        str, context.argument("A method, a model or a partitioner; or a built-in's name.", "FILE.py:Class")
    ],
    json: context.Json = False,
) -> None:
    """Run the conformance checks on a method, a model or a partitioner: a line each, whether it holds, and why not.

    They train on scikit-learn's handwritten digits: a quarter of a minute for a method or a small
    network, minutes for a large one; a partitioner is drawn only.
    A method's hyper-parameters are options, such as --mu 0.1, and so are a partitioner's own.

    Exit code 1 if a check fails.
    """
    from fedbench.conformance.suite import checks, outcomes, subject_of

    with tempfile.TemporaryDirectory(prefix="fedbench-check-") as folder:
        subject = subject_of(what, Path(folder), lambda kind: _options(kind, what, ctx.args))
        wanted = checks(subject)
        console, width = context.out(), max(len(c.name) for c in wanted)
        results: list[Outcome] = []
        with context.err().status("") as working:  # shows the current check on a terminal
            for outcome in outcomes(subject, wanted, lambda c: working.update(Text(f"{c.name} ..."))):
                results.append(outcome)
                if context.debug() and outcome.error is not None:
                    raise outcome.error
                if not json:
                    _print(console, outcome, width)
    holding, failed = (sum(o.holds is value for o in results) for value in (True, False))
    if json:
        lines = [{"check": o.check.name, "proves": o.check.text, "holds": o.holds, "why": o.why} for o in results]
        context.print_json({"subject": what, "holds": not failed, "checks": lines})
    else:
        rest = len(results) - holding - failed
        words = f"{holding} hold" + (f", {failed} fail" if failed else "") + (f", {rest} not run" if rest else "")
        console.print(f"{what}: {words}", style="bold")
    if failed:
        raise typer.Exit(1)


def _options(kind: type[Method] | type[Scheme] | None, what: str, words: Sequence[str]) -> Mapping[str, Any]:
    """The options of a method or a partitioner among the words; a model has none."""
    from fedbench.cli.partition import scheme_options
    from fedbench.partitions import Scheme

    if kind is None:
        if words:
            raise FedbenchError(f"unexpected argument '{words[0]}'", "a model has no options")
        return {}
    if issubclass(kind, Scheme):
        return scheme_options(words, kind)
    return context.read(words, kind.hyperparameters(), f"check {what}", check)


def _print(console: Console, outcome: Outcome, width: int) -> None:
    from rich.table import Table

    mark, colour = _MARKS[outcome.holds]
    grid = Table.grid(padding=(0, 1))
    for size in (1, width, None):
        grid.add_column(width=size)
    why = Text(outcome.why or outcome.check.text, style=colour if outcome.why else "dim")
    grid.add_row(Text(mark, style=f"bold {colour}"), Text(outcome.check.name, style="bold"), why)
    console.print(grid, soft_wrap=False)
