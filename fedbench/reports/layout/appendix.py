"""The appendix of a paper about the runs of a table, in the sections of reproducibility checklists.

The lines are sentences that an author would write, from what the runs, the table, the recipes and the methods say. What
is cited stands as [@key], by the keys of the references that are declared (`references`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedbench import protocol
from fedbench.data import parts_of, recipe
from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.methods import declarations
from fedbench.models.registry import title
from fedbench.partitions import schemes
from fedbench.planner.cells import Cells
from fedbench.planner.others import Hits, records
from fedbench.planner.settings import sketch
from fedbench.planner.table.load import short
from fedbench.reports.layout import sentences
from fedbench.reports.layout.notes import Notes, command
from fedbench.reports.layout.references import OWN, every, of_row
from fedbench.results.making import machine
from fedbench.results.run import Run, by_other_code
from fedbench.specs import PartitionSpec, Setting
from fedbench.words import counted, duration, listed

#: (heading, lines).
Section = tuple[str, tuple[str, ...]]


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
        "Data and clients": [*_clients(settings), *_licences(settings), *_copies(cells, settings)],
        "Hyper-parameters": [] if table.counted else [*_hyper_parameters(notes)],
        "Seeds and uncertainty": [] if table.counted else [*_seeds(notes, settings)],
        "Compute": [*_compute(runs, spare)],
        "Software": [*_software([*runs, *spare])],
        "Methods": [*_methods(notes)],
        "Deviations and remarks": [*notes.remarks(), *_deviations(notes)],
        "To run it again": []
        if table.counted
        else [
            f"`{command(cells, tuple(seeds))}`, then `fedbench report`; `fedbench results verify` trains a "
            "sample of runs out of result packs again."
        ],
    }
    return tuple((heading, tuple(lines)) for heading, lines in lines_of.items() if lines)


def _setting(notes: Notes, settings: Sequence[Setting]) -> Iterator[str]:
    cells = notes.cells
    yield from sentences.trained(cells)
    yield f"The network is {sentences.either(title(setting.model) for setting in settings)}."
    sizes = sentences.either(str(setting.batch_size) for setting in settings)
    rates = sentences.either(f"{setting.lr:g}" for setting in settings)
    cosine = {setting.schedule for setting in settings} == {"cosine"}
    schedule = ", which falls by a cosine over the rounds" if cosine else ""
    descent = sentences.either(setting.descent for setting in settings)
    yield f"Clients train by {descent}, with batches of {sizes} and a learning rate of {rates}{schedule}."
    for words, holds in _CUSTOMS:
        of = [setting for setting in settings if holds(setting)]
        if of:
            where = sentences.either(setting.partition.dataset.name for setting in of)
            yield f"{words}{'' if len(of) == len(settings) else f' ({where})'}."
    windows = {setting.window for setting in settings}
    if max(windows) > 1:
        yield f"Accuracies are means over the last {sentences.either(map(str, sorted(windows)))} rounds of a run."
    yield f"Arithmetic is in {sentences.either(_PRECISIONS[setting.precision] for setting in settings)}."
    places = [(column.label, column.overrides(cells.budget)) for column in notes.columns]
    for same in (places, [(row.label, row.overrides(cells.budget)) for row in notes.rows]):
        apart = by_key(((_setting_in_words(values), label) for label, values in same), once=True)
        yield from (f"{listed(of)}: {words}." for words, of in apart.items() if words and len(apart) > 1)


def _setting_in_words(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{value} {name}" if name in ("rounds", "epochs", "steps") else f"{name.replace('_', ' ')} {short(value)}"
        for name, value in values.items()
    )


_PRECISIONS = {"fp32": "32-bit floats", "tf32": "TF32", "bf16": "bfloat16, sums and weights in 32-bit floats"}
#: What a setting may do -> whether it does.
_CUSTOMS: tuple[tuple[str, Callable[[Setting], bool]], ...] = (
    ("A client's last, smaller batch is left out", lambda s: s.tail == "drop"),
    ("Training and test images are cropped at random", lambda s: s.augment == "crop"),
    ("Training images are padded, cropped and mirrored at random", lambda s: s.augment == "pad_flip"),
    ("A client joins a round with a probability below one", lambda s: s.participation < 1),
    ("A round's cohort is drawn without replacement", lambda s: s.cohort is not None),
    ("All clients take part in the last round", lambda s: s.full_last_round),
    ("A pass over a client's images goes on in its next round", lambda s: s.passes == "endless"),
    ("Momentum is kept between a client's rounds", lambda s: bool(s.momentum_lives)),
    ("Momentum starts anew with each pass", lambda s: bool(s.momentum_restarts)),
    ("The models of the round with the lowest validation loss answer", lambda s: s.select == "best"),
    ("Clients take part once more without labels after the last round", lambda s: bool(s.test_phase)),
)


def _clients(settings: Sequence[Setting]) -> Iterator[str]:
    """A sentence for each way in which data are divided among clients."""
    places: dict[str, dict[str, None]] = {}
    for part in dict.fromkeys(setting.partition for setting in settings):
        places.setdefault(_divided(part), {})[_cited(part.dataset.name)] = None
    for divided, names in places.items():
        yield f"{listed(names)} {'are each' if len(names) > 1 else 'is'} divided among {divided}."


def _divided(part: PartitionSpec) -> str:
    label = schemes.label(part)
    shift = [f"shift {part.shift}"] if part.shift not in ("none", label) else []
    how = ", ".join(filter(None, (label, *shift, *schemes.details(part))))
    share = f"; a client trains on {100 * part.train_fraction:g} % of its images" if part.train_fraction else ""
    return f"{part.clients} clients ({how}){share}"


def _cited(dataset: str) -> str:
    """A data set's title with its citation, if a reference is declared of it."""
    keys = ",".join(key for key, one in every().items() if dataset in one.datasets)
    return f"{_title(dataset)} [@{keys}]" if keys else _title(dataset)


