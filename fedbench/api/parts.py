"""Partitions and conformance checks, and the helpers that the other modules of `fedbench.api` share."""

from __future__ import annotations

import dataclasses
import io
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fedbench import partitions
from fedbench import protocol as protocols
from fedbench.errors import FedbenchError
from fedbench.options import checked
from fedbench.partition_options import spec_of
from fedbench.partitions import schemes
from fedbench.reader import shown
from fedbench.specs import PartitionSpec
from fedbench.specs.base import native
from fedbench.store import Store
from fedbench.words import folders_of, plain

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

    from fedbench.conformance.suite import Outcome
    from fedbench.screen import Screen


# -- places ----------------------------------------------------------------------------------------------------
# The store, the data folders and the console that Python calls use.


#: A store or its folder; None: the folder FEDBENCH_HOME, or ~/.fedbench if that is not set.
Home: TypeAlias = Store | Path | str | None


def store_of(home: Home) -> Store:
    """The store itself, opened if `home` is a folder or None."""
    return home if isinstance(home, Store) else Store(home)


def roots() -> list[Path]:
    """The folders listed in FEDBENCH_DATA, which hold the user's data sets."""
    return folders_of(os.environ.get("FEDBENCH_DATA", ""), "FEDBENCH_DATA")


def screen() -> Screen:
    """A console on standard error, for progress and remarks."""
    from fedbench.screen import Screen

    return Screen(stderr=True)


def say(line: str) -> None:
    """Print a remark on standard error."""
    screen().print(line, soft_wrap=True)


# -- pictures --------------------------------------------------------------------------------------------------
# What notebooks show: coloured terminal output as HTML, and small tables.


#: Width of the terminal output, in characters.
WIDTH = 120
_FORMAT = '<pre style="line-height:1.25;font-family:monospace;background:none;color:inherit">{code}</pre>'


def coloured(parts: Iterable[RenderableType]) -> str:
    """The terminal output of the parts as coloured HTML."""
    from fedbench.screen import Screen

    # Without force_jupyter=False, rich shows each part as a separate output of the notebook cell.
    shape: dict[str, Any] = {"width": WIDTH, "force_terminal": True, "force_jupyter": False}
    console = Screen(record=True, file=io.StringIO(), color_system="truecolor", **shape)
    for part in parts:
        console.print(part, soft_wrap=False)
    return console.export_html(code_format=_FORMAT, inline_styles=True)


def card(title: str, rows: Mapping[str, str]) -> str:
    """An HTML table of names and values under a title."""
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(plain(name))}</th>'
        f'<td style="text-align:left">{escape(plain(value))}</td></tr>'
        for name, value in rows.items()
    )
    return f'<table><caption style="text-align:left;font-weight:bold">{escape(plain(title))}</caption>{cells}</table>'


# -- classes ---------------------------------------------------------------------------------------------------
# A user passes a method, a model or a partitioner as a name, as 'FILE.py:Class', as a class, or as an object of one.


#: Name of the base class of each kind. These are names because importing most of the classes needs torch.
_BASES = {
    "method": "fedbench.methods.base.Method", "model": "fedbench.models.base.FLModel",
    "partitioner": "fedbench.partitions.scheme.Scheme",
}  # fmt: skip


def name_of(what: Any, called: str = "method") -> str:
    """The name or the 'FILE.py:Class' by which the commands name it. Raises FedbenchError if `what` is not of the kind
    that `called` names, or if it is a class that cannot be imported from a file."""
    if isinstance(what := native(what), str | os.PathLike):
        return str(what)
    kind: Any = what if isinstance(what, type) else type(what)
    bases = [base for name, base in _BASES.items() if name in called]
    if not {f"{one.__module__}.{one.__name__}" for one in kind.__mro__} & {*bases}:
        such = f"a name, FILE.py:Class, or a class derived from {' or '.join(bases)}"
        raise FedbenchError(f"{shown(what)} is no {called}", f"give {such}")
    place = kind.__module__
    if place.startswith(("fedbench.methods.", "fedbench.partitions.schemes.")):
        return str(kind.name) if place.startswith("fedbench.methods.") else place.rpartition(".")[2]
    module, name = sys.modules.get(place), kind.__name__
    file = getattr(module, "__file__", None)
    if place != "__main__" and file and getattr(module, name, None) is kind:
        return f"{file}:{name}"
    what = (
        "a class of __main__ (a notebook's cell, a script)" if place == "__main__" else f"no name in a file of {place}"
    )
    raise FedbenchError(
        f"{name} is {what}, which no run can be made of again",
        f"write it into a file (in a notebook: %%writefile mine.py), and give mine.py:{name} or import it from there",
    )


