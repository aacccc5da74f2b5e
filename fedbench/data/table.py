"""Images listed in a file, with metadata and one class or several labels per image (CheXpert).

The first line of a CSV file has the column names; each further line is an image: its path, metadata, and its class or
the values of its labels. A list (PACS, DomainNet, Office) has no column names; a line is an image's path and class,
separated by a blank. The listed images are part of the data set's identity, as a folder's are: `images_of` hashes each.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from fedbench.data import guard
from fedbench.data.images import decode, pattern
from fedbench.data.names import composed, wholes
from fedbench.data.part import LONGEST, Part, text
from fedbench.data.recipe import File, Recipe, Source
from fedbench.data.spreadsheet import decoded, form
from fedbench.data.spreadsheet import lines as lines_of
from fedbench.errors import FedbenchError, check_known, unknown
from fedbench.specs import require


def read_csv(recipe: Recipe, source: Source, paths: Sequence[Path]) -> Iterator[Part]:
    """Read the parts of a source of kind csv or list: the lines of each file entry, in the file's order.

    Columns: those of the file, and one for each `{name}` of the source's `pattern`; for a list `domain`, the first
    folder of an image's path. Classes are names, or numbers from 0; in a list they count from 1, as in PACS, if no line
    of any file has class 0 and one has the number of classes.
    Several labels become `label`, uint8 [n, U], 0 or 1 for each of the source's `label_columns`. Raises FedbenchError
    with file and line for a missing column or image, a class that the recipe does not have, a label value that
    `label_values` does not have, an image with two classes, a path unlike the pattern, and a damaged image.
    """
    seen: dict[Path, tuple[str, object]] = {}
    every = [_lines(source, file, path) for file, path in zip(source.file, paths, strict=True)]
    numbers: Collection[int] = ()
    if source.kind == "list":
        numbers = (wholes(line.cells[source.label] for lines in every for line in lines) or {}).values()
    first = int(0 not in numbers and len(recipe.classes) in numbers)
    for file, path, lines in zip(source.file, paths, every, strict=True):
        labels = _labels(source, lines, path) if source.label_columns else _classes(recipe, source, lines, path, first)
        for line, label in zip(lines, labels.tolist(), strict=True):  # before the images, which take longer
            where, before = seen.setdefault(path.parent / line.image, (f"{path}, line {line.number}", label))
            require(
                before == label,
                f"{path}, line {line.number}: {line.image} has another class than in {where}",
                "list an image once",
            )
        columns = {
            name: _values([line.cells[name] for line in lines], f"{path}: column {name}")
            for name in source.columns.values()
        }
        yield Part(
            f"{path}, lines {lines[0].number} to {lines[-1].number}",
            file.split,
            _images(recipe, source, lines, path),
            {**columns, "label" if source.label_columns else source.label: labels},
        )


def images_of(source: Source, paths: Sequence[Path]) -> str:
    """Checksum of the names and contents of the images that a source of kind csv or list lists. Reads them all.

    Raises FedbenchError with file and line for a wrong list and a missing image.
    """
    digest, seen = hashlib.sha256(), set()
    for file, path in zip(source.file, paths, strict=True):
        for line in _lines(source, file, path):
            if (place := path.parent / line.image) in seen:
                continue
            seen.add(place)
            digest.update(f"{line.image}\0{hashlib.sha256(_content(line, path)).hexdigest()}\n".encode())
    return f"tree:{digest.hexdigest()}"


#: A CSV file of many empty lines takes more than this multiple of its size as Python objects.
_WEIGHT = 64


@dataclass(frozen=True)
class _Line:
    number: int  #: line number from 1, counting the column names
    image: str  #: relative to the CSV file's folder
    cells: Mapping[str, str]


def _lines(source: Source, file: File, path: Path) -> list[_Line]:
    """The lines of a file entry, without empty ones."""
    how = form(path)
    if source.kind == "list":
        content = decoded(path, how, guard.LIMIT // _WEIGHT)
        rows = [[source.image, source.label], *(line.strip().rsplit(None, 1) for line in content.splitlines())]
    else:
        rows = list(lines_of(path, how, guard.LIMIT // _WEIGHT))
    heads = rows[0] if rows else []
    require(
        max(map(len, heads), default=0) <= LONGEST,
        f"{path} has the name of a column of more than {LONGEST:,} characters",
    )
    rule = None if source.pattern is None else pattern(source.pattern)
    named = ["domain"] if source.kind == "list" else [] if rule is None else list(rule.groupindex)
    for columns, there in (
        ((source.image, *source.label_columns), heads),
        ((*source.columns.values(), *(() if source.label_columns else (source.label,))), [*heads, *named]),
    ):
        for name in columns:
            check_known(f"column of {path}", name, there)
            require(there.count(name) == 1, f"{path} has two columns {name}")
    first = file.skip or 0
    last = None if file.rows is None else first + file.rows
    numbered = [(i, row) for i, row in enumerate(rows[1:], 1 if source.kind == "list" else 2) if row][first:last]
    require(bool(numbered), f"{path} lists no image" + (f" behind its first {first:,}" if first else ""))
    place = heads.index(source.image)
    for _, row in numbered:  # as Windows writes folders; elsewhere a file's name can hold a backslash
        if len(row) > place and "\\" in row[place] and not (path.parent / row[place]).exists():
            row[place] = row[place].replace("\\", "/")
    return [_line(source, heads, rule, row, i, f"{path}, line {i}") for i, row in numbered]


def _line(
    source: Source, heads: list[str], rule: re.Pattern[str] | None, row: list[str], number: int, where: str
) -> _Line:
    require(len(row) == len(heads), f"{where}: {len(row)} values under {len(heads)} column names")
    cells = dict(zip(heads, row, strict=True))
    image = cells[source.image]
    good = len(image) <= LONGEST and not set("\0\r\n") & set(image)
    require(good, f"{where}: the image {image[:60]!r} cannot be the name of a file")
    if rule is not None:
        match = rule.fullmatch(image)
        if match is None:
            raise FedbenchError(f"{where}: the image {image!r} is not like {source.pattern}")
        cells |= match.groupdict()
    require(image.startswith(source.prefix), f"{where}: the image {image!r} does not begin with {source.prefix}")
    relative = PurePosixPath(image.removeprefix(source.prefix))
    inside = bool(relative.parts) and not relative.is_absolute() and ".." not in relative.parts
    require(inside, f"{where}: the image {image!r} does not lie below the file's folder")
    if source.kind == "list" and "domain" in source.columns.values():
        require(len(relative.parts) > 1, f"{where}: the image {image!r} lies in no folder that names its domain")
        cells["domain"] = relative.parts[0]
    return _Line(number, str(relative), cells)


def _labels(source: Source, lines: Sequence[_Line], path: Path) -> np.ndarray:
    """uint8 [n, U]: 0 or 1 from the source's `label_values`, compared as numbers ('1.0' is '1')."""
    value_of = {_number(text): value for text, value in source.label_values.items()}
    out = np.empty((len(lines), len(source.label_columns)), np.uint8)
    for i, line in enumerate(lines):
        for u, name in enumerate(source.label_columns):
            value = value_of.get(_number(line.cells[name]))
            if value is None:
                raise FedbenchError(
                    f"{path}, line {line.number}: {name} is {line.cells[name][:60]!r}, which is no label",
                    f"the recipe knows {', '.join(repr(text) for text in source.label_values)}",
                )
            out[i, u] = value
    return out


