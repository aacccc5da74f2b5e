"""`fedbench check`: whether a user's method, model or partitioner meets the rules of the built-in ones."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from fedbench.cli import context, hyperparameters, options, printing
from fedbench.cli.parser import OPEN, App
from fedbench.errors import FedbenchError

if TYPE_CHECKING:
    from rich.console import Console

    from fedbench.conformance.suite import Check, CheckOutcome
    from fedbench.methods.base import Method
    from fedbench.partitions import Scheme
    from fedbench.reports.figures.checks import FigureSubject

app = App()

#: holds -> (mark, colour)
_MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("-", "yellow")}


@app.command("check", context_settings=OPEN)
def check(
    ctx: typer.Context,
    what: Annotated[
        str,
        options.argument(
            "A method, a model, a partitioner or a kind of figure; or a built-in's name.", "FILE.py:Class"
        ),
    ],
    json: options.Json = False,
) -> None:
    """Run the conformance checks on a method, a model, a partitioner or a kind of figure; a failed check prints
    the reason. They train on scikit-learn's handwritten digits: 15 seconds for a method or a small network,
    minutes for a large one. A figure is drawn from a few shipped runs or from those that filters select. The
    options of a method or partitioner can be given, such as --mu 0.1. Exit code 1 if a check fails.
    """
    from fedbench.conformance.suite import checks, outcomes, subject_of
    from fedbench.reports.figures.registry import is_kind

    with tempfile.TemporaryDirectory(prefix="fedbench-check-") as folder:
        subject: Any
        if is_kind(what):
            subject, wanted = _figure(what, Path(folder), ctx.args)
        else:
            subject = subject_of(what, Path(folder), lambda kind: _options(kind, what, ctx.args))
            wanted = checks(subject)
        console, width = context.out(), max(len(c.name) for c in wanted)
        results: list[CheckOutcome] = []
        with context.err().status("") as working:  # shows the current check on a terminal
            for outcome in outcomes(subject, wanted, lambda c: working.update(Text(f"{c.name} ..."))):
                results.append(outcome)
                if context.debug() and outcome.error is not None:
                    raise outcome.error
                if not json:
                    _print(console, outcome, width)
    holding, failed = (sum(o.holds is value for o in results) for value in (True, False))
    if json:
        lines = [{"check": o.check.name, "proves": o.check.text, "holds": o.holds, "why": o.why} for o in results]
        printing.print_json({"subject": what, "holds": not failed, "checks": lines})
    else:
        rest = len(results) - holding - failed
        words = f"{holding} hold" + (f", {failed} fail" if failed else "") + (f", {rest} not run" if rest else "")
        console.print(f"{what}: {words}", style="bold")
    if failed:
        raise typer.Exit(1)


def _figure(what: str, folder: Path, words: Sequence[str]) -> tuple[FigureSubject, tuple[Check, ...]]:
    """A kind of figure with its checks; the words are filters of runs."""
    from fedbench.conformance.suite import Check
    from fedbench.reports import figures
    from fedbench.reports.figures.checks import CHECKS, FigureSubject, some_runs
    from fedbench.store import Store

    for word in words:
        if word.startswith("-"):
            raise FedbenchError(f"unexpected option '{word}'", "a kind of figure takes filters of runs")
    frame = context.frame()
    subject = FigureSubject(figures.kind_of(figures.load(what)), frame, Store(folder), words or some_runs(frame))
    return subject, tuple(Check(proves, needs) for proves, needs in CHECKS)


def _options(kind: type[Method] | type[Scheme] | None, what: str, words: Sequence[str]) -> Mapping[str, Any]:
    """The options of a method or a partitioner among the words; a model has none."""
    from fedbench.cli.partition import scheme_options
    from fedbench.partitions import Scheme

    if kind is None:
        if words:
            raise FedbenchError(f"unexpected argument '{words[0]}'", "a model has no options")
        return {}
    if issubclass(kind, Scheme):
        return scheme_options(words, kind)
    return hyperparameters.read(words, kind.hyperparameters(), f"check {what}", check)


def _print(console: Console, outcome: CheckOutcome, width: int) -> None:
    from rich.table import Table

    mark, colour = _MARKS[outcome.holds]
    grid = Table.grid(padding=(0, 1))
    for size in (1, width, None):
        grid.add_column(width=size)
    why = Text(outcome.why or outcome.check.text, style=colour if outcome.why else "dim")
    grid.add_row(Text(mark, style=f"bold {colour}"), Text(outcome.check.name, style="bold"), why)
    console.print(grid, soft_wrap=False)
