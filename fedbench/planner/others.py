"""Runs in a table's settings that no row asks for: an extra row for each method with its hyper-parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedbench import protocol
from fedbench.declaration import Declaration
from fedbench.groups import by_key
from fedbench.planner.cells import Cells
from fedbench.planner.table.load import called, short
from fedbench.planner.table.spec import Column, Row
from fedbench.plugins.load import is_file, place
from fedbench.results.frame import Run, title_of
from fedbench.specs import Plain

#: The columns that a row's runs stand in.
Hits = list[tuple[Column, Run]]


@dataclass(frozen=True, order=True)
class Key:
    """What makes two runs one row. Titles do not: a user's file may call its method as it likes."""

    method: str
    source: str  #: SHA-256 of a user's file, or ""
    version: int
    params: tuple[tuple[str, str], ...]  #: hyper-parameters that are not the protocol's, in print


def others(cells: Cells) -> dict[str, Hits]:
    """Runs in the table's settings that are none of its rows: label, which no other row has -> where they stand.

    Only complete runs; of two of one key and one setting the latest counts. A tuned table has none: runs that chose its
    values would be among them.
    """
    if cells.table.tune:
        return {}
    own = {record.id for cell in cells.all for record in cell.records if record}
    rules = protocol.load(cells.table.protocol)
    places: dict[Key, Hits] = {}
    names = {called: spec.name for called, (spec, _) in cells.made.datasets.items()}
    columns = [
        c for c in cells.table.measured
        if c.dataset in names and cells.frame.knows(names[c.dataset], cells.budget, cells.precision)
    ]  # fmt: skip
    for column, setting in [(c, setting) for c in columns for setting in cells.made.of(c)]:
        latest: dict[Key, Run] = {}
        for record in cells.frame.records.get(setting.id, []):
            if record.complete and record.id not in own:
                latest[_key(record, rules, cells.budget)] = record
        for key, record in latest.items():
            places.setdefault(key, []).append((column, record))
    labels = _labels(places, cells)
    return {labels[key]: places[key] for key in sorted(places, key=lambda key: labels[key])}


def records(cells: Cells, extra: Mapping[str, Hits], columns: Collection[str] = ()) -> list[Run]:
    """The runs that the table's rows and its extra ones read (in these columns; else in all), each once."""
    places = [(cell.column, record) for cell in cells.all for record in cell.records]
    places += [hit for hits in extra.values() for hit in hits]
    read = (record for column, record in places if record is not None and (not columns or column.key in columns))
    return list({record.id: record for record in read}.values())


def other_texts(cells: Cells, extra: Mapping[str, Hits]) -> list[str]:
    """A line for each text of a row's file, other than it has now, that runs of extra rows were made by."""
    files = {cells.sources[r.label].name: place(r.method, "method").file for r in cells.table.rows if is_file(r.method)}
    runs = {(spec.method, spec.source or "") for hits in extra.values() for spec in (hits[0][1].spec,)}
    others = sorted((method, source) for method, source in runs if _is_other_text(method, source, cells))
    return [f"{_file(source)}: another text of {files[method].name} than it has now." for method, source in others]


def _is_other_text(method: str, source: str, cells: Cells) -> bool:
    """Whether a run is of the method of a row that is a user's file, by another text of that."""
    own = {one.source for one in cells.sources.values() if one.name == method}
    return bool(source and own) and source not in own


def _file(source: str) -> str:
    return f"file {source[:8]}" if source else ""


def _key(record: Run, rules: protocol.Protocol, budget: str) -> Key:
    spec = record.spec
    preset = _differing(record, rules.method_params(spec.method, budget, spec.setting.partition.dataset.name))
    own = _differing(record, record.provenance.get("overrides", {}))
    differing = {k: own.get(k, "default") for k in {**preset, **own} if own.get(k) != preset.get(k)}
    return Key(
        spec.method, spec.source or "", spec.method_version, tuple(sorted((k, short(v)) for k, v in differing.items()))
    )


def _differing(record: Run, values: Mapping[str, Plain]) -> dict[str, Plain]:
    """Hyper-parameters without those at the method's defaults, as far as the run tells these."""
    defaults = record.provenance.get("defaults", {})
    return {k: v for k, v in values.items() if k not in defaults or defaults[k] != v}


def _labels(places: Mapping[Key, Hits], cells: Cells) -> dict[Key, str]:
    """A label for each key: the method's title and its hyper-parameters, the file of another text of a row's method,
    and where these are another row's too, what tells them apart."""
    rows = cells.table.rows
    titles = {key: title_of(hits[-1][1].spec.method, hits[-1][1].provenance) for key, hits in places.items()}
    texts = {key: (_file(key.source),) if _is_other_text(key.method, key.source, cells) else () for key in places}
    by_label = by_key((_label(titles[key], key, texts[key]), key) for key in places)
    labels: dict[Key, str] = {}
    for label, keys in by_label.items():
        row = next((row for row in rows if row.label == label), None)
        own = cells.declaration(row) if row else None
        marks = {key: _marks(key, places[key], row, own) for key in keys}
        rivals = [*marks.values(), *([_marks_of(row, own)] if row else [])]
        distinguishing = _distinguishing(rivals)
        labels |= {
            key: _label(titles[key], key, dict.fromkeys([*texts[key], *(marks[key][k] for k in distinguishing)]))
            for key in keys
        }
    return _unlike(labels, places, {row.label for row in rows})


def _label(title: str, key: Key, marks: Iterable[str] = ()) -> str:
    return called(title, [*(f"{k} = {v}" for k, v in key.params), *(mark for mark in marks if mark)])


def _marks(key: Key, hits: Hits, row: Row | None, own: Declaration | None) -> tuple[str, ...]:
    """What may tell a row from another of its label (`row`, whose method declares `own`), the plainest first."""
    rounds = dict.fromkeys(str(record.spec.setting.rounds) for _, record in hits)
    params = row.params if row and own and own.name == key.method else {}
    differing = ", ".join(f"{k} = default" for k in params if k not in dict(key.params))
    return key.method, _file(key.source), differing, f"version {key.version}", f"{' or '.join(rounds)} rounds"


def _marks_of(row: Row, own: Declaration | None) -> tuple[str, ...]:
    """The same of a row of the table."""
    if own is None:
        return row.method, "", "", "version ", ""
    return own.name, _file(own.source or ""), "", f"version {own.version}", ""


def _distinguishing(marks: Sequence[tuple[str, ...]]) -> list[int]:
    """The first of the marks that tell all of these apart."""
    distinguishing: list[int] = []
    for k in range(len(marks[0])):
        if len({tuple(own[i] for i in distinguishing) for own in marks}) == len(marks):
            break
        if len({own[k] for own in marks}) > 1:
            distinguishing.append(k)
    return distinguishing


def _unlike(labels: Mapping[Key, str], places: Mapping[Key, Hits], rows: Collection[str]) -> dict[Key, str]:
    """The labels, with a run's id behind those that are still another row's: a title may look like such a label."""
    every = [*labels.values(), *rows]
    return {
        key: label if every.count(label) == 1 else f"{label}, run {places[key][-1][1].id}"
        for key, label in labels.items()
    }
