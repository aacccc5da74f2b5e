"""Checks of what a method says of itself; nothing is trained."""

from __future__ import annotations

import inspect

from fedbench.conformance.lab import setting
from fedbench.conformance.subject import Subject
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method
from fedbench.metrics import method_metrics
from fedbench.specs import RunSpec, require


def name_and_title(subject: Subject) -> None:
    """It has a name, a title for tables, a version, and a docstring of its own that says what it is."""
    cls = subject.kind
    own = [name for name in ("name", "title") if any(name in vars(c) for c in cls.__mro__ if c is not Method)]
    for name in ("name", "title"):
        require(
            name in own and bool(getattr(cls, name)), f"{cls.__name__} has no {name}", f'write {name} = "..." in it'
        )
    require(cls.version >= 1, f"the version is {cls.version}", "the first version is 1; raise it when results change")
    text = cls.__doc__ or ""
    generated = text.startswith(f"{cls.__name__}(")  # a dataclass's own
    wrong = f"{cls.__name__} has no docstring"
    require(bool(text.strip()) and not generated, wrong, "say which paper and which algorithm of it this is")


def hyper_parameters(subject: Subject) -> None:
    """Every hyper-parameter says what it is, parses from a command line, and is part of the run's identity."""
    cls = subject.kind
    for option, field in cls.hyperparameters().items():
        text, flag = field.metadata.get("help", ""), f"--{option.replace('_', '-')}"
        remedy = f'write {field.name} = hyperparameter({field.default!r}, "what it is", "symbol", "where in the paper")'
        require(bool(text) and "\n" not in text, f"{flag} does not say in one line what it is", remedy)
        require(option == option.lower(), f"{flag} has capital letters", "write it in small letters")
        choices = field.metadata.get("choices")
        require(not choices or field.default in choices, f"the default of {flag} is none of its choices", "add it")
        value = cls.create({option: str(field.default)}).params[option]
        back = value == field.default and type(value) is type(field.default)
        require(
            back, f"{flag} {field.default} is read as {value!r}", "__post_init__ may refuse values, not change them"
        )
        try:
            cls.create({option: "no such value"})
        except FedbenchError as error:
            require(flag in str(error), f"the error about {flag} does not name it: {error}", f"begin it with {flag}")
        else:
            free = type(field.default) is str and not choices
            require(free, f"{flag} takes any value", "give the default the type that the value has")
    spec = RunSpec(setting(), cls.name, cls().params, cls.version)
    back = RunSpec.from_dict(spec.to_dict()).id == spec.id
    require(back, "the run's identity is not what is stored", "use plain values as defaults")


def deviations(subject: Subject) -> None:
    """Every `deviates:` paragraph of the docstring is a whole sentence on its own, which tables print as a note."""
    cls = subject.kind
    lines, count = cls.deviations(), (cls.__doc__ or "").count("deviates:")
    remedy = "begin a paragraph of its own with 'deviates: ', after an empty line"
    require(len(lines) == count, f"{count - len(lines)} of {count} 'deviates:' stand within a paragraph", remedy)
    for line in lines:
        whole = line.endswith(".") and "\n" not in line and len(line) > 20
        wrong = f"the deviation '{line[:60]}' is no whole sentence"
        require(whole, wrong, "say what differs and why, and end with a full stop")


def declarations(subject: Subject) -> None:
    """What it declares, such as `personal` or `routes`, is of the kind that fedbench.methods.base.Method has there."""
    cls = subject.kind
    for name, base in vars(Method).items():
        own = inspect.getattr_static(cls, name)
        if name.startswith("_") or name == "measures" or own is base:
            continue
        if isinstance(base, property):
            simple = isinstance(own, property | bool)
            require(simple, f"{name} is a {type(own).__name__}, not a property", "write @property above it")
        elif isinstance(base, bool | int | str | tuple):
            right = type(own) is type(base) and (not isinstance(own, tuple) or all(type(item) is str for item in own))
            example = {tuple: '("head.",)', bool: "True", int: "2", str: '"a_word"'}[type(base)]
            require(right, f"{name} is {own!r}, not a {type(base).__name__}", f"write such as {name} = {example}")
        elif inspect.isfunction(base):
            require(inspect.isfunction(own), f"{name} is a {type(own).__name__}, not a hook", f"write def {name}(...):")


def measures(subject: Subject) -> None:
    """The metrics that it declares can be metrics of its runs."""
    method_metrics.check(subject.kind.measures, subject.kind.__name__)


def signatures(subject: Subject) -> None:
    """Every hook takes what the trainer hands it, as in fedbench.methods.base.Method: no label reaches what answers."""
    cls = subject.kind
    for name, base in vars(Method).items():
        hook = inspect.getattr_static(cls, name)
        if name.startswith("_") or not inspect.isfunction(base):
            continue
        needed = list(inspect.signature(base).parameters)
        try:
            inspect.signature(hook).bind(*needed)
        except TypeError:
            parameters = ", ".join(inspect.signature(hook).parameters)
            wrong = f"{name}({parameters}) does not take what the trainer hands it"
            raise FedbenchError(wrong, f"write def {name}({', '.join(needed)}):") from None
