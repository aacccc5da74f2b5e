"""Encoded images (JPEG, PNG, WebP, ...): in a Parquet column, or as files in folders and archives."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedbench.data import guard
from fedbench.data.archive import Tree, open_tree
from fedbench.data.guard import IMAGE, fits, reading, regular
from fedbench.data.images import decode
from fedbench.data.part import Part, text
from fedbench.data.recipe import Member, Recipe, Source
from fedbench.errors import FedbenchError, unknown
from fedbench.specs import require

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows of a Parquet file that are read at a time.
_ROWS = 1024


def read_parquet(recipe: Recipe, source: Source, paths: Sequence[Path]) -> Iterator[Part]:
    """The parts of a source of kind parquet: a file a part."""
    for file, path in zip(source.file, paths, strict=True):
        fields = [source.image, source.label, *source.columns.values()]
        with reading(path, "is damaged or not a Parquet file"):
            table = _table(path, list(dict.fromkeys(fields)), source.image, file.rows)
            flat = _blobs(table[source.image], path, source.image).combine_chunks()
            columns = {name: _values(table[name], path, name) for name in table.column_names if name != source.image}
        images = decode(len(flat), lambda i: flat[i].as_py(), lambda i: f"{path}, row {i}", recipe.shape, source.resize)  # noqa: B023
        yield Part(str(path), file.split, images, columns)


def _table(path: Path, names: list[str], image: str, rows: int | None) -> pa.Table:
    """The first `rows` rows of some columns, in memory that follows the values as they come.

    A value that many rows share stands in the file once: its own numbers do not tell how much it unpacks to.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(regular(path)) as file:
        schema = file.schema_arrow
        for name in names:
            if name not in schema.names:
                raise unknown(f"column of {path}", name, schema.names)
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        largest = max((c.total_uncompressed_size for g in groups for c in map(g.column, range(g.num_columns))
                       if c.path_in_schema.split(".")[0] in names), default=0)  # fmt: skip
        fits(largest, path)
        batches, size, count = [], 0, 0
        many = max(1, min(_ROWS, guard.LIMIT // 4 // max(1, largest)))
        for batch in file.iter_batches(many, columns=names):
            batches.append(batch)
            size, count = size + batch.nbytes, count + len(batch)
            fits(size, path)
            if rows is not None and count >= rows:
                break
        table = pa.Table.from_batches(batches, pa.schema([schema.field(name) for name in names]))
    table = table.slice(0, rows)
    for name in names:
        require(table[name].null_count == 0, f"{path}: column {name} has empty values")
    return table


def _blobs(column: pa.ChunkedArray, path: Path, name: str) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:  # some hubs keep {bytes, path}
        column = pc.struct_field(column, "bytes")
        require(column.null_count == 0, f"{path}: column {name} has empty values")
    good = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    require(good, f"{path}: column {name} must hold encoded images as bytes, not {column.type}")
    return column


def _values(column: pa.ChunkedArray, path: Path, name: str) -> np.ndarray:
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    require(not pa.types.is_nested(kind), f"{path}: column {name} must hold numbers or text, not {kind}")
    values: np.ndarray = column.to_numpy()
    return text([str(value) for value in values], f"{path}: column {name}") if values.dtype == object else values


def read_folder(recipe: Recipe, source: Source, paths: Sequence[Path]) -> Iterator[Part]:
    """The parts of a source of kind folder: a member pattern a part, files in the order of their names."""
    for file, path in zip(source.file, paths, strict=True):
        rules = [pattern(member.path) for member in file.member]
        notes = {member.annotations for member in file.member}
        needed = functools.partial(_wanted, notes, rules)
        with open_tree(path, needed) as tree:
            for member, rule in zip(file.member, rules, strict=True):
                yield _matching(tree, member, rule, recipe, source)


def _wanted(notes: set[str | None], rules: list[re.Pattern[str]], name: str) -> bool:
    return name in notes or any(rule.fullmatch(name) for rule in rules)


def _matching(tree: Tree, member: Member, rule: re.Pattern[str], recipe: Recipe, source: Source) -> Part:
    hits = [match for name in tree.names if (match := rule.fullmatch(name))]
    require(bool(hits), f"{tree.path} has no file like {member.path}")
    if source.only_classes:
        hits = [match for match in hits if match["label"] in recipe.classes]
        require(bool(hits), f"{tree.path} has no file like {member.path} of one of the recipe's classes")
    names = [match.string for match in hits]
    columns = {key: text([match[key] for match in hits], f"{tree.path} ({member.path})") for key in rule.groupindex}
    if member.annotations is not None:
        where = f"{tree.path} ({member.annotations})"
        columns["label"] = _annotated(tree.read(member.annotations), names, where)
    if source.ordered_classes:
        columns["label"] = _ordered(columns, recipe.classes, f"{tree.path} ({member.path})")
    images = decode(
        len(names),
        lambda i: tree.read(names[i], IMAGE),
        lambda i: f"{tree.path} ({names[i]})",
        recipe.shape,
        source.resize,
    )
    return Part(f"{tree.path} ({member.path})", member.split, images, columns)


def _ordered(columns: Mapping[str, np.ndarray], classes: tuple[str, ...], where: str) -> np.ndarray:
    """The recipe's class of each image, by the place of its class folder among those of the same other columns."""
    others = [values.tolist() for name, values in columns.items() if name != "label"]
    folders = list(zip(*others, columns["label"].tolist(), strict=True))
    of_folder = {}
    for place, same in itertools.groupby(sorted(set(folders)), lambda folder: folder[:-1]):
        alike = list(same)
        require(
            len(alike) == len(classes),
            f"{where}: {' '.join((*place, 'has'))} the class folders "
            f"{', '.join(folder[-1] for folder in alike)}; the recipe has {len(classes)} classes",
        )
        of_folder |= dict(zip(alike, classes, strict=True))
    return text([of_folder[folder] for folder in folders], where)


def pattern(path: str) -> re.Pattern[str]:
    """The regular expression of a member pattern (see `recipe.Member`)."""
    words = re.split(r"(\{[A-Za-z_]+\}|\*|\?)", path)
    wildcards = {"*": "[^/]*", "?": "[^/]"}
    named = [word for word in words if word.startswith("{")]
    require(len(set(named)) == len(named), f"the pattern {path} has a name twice")
    return re.compile("".join(f"(?P<{w[1:-1]}>[^/]+)" if w in named else wildcards.get(w, re.escape(w)) for w in words))


def _annotated(notes: bytes | bytearray, names: list[str], where: str) -> np.ndarray:
    lines = [line.strip() for line in notes.decode(errors="replace").splitlines() if line.strip()]
    rows = [line.split("\t") if "\t" in line else line.rsplit(None, 1) for line in lines]
    classes: dict[str, str] = {}
    for name, label in (row[:2] for row in rows if len(row) > 1):
        label = label.strip()
        before = classes.setdefault(name, label)
        require(before == label, f"{where} lists {name} with two classes, {before} and {label}", "list an image once")
    try:
        return text([classes[name.rsplit("/", 1)[-1]] for name in names], where)
    except KeyError as error:
        raise FedbenchError(f"{where} does not say the class of {error}") from error
