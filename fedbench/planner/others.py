"""Runs in a table's settings that belong to none of its rows: an extra row per method and hyper-parameters."""

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
from fedbench.results.run import Run, State, title_of
from fedbench.specs import Plain

#: The runs of a row, each with its column.
Hits = list[tuple[Column, Run]]


@dataclass(frozen=True, order=True)
class Key:
    """Runs with equal keys share an extra row. The title is no part of it: a user's file may choose any."""

    method: str
    source: str  #: SHA-256 of a user's file, or ""
    version: int
    params: tuple[tuple[str, str], ...]  #: hyper-parameters that differ from the protocol's: name, value as text


def others(cells: Cells) -> dict[str, Hits]:
    """Label (unique in the table) -> runs with their columns, for runs in its settings that belong to none of its rows.

    Complete runs of today's versions only; of runs with the same key and setting, the latest. Empty for a tuned table,
    because its trials would be among them.
    """
    if cells.table.tune:
        return {}
    in_rows = {record.id for cell in cells.all for record in cell.records if record}
    rules = protocol.load(cells.table.protocol)
    hits_of: dict[Key, Hits] = {}
    names = {called: spec.name for called, (spec, _) in cells.made.datasets.items()}
    trained = {dataset for dataset, *_ in cells.frame.own_scopes}
    columns = [c for c in cells.table.measured if c.dataset in names and names[c.dataset] in trained]
    for column, setting in [(c, setting) for c in columns for setting in cells.made.of(c)]:
        latest: dict[Key, Run] = {}
        for record in cells.frame.records.get(setting.id, []):
            if record.complete and record.state is not State.STALE and record.id not in in_rows:
                latest[_key(record, rules, cells.budget)] = record
        for key, record in latest.items():
            hits_of.setdefault(key, []).append((column, record))
    labels = _labels(hits_of, cells)
    return {labels[key]: hits_of[key] for key in sorted(hits_of, key=lambda key: labels[key])}


def records(cells: Cells, extra: Mapping[str, Hits], columns: Collection[str] = ()) -> list[Run]:
    """The runs of the table's rows and of its extra rows, each once. `columns`: keys; empty means all columns."""
    places = [(cell.column, record) for cell in cells.all for record in cell.records]
    places += [hit for hits in extra.values() for hit in hits]
    read = (record for column, record in places if record is not None and (not columns or column.key in columns))
    return list({record.id: record for record in read}.values())


def other_texts(cells: Cells, extra: Mapping[str, Hits]) -> list[str]:
    """One line per older text of a row's method file that made runs of the extra rows."""
    files = {cells.sources[r.label].name: place(r.method, "method").file for r in cells.table.rows if is_file(r.method)}
    runs = {(spec.method, spec.source or "") for hits in extra.values() for spec in (hits[0][1].spec,)}
    others = sorted((method, source) for method, source in runs if _is_other_text(method, source, cells))
    return [f"{_file(source)}: another text of {files[method].name} than it has now." for method, source in others]


def _is_other_text(method: str, source: str, cells: Cells) -> bool:
    """Whether `method` is a user's file that a row names, and `source` another text (SHA-256) than its present one."""
    sources = {declaration.source for declaration in cells.sources.values() if declaration.name == method}
    return bool(source and sources) and source not in sources


def _file(source: str) -> str:
    return f"file {source[:8]}" if source else ""


def _key(record: Run, rules: protocol.Protocol, budget: str) -> Key:
    spec = record.spec
    preset = _differing(record, rules.method_params(spec.method, budget, spec.setting.partition.dataset.name))
    overrides = _differing(record, record.provenance.get("overrides", {}))
    differing = {k: overrides.get(k, "default") for k in {**preset, **overrides} if overrides.get(k) != preset.get(k)}
    return Key(
        spec.method, spec.source or "", spec.method_version, tuple(sorted((k, short(v)) for k, v in differing.items()))
    )


def _differing(record: Run, values: Mapping[str, Plain]) -> dict[str, Plain]:
    """The values that differ from the method's defaults, as the run's provenance records them."""
    defaults = record.provenance.get("defaults", {})
    return {k: v for k, v in values.items() if k not in defaults or defaults[k] != v}


def _labels(places: Mapping[Key, Hits], cells: Cells) -> dict[Key, str]:
    """A label per key: the method's title, its hyper-parameters, and the file if it is another text of a row's method;
    where another row has the same label, also what distinguishes them."""
    rows = cells.table.rows
    titles = {key: title_of(hits[-1][1].spec.method, hits[-1][1].provenance) for key, hits in places.items()}
    texts = {key: (_file(key.source),) if _is_other_text(key.method, key.source, cells) else () for key in places}
    by_label = by_key((_label(titles[key], key, texts[key]), key) for key in places)
    labels: dict[Key, str] = {}
    for label, keys in by_label.items():
        row = next((row for row in rows if row.label == label), None)
        declaration = cells.declaration(row) if row else None
        marks = {key: _marks(key, places[key], row, declaration) for key in keys}
        rivals = [*marks.values(), *([_marks_of(row, declaration)] if row else [])]
        distinguishing = _distinguishing(rivals)
        labels |= {
            key: _label(titles[key], key, dict.fromkeys([*texts[key], *(marks[key][k] for k in distinguishing)]))
            for key in keys
        }
    return _unlike(labels, places, {row.label for row in rows})


def _label(title: str, key: Key, marks: Iterable[str] = ()) -> str:
    return called(title, [*(f"{k} = {v}" for k, v in key.params), *(mark for mark in marks if mark)])


def _marks(key: Key, hits: Hits, row: Row | None, declaration: Declaration | None) -> tuple[str, ...]:
    """What may distinguish an extra row from rows of the same label, the plainest first: `row` is the table's row of
    that label, `declaration` its method's."""
    rounds = dict.fromkeys(str(record.spec.setting.rounds) for _, record in hits)
    params = row.params if row and declaration and declaration.name == key.method else {}
    differing = ", ".join(f"{k} = default" for k in params if k not in dict(key.params))
    return key.method, _file(key.source), differing, f"version {key.version}", f"{' or '.join(rounds)} rounds"


def _marks_of(row: Row, declaration: Declaration | None) -> tuple[str, ...]:
    """The marks of a row of the table."""
    if declaration is None:
        return row.method, "", "", "version ", ""
    return declaration.name, _file(declaration.source or ""), "", f"version {declaration.version}", ""


def _distinguishing(marks: Sequence[tuple[str, ...]]) -> list[int]:
    """Indices of the first marks that distinguish all rows."""
    distinguishing: list[int] = []
    for k in range(len(marks[0])):
        if len({tuple(row[i] for i in distinguishing) for row in marks}) == len(marks):
            break
        if len({row[k] for row in marks}) > 1:
            distinguishing.append(k)
    return distinguishing


def _unlike(labels: Mapping[Key, str], places: Mapping[Key, Hits], rows: Collection[str]) -> dict[Key, str]:
    """The labels; where another row still has the same one, a run's id is appended."""
    every = [*labels.values(), *rows]
    return {
        key: label if every.count(label) == 1 else f"{label}, run {places[key][-1][1].id}"
        for key, label in labels.items()
    }
