"""Shipped runs made again under bars, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedbench.cli import context
from fedbench.cli.live import run as train
from fedbench.cli.live import stoppable_aside

if TYPE_CHECKING:
    from fedbench.engine.verify import Checked
    from fedbench.results.shelf import Shelf
    from fedbench.results.shipped import Shipped


@dataclass(frozen=True)
class Verified:
    """A shipped run, and how it stands beside the one made here."""

    run: Shipped
    checked: Checked
    trained: bool  #: now; else the store had it
    of_several: bool = False  #: whether packs have other numbers of it


def verified(chosen: Sequence[Shipped], shelf: Shelf, tolerance: float, again: bool) -> Iterator[Verified]:
    """The runs, made again where the store does not have them (or `again`), and compared: each as every pack of the
    shelf has it that has other numbers than the first."""
    from fedbench.engine.engines.here import Here
    from fedbench.engine.verify import Verdict, as_made, compare, job_of, settled

    store, console = context.store(), context.err()
    for run in chosen:
        job = job_of(run)
        job = job.again(store) if again else replace(job, keep=frozenset())
        trained = job.done(store) is None
        (artifact,) = train([job], Here(store, context.roots(), *as_made(run)), title=_name(run))
        others = shelf.others(run.id, run.metrics)
        for one in (run, *others):
            checked = compare(one, artifact, store, tolerance)
            if checked.verdict is Verdict.FAR:
                with console.status("by another executor, to see how far rounding moves it"), stoppable_aside():
                    checked = settled(checked, one, artifact, store, context.roots())
            yield Verified(one, checked, trained, bool(others))


def show(results: Sequence[Verified], as_json: bool) -> None:
    """A line a run, and a pack if several have other numbers of it."""
    if as_json:
        context.print_json(
            [
                {
                    "run": one.run.id, "verdict": one.checked.verdict.name.lower(), "good": one.checked.verdict.good,
                    "trained": one.trained, "difference": one.checked.difference, "metric": one.checked.metric or None,
                    "rounding": one.checked.rounding, "pack": one.run.pack, "made_on": one.run.origin.machine,
                    "here": one.checked.here,
                    "made_on_processor": one.checked.processors[0], "processor_here": one.checked.processors[1],
                }
                for one in results
            ]
        )  # fmt: skip
        return
    for one in results:
        far = f", largest difference {100 * one.checked.difference:.2f} points ({one.checked.metric})"
        if one.checked.rounding is not None:
            far += f"; another executor here moves it by {100 * one.checked.rounding:.2f}"
        sign, style = ("✓", "green") if one.checked.verdict.good else ("✗", "red")
        how = "trained now" if one.trained else "as the store has it"
        rest = "" if one.checked.verdict.value == "the same predictions" else far
        out_of = f" in {one.run.pack}" if one.of_several else ""
        line = f"{sign} run {one.run.id}{out_of} {_name(one.run)}: {one.checked.words}{rest} ({how})"
        context.out().print(line, style=style, soft_wrap=True, markup=False)
    bad = sum(not one.checked.verdict.good for one in results)
    context.out().print(f"{len(results) - bad} of {len(results)} come out again")


def _name(run: Shipped) -> str:
    from fedbench.partitions import schemes

    setting = run.origin.spec.setting
    part = setting.partition
    title = run.provenance.get("title", run.origin.spec.method)
    return f"{title} on {part.dataset.name} {schemes.label(part)}, {setting.rounds} rounds"
