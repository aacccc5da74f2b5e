"""`fedbench new`: a commented file to begin a method, a model, a partitioner, a data set or a table with."""

from __future__ import annotations

import keyword
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from fedbench.cli import context
from fedbench.errors import FedbenchError, unknown
from fedbench.files import write_whole

#: Texts in which $NAME and $CLASS are to be replaced, called after what they become.
TEMPLATES = Path(__file__).parent.parent / "templates"
#: What is begun -> the commands that go on with it.
NEXT = {
    "method": ("check {file}:{cls}", "train --method {file}:{cls}"),
    "model": ("check {file}:{cls}", "train --method fedavg --model {file}:{cls}"),
    "partitioner": ("check {file}:{cls}", "partition digits --scheme {file}:{cls} --clients 4"),
    "dataset": ("partition {file} --dir 0.5",),
    "table": ("train --table {file}", "report --table {file}"),
}


def new(
    what: Annotated[str, typer.Argument(metavar="KIND", help=f"What to begin: {', '.join(NEXT)}.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Small letters, digits and _.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where to write it.")] = Path(),
) -> None:
    """Write a commented file: NAME.py for a method, a model or a partitioner, NAME.toml for a data set or a table.

    It works as it is (a data set wants its images). A file that is there is left alone.
    """
    if what not in NEXT:
        raise unknown("kind of file", what, NEXT)
    if not (name.isidentifier() and name.isascii() and name == name.lower()) or keyword.iskeyword(name):
        raise FedbenchError(f"'{name}' is no name for a {what}", "small letters, digits and _, such as my_idea")
    (template,) = TEMPLATES.glob(f"{what}.*")
    cls = "".join(part.capitalize() for part in name.split("_")) or name
    text = Template(template.read_text()).substitute(NAME=name, CLASS=cls)
    path = output / f"{name}{Path(template.stem).suffix}"
    if os.path.lexists(path):
        raise FedbenchError(f"{path} is there already", "choose another name, or another folder with -o")
    if path.suffix == ".py" and _is_installed(name):
        raise FedbenchError(f"{path} would hide the module {name} from files beside it", "choose another name")
    write_whole(path, text.encode(), "choose a folder with -o FOLDER")
    console = context.out()
    console.print(f"wrote {path}")
    place = str(path) if path.is_absolute() or path.parts[0] == ".." else f"./{path}"
    for command in NEXT[what]:
        console.print(f"  fedbench {command.format(file=place, cls=cls)}")


def _is_installed(name: str) -> bool:
    """Whether `import NAME` means a module of Python or of an installed package."""
    elsewhere = [path for path in sys.path if path and Path(path).resolve() != Path.cwd()]
    spec = PathFinder.find_spec(name, elsewhere)
    return name in sys.stdlib_module_names or name == "fedbench" or (spec is not None and spec.origin is not None)
