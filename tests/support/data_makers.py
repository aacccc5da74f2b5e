"""Small files in every format, and recipes for them. The pixels are random but fixed."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.data import Dataset, load
from fedbench.store import Store

_CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(values: np.ndarray) -> bytes:
    """The IDX form of an array."""
    code = _CODES[f"{values.dtype.kind}{values.dtype.itemsize}"]
    head = struct.pack(f">HBB{values.ndim}I", 0, code, values.ndim, *values.shape)
    return head + values.astype(values.dtype.newbyteorder(">")).tobytes()


def write_idx(path: Path, values: np.ndarray) -> Path:
    """An IDX file, gzipped if its name says so."""
    data = idx_bytes(values)
    written(path.parent, {path.name: gzip.compress(data, mtime=0) if path.suffix == ".gz" else data})
    return path


def encoded(pixels: np.ndarray, form: str = "PNG") -> bytes:
    """One image [H, W] or [H, W, 3] in an image format."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, form)
    return out.getvalue()


def written(folder: Path, files: dict[str, bytes]) -> Path:
    """The folder, with these files in it."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def tar(path: Path, members: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    """A .tar.gz with these files, and symbolic links if wanted."""
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return path


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    """A .zip with these files."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def pixels(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    """uint8 noise [n, *shape]."""
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


HEAD = """
title = "Toy"
licence = "none"
citation = "nobody"
shape = {shape}
classes = {classes}
"""


NAMES = ("a", "b", "c")


def recipe_text(body: str, shape: tuple[int, ...] = (4, 5, 1), classes: tuple[str, ...] = NAMES) -> str:
    """A recipe's TOML with the usual head."""
    return HEAD.format(shape=list(shape), classes=list(classes)) + body


def recipe_file(
    folder: Path, body: str, shape: tuple[int, ...] = (4, 5, 1), name: str = "toy", classes: tuple[str, ...] = NAMES
) -> str:
    """The path of a recipe with this body."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.toml").write_text(recipe_text(body, shape, classes))
    return str(folder / f"{name}.toml")


def loaded(
    folder: Path, store: Store, kind: str, body: str, channels: int = 1, classes: tuple[str, ...] = NAMES
) -> Dataset:
    """The data set toy of one source, whose files lie beside the recipe."""
    source = f'[[source]]\nname = "s"\nkind = "{kind}"\n{body}'
    return load(recipe_file(folder, source, (4, 5, channels), classes=classes), store)


def holds(got: Dataset, images: np.ndarray | None = None, **columns: Any) -> None:
    """The data set has these images (grey ones without their channel), and these labels, split and other columns."""
    if images is not None:
        np.testing.assert_array_equal(got.images[..., 0] if images.ndim == 3 else got.images, images)
    for name, values in columns.items():
        found = getattr(got, name) if name in ("labels", "split") else got.columns[name]
        assert found.tolist() == list(values), name


IDX = '\n[[source]]\nname = "{source}"\nkind = "idx"\ntrain = 6\ntest = 3\n' + "".join(
    f'[[source.file]]\npath = "{{folder}}/{side}-{role}.gz"\nrole = "{role}"\n{split}'
    for side, split in (("train", ""), ("test", 'split = "test"\n'))
    for role in ("images", "labels")
)
IDX_BODY = IDX.format(source="idx", folder="toy")
UNION = """
[[source]]
name = "union"
kind = "union"
parts = {parts}
columns = {{ domain = "domain" }}
"""


def idx_toy(
    folder: Path, seed: int = 0, name: str = "toy", size: tuple[int, ...] = (4, 5), source: str = "idx"
) -> tuple[Path, np.ndarray]:
    """A recipe and IDX files of 6 training and 3 test images in `folder`; returns its path and the pooled pixels."""
    images, labels = pixels(9, *size, seed=seed), np.arange(seed, seed + 9).astype(np.uint8) % 3
    for split, rows in (("train", slice(0, 6)), ("test", slice(6, 9))):
        write_idx(folder / f"{name}/{split}-images.gz", images[rows])
        write_idx(folder / f"{name}/{split}-labels.gz", labels[rows])
    body = IDX.format(folder=name, source=source)
    return Path(recipe_file(folder, body, size if len(size) == 3 else (*size, 1), name)), images


def union(folder: Path, *parts: str, shape: tuple[int, ...] = (6, 6, 3)) -> str:
    """The path of a recipe all.toml of these data sets."""
    return recipe_file(folder, UNION.format(parts=list(parts)), shape, "all")


def with_checksums(folder: Path) -> Path:
    """The toy recipe with the SHA-256 of its files declared."""
    path, _ = idx_toy(folder)
    text = path.read_text()
    for file in sorted((folder / "toy").iterdir()):
        line = f'path = "toy/{file.name}"\n'
        text = text.replace(line, f'{line}sha256 = "{hashlib.sha256(file.read_bytes()).hexdigest()}"\n')
    path.write_text(text)
    return path
