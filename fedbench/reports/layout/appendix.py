"""The appendix of a paper about the runs of a table, in the sections of reproducibility checklists.

The lines come from the runs, the table, the recipes and the methods; most are also printed below a table (`notes`).
Papers are cited as fedbench's pages and methods name them.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import fedbench
from fedbench import protocol, resources
from fedbench.data import parts_of, recipe
from fedbench.errors import FedbenchError
from fedbench.methods import declarations
from fedbench.partitions import schemes
from fedbench.planner.cells import Cells
from fedbench.planner.others import Hits, records
from fedbench.planner.settings import sketch
from fedbench.planner.table.load import short
from fedbench.reports.layout import sentences
from fedbench.reports.layout.notes import Notes, command
from fedbench.results.making import machine
from fedbench.results.run import Run, by_other_code
from fedbench.specs import PartitionSpec, Setting
from fedbench.words import counted, duration

#: (heading, lines).
Section = tuple[str, tuple[str, ...]]

#: Fields of a setting that other sections or `Setting.descent` print, or that change no number.
_OMITTED = {
    "partition",
    "budget",
    "seed",
    "init_seed",
    "version",
    "model_version",
    "executor",
    "votes",
    "optimizer",
    "momentum",
    "momentum_lives",
    "weight_decay",
}
#: BibTeX entry, as in CITATION.cff.
CITATION = (
    "@software{fedbench,",
    "  title = {fedbench: benchmarks for federated learning, from a data recipe to the table in the paper},",
    "  author = {{The fedbench developers}},",
    f"  version = {{{fedbench.__version__}}},",
    "}",
)


def behind(cells: Cells, extra: Mapping[str, Hits]) -> tuple[list[Run], list[Run]]:
    """(Complete runs of a table's numbers, other trials, of which some may have failed)."""
    runs = {record.id: record for record in records(cells, extra) if record.complete}
    trials = {record.id: record for cell in cells.all for record in cell.trials if record}
    return list(runs.values()), [record for id, record in trials.items() if id not in runs]


def sections(notes: Notes, seeds: Sequence[int] = ()) -> tuple[Section, ...]:
    """The non-empty sections about a table's runs, found for these seeds (empty: the table's)."""
    cells, table = notes.cells, notes.table
    runs, trials = behind(cells, notes.extra)
    spare = [record for record in trials if record.complete]
    settings = [record.spec.setting for record in runs]
    settings = settings or [sketch(table, column, cells.budget) for column in table.measured if not table.counted]
    lines_of = {
        "Setting": [notes.basis()] if table.counted else [*_setting(notes, settings)],
        "Data and clients": [*_clients(settings), *_datasets(settings), *sentences.sources(cells)],
        "Hyper-parameters": [] if table.counted else [*_hyper_parameters(notes)],
        "Seeds and uncertainty": [] if table.counted else [*_seeds(notes, settings)],
        "Compute": [*_compute(runs, spare)],
        "Software": [*_software([*runs, *spare])],
        "Deviations and remarks": [*notes.remarks(), *_deviations(notes)],
        "To run it again": []
        if table.counted
        else [
            f"`{command(cells, tuple(seeds))}`, then `fedbench report`; `fedbench results verify` trains a "
            "sample of runs out of result packs again."
        ],
        "References": [*_references(notes)],
    }
    return tuple((heading, tuple(lines)) for heading, lines in lines_of.items() if lines)


def _setting(notes: Notes, settings: Sequence[Setting]) -> Iterator[str]:
    cells = notes.cells
    yield sentences.the_budget(cells)
    yield from sentences.the_papers(cells)
    yield f"Local steps: {sentences.either(setting.descent for setting in settings)}."
    values: list[str] = []
    for field in dataclasses.fields(Setting):
        found = {getattr(setting, field.name) for setting in settings}
        if field.name == "precision" or (field.name not in _OMITTED and found != {field.default}):
            called = {"lr": "learning rate"}.get(field.name, field.name.replace("_", " "))
            values.append(f"{called} {sentences.either(map(short, sorted(found - {None}, key=str)))}")
    yield f"{'; '.join(values)}."
    yield from sentences.own_budgets(cells, notes.rows)


def _clients(settings: Sequence[Setting]) -> Iterator[str]:
    """One line per way in which the data are partitioned."""
    places: dict[str, dict[str, None]] = {}
    for part in dict.fromkeys(setting.partition for setting in settings):
        places.setdefault(_partitioned(part), {})[part.dataset.name] = None
    yield from (f"{', '.join(names)}: {text}." for text, names in places.items())


def _partitioned(part: PartitionSpec) -> str:
    label = schemes.label(part)
    shift = [f"shift {part.shift}"] if part.shift not in ("none", label) else []
    seen = f"{100 * part.train_fraction:g} % of a client's images train" if part.train_fraction else ""
    return ", ".join(filter(None, (f"{part.clients} clients", label, *shift, *schemes.details(part), seen)))


def _datasets(settings: Sequence[Setting]) -> Iterator[str]:
    """A line with title, licence and citation of each data set and of the parts of a union."""
    names = [setting.partition.dataset.name for setting in settings]
    for name in dict.fromkeys(names):
        try:
            own_recipe = recipe(name)
        except FedbenchError:  # a user's recipe that does not exist any more
            yield f"{name}: there is no recipe here that names its licence."
            continue
        parts = [part for source in own_recipe.sources for part in parts_of(source)]
        for source_ in {source_.name: source_ for source_ in (own_recipe, *parts)}.values():
            cited = f" {source_.citation}." if source_.citation else ""
            yield f"{source_.title} ({source_.name}), licence: {source_.licence or 'not named'}.{cited}"


def _hyper_parameters(notes: Notes) -> Iterator[str]:
    """How values were selected, then the values of each row's runs."""
    cells, table = notes.cells, notes.table
    if table.tune:
        yield from sentences.tuned_in_brief(cells)
        yield from sentences.tuned_by_row(cells, notes.rows)
        yield "The test images chose none of these values."
    rules = protocol.load(table.protocol)
    yield (
        f"{'All other values' if table.tune else 'No value was searched for by this table: values'} are those of the "
        f"protocol ({rules.title}) or of single rows, and the methods' own defaults (in brackets)."
    )
    places: list[tuple[str, dict[str, Any]]] = []
    found = {row.label: [r for cell in cells.all if cell.row is row for r in cell.records if r] for row in notes.rows}
    for label, runs in {**found, **{label: [r for _, r in hits] for label, hits in notes.extra.items()}}.items():
        values: dict[str, dict[str, None]] = {}
        for record in (record for record in runs if record.complete):
            given = record.provenance.get("overrides", {})
            for name, value in record.spec.params.items():
                values.setdefault(name, {})[short(value) if name in given else f"({short(value)})"] = None
        places.append((label, {name: sentences.either(texts) for name, texts in values.items()}))
    yield from (
        sentences.by_values(places)
        if any(values for _, values in places)
        else sentences.hyper_parameters(cells, notes.rows)
    )


def _seeds(notes: Notes, settings: Sequence[Setting]) -> Iterator[str]:
    yield from sentences.statistics(notes.cells, notes.extra, notes.views)
    yield from sentences.spreads(notes.table)
    parts = sorted({setting.partition.seed for setting in settings})
    if protocol.load(notes.table.protocol).redraws:
        yield "Each run draws its partition from its own seed."
    else:
        yield f"All runs of a column share one partition (seed {sentences.either(map(str, parts))})."
    yield from notes.augmentation()
    yield from notes.completeness()


def _compute(runs: Sequence[Run], spare: Sequence[Run]) -> Iterator[str]:
    """Training time, by maker of the runs and machine."""
    for group, why in ((runs, ""), (spare, ", by which values were chosen")):
        groups: dict[str, list[float]] = {}
        for record in group:
            of, pack = record.provenance, record.shipped
            kind = pack.origin.machine if pack else machine(of)
            threads = f"{counted(of['threads'], 'thread')}" if of.get("threads") and of.get("device") == "cpu" else ""
            on = ", ".join(filter(None, (kind, of.get("processor"), threads)))
            by = f", made by {pack.origin.by} (result pack {pack.pack})" if pack and pack.origin.by else ""
            groups.setdefault(f"on {on}{by}", []).append(float(of.get("train_seconds", 0.0)))
        for on, seconds in groups.items():
            yield f"{counted(len(seconds), 'run')}{why}, {duration(sum(seconds))} of training {on}."
    if runs:
        yield "Not counted: runs that failed or were replaced, and what was tried before."


def _software(runs: Sequence[Run]) -> Iterator[str]:
    versions = Counter(
        ", ".join(f"{name} {version}" for name, version in record.provenance.get("libraries", {}).items())
        for record in runs
    )
    for text, count in versions.most_common():
        of = f" ({counted(count, 'run')})" if len(versions) > 1 else ""
        yield f"{text or 'not recorded'}{of}."
    yield from by_other_code(runs)


def _deviations(notes: Notes) -> Iterator[str]:
    """One line per deviation of methods from their papers."""
    marks, texts = notes.deviations()
    for letters, text in texts:
        rows = [label for label, mark in marks.items() if mark in letters.split(",")]
        yield f"{', '.join(rows)}: {text}"


def _references(notes: Notes) -> Iterator[str]:
    """What to cite: the paper (from its page), the methods' papers (from their declarations), and fedbench."""
    table = notes.table
    _, first = resources.page(table.path.parent)
    if table.of_paper and (cited := re.match(r"([^*`]{0,120})\*([^*]+)\*, ([^:.`*]+)", first)):
        yield f"Table {table.id}: {''.join(cited.groups()[:2])}, {cited[3]}."
    extra = {label: declarations.built_in().get(hits[0][1].spec.method) for label, hits in notes.extra.items()}
    for label, declaration in ({row.label: notes.cells.declaration(row) for row in notes.rows} | extra).items():
        text = " ".join(declaration.text.split("\n\n")[0].split()) if declaration else ""
        if cited := re.match(r".{0,120}?\([^()]*\d{4}[^()]*\)", text):
            yield f"{label}: {cited[0]}."
    yield f"fedbench {fedbench.__version__}: its BibTeX entry, `fedbench`, is in this file's last lines."
