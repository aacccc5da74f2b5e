"""The checks in their order, those of what a method says of itself among them, and what came of each."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbench.conformance import partitioner, runs
from fedbench.conformance.lab import setting
from fedbench.conformance.partitioner import Partitioner
from fedbench.conformance.subject import Subject
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method
from fedbench.metrics import method_metrics
from fedbench.partitions import Scheme, schemes
from fedbench.plugins import in_words, mistake
from fedbench.plugins.load import classes, is_file, load, place
from fedbench.specs import RunSpec, require
from fedbench.words import option_of

# -- declared --------------------------------------------------------------------------------------------------
# Checks of what a method says of itself; nothing is trained.


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
        text, flag = field.metadata.get("help", ""), option_of(option)
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


# -- checks ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """A function that raises FedbenchError unless what its docstring says holds of a subject."""

    proves: Callable[[Any], None]
    #: What must hold first: without it this one would fail for the other's reason.
    needs: tuple[Callable[[Any], None], ...] = ()

    @property
    def name(self) -> str:
        return self.proves.__name__.replace("_", " ")

    @property
    def text(self) -> str:
        """What it proves, on one line."""
        return " ".join((self.proves.__doc__ or "").split())


_RUNS = runs.trains_and_answers
_SAME = runs.same_seed_same_bits
_WHOLE = runs.nothing_handed_on_is_written_to
#: Of what a method says of itself.
DECLARED: tuple[Check, ...] = (
    Check(name_and_title),
    Check(hyper_parameters),
    Check(deviations),
    Check(declarations),
    Check(measures, (declarations,)),
    Check(signatures, (declarations,)),
)
#: Of runs of any method.
RUNS: tuple[Check, ...] = (
    Check(_RUNS, (declarations, signatures, runs.form)),
    Check(_SAME, (_RUNS,)),
    Check(_WHOLE, (_RUNS,)),
    Check(runs.metrics_are_declared, (_RUNS,)),
    Check(runs.requests_can_be_stacked, (_RUNS,)),
    Check(runs.extras_have_one_shape, (_RUNS,)),
    Check(runs.test_labels_change_nothing, (_RUNS, _SAME)),
    Check(runs.clients_answer_alone, (_RUNS, _SAME)),
)
#: Of runs that train a network.
TRAINING: tuple[Check, ...] = (
    Check(runs.another_seed_other_bits, (_RUNS, _SAME)),
    Check(runs.stop_and_resume, (_RUNS, _SAME, _WHOLE)),
    Check(runs.executors_agree, (_RUNS, _SAME, _WHOLE)),
    Check(runs.learns, (_RUNS,)),
    Check(runs.tiny_clients, (_RUNS,)),
    Check(runs.crops_of_colour_images, (_RUNS, _SAME, runs.learns)),
    Check(runs.vectors_of_numbers, (_RUNS,)),
)
METHOD = (*DECLARED, *RUNS, *TRAINING)
MODEL: tuple[Check, ...] = (
    Check(runs.form),
    Check(runs.weights_from_the_seed, (runs.form,)),
    *(check for check in RUNS if check.proves in (_RUNS, _SAME, _WHOLE)),
    Check(runs.executors_agree_on_a_step, (_RUNS, _SAME, _WHOLE)),
    *(check for check in TRAINING if check.proves is not runs.executors_agree),
)


PARTITIONER: tuple[Check, ...] = (
    Check(partitioner.draws),
    *(
        Check(proves, (partitioner.draws,))
        for proves in (
            partitioner.same_seed_same_draw,
            partitioner.both_splits,
            partitioner.no_leak,
            partitioner.valid_labels,
            partitioner.read_back,
        )
    ),
)


#: The options of a method or a partitioner by its class (None: of a model, which has none).
Options = Callable[[type[Method] | type[Scheme] | None], Mapping[str, Any]]


def subject_of(what: str, folder: Path, options: Options) -> Subject | Partitioner:
    """The method, model or partitioner of that name or 'FILE.py:Class', with what `options` says for it; runs are made
    in the folder. Raises FedbenchError for what is none of them, and for a wrong option."""
    name = _partitioner(what)
    if name is not None:
        partitioner = Partitioner(folder, name, options(schemes.load(schemes.named(name))))
        partitioner.spec()
        return partitioner
    subject = Subject.of(what, folder)
    if subject.model is not None:
        options(None)
        return subject
    subject.overrides = options(subject.kind)
    subject.kind.create(subject.overrides)
    return subject


def _partitioner(what: str) -> str | None:
    """The partitioner by name or as 'FILE.py:Class'; None for what is none."""
    if not is_file(what):
        return what if what in schemes.names() else None
    at = place(what, "method, model or partitioner")
    own = {name: kind for name, kind in classes(load(at.file)[0]).items() if issubclass(kind, Scheme)}
    name = at.name or (next(iter(own)) if len(own) == 1 else None)
    return f"{at.file}:{name}" if name in own else None


def checks(subject: Subject | Partitioner) -> tuple[Check, ...]:
    """The checks of the subject."""
    if isinstance(subject, Partitioner):
        return PARTITIONER
    return METHOD if subject.model is None else MODEL


@dataclass(frozen=True)
class Outcome:
    """What came of a check."""

    check: Check
    holds: bool | None  #: None: it was not run
    why: str = ""  #: why it does not hold and what to do, or why it was not run
    seconds: float = 0.0
    error: BaseException | None = None


def outcomes(
    subject: Subject | Partitioner, checks: Sequence[Check], begin: Callable[[Check], None]
) -> Iterator[Outcome]:
    """What comes of each check, one after another; `begin` is called with a check before it runs."""
    unmet: set[Callable[[Any], None]] = set()
    for check in checks:
        begin(check)
        first = next((need for need in check.needs if need in unmet), None)
        if first is not None:
            outcome = Outcome(check, None, f"not run, as '{first.__name__.replace('_', ' ')}' does not hold")
        elif check in TRAINING and isinstance(subject, Subject) and not subject.kind.trains:
            outcome = Outcome(check, None, "not run: the method trains no network")
        else:
            outcome = _outcome(check, subject)
        if outcome.holds is False or first is not None:
            unmet.add(check.proves)
        yield outcome


def _outcome(check: Check, subject: Subject | Partitioner) -> Outcome:
    started, why = time.perf_counter(), ""
    error: BaseException | None = None
    try:
        check.proves(subject)
    except KeyboardInterrupt:
        raise
    except FedbenchError as problem:
        error, why = problem, str(problem)
    except BaseException as problem:  # a mistake in the user's file, sys.exit() too
        error, why = problem, mistake(problem) or in_words(problem)
    return Outcome(check, error is None, why, time.perf_counter() - started, error)
