"""The list of checks in their order, the checks of a method's declarations, and the outcome of each check."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbench.conformance import agreement, learning, partitioner, runs
from fedbench.conformance.declared import (
    declarations,
    deviations,
    hyper_parameters,
    measures,
    name_and_title,
    signatures,
)
from fedbench.conformance.partitioner import PartitionerSubject
from fedbench.conformance.subject import Subject
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method
from fedbench.partitions import Scheme, schemes
from fedbench.plugins import in_words, mistake
from fedbench.plugins.load import classes, is_file, load, place


@dataclass(frozen=True)
class Check:
    """A function that raises FedbenchError unless its docstring is true of a subject."""

    proves: Callable[[Any], None]
    #: Checks that must pass first: this one would otherwise fail for the same reason.
    needs: tuple[Callable[[Any], None], ...] = ()

    @property
    def name(self) -> str:
        return self.proves.__name__.replace("_", " ")

    @property
    def text(self) -> str:
        """The statement that it proves, on one line."""
        return " ".join((self.proves.__doc__ or "").split())


_RUNS = runs.trains_and_answers
_SAME = runs.same_seed_same_bits
_WHOLE = runs.no_tensor_is_overwritten
#: Checks of a method's declarations.
DECLARED: tuple[Check, ...] = (
    Check(name_and_title),
    Check(hyper_parameters),
    Check(deviations),
    Check(declarations),
    Check(measures, (declarations,)),
    Check(signatures, (declarations,)),
)
#: Checks of runs of any method.
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
#: Checks of runs that train a network.
TRAINING: tuple[Check, ...] = (
    Check(runs.another_seed_other_bits, (_RUNS, _SAME)),
    Check(runs.stop_and_resume, (_RUNS, _SAME, _WHOLE)),
    Check(agreement.executors_agree, (_RUNS, _SAME, _WHOLE)),
    Check(learning.learns, (_RUNS,)),
    Check(learning.tiny_clients, (_RUNS,)),
    Check(learning.crops_of_colour_images, (_RUNS, _SAME, learning.learns)),
    Check(learning.vectors_of_numbers, (_RUNS,)),
)
METHOD = (*DECLARED, *RUNS, *TRAINING)
MODEL: tuple[Check, ...] = (
    Check(runs.form),
    Check(runs.weights_from_the_seed, (runs.form,)),
    *(check for check in RUNS if check.proves in (_RUNS, _SAME, _WHOLE)),
    Check(agreement.executors_agree_on_a_step, (_RUNS, _SAME, _WHOLE)),
    *(check for check in TRAINING if check.proves is not agreement.executors_agree),
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


#: Class of a method or a partitioner (None: a model, which has no options) -> its options.
Options = Callable[[type[Method] | type[Scheme] | None], Mapping[str, Any]]


def subject_of(what: str, folder: Path, options: Options) -> Subject | PartitionerSubject:
    """Find a method, model or partitioner by name or 'FILE.py:Class', with the options that `options` returns. Runs are
    stored in the folder. Raises FedbenchError for an unknown name or an invalid option."""
    name = _partitioner(what)
    if name is not None:
        partitioner = PartitionerSubject(folder, name, options(schemes.load(schemes.named(name))))
        partitioner.spec()
        return partitioner
    subject = Subject.of(what, folder)
    if subject.model is not None:
        for option in options(None):
            raise FedbenchError(f"unexpected option '{option}'", "a model has no options")
        return subject
    subject.overrides = options(subject.kind)
    subject.kind.create(subject.overrides)
    return subject


def _partitioner(what: str) -> str | None:
    """The partitioner's name or 'FILE.py:Class'; None if it is not a partitioner."""
    if not is_file(what):
        return what if what in schemes.names() else None
    at = place(what, "method, model or partitioner")
    own = {name: kind for name, kind in classes(load(at.file)[0]).items() if issubclass(kind, Scheme)}
    name = at.name or (next(iter(own)) if len(own) == 1 else None)
    return f"{at.file}:{name}" if name in own else None


def checks(subject: Subject | PartitionerSubject) -> tuple[Check, ...]:
    """The checks of the subject."""
    if isinstance(subject, PartitionerSubject):
        return PARTITIONER
    return METHOD if subject.model is None else MODEL


@dataclass(frozen=True)
class CheckOutcome:
    """The outcome of a check."""

    check: Check
    holds: bool | None  #: None if it was not run
    why: str = ""  #: why it fails and what to do, or why it was not run
    seconds: float = 0.0
    error: BaseException | None = None


def outcomes(
    subject: Subject | PartitionerSubject, checks: Sequence[Check], begin: Callable[[Check], None]
) -> Iterator[CheckOutcome]:
    """Run the checks one after another and yield their outcomes; `begin` is called before each check."""
    unmet: set[Callable[[Any], None]] = set()
    for check in checks:
        begin(check)
        first = next((need for need in check.needs if need in unmet), None)
        if first is not None:
            outcome = CheckOutcome(check, None, f"not run, as '{first.__name__.replace('_', ' ')}' does not hold")
        elif check in TRAINING and isinstance(subject, Subject) and not subject.kind.trains:
            outcome = CheckOutcome(check, None, "not run: the method trains no network")
        else:
            outcome = _outcome(check, subject)
        if outcome.holds is False or first is not None:
            unmet.add(check.proves)
        yield outcome


def _outcome(check: Check, subject: Subject | PartitionerSubject) -> CheckOutcome:
    started, why = time.perf_counter(), ""
    error: BaseException | None = None
    try:
        check.proves(subject)
    except KeyboardInterrupt:
        raise
    except FedbenchError as problem:
        error, why = problem, str(problem)
    except BaseException as problem:  # an error in the user's file, including sys.exit()
        error, why = problem, mistake(problem) or in_words(problem)
    return CheckOutcome(check, error is None, why, time.perf_counter() - started, error)
