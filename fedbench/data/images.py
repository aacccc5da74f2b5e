"""Decoding of encoded images (JPEG, PNG, WebP, ...) to uint8 arrays, from Parquet columns, folders and archives."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedbench.data import guard
from fedbench.data.archive import Tree, held, open_tree
from fedbench.data.guard import IMAGE, fits, reading, regular
from fedbench.data.names import composed
from fedbench.data.part import Part, text
from fedbench.data.pixels import channels_of, rendered, size_of
from fedbench.data.recipe import File, Member, Recipe, Source
from fedbench.errors import FedbenchError, check_known
from fedbench.screen import bar
from fedbench.specs import require

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL.Image import Image


_BLOCK = 256
#: Suffixes of images, which patterns match in upper and lower case.
_SUFFIXES = ("jpg", "jpeg", "png", "bmp", "gif", "ppm", "pgm", "webp", "tif", "tiff", "jp2")
#: Formats that Pillow may detect. Others are not allowed, because EPS runs a program (Ghostscript).
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "WEBP", "TIFF", "JPEG2000")


def decode(
    count: int,
    read: Callable[[int], bytes | bytearray],
    where: Callable[[int], str],
    shape: tuple[int, ...],
    resize: bool = False,
) -> np.ndarray:
    """Decode `count` images, given by `read(i)`, to uint8 [count, H, W, C] with (H, W, C) = `shape`.

    Upright, opaque and in sRGB, see `pixels.rendered`. Converts grey images to RGB or colour images to grey, according
    to C. With `resize`, resizes images by bilinear interpolation. Raises FedbenchError naming `where(i)` for an image
    that cannot be decoded, has another size, more than 8 bits per channel, or more pixels than Pillow considers safe
    (89 million).
    """
    height, width, channels = shape
    fits(count * height * width * channels, f"{where(0)} and {count - 1:,} more" if count else "the images")
    out = np.empty((count, height, width, channels), np.uint8)

    def one(i: int) -> None:
        data = read(i)
        with _opened(data, where(i)) as opened:
            image = rendered(opened, data, where(i))
            size = image.size
            if resize or size == (width, height):
                out[i] = fitted(image, shape)
        if not resize and size != (width, height):
            raise FedbenchError(f"{where(i)} is {size[0]} x {size[1]} pixels; the recipe says {width} x {height}")

    _each(count, one)
    return out


def fit(images: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Resize uint8 images [N, h, w, c] to [N, H, W, C] by bilinear interpolation; converts between grey and RGB."""
    from PIL import Image

    if images.shape[1:] == tuple(shape):
        return images
    out = np.empty((len(images), *shape), np.uint8)

    def one(i: int) -> None:
        pixels = images[i]
        out[i] = fitted(Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[..., 0]), shape)

    _each(len(images), one)
    return out


def fitted(image: Image, shape: tuple[int, ...]) -> np.ndarray:
    """One image of 8 bits a channel as uint8 [H, W, C], or [H, W, 1] if it is grey."""
    from PIL import Image as pillow

    height, width, channels = shape
    if channels == 1 or image.mode not in ("L", "RGB"):
        image = image.convert("RGB" if channels == 3 else "L")
    if image.size != (width, height):
        image = image.resize((width, height), pillow.Resampling.BILINEAR)
    pixels = np.asarray(image)
    # Assigning [H, W, 1] to [H, W, 3] replicates grey.
    return pixels.reshape(height, width, -1)


@contextlib.contextmanager
def _opened(data: bytes | bytearray, where: str) -> Iterator[Image]:
    """Open encoded bytes as an image without decoding it."""
    from PIL import Image as pillow

    with reading(where, "is not a readable image"), pillow.open(io.BytesIO(data), formats=_FORMATS) as image:
        yield image


def _each(count: int, one: Callable[[int], None]) -> None:
    from PIL.Image import DecompressionBombWarning

    def block(start: int) -> int:
        stop = min(start + _BLOCK, count)
        for i in range(start, stop):
            one(i)
        return stop - start

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")  # such as of damaged EXIF
        warnings.simplefilter("error", DecompressionBombWarning)
        with bar("images", count) as advance, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for done in pool.map(block, range(0, count, _BLOCK)):
                advance(done)


def shapes_of(count: int, read: Callable[[int], bytes | bytearray], where: Callable[[int], str]) -> np.ndarray:
    """int64 [count, 3]: height, width and channels (see `channels_of`) of encoded images as `decode` gives them.

    Raises FedbenchError naming `where(i)` for bytes that are not an image.
    """
    out = np.empty((count, 3), np.int64)

    def one(i: int) -> None:
        with _opened(read(i), where(i)) as image:
            out[i] = *size_of(image)[::-1], channels_of(image)

    _each(count, one)
    return out


def mixed(grey: int, count: int) -> str:
    """A note for the user if only some of `count` images are grey; else ""."""
    return f"{grey:,} of {count:,} images are grey and are read as colour like the others" if 0 < grey < count else ""


