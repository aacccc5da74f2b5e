"""`fedbench new`: write a commented template of a method, a model, a partitioner, a kind of figure, a data set or a
table, or a folder for a paper."""

from __future__ import annotations

import ast
import keyword
import os
import shlex
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from string import Template
from typing import Annotated

from fedbench import resources
from fedbench.cli import context, options
from fedbench.cli.parser import App
from fedbench.errors import FedbenchError, check_known
from fedbench.files import whole_folder, write_whole

app = App()

#: Templates, named after the kind of file; $NAME and $CLASS are replaced.
TEMPLATES = Path(__file__).parent.parent / "templates"
#: Kind of file -> the commands to continue with.
NEXT = {
    "method": ("check {file}:{cls}", "train digits --dir 0.3 --method {file}:{cls}"),
    "model": ("check {file}:{cls}", "train digits --dir 0.3 --method fedavg --model {file}:{cls}"),
    "partitioner": ("check {file}:{cls}", "partition digits --scheme {file}:{cls} --clients 4"),
    "figure": ("check {file}:{cls}", "figure {file}:{cls}"),
    "dataset": ("partition {file} --dir 0.5",),
    "table": ("train --table {file}", "report --table {file}"),
    "paper": ("train --table {file}/1", "report --table {file}/1 --compare", "claims {file}"),
}


@app.command("new")
def new(
    what: Annotated[str, options.argument(f"What to write: {', '.join(NEXT)}.", "KIND")],
    name: Annotated[str, options.argument("Name: small letters, digits and _.", "NAME")],
    output: options.Folder = Path(),
) -> None:
    """Write a commented file: NAME.py (method, model, partitioner or figure) or NAME.toml (data set or table).

    For a paper: a folder with its protocol, a table and reported numbers.

    It works without changes (a data set needs its images). Existing files are not overwritten.
    """
    check_known("kind of file", what, NEXT)
    cls = "".join(part.capitalize() for part in name.split("_")) or name
    fit = name.isidentifier() and name.isascii() and name == name.lower()
    if not fit or keyword.iskeyword(name) or keyword.iskeyword(cls):  # none would be a class None
        raise FedbenchError(
            f"'{name}' is not a valid name for a {what}", "small letters, digits and _, such as my_idea"
        )
    if what == "paper" and (resources.TABLES / name).is_dir():
        raise FedbenchError(f"fedbench has a paper {name} of its own", "choose another name")
    (template,) = TEMPLATES.glob(f"{what}*")
    path = output / f"{name}{Path(template.stem).suffix}"
    if os.path.lexists(path):
        raise FedbenchError(f"{path} exists already", "choose another name, or another folder with -o")
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