def _classes(recipe: Recipe, source: Source, lines: Sequence[_Line], path: Path, first: int) -> np.ndarray:
    """[n] classes by name; by number from `first` on if no value is a class's name."""
    cells = [composed(line.cells[source.label].strip()) for line in lines]
    codes = {name: code for code, name in enumerate(recipe.classes)}
    number, called = wholes(cells) or {}, wholes(recipe.classes) or {}
    if not set(number.values()).isdisjoint(called.values()):  # classes whose names are numbers: 01 is class 1
        of_number = {value: codes[name] for name, value in called.items()}
        codes = {cell: of_number[value] for cell, value in number.items() if value in of_number}
    elif number and codes.keys().isdisjoint(cells):
        codes = {cell: value - first for cell, value in number.items() if 0 <= value - first < len(codes)}
    for line, cell in zip(lines, cells, strict=True):
        if cell not in codes:
            raise unknown(f"class in {path}, line {line.number}:", cell[:60], recipe.classes)
    return np.array([codes[cell] for cell in cells], np.int64)


def _number(text: str) -> float | str:
    try:
        value = float(text)
    except ValueError:
        return composed(text.strip())
    return "nan" if math.isnan(value) else value  # NaN differs from itself


def _values(cells: list[str], where: str) -> np.ndarray:
    """Integers if all are whole numbers, else text, see `names`."""
    numbers = wholes(cells)
    return text(cells, where) if numbers is None else np.array([numbers[cell] for cell in cells], np.int64)


def _images(recipe: Recipe, source: Source, lines: Sequence[_Line], path: Path) -> np.ndarray:
    """uint8 [n, H, W, C]: decode the images of the lines."""

    return decode(
        len(lines),
        lambda i: _content(lines[i], path),
        lambda i: _place(lines[i], path),
        recipe.shape,
        source.resize,
    )


def _place(line: _Line, path: Path) -> str:
    return f"{path.parent / line.image} ({path.name}, line {line.number})"


def _content(line: _Line, path: Path) -> bytearray:
    """The encoded image that a line of the file at `path` names."""
    place = path.parent / line.image
    try:
        return guard.content(place, guard.IMAGE)
    except FileNotFoundError:
        raise FedbenchError(
            f"{path}, line {line.number}: the image {place} is not there",
            "unpack the whole data set beside its CSV file",
        ) from None
    except FedbenchError as error:
        raise FedbenchError(f"{path}, line {line.number}: {error.message}", error.hint) from error
    except OSError as error:
        raise guard.explained(error, _place(line, path), "") from error
