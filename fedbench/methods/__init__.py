"""Federated-learning methods: one file or package per method, with the method's name."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import types
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.errors import FedbenchError, check_known
from fedbench.measure import Measure
from fedbench.words import option_of

if TYPE_CHECKING:
    import pandas as pd

    from fedbench.methods.base import Method


class _Listed(types.ModuleType):
    """This package, which lists the methods when it is called: `fedbench.methods()` (see `fedbench/__init__.py`)."""

    def __call__(self) -> pd.DataFrame:
        """A row for each built-in method: its title, what it is, its hyper-parameters with their defaults, whether each
        client has a model of its own, and by what it clusters clients."""
        import pandas as pd

        declarations = importlib.import_module("fedbench.methods.declarations")  # which imports this package
        rows = {
            name: {
                "title": one.title,
                "what": one.summary,
                "hyper_parameters": {option: it.default for option, it in one.hyper_parameters.items()},
                "personalised": one.personalised,
                "clusters_by": one.clusters_by,
            }
            for name, one in declarations.built_in().items()
        }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")


sys.modules[__name__].__class__ = _Listed

_HERE = Path(__file__).parent
#: Files of this folder that are not methods.
_OTHERS = {"__init__", "agreement", "base", "declarations", "parts"}
#: Options of the commands that train, in addition to those of settings and partitions.
_COMMANDS = frozenset(
    {
        "again",
        "budget",
        "column",
        "cpus_per_run",
        "data",
        "dataset",
        "debug",
        "device",
        "dry_run",
        "engine",
        "from",
        "gpus_per_run",
        "help",
        "help_all",
        "home",
        "include_shipped",
        "jobs",
        "json",
        "keep",
        "log",
        "method",
        "observe",
        "partition_seed",
        "partition_seeds",
        "protocol",
        "round",
        "save",
        "seeds",
        "table",
        "test",
    }
)


@cache
def names() -> list[str]:
    """List all built-in methods by their files and packages."""
    modules = (*_HERE.glob("*.py"), *(path.parent for path in _HERE.glob("*/__init__.py")))
    return sorted({path.stem for path in modules} - _OTHERS)


def file_of(name: str) -> str:
    """Return the file of fedbench that defines the method, such as 'methods/fedavg.py'."""
    package = f"methods/{name}/__init__.py"
    return package if (_HERE.parent / package).is_file() else f"methods/{name}.py"


def load(name: str) -> tuple[type[Method], str | None]:
    """Return the method's class and None, or for 'FILE.py:Class' that class and the digest of its source: the code of
    the file and of everything that it imports from its folder."""
    from fedbench.plugins.load import is_file, pick

    if is_file(name):
        return _load_file(name)
    check_known("method", name, names())
    from fedbench.methods.base import Method

    return pick(importlib.import_module(f"fedbench.methods.{name}"), Method, None, name, "method"), None


def _load_file(reference: str) -> tuple[type[Method], str]:
    from fedbench.methods.base import Method
    from fedbench.plugins.load import load, pick, place

    at = place(reference, "method")
    module, plugin = load(at.file)
    cls = pick(module, Method, at.name, reference, "method")
    if not cls.name:
        cls.name = cls.__name__
    cls.title = cls.title or cls.name
    _check(cls, reference)
    return cls, plugin.digest


@cache
def reserved() -> frozenset[str]:
    """Return the names of fedbench's options, which a hyper-parameter must not have: `--lr` would set the setting's.
    (If a hyper-parameter has the name of a partitioner's option, the command line sets the hyper-parameter.)"""
    from fedbench import partition_options
    from fedbench.specs import Setting

    setting = {field.name for field in dataclasses.fields(Setting)}
    return _COMMANDS.union(setting, partition_options.COMMON, partition_options.shorts())


def _check(cls: type[Method], reference: str) -> None:
    """Raise FedbenchError unless a user's class can be run, named and described."""
    from fedbench.options import VALUES, check_fields
    from fedbench.plugins import reported

    where = f"{cls.__name__} in {reference.removesuffix(f':{cls.__name__}')}"
    check_fields(cls, where, "hyper-parameter")
    if not (isinstance(cls.name, str) and cls.name.isidentifier()):
        raise FedbenchError(f"the name of {where} is {cls.name!r}", "a name is letters, digits and _, such as 'prox'")
    if not (isinstance(cls.title, str) and cls.title.isprintable()):
        raise FedbenchError(f"the title of {where} is {cls.title!r}", "a title is one line of text")
    if type(cls.version) is not int:
        raise FedbenchError(f"the version of {where} is {cls.version!r}", "a version is a whole number")
    if not (isinstance(cls.measures, tuple) and all(isinstance(one, Measure) for one in cls.measures)):
        raise FedbenchError(f"measures of {where} is {cls.measures!r}", "write measures = (Measure(...),)")
    for name, field in cls.hyperparameters().items():
        if type(field.default) not in VALUES:
            default = "none" if field.default is dataclasses.MISSING else repr(field.default)
            raise FedbenchError(
                f"the default of {name} of {where} is {default}", f"it must be {', '.join(VALUES.values())}"
            )
        if name in reserved():
            raise FedbenchError(
                f"the hyper-parameter {name} of {where} goes by the name of fedbench's own option {option_of(name)}",
                f"call it another, such as own_{name}",
            )
    with reported(f"cannot make {where}"):
        cls.create(cls().params)
