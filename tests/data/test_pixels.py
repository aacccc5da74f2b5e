"""What an image file says of its own pixels reaches the data set, whichever reader reads it."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageCms

from fedbench.data import Dataset, load, resolve
from fedbench.data.pixels import rendered, size_of
from fedbench.store import Store
from tests.support.data_makers import recipe_file, written
from tests.support.frames import refused

#: The picture that every file is to show: 4 x 6, all of its values different by far, none by JPEG's rounding.
PICTURE = np.arange(0, 240, 10, dtype=np.uint8).reshape(4, 6)
#: EXIF orientation -> how the camera stored an upright picture (the inverse of what a viewer does).
STORED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
    8: lambda a: np.rot90(a, -1),
}


def saved(image: Image.Image, form: str = "PNG", **more: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **more)
    return out.getvalue()


def turned(orientation: int, form: str = "PNG", picture: np.ndarray = PICTURE) -> bytes:
    """The picture as a camera writes it that is held so."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](picture)))
    return saved(stored, form, exif=exif, **({"lossless": True} if form == "WEBP" else {}))


def seen(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(rendered(image, data, "it"))


@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP", "JPEG"])
@pytest.mark.parametrize("orientation", STORED)
def test_every_orientation_in_every_format(form: str, orientation: int) -> None:
    data = turned(orientation, form, np.stack([PICTURE] * 3, -1))
    close = {"JPEG": 40, "WEBP": 1}.get(form, 0)
    assert np.abs(seen(data)[..., 0].astype(int) - PICTURE).max() <= close
    with Image.open(io.BytesIO(data)) as image:
        assert size_of(image) == (6, 4)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_exif_that_is_damaged_says_nothing() -> None:
    for exif in (b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff", turned(6)[-40:]):
        assert np.array_equal(seen(saved(Image.fromarray(PICTURE), exif=exif)), PICTURE)


def everywhere(tmp_path: Path, store: Store, blobs: list[bytes], shape: tuple[int, ...]) -> dict[str, Dataset]:
    """The same encoded images, the second half test images, through every reader of encoded images."""
    half, names = len(blobs) // 2, "ab"
    files = {
        f"{side}/{names[i % 2]}/{i:02d}.png": blob
        for side, some in (("train", range(half)), ("test", range(half, len(blobs))))
        for i, blob in ((i, blobs[i]) for i in some)
    }
    written(tmp_path / "own", files)
    written(tmp_path / "country211", {**files, "valid/a/0.png": blobs[0]})
    lines = {side: [name for name in files if name.startswith(side)] for side in ("train", "test")}
    for side, those in lines.items():
        (tmp_path / "own" / f"{side}.csv").write_text(
            "\n".join(["image,label", *(f"{n},{n.split('/')[1]}" for n in those)])
        )
        (tmp_path / "own" / f"{side}.txt").write_text("\n".join(f"{n} {n.split('/')[1]}" for n in those))
        table = {"image": [files[n] for n in those], "label": [n.split("/")[1] for n in those]}
        pq.write_table(pa.table(table), tmp_path / "own" / f"{side}.parquet")
    out = {}
    for kind, ending in (("csv", "csv"), ("list", "txt"), ("parquet", "parquet")):
        entries = "".join(
            f'[[source.file]]\npath = "own/{side}.{ending}"\nsplit = "{side}"\n' for side in ("train", "test")
        )
        path = recipe_file(tmp_path, f'[[source]]\nname = "s"\nkind = "{kind}"\n{entries}', shape, kind, ("a", "b"))
        out[kind] = load(path, store)
    members = "".join(
        f'[[source.file.member]]\npath = "{side}/{{label}}/*.png"\nsplit = "{side}"\n' for side in ("train", "test")
    )
    body = f'[[source]]\nname = "s"\nkind = "folder"\n[[source.file]]\npath = "own"\n{members}'
    out["folder"] = load(recipe_file(tmp_path, body, shape, "folder", ("a", "b")), store)
    out["torchvision"] = load("torchvision:Country211", store, [tmp_path])
    for kind, one in out.items():
        assert np.bincount(one.labels).tolist() == [half, half], kind
    return out


def test_photos_are_upright_whichever_reader_reads_them(tmp_path: Path, store: Store) -> None:
    picture = np.stack([PICTURE] * 3, -1)
    for kind, one in everywhere(
        tmp_path, store, [turned(1 + i % 8, "PNG", picture) for i in range(16)], (4, 6, 3)
    ).items():
        assert all(np.array_equal(image, picture) for image in one.images), kind


def test_photos_of_a_hub_s_folder_are_upright(tmp_path: Path, store: Store) -> None:
    pytest.importorskip("datasets")
    picture = np.stack([PICTURE] * 3, -1)
    files = {
        f"{side}/{name}/{i}.png": turned(i, "PNG", picture)
        for side in ("train", "test")
        for name in "ab"
        for i in STORED
    }
    got = load(f"hf:{written(tmp_path / 'photos', files)}", store)
    assert got.images.shape == (32, 4, 6, 3)
    assert all(np.array_equal(image, picture) for image in got.images)


def hidden(mode: str, alpha: int) -> bytes:
    """A black image with this alpha."""
    image = Image.new(mode, (6, 4))
    image.putalpha(alpha)
    return saved(image)


def test_what_is_transparent_shows_white() -> None:
    for mode in ("RGB", "L"):
        for alpha, level in ((0, 255), (255, 0), (51, 204)):
            assert (seen(hidden(mode, alpha)) == level).all(), (mode, alpha)
    keyed = saved(Image.fromarray(PICTURE), transparency=200)
    assert np.array_equal(seen(keyed), np.where(PICTURE == 200, 255, PICTURE))
    palette = Image.fromarray(PICTURE // 10, "P")
    palette.putpalette([level for i in range(24) for level in (i, 2 * i, 3 * i)])
    for form in ("PNG", "GIF"):
        shown = seen(saved(palette, form, transparency=3))
        assert shown[0, 3].tolist() == [255, 255, 255]
        assert shown[0, 4].tolist() == [4, 8, 12]


def test_alpha_whichever_reader_reads_it(tmp_path: Path, store: Store) -> None:
    for kind, one in everywhere(tmp_path, store, [hidden("RGB", 51)] * 4, (4, 6, 3)).items():
        assert (one.images == 204).all(), kind


def deep_png(channels: int) -> bytes:
    """A PNG of 16 bits a channel, which Pillow cannot write in colour."""
    values = np.arange(4 * 6 * channels, dtype=">u2").reshape(4, -1)
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    head = struct.pack(">IIBBBBB", 6, 4, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def deep_tiff() -> bytes:
    """A TIFF image of 16 bits a channel in colour, uncompressed."""
    strip = np.arange(72, dtype="<u2").tobytes()
    entries = [
        (256, 3, 1, 6),
        (257, 3, 1, 4),
        (258, 3, 3, 134),
        (259, 3, 1, 1),
        (262, 3, 1, 2),
        (273, 4, 1, 140),
        (277, 3, 1, 3),
        (278, 3, 1, 4),
        (279, 4, 1, len(strip)),
        (284, 3, 1, 1),
    ]
    directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *one) for one in entries)
    return (
        struct.pack("<2sHI", b"II", 42, 8) + directory + struct.pack("<I", 0) + struct.pack("<3H", 16, 16, 16) + strip
    )


DEEP = {
    **{f"PNG of {n}": deep_png(n) for n in (1, 2, 3, 4)},
    "TIFF": deep_tiff(),
    "PPM": b"P6 6 4 65535\n" + bytes(144),
    "PPM as text": b"P3 6 4 4095\n" + b"4095 " * 72,
    "PGM": b"P5 6 4 65535\n" + bytes(48),
}


@pytest.mark.parametrize("name", DEEP)
def test_more_than_8_bits_are_refused_in_any_mode(name: str) -> None:
    refused(r"^it has pixels of more than 8 bits \(mode .*scale it to 8 bits", seen, DEEP[name])


def test_colours_in_cielab_are_refused(tmp_path: Path, store: Store) -> None:
    blobs = [saved(Image.new("LAB", (6, 4), (100, i, 3)), "TIFF") for i in range(4)]
    refused(r"has colours in CIELAB \(mode LAB\); save it in RGB", seen, blobs[0])
    refused(r"has colours in CIELAB \(mode LAB\); save it in RGB", everywhere, tmp_path, store, blobs, (4, 6, 3))


def test_jpeg_2000_says_its_bits_in_its_codestream() -> None:
    shallow = saved(Image.fromarray(np.stack([PICTURE] * 3, -1)), "JPEG2000")
    assert np.array_equal(seen(shallow)[..., 0], PICTURE)
    at = shallow.index(b"\xff\x4f\xff\x51") + 42
    deep = bytearray(shallow)
    deep[at : at + 9 : 3] = bytes([15] * 3)
    refused("more than 8 bits", seen, bytes(deep))


def test_8_bits_of_every_format_are_read() -> None:
    for form in ("PNG", "TIFF", "BMP", "PPM", "GIF"):
        shown = seen(saved(Image.fromarray(PICTURE), form)).reshape(4, 6, -1)  # of a GIF file in RGB
        assert (shown == PICTURE[..., None]).all(), form


def test_deep_colour_is_refused_by_every_reader(tmp_path: Path, store: Store) -> None:
    refused("has pixels of more than 8 bits", everywhere, tmp_path, store, [deep_png(3)] * 4, (4, 6, 3))


def profile(space: str) -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile(space)).tobytes()  # type: ignore[arg-type]


def wide() -> bytes:
    """A profile of exchanged primaries: what it calls red is green, and so on; as sRGB's but for that."""
    data = bytearray(profile("sRGB"))
    count = struct.unpack(">I", data[128:132])[0]
    places = {bytes(data[132 + 12 * i : 136 + 12 * i]): 132 + 12 * i for i in range(count)}
    first, second = (bytes(data[places[name] + 4 : places[name] + 12]) for name in (b"rXYZ", b"gXYZ"))
    data[places[b"rXYZ"] + 4 : places[b"rXYZ"] + 12] = second
    data[places[b"gXYZ"] + 4 : places[b"gXYZ"] + 12] = first
    return bytes(data).replace("sRGB".encode("utf-16-be"), "GRBs".encode("utf-16-be"))


def test_colours_of_another_profile_become_srgb() -> None:
    red = Image.new("RGB", (6, 4), (200, 0, 0))
    plain = np.asarray(red)
    assert np.array_equal(seen(saved(red, icc_profile=profile("sRGB"))), plain)
    for form in ("PNG", "TIFF"):
        exchanged = seen(saved(red, form, icc_profile=wide()))
        assert np.abs(exchanged.astype(int) - (0, 200, 0)).max() <= 2
    grey = Image.fromarray(PICTURE)
    assert np.abs(seen(saved(grey, icc_profile=wide()))[..., 0].astype(int) - PICTURE).max() <= 2  # a grey of RGB


@pytest.mark.parametrize(("mode", "icc"), [("RGB", b"none"), ("RGB", profile("LAB")), ("CMYK", wide())])
def test_a_profile_that_cannot_be_applied_is_refused(mode: str, icc: bytes) -> None:
    data = saved(Image.new(mode, (6, 4)), "TIFF", icc_profile=icc)
    refused("^it has a colour profile that cannot be applied .*convert its colours to sRGB", seen, data)


def test_data_sets_of_shipped_runs_keep_their_ids(store: Store, data_root: Path) -> None:
    """Their images say nothing of this kind: every one was looked at."""
    kept = {
        "cifar10": "e1867d03761b835a",
        "cifar20": "ccc834619ea855c5",
        "cifar100": "085ccf3d1ae2d0f1",
        "tinyimagenet": "47f6827721b637a5",
        "mnist": "182f565b279d787d",
        "digits": "385f5a87ef8591ac",
    }
    for name, content in kept.items():
        if (data_root / name.replace("tinyimagenet", "tiny_imagenet_subset")).is_dir() or name == "digits":
            assert resolve(name, store, [data_root]).content == content, name
