"""All kinds of figures by name, and all figures: the papers', those of any runs or partitions, and the user's own."""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from fedbench import resources
from fedbench.errors import FedbenchError, check_known, unknown
from fedbench.plugins import load as plugins
from fedbench.reports.figures import kinds
from fedbench.reports.figures.kind import Kind, Request
from fedbench.reports.figures.spec import FigureSpec, of_papers, of_user


@cache
def built_in() -> dict[str, type[Kind]]:
    """The kinds in `kinds/`, by name."""
    modules = [import_module(f"{kinds.__name__}.{one.name}") for one in iter_modules(kinds.__path__)]
    own = [cls for module in modules for cls in plugins.classes(module).values() if issubclass(cls, Kind)]
    return {name: cls for cls in own for name in cls.names}


@cache
def free() -> dict[str, FigureSpec]:
    """The figures of any runs or partitions, by name."""
    return {name: FigureSpec(name, cls.title, name) for name, cls in built_in().items() if cls.title}


def load(name: str) -> FigureSpec:
    """The figure of a name: a paper's ('ftw_erm/2'), a user file's ('./figures.toml:2'), of a user's kind
    ('./mine.py:Mine'), or one of any runs or partitions ('curves').

    Raises FedbenchError for an unknown name, with the nearest known ones, and for a faulty file.
    """
    if name in free():
        return free()[name]
    if plugins.is_file(name):
        cls = _of_file(name)
        return FigureSpec(cls.__name__, (inspect.getdoc(cls) or cls.__name__).split("\n")[0].rstrip("."), name)
    if ".toml" in name:
        return of_user(name)
    name, figures = resources.named(name), of_papers()
    if name not in figures:
        raise unknown("figure", name, (*figures, *free()))
    return figures[name]


def kind_of(figure: FigureSpec) -> Kind:
    """The figure as an object of its kind. Raises FedbenchError for an unknown kind, for a user's file that does not
    load, and for a figure without what its kind needs."""
    if plugins.is_file(figure.kind):
        return _of_file(figure.kind)(figure)
    check_known(f"kind of figure {figure.id}", figure.kind, built_in())
    kind = built_in()[figure.kind]
    if kind.needs and not getattr(figure, kind.needs):
        raise FedbenchError(f"figure {figure.id} lacks '{kind.needs}'", f"a figure of kind {figure.kind} needs it")
    return kind(figure)


def is_kind(reference: str) -> bool:
    """Whether 'FILE.py:Class' or 'FILE.py' names a kind of figure. Raises FedbenchError if the file does not load."""
    if not plugins.is_file(reference):
        return False
    at = plugins.place(reference, "class")
    own = plugins.classes(plugins.load(at.file)[0])
    named = [own[at.name]] if at.name in own else list(own.values()) if at.name is None else []
    return any(issubclass(cls, Kind) for cls in named)


def _of_file(reference: str) -> type[Kind]:
    """The kind of a user's file."""
    at = plugins.place(reference, "kind of figure")
    module, _ = plugins.load(at.file)
    return plugins.pick(module, Kind, at.name, at.reference, "kind of figure")  # type: ignore[type-abstract]


def check(kind: Kind, request: Request) -> None:
    """Raise FedbenchError for an option that would change nothing."""
    given = request.options
    takes = ", ".join(_written(name) for name in kind.options) or "no options"
    for name in given:
        if name not in kind.options:
            raise FedbenchError(f"{_written(name)} does not go with {kind.spec.id}", f"it takes {takes}")
    theirs = [name for name in ("partition", "run", "filters") if name in given]
    if len(theirs) > 1:
        raise FedbenchError(f"{_written(theirs[0])} and {_written(theirs[1])} exclude each other", "choose one")
    if "partition" in kind.options and not theirs:
        for name in ("client", "image"):
            if name in given:
                raise FedbenchError(f"--{name} goes with --partition only", "leave it out")
        if not kind.spec.shows:
            raise FedbenchError(
                f"figure {kind.spec.id} shows a partition of yours",
                "make one: fedbench partition, or name it: --partition ID",
            )
    for name in ("budget", "seed"):
        if theirs and name in given:
            named = _written(theirs[0])
            raise FedbenchError(f"{_written(name)} does not go with {named}, which has its own", "leave it out")


def _written(option: str) -> str:
    """The spelling of a field of `Request` on the command line."""
    return {"filters": "FILTER", "view": "--test-augmentation"}.get(option, f"--{option}")
