"""The declaration of a method: its names, hyper-parameters and abilities. Together with a setting and hyper-parameter
values it gives the spec of a run, and so its id. Training and reports both use this module, so that reports find the
runs by their ids."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedbench.errors import check_known, unknown
from fedbench.measure import Measure
from fedbench.options import parse
from fedbench.specs import Plain, RunSpec, Setting

#: Values of a method's `clusters_by`, and kinds of shift in its `made_for`.
CLUSTERS_BY, SHIFTS = ("losses", "parameters", "descriptors"), ("px", "py", "pyx", "pxy")


@dataclass(frozen=True)
class HyperParameter:
    """A hyper-parameter, a field of a method's class; its type is that of its default."""

    default: Plain
    help: str = ""
    symbol: str = ""
    source: str = ""
    choices: tuple[str, ...] = ()
    later: bool = False  #: added in a later version: at its default it is not part of a run's id

    def value(self, method: str, name: str, raw: Any) -> Plain:
        """Convert a value or its text to the type of the default. Raises FedbenchError for an invalid value."""
        return parse(method, name, type(self.default), raw, self.choices)


@dataclass(frozen=True)
class Declaration:
    """What a method's class declares; `fedbench.methods.base.Method` explains each field."""

    name: str
    title: str
    version: int
    hyper_parameters: Mapping[str, HyperParameter]  #: name on the command line -> hyper-parameter
    serves: tuple[str, ...]
    personal: tuple[str, ...]
    personal_models: tuple[str, ...]
    unlabelled_has: tuple[str, ...]
    routes: bool
    takes_votes: bool
    takes_multi_label: bool
    takes_vectors: bool
    measures: tuple[Measure, ...]
    clusters_by: str
    made_for: tuple[str, ...]
    adapts: bool
    personalised: bool
    one_step: bool
    text: str  #: the class's docstring
    summary: str  #: first line of the docstring of its file, else of its class
    source: str | None = None  #: digest of a user's file; None for a built-in method

    def __post_init__(self) -> None:
        for name, values, known in (
            ("clusters_by", (self.clusters_by,), ("", *CLUSTERS_BY)),
            ("made_for", self.made_for, SHIFTS),
        ):
            for value in values:
                if value not in known:
                    raise unknown(f"{name} of method {self.name}", value, filter(None, known))

    @property
    def deviations(self) -> list[str]:
        """The `deviates:` paragraphs of the docstring: differences from the paper, with reasons."""
        lines = (" ".join(paragraph.split()) for paragraph in self.text.split("\n\n"))
        return [line.removeprefix("deviates:").strip() for line in lines if line.startswith("deviates:")]

    @property
    def defaults(self) -> dict[str, Plain]:
        return {name: one.default for name, one in self.hyper_parameters.items()}

    def differing(self, params: Mapping[str, Plain]) -> dict[str, Plain]:
        """The hyper-parameters that differ from their defaults."""
        return {name: value for name, value in params.items() if value != self.defaults[name]}

    def values(self, overrides: Mapping[str, Any]) -> dict[str, Plain]:
        """Convert values (or texts) of hyper-parameters. Raises FedbenchError for an unknown name or invalid value."""
        for name in overrides:
            check_known(f"option of {self.name}", name, self.hyper_parameters)
        return {name: self.hyper_parameters[name].value(self.name, name, raw) for name, raw in overrides.items()}

    def run(self, setting: Setting, overrides: Mapping[str, Any]) -> RunSpec:
        """The spec of the method's run in a setting with these hyper-parameters; the others have their defaults.

        Raises FedbenchError like `values`.
        """
        params = {**self.defaults, **self.values(overrides)}
        unsaid = {name for name, one in self.hyper_parameters.items() if one.later and params[name] == one.default}
        named = {name: value for name, value in params.items() if name not in unsaid}
        return RunSpec(setting, self.name, named, self.version, self.source)


#: Attributes of a method's class that Declaration has under the same names.
PLAIN = (
    "serves", "personal", "personal_models", "unlabelled_has", "routes", "takes_votes", "takes_multi_label",
    "takes_vectors", "measures", "clusters_by", "made_for", "adapts", "personalised", "one_step",
    "version",
)  # fmt: skip


def of_class(cls: Any, source: str | None = None) -> Declaration:
    """Read the declaration of a method's class; `source`: digest of a user's file."""
    fields = {
        name: HyperParameter(
            f.default, **{k: v for k, v in f.metadata.items() if k in HyperParameter.__dataclass_fields__}
        )
        for name, f in cls.hyperparameters().items()
    }
    text = inspect.cleandoc(cls.__doc__ or "")
    text = "" if text.startswith(f"{cls.__name__}(") else text  # generated by @dataclass
    module = sys.modules.get(cls.__module__)
    plain = {name: getattr(cls, name) for name in PLAIN}
    name = cls.name or cls.__name__
    lines = ((module and module.__doc__) or text).strip().splitlines()
    line = lines[0].rstrip(".") if lines else ""
    summary = line.partition(": ")[2] or line  # "NAME: WHAT" -> "WHAT"
    return Declaration(
        name=name, title=cls.title or name, hyper_parameters=fields, text=text,
        summary=summary[:1].upper() + summary[1:], source=source, **plain,
    )  # fmt: skip
