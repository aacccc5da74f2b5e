"""The checks in their order, and what came of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbench.conformance import declared, partitioner, runs
from fedbench.conformance.partitioner import Partitioner
from fedbench.conformance.subject import Subject
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method
from fedbench.partitions import Scheme, schemes
from fedbench.plugins import in_words, mistake
from fedbench.plugins.load import classes, is_file, load, place


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
    Check(declared.name_and_title),
    Check(declared.hyper_parameters),
    Check(declared.deviations),
    Check(declared.declarations),
    Check(declared.measures, (declared.declarations,)),
    Check(declared.signatures, (declared.declarations,)),
)
#: Of runs of any method.
RUNS: tuple[Check, ...] = (
    Check(_RUNS, (declared.declarations, declared.signatures, runs.form)),
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