def options_of(what: Any) -> dict[str, Any]:
    """The fields of an object that differ from its class's defaults; empty for a name or a class."""
    if isinstance(what, type) or not dataclasses.is_dataclass(what):
        return {}
    values = {f.name.rstrip("_"): (getattr(what, f.name), f.default) for f in dataclasses.fields(what)}
    return {name: value for name, (value, default) in values.items() if value != default}


# -- parts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Part:
    """A data set partitioned among clients, and the protocol that sets the defaults of its runs."""

    spec: PartitionSpec
    store: Store
    protocol: str

    @property
    def id(self) -> str:
        return self.spec.id

    @cached_property
    def data(self) -> partitions.Partition:
        """The whole partition, one row for each sample of each client."""
        return partitions.build(self.spec, self.store, roots())

    @property
    def counts(self) -> pd.DataFrame:
        """Samples of each client (rows): by class, and how many are for training and for testing (columns)."""
        import pandas as pd

        p = self.data
        frame = pd.DataFrame(p.class_counts(), columns=list(p.classes)).rename_axis("client")
        return frame.assign(train=p.n_train, test=p.n_test)

    def __repr__(self) -> str:
        spec = self.spec
        return f"<partition {self.id[:8]} of {spec.dataset.name}: {schemes.label(spec)}, {spec.clients} clients>"

    def _repr_html_(self) -> str:
        from fedbench.partitions.view import render

        return coloured(render(self.data))


@checked
def partition(dataset: str | None = None, *, protocol: str | None = None, store: Home = None, **options: Any) -> Part:
    """Partition a data set among clients, or load the partition from the store; options as in `fedbench partition`.

    `from_` is a file of rows (client, sample, split) or, without a data set, a folder of PFLlib or LEAF. `scheme` can
    be a custom partitioner: "FILE.py:Class", a class or an object. The protocol sets the options that you leave out.

    >>> part = partition("digits", dir=0.3, clients=5)
    >>> part
    <partition ... of digits: Dir-0.3, 5 clients>
    >>> int(part.counts["train"].sum() + part.counts["test"].sum())
    1797
    """
    home = store_of(store)
    rules = protocols.load(protocol or protocols.default_for(dataset))
    scheme = options.get("scheme")
    if scheme is not None:
        name = name_of(scheme, "partitioner")
        options = {**options_of(scheme), **options, "scheme": name}
    part = Part(spec_of(dataset, options, rules, home, roots(), say), home, rules.name)
    partitions.obtain(part.spec, home, roots())
    return part


# -- checks ----------------------------------------------------------------------------------------------------
# Whether a method, a model or a partitioner meets the rules that all of its kind must meet.


@dataclass(frozen=True, repr=False)
class Checks:
    """The results of the conformance checks of one method, model or partitioner."""

    subject: str
    outcomes: tuple[Outcome, ...]

    @property
    def holds(self) -> bool:
        """Whether no check failed."""
        return all(one.holds is not False for one in self.outcomes)

    def __bool__(self) -> bool:
        return self.holds

    def __iter__(self) -> Iterator[Outcome]:
        return iter(self.outcomes)

    def __repr__(self) -> str:
        marks = {True: "✓", False: "✗", None: "-"}
        lines = [f"{marks[one.holds]} {one.check.name}: {one.why or one.check.text}" for one in self.outcomes]
        return "\n".join([f"{self.subject}: {'holds' if self.holds else 'fails'}", *lines])

    def _repr_html_(self) -> str:
        marks = {True: "✓", False: "✗", None: "not run"}
        rows = {one.check.name: f"{marks[one.holds]} {one.why or one.check.text}" for one in self.outcomes}
        return card(f"{self.subject} {'holds' if self.holds else 'fails'}", rows)


@checked
def check(what: Any, **options: Any) -> Checks:
    """Run the conformance checks of `fedbench check` on a method, a model or a partitioner, given as a name, as
    'FILE.py:Class', as a class or as an object. They train on scikit-learn's digits: about 15 seconds for a method."""
    from fedbench.conformance.suite import checks, outcomes, subject_of

    name = name_of(what, "method, model or partitioner")
    with tempfile.TemporaryDirectory(prefix="fedbench-check-") as folder:
        subject = subject_of(name, Path(folder), lambda kind: {**options_of(what), **options})
        return Checks(name, tuple(outcomes(subject, checks(subject), lambda check: None)))
