"""What a run is about: its data set and its partition, but for the seed that drew it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from fedbench.partitions import schemes
from fedbench.reports.runs import SEEDS, Run, differing, keys_of_places, label, telling, text

#: A data set under a partitioner with its options; runs of one place can be ranked among each other.
Place = tuple[str, ...]


def place(run: Run) -> Place:
    """Of one run."""
    part = run.spec.setting.partition
    options = (f"{k} {text(v)}" for k, v in schemes.facts(part).items() if k not in ("dataset", "seed"))
    return (part.dataset.id, *options)


def by_place(groups: Iterable[Sequence[Run]]) -> dict[Place, list[Sequence[Run]]]:
    """Groups of runs by what their runs are about."""
    places: dict[Place, list[Sequence[Run]]] = {}
    for group in groups:
        places.setdefault(place(group[0]), []).append(group)
    return places


def names_of_places(places: Mapping[Place, list[Sequence[Run]]]) -> dict[Place, str]:
    """Each in print: data set and partition, and what else tells them apart."""
    runs = [groups[0][0] for groups in places.values()]
    own = keys_of_places(runs)
    keys = dict.fromkeys(["dataset", "split", *telling(runs, (key for key in differing(runs) if key in own))])
    return {at: label(groups[0][0], keys) for at, groups in places.items()}


def keys_of(groups: Sequence[Sequence[Run]], shown: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """The keys that tell groups of runs apart, those of their data first, without those that are `shown` anyway; and
    those that differ from one place to another only, so that they tell nothing more."""
    runs = [group[0] for group in groups]
    data, different = keys_of_places(runs), [key for key in differing(runs) if key not in (*SEEDS, *shown)]
    by_data = by_place(groups).values()
    within = {"row", "method"} | {key for alike in by_data for key in differing([group[0] for group in alike])}
    places = telling(runs, (key for key in different if key in data))
    keys = [*places, *(key for key in different if key not in data and key in within)]
    return keys, [key for key in different if key not in keys]