def _title(dataset: str) -> str:
    try:
        return recipe(dataset).title
    except FedbenchError:  # a user's recipe that does not exist any more
        return dataset


def _licences(settings: Sequence[Setting]) -> Iterator[str]:
    """The licences of the data sets and of the parts of unions, and what those are that no reference is declared of."""
    cited = {name for one in every().values() for name in one.datasets}
    licences: dict[str, str] = {}
    for name in dict.fromkeys(setting.partition.dataset.name for setting in settings):
        try:
            own_recipe = recipe(name)
        except FedbenchError:
            licences[name] = "no recipe is at hand that names it"
            continue
        parts = [part for source in own_recipe.sources for part in parts_of(source)]
        for one in (own_recipe, *parts):
            licences[one.title] = one.licence or "not named"
            if one.citation and not {one.name, name} & cited:
                yield f"{one.title}: {one.citation}."
    yield f"Licences: {'; '.join(f'{title} ({licence})' for title, licence in licences.items())}."


def _copies(cells: Cells, settings: Sequence[Setting]) -> Iterator[str]:
    """A sentence for each source of images that is not a recipe's first one, such as a copy or a part."""
    used = {setting.partition.dataset.name for setting in settings}
    for source, names in sentences.copies(cells).items():
        if titles := [_title(name) for name in names if name in used]:
            yield f"The images of {listed(titles)} come from another source than the original files: {source}."


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
        f"protocol ({rules.title}) or of single rows, and the methods' own defaults."
    )
    found = {row.label: [r for cell in cells.all if cell.row is row for r in cell.records if r] for row in notes.rows}
    found |= {label: [r for _, r in hits] for label, hits in notes.extra.items()}
    said = by_key((text, label) for label, runs in found.items() if (text := _values([r for r in runs if r.complete])))
    if said:
        yield from (f"{', '.join(labels)}: {text}." for text, labels in said.items())
    else:
        yield from sentences.hyper_parameters(cells, notes.rows)


def _values(runs: Sequence[Run]) -> str:
    """The values of a row's hyper-parameters in words, first those that were given, then the method's own."""
    given: dict[str, dict[str, None]] = {}
    own: dict[str, dict[str, None]] = {}
    for record in runs:
        chosen = record.provenance.get("overrides", {})
        for name, value in record.spec.params.items():
            (given if name in chosen else own).setdefault(_called(record, name), {})[short(value).replace("_", " ")] = (
                None
            )
    parts = [", ".join(f"{name}{sentences.either(values)}" for name, values in of.items()) for of in (given, own)]
    return "; ".join(filter(None, (parts[0], f"by default {parts[1]}" if parts[1] else "")))


