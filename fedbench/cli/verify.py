"""`fedbench results verify`: train shipped runs again with progress bars, compare them, and print the verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedbench.cli import context, printing
from fedbench.cli.making import run as train

if TYPE_CHECKING:
    from fedbench.engine.verify import Checked
    from fedbench.results.packs import Packs, Shipped


#: Where the run that a shipped one is compared with comes from.
TRAINED, STORED, BEFORE = "trained now", "as the store has it", "as it was trained to verify it before"


@dataclass(frozen=True)
class Verified:
    """A shipped run, compared with the same run trained on this machine."""

    run: Shipped
    checked: Checked
    how: str  #: where the run here comes from: TRAINED, STORED or BEFORE
    of_several: bool = False  #: whether several packs have different numbers of it


def verified(chosen: Sequence[Shipped], packs_at_hand: Packs, tolerance: float, again: bool) -> Iterator[Verified]:
    """Train the runs again, apart from the store, if it does not have them (or with `again`), and compare each one with
    every pack that has different numbers for it."""
    from fedbench.core.trainer import Interrupted
    from fedbench.engine.engines.engine import Here
    from fedbench.engine.job import Job
    from fedbench.engine.training import data_of
    from fedbench.engine.verify import Verdict, apart, as_made, compare, settled
    from fedbench.results.own_code import at_hand

    store, roots, console = context.store(), context.roots(), context.err()
    verifying = apart(store)
    for run in chosen:
        job = replace(Job.of_spec(run.origin.spec, code=at_hand(run.path)), keep=frozenset())
        stored = None if again else job.done(store)
        of, how = (store, STORED) if stored else (verifying, BEFORE)
        job = job if stored else (job.again(verifying) if again else job)
        if (artifact := job.done(of)) is None:
            how, partition = TRAINED, run.origin.spec.setting.partition
            data = {partition.id: data_of(partition, store, roots, again)}
            (artifact,) = train([job], Here(verifying, roots, *as_made(run), data), title=_name(run))
        others = packs_at_hand.others(run.id, run.metrics)
        for one in (run, *others):
            checked = compare(one, artifact, of, tolerance)
            if checked.verdict is Verdict.FAR:
                with console.status("by another executor, to see how far rounding moves it"):
                    try:
                        checked = settled(checked, one, artifact, of, store, roots)
                    except Interrupted:  # that run is not saved
                        raise KeyboardInterrupt from None
            yield Verified(one, checked, how, bool(others))


def show(results: Sequence[Verified], as_json: bool) -> None:
    """Print a line for each run; it names the pack if several packs have different numbers."""
    if as_json:
        printing.print_json(
            [
                {
                    "run": one.run.id,
                    "verdict": one.checked.verdict.name.lower(),
                    "good": one.checked.verdict.good,
                    "trained": one.how == TRAINED,
                    "difference": one.checked.difference,
                    "metric": one.checked.metric or None,
                    "rounding": one.checked.rounding,
                    "pack": one.run.pack,
                    "made_on": one.run.origin.machine,
                    "here": one.checked.here,
                    "made_on_processor": one.checked.processors[0],
                    "processor_here": one.checked.processors[1],
                }
                for one in results
            ]
        )
        return
    for one in results:
        far = f", largest difference {100 * one.checked.difference:.2f} points ({one.checked.metric})"
        if one.checked.rounding is not None:
            far += f"; another executor here moves it by {100 * one.checked.rounding:.2f}"
        sign, style = ("✓", "green") if one.checked.verdict.good else ("✗", "red")
        rest = "" if one.checked.verdict.value == "the same predictions" else far
        out_of = f" in {one.run.pack}" if one.of_several else ""
        line = f"{sign} run {one.run.id}{out_of} {_name(one.run)}: {one.checked.words}{rest} ({one.how})"
        context.out().print(line, style=style, soft_wrap=True, markup=False)
    bad = sum(not one.checked.verdict.good for one in results)
    context.out().print(f"{len(results) - bad} of {len(results)} come out again")


def _name(run: Shipped) -> str:
    from fedbench.partitions import schemes

    setting = run.origin.spec.setting
    part = setting.partition
    title = run.provenance.get("title", run.origin.spec.method)
    return f"{title} on {part.dataset.name} {schemes.label(part)}, {setting.rounds} rounds"
