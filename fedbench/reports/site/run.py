"""The page of a run: its numbers and pictures, what was decided of it, where it comes from, how to repeat it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedbench.partitions import schemes
from fedbench.reports.compare.comparison import Comparison, Group
from fedbench.reports.compare.numbers import scale
from fedbench.reports.runs import Run, label, text
from fedbench.reports.site import pictures
from fedbench.reports.site.page import card, document, e, folded, values
from fedbench.specs import Setting
from fedbench.store.provenance import other_code

#: Of a page about fields of a method, a partition or a setting: names and values.
Rows = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Told:
    """What rooms above tell of a run."""

    origin: Sequence[tuple[str, Sequence[str]]]  #: each artifact from the run back to the images, and its details
    commands: Sequence[str] | None  #: that repeat it; None where no options do


def name(run: Run) -> str:
    """The file of its page."""
    return f"run-{run.id}.html"


def page(side: Comparison, group: Group, run: Run, told: Told, partition: str) -> str:
    """The page of one run of a group, with the picture of its partition (HTML)."""
    way = f'<a href="index.html">All runs</a>{_seeds(group, run)}'
    title = label(run, sorted(side.keys, key=lambda key: key != "method") or ["method"], side.names_of_methods)
    about = [f"{run.values['dataset']} {run.values['split']}", f"seed {run.spec.setting.seed}", f"run {run.id}"]
    stale = [*(["shipped"] if run.shipped else []), *["stale: of another version of the code"] * run.stale]
    stale += ["made by other code than today's"] * other_code(run.artifact.provenance)
    body = [f"<h1>{e(title)}</h1>", f'<p class="about">{e(" · ".join([*about, *stale]))}</p>', _tiles(side, run)]
    body += ['<div class="cards">', *_cards(side, group, run, told, partition), "</div>"]
    return document(f"{title}, seed {run.spec.setting.seed}", way, body)


def _seeds(group: Group, run: Run) -> str:
    """Links to the other runs of the group."""
    if len(group) == 1:
        return ""
    links = [
        f"<b>{one.spec.setting.seed}</b>" if one is run else f'<a href="{e(name(one))}">{one.spec.setting.seed}</a>'
        for one in group
    ]
    return f" · seed {' '.join(links)}"


def _tiles(side: Comparison, run: Run) -> str:
    tiles = []
    for number in side.numbers:
        value = side.values.get((run.id, number.name))
        if value is not None:
            factor, unit, decimals = scale(number.unit, [value])
            words = f"{number.label} {number.group.lower()}".strip()
            tiles.append(f"<div><b>{value * factor:,.{decimals}f} {e(unit)}</b><span>{e(words)}</span></div>")
    return f'<div class="tiles">{"".join(tiles)}</div>' if tiles else ""


def _cards(side: Comparison, group: Group, run: Run, told: Told, partition: str) -> Iterable[str]:
    metrics, spec = side.metrics.get(run.id), run.spec
    others = [side.metrics[one.id] for one in group if one is not run and one.id in side.metrics]
    if metrics is None:
        problems = [p for p in side.problems if run.id in p] or side.problems
        yield card("No metrics", f'<p class="off">{e(" ".join(problems))}</p>', wide=True)
    else:
        yield card("Learning", pictures.learning(metrics, others))
        for title, content in (
            ("Clients", pictures.clients(metrics, spec.setting.partition.outsiders)),
            ("Loss", pictures.loss(metrics, others)),
        ):
            if content:
                yield card(title, content)
    yield card("Partition", partition)
    rows = {"method": _method(run), "data": _data(run), "training": _setting(run)}
    parts = (f"<div><h3>{title}</h3>{values(own)}</div>" for title, own in rows.items())
    yield card("What was decided", f'<div class="parts">{"".join(parts)}</div>', wide=True)
    yield card("Repeat it", _repeat(told.commands), wide=True)
    origin = "".join(folded(what, details) or f"<p>{e(what)}</p>" for what, details in told.origin)
    yield card("Where it comes from", origin, wide=True)
    if deviations := run.artifact.provenance.get("deviations"):
        yield card("Notes", folded("How the method deviates from its paper", map(str, deviations)), wide=True)


def _method(run: Run) -> Rows:
    yield "method", f"{run.title} ({run.spec.method}, version {run.spec.method_version})"
    yield from _known(run.spec.params.items())


def _data(run: Run) -> Rows:
    part = run.spec.setting.partition
    yield from (("data set", part.dataset.name), ("split", schemes.label(part)), ("partition", part.id))
    facts = {key: value for key, value in schemes.facts(part).items() if key not in ("dataset", "version")}
    yield from _known(("partition_seed" if key == "seed" else key, value) for key, value in facts.items())


def _setting(run: Run) -> Rows:
    setting = run.spec.setting
    yield from _known((f.name, getattr(setting, f.name)) for f in dataclasses.fields(Setting) if f.name != "partition")


def _known(rows: Iterable[tuple[str, object]]) -> Rows:
    return ((key.replace("_", " "), text(value)) for key, value in rows if value is not None)


def _repeat(commands: Sequence[str] | None) -> str:
    if commands is None:
        return "<p>No options of 'fedbench train' give this setting: it is a table's or a program's own.</p>"
    lines = (
        f'<div class="command"><code>{e(line)}</code><button type="button">Copy</button></div>' for line in commands
    )
    return "".join(lines)