def _called(record: Run, name: str) -> str:
    """What stands before a hyper-parameter's value: its name in words, or its symbol if that is a letter."""
    declared = declarations.built_in().get(record.spec.method)
    one = declared.hyper_parameters.get(name) if declared else None
    return f"{one.symbol} = " if one and len(one.symbol) == 1 else f"{name.replace('_', ' ')} "


def _seeds(notes: Notes, settings: Sequence[Setting]) -> Iterator[str]:
    yield sentences.seeds(notes.cells)
    yield from sentences.statistics(notes.cells, notes.extra, notes.views)
    yield from sentences.spreads(notes.table)
    parts = sorted({setting.partition.seed for setting in settings})
    if protocol.load(notes.table.protocol).redraws:
        yield "Each run draws its partition from its own seed."
    else:
        yield f"All runs of a column share one partition (seed {sentences.either(map(str, parts))})."
    yield from notes.augmentation()


def _compute(runs: Sequence[Run], spare: Sequence[Run]) -> Iterator[str]:
    """Sentences on the time of training, by maker of the runs and machine."""
    for group, which in ((runs, ""), (spare, " by which values were chosen")):
        groups: dict[str, list[float]] = {}
        for record in group:
            of, pack = record.provenance, record.shipped
            kind = pack.origin.machine if pack else machine(of)
            threads = f"{counted(of['threads'], 'thread')}" if of.get("threads") and of.get("device") == "cpu" else ""
            by = f"made by {pack.origin.by}: result pack {pack.pack}" if pack and pack.origin.by else ""
            on = "; ".join(filter(None, (", ".join(filter(None, (of.get("processor"), threads))), by)))
            groups.setdefault(f"on {kind}{f' ({on})' if on else ''}", []).append(float(of.get("train_seconds", 0.0)))
        for on, seconds in groups.items():
            took = f"took {duration(sum(seconds))} of training{'' if len(seconds) == 1 else ' in all'}"
            yield f"{counted(len(seconds), 'run')}{which} {took} {on}."
    if runs:
        yield "Runs that failed or were replaced, and what was tried before, are not counted."


def _software(runs: Sequence[Run]) -> Iterator[str]:
    """Sentences on the versions of libraries."""
    versions = Counter(
        listed(
            f"{name} {version}{f' [@{OWN}]' if name == OWN else ''}"
            for name, version in record.provenance.get("libraries", {}).items()
        )
        for record in runs
    )
    for text, count in versions.most_common():
        of = f"{counted(count, 'run')} of these {'was' if count == 1 else 'were'}" if len(versions) > 1 else "Runs were"
        yield f"{of} made with {text}." if text else f"Of {counted(count, 'run')} no versions of libraries are known."
    yield from by_other_code(runs)


def _methods(notes: Notes) -> Iterator[str]:
    """What the table's rows and extra rows are cited as, and the table itself."""
    table, known = notes.table, every()
    methods = {row.label: getattr(notes.cells.declaration(row), "name", row.method) for row in notes.rows}
    methods |= {label: hits[0][1].spec.method for label, hits in notes.extra.items()}
    papers = [key for key, one in known.items() if table.id.partition("/")[0] in one.papers]
    if papers and table.of_paper:
        yield f"The table repeats one of a paper [@{','.join(papers)}]."
    cited = {label: ",".join(of_row(label, method)) for label, method in methods.items()}
    same = by_key((keys, label) for label, keys in cited.items() if keys)
    if same:
        yield f"{'; '.join(f'{listed(labels)} [@{keys}]' for keys, labels in same.items())}."


def _deviations(notes: Notes) -> Iterator[str]:
    """One line per deviation of methods from their papers."""
    marks, texts = notes.deviations()
    for letters, text in texts:
        rows = [label for label, mark in marks.items() if mark in letters.split(",")]
        yield f"{', '.join(rows)}: {text}"
