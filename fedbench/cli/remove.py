"""`fedbench remove`: delete artifacts by id, runs by filters, and files of interrupted and failed runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from fedbench.cli import context, options, parser
from fedbench.cli.describe import describe
from fedbench.cli.listing import bytes_of
from fedbench.cli.parser import App
from fedbench.errors import FedbenchError
from fedbench.store import Artifact, Store
from fedbench.store.claim import HeldError
from fedbench.store.unfinished import UnfinishedState, discard, ids, unfinished
from fedbench.words import counted, plain, size

app = App()

#: If there are more things to delete, the rest is counted and not listed before the question.
_LISTED = 20
WORK = "unfinished run"


@dataclass(frozen=True)
class _Thing:
    """An artifact or an unfinished run to delete."""

    kind: str  #: kind of the artifact, or WORK
    id: str
    what: str
    bytes: int


@app.command("remove")
def remove(
    what: Annotated[
        list[str] | None,
        options.argument(
            "Ids, or their beginnings, of artifacts and unfinished runs; or filters of runs, such as "
            "method=fedavg lr=0.1: these runs with their metrics.",
            "[ID|FILTER]...",
        ),
    ] = None,
    all_unfinished: Annotated[bool, "All interrupted and failed runs.", "--unfinished"] = False,
    yes: Annotated[bool, "Do not ask."] = False,
) -> None:
    """Delete artifacts or unfinished runs from the store, after a question."""
    words, store = [parser.parsed_value("id", word) for word in dict.fromkeys(what or [])], context.store()
    if bool(words) is all_unfinished:
        raise FedbenchError(
            "remove needs ids, filters or --unfinished", "'fedbench list' shows the contents of the store"
        )
    if all_unfinished:
        stopped = (run for run in unfinished(store) if run.state is not UnfinishedState.RUNNING)
        things = [_Thing(WORK, run.id, describe(run.spec), run.bytes) for run in stopped]
    else:
        things = _named(store, words)
    if not things:
        context.out().print(f"nothing is unfinished in {store.home}")
        return
    for thing in things:
        if (holder := store.claimed(thing.id)) is not None:
            raise HeldError(f"run {thing.id}", f"process {holder['pid']} on {holder['host']}")
    if not yes:
        _ask(things)
    gone: list[_Thing] = []
    try:
        for thing in things:
            if thing.kind == WORK:
                discard(store, thing.id)
            else:
                store.remove(thing.kind, thing.id)
            gone.append(thing)
    finally:  # print after deleting, because printing fails if the reader of a pipe is gone
        for thing in gone if len(things) <= _LISTED else ():
            context.out().print(f"removed {thing.kind} {thing.id}")
    if len(things) > 1:
        context.out().print(f"removed {_sum(things)}")


def _named(store: Store, words: Sequence[str]) -> list[_Thing]:
    filters = [word for word in words if "=" in word]
    if not filters:
        return list(dict.fromkeys(_of_id(store, word) for word in words))
    from fedbench.metrics.read import spec_of
    from fedbench.planner.runs import select

    things = []
    for run in select(context.frame(shipped=False), words, context.roots()):
        things.append(_thing(run.artifact))
        if (metrics := store.whole(spec_of(run.artifact))) is not None:
            things.append(_thing(metrics))
    return things


def _of_id(store: Store, prefix: str) -> _Thing:
    """The artifact whose id has this prefix, else the unfinished run."""
    hits = sorted({id for id in ids(store) if prefix and id.startswith(prefix)})
    try:
        kind, id = store.locate(prefix)
    except FedbenchError:
        if len(hits) != 1:
            raise
        runs = {run.id: run for run in unfinished(store)}
        known = runs.get(hits[0])
        return _Thing(WORK, hits[0], describe(known.spec) if known else "illegible", known.bytes if known else 0)
    try:
        return _thing(store.open(kind, id))
    except FedbenchError as error:
        return _Thing(kind, id, error.message, 0)


def _thing(artifact: Artifact) -> _Thing:
    return _Thing(artifact.kind, artifact.id, describe(artifact.spec), bytes_of(artifact))


def _ask(things: Sequence[_Thing]) -> None:
    """Show what would be deleted, and ask. Raises FedbenchError without an answer, and typer.Exit(1) for no."""
    if len(things) == 1:
        question = f"Delete {things[0].kind} {things[0].id} ({size(things[0].bytes)}): {things[0].what}?"
    else:
        for thing in things[:_LISTED]:
            context.out().print(f"{thing.kind} {thing.id} ({size(thing.bytes)}): {thing.what}")
        if len(things) > _LISTED:
            context.out().print(f"... and {len(things) - _LISTED} more")
        question = f"Delete {_sum(things)}?"
    try:
        sure = typer.confirm(plain(question))
    except typer.Abort:
        raise FedbenchError("nothing was removed: there was no answer", "--yes removes without asking") from None
    if not sure:
        raise typer.Exit(1)


def _sum(things: Sequence[_Thing]) -> str:
    """Such as '12 runs, 12 metrics, 3.4 MB'."""
    counts = Counter(thing.kind for thing in things)
    words = [f"{n:,} {kind}" if kind.endswith("s") else counted(n, kind) for kind, n in counts.items()]
    return ", ".join([*words, size(sum(thing.bytes for thing in things))])
