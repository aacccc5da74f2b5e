"""Runs as figures show them: a panel for each partition, a line for each group, named by what it differs in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedbench.reports.runs import (
    SEEDS,
    Run,
    by_seed,
    differing,
    keys_of_places,
    label,
    names_of_methods,
    telling,
    text,
    unknown_key,
)


@dataclass(frozen=True)
class RunPanel:
    """Runs on one partition, or on its draws by several seeds."""

    title: str
    lines: Mapping[str, Sequence[Run]]  #: label -> runs, which differ in their seeds only unless grouped by a key


def grouped(runs: Sequence[Run], by: Sequence[str] = ()) -> list[RunPanel]:
    """The runs by partition and within it by all that they differ in besides their seeds, or by these keys only.

    Panels are titled by as much as tells them apart. Raises FedbenchError for an unknown key.
    """
    keys = {key for run in runs for key in run.values}
    for key in by:
        if key not in keys:
            raise unknown_key("key of runs", key, keys)
    different = [key for key in differing(runs) if key not in SEEDS]
    data = keys_of_places(runs)
    places = [key for key in different if key in data and key not in by]
    panels: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        panels.setdefault(tuple(text(run.values.get(key)) for key in places), []).append(run)
    within = {key for own in panels.values() for key in differing(own)}
    within |= {key for run in runs for key in run.hyper_parameters}  # which say nothing of a panel's other methods
    own = list(by) or [key for key in different if key in within and key not in places]
    apart = telling([group[0] for group in panels.values()], ("dataset", "split", *places))
    names = names_of_methods(runs)
    return [
        RunPanel(label(group[0], dict.fromkeys(("dataset", "split", *apart))), _lines(group, own, by, names))
        for group in panels.values()
    ]


def _lines(
    runs: Sequence[Run], keys: Sequence[str], by: Sequence[str], names: Mapping[str, str]
) -> dict[str, list[Run]]:
    if not by:
        lines: dict[str, list[Run]] = {}
        for group in by_seed(runs):
            name = label(group[0], keys, names)
            lines[f"{name} ({group[0].id})" if name in lines else name] = group
        return lines
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_named(run, by, names), []).append(run)
    return groups


def _named(run: Run, by: Iterable[str], names: Mapping[str, str]) -> str:
    """A run by the values of these keys, also of those that it does not have."""
    none = [f"no {key.replace('_', ' ')}" for key in by if run.values.get(key) is None]
    there = [key for key in by if run.values.get(key) is not None]
    return ", ".join(([label(run, there, names)] if there else []) + none)