# Encoded images (JPEG, PNG, WebP, ...) in a Parquet column, or as files in folders and archives.


#: Maximum rows of a Parquet file that are read at a time.
_ROWS = 1024


def read_parquet(recipe: Recipe, source: Source, file: File, path: Path) -> Iterator[Part]:
    """Read the part of a file of kind parquet."""
    fields = [source.image, source.label, *source.columns.values()]
    with reading(path, "is damaged or not a Parquet file"):
        table = parquet_table(path, list(dict.fromkeys(fields)), file.rows)
        flat = _blobs(table[source.image], path, source.image).combine_chunks()
        columns = {name: _values(table[name], path, name) for name in table.column_names if name != source.image}
    images = decode(len(flat), lambda i: flat[i].as_py(), lambda i: f"{path}, row {i}", recipe.shape, source.resize)
    yield Part(str(path), file.split, images, columns)


def parquet_table(path: Path, names: list[str], rows: int | None) -> pa.Table:
    """Read the first `rows` rows of some columns in batches, with a limit on memory.

    Parquet stores a value that many rows share only once, so its metadata does not give the unpacked size.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(regular(path)) as file:
        schema = file.schema_arrow
        for name in names:
            check_known(f"column of {path}", name, schema.names)
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        largest = max(
            (
                c.total_uncompressed_size
                for g in groups
                for c in map(g.column, range(g.num_columns))
                if c.path_in_schema.split(".")[0] in names
            ),
            default=0,
        )
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


def read_folder(recipe: Recipe, source: Source, file: File, path: Path) -> Iterator[Part]:
    """Read the parts of a folder of kind folder: one per member pattern, with files sorted by name."""
    rules = [pattern(member.path) for member in file.member]
    notes = {member.annotations for member in file.member}
    others = [
        rule
        for one in source.file
        if one.path == file.path
        for member in one.member
        for rule in (pattern(member.path), pattern(member.annotations or member.path))
    ]
    missed: list[str] = []

    def keep(name: str) -> bool:
        if name in notes or any(rule.fullmatch(name) for rule in rules):
            return True
        hidden = any(level.startswith(".") for level in name.split("/"))
        if not hidden and not any(rule.fullmatch(name) for rule in others):
            missed.append(name)
        return False

    with open_tree(path, keep) as tree:
        for member, rule in zip(file.member, rules, strict=True):
            yield replace(_matching(tree, member, rule, recipe, source), found=_unread(sorted(missed), tree.path))


def _unread(missed: list[str], path: Path) -> str:
    """A note for the user on files that no pattern matches; "" if there is none."""
    if not missed:
        return ""
    more = f" and {len(missed) - 3:,} more" if len(missed) > 3 else ""
    return f"not read, for no pattern of the recipe matches: {', '.join(missed[:3])}{more} (in {path})"


def _matching(tree: Tree, member: Member, rule: re.Pattern[str], recipe: Recipe, source: Source) -> Part:
    hits = [match for name in tree.names if (match := rule.fullmatch(name))]
    if not hits:
        raise FedbenchError(f"{tree.path} has no file like {member.path}; {held(tree.path)}")
    if source.only_classes:
        hits = [match for match in hits if composed(match["label"]) in recipe.classes]
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
    """The class of each image: the rank of its folder among the class folders with the same other columns."""
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
    """Compile a member pattern (see `recipe.Member`) to a regular expression; the case of an image's suffix is free."""
    words = re.split(r"(\{[A-Za-z_]+\}|\*|\?)", path)
    wildcards = {"*": "[^/]*", "?": "[^/]"}
    named = [word for word in words if word.startswith("{")]
    require(len(set(named)) == len(named), f"the pattern {path} has a name twice")
    *front, last = words
    stem, dot, suffix = last.rpartition(".")
    image = dot and suffix.lower() in _SUFFIXES
    ending = f"{re.escape(stem)}(?i:{re.escape(dot + suffix)})" if image else re.escape(last)
    parts = [f"(?P<{w[1:-1]}>[^/]+)" if w in named else wildcards.get(w, re.escape(w)) for w in front]
    return re.compile("".join(parts) + ending)


def _annotated(notes: bytes | bytearray, names: list[str], where: str) -> np.ndarray:
    lines = [line.strip() for line in notes.decode(errors="replace").splitlines() if line.strip()]
    rows = [line.split("\t") if "\t" in line else line.rsplit(None, 1) for line in lines]
    classes: dict[str, str] = {}
    for name, label in (row[:2] for row in rows if len(row) > 1):
        label = label.strip()
        before = classes.setdefault(composed(name), label)
        require(before == label, f"{where} lists {name} with two classes, {before} and {label}", "list an image once")
    try:
        return text([classes[composed(name.rsplit("/", 1)[-1])] for name in names], where)
    except KeyError as error:
        raise FedbenchError(f"{where} does not say the class of {error}") from error
