"""`fedbench check`: whether a method or a model of one's own keeps the rules that all built-in ones keep."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from fedbench.cli import context, knobs
from fedbench.errors import FedbenchError

if TYPE_CHECKING:
    from rich.console import Console

    from fedbench.conformance.suite import Outcome

#: holds -> (mark, colour)
_MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("-", "yellow")}


def check(
    ctx: typer.Context,
    what: Annotated[str, typer.Argument(metavar="FILE.py:Class", help="A method or a model; or a built-in's name.")],
    json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Run the conformance checks on a method or a model: a line each, whether it holds, and why not.

    They train on scikit-learn's handwritten digits: a quarter of a minute for a method or a small
    network, minutes for a large one.
    A method's hyper-parameters are options, such as --mu 0.1.

    Exit code 1 if a check fails.
    """
    from fedbench.conformance.subject import Subject
    from fedbench.conformance.suite import checks, outcomes

    with tempfile.TemporaryDirectory(prefix="fedbench-check-") as folder:
        subject = Subject.of(what, Path(folder))
        if subject.model is None:
            subject.overrides = knobs.read(ctx.args, subject.kind.knobs(), f"check {what}", check)
            subject.kind.create(subject.overrides)
        elif ctx.args:
            raise FedbenchError(f"unexpected argument '{ctx.args[0]}'", "a model has no options")
        wanted = checks(subject)
        console, width = context.out(), max(len(c.name) for c in wanted)
        found: list[Outcome] = []
        with _working(context.err()) as begin:
            for outcome in outcomes(subject, wanted, lambda c: begin(c.name)):
                found.append(outcome)
                if context.debug() and outcome.error is not None:
                    raise outcome.error
                if not json:
                    _print(console, outcome, width)
    holding, failed = (sum(o.holds is value for o in found) for value in (True, False))
    if json:
        lines = [{"check": o.check.name, "proves": o.check.text, "holds": o.holds, "why": o.why} for o in found]
        context.print_json({"subject": what, "holds": not failed, "checks": lines})
    else:
        rest = len(found) - holding - failed
        words = f"{holding} hold" + (f", {failed} fail" if failed else "") + (f", {rest} not asked" if rest else "")
        console.print(f"{what}: {words}", style="bold")
    if failed:
        raise typer.Exit(1)


def _print(console: Console, outcome: Outcome, width: int) -> None:
    from rich.table import Table

    mark, colour = _MARKS[outcome.holds]
    grid = Table.grid(padding=(0, 1))
    for size in (1, width, None):
        grid.add_column(width=size)
    why = Text(outcome.why or outcome.check.text, style=colour if outcome.why else "dim")
    grid.add_row(Text(mark, style=f"bold {colour}"), Text(outcome.check.name, style="bold"), why)
    console.print(grid, soft_wrap=False)


@contextlib.contextmanager
def _working(console: Console) -> Iterator[Callable[[str], None]]:
    """On a terminal a line that tells what is being checked; yields what to call with a check's name."""
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as status:
        yield lambda name: status.update(Text(f"{name} ..."))
