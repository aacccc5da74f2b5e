"""RETINA in the layout of FedLGD's release: centres as natural groups, classes by the order of their folders."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedbench import data
from fedbench.errors import FedbenchError
from fedbench.resources import RECIPES
from fedbench.store import Store
from tests.support.data_makers import encoded, zipped
from tests.support.server import Served, Server

CENTRES = ("Drishti", "REFUGE", "RIM", "kaggle_arima")
#: What the class folders may be called; of each the first in alphabetical order is the first class.
FOLDERS = (("Glaucoma", "Normal"), ("glaucoma", "non-glaucoma"), ("0", "1"), ("Glaucomatous", "Normal"))
SIDES = {"Training": 4, "Testing": 2}


def images() -> dict[str, bytes]:
    """Images by name, each of another size, whose colour tells centre and class; two formats, and what Macs leave."""
    out = {".DS_Store": b"Mac"}
    for c, (centre, folders) in enumerate(zip(CENTRES, FOLDERS, strict=True)):
        for k, folder in enumerate(folders):
            for side, count in SIDES.items():
                for i in range(count):
                    pixels = np.broadcast_to(np.uint8([60 * c, 200 * k, 20]), (40 + 9 * i, 130 - 7 * k, 3))
                    form = ("PNG", "JPEG")[i % 2]
                    name = f"{centre}/{side}/{folder}/{i:03}.{form[:3].lower()}"
                    out[name] = encoded(np.ascontiguousarray(pixels), form)
                out[f"{centre}/{side}/{folder}/.DS_Store"] = b"Mac"
    return out


def archive(folder: Path, files: dict[str, bytes]) -> None:
    (folder / "retina").mkdir(parents=True)
    zipped(folder / "retina/retina_balanced.zip", {f"retina_balanced/{name}": b for name, b in files.items()})


def unpacked(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / "retina/retina_balanced" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def check(found: data.Dataset) -> None:
    """All that `images` says."""
    assert found.classes == ("Glaucomatous", "Normal")
    assert found.images.shape == (48, 96, 96, 3)
    for split, each in enumerate(SIDES.values()):
        rows = found.split == split
        assert found.column("centre")[rows].tolist() == np.repeat(CENTRES, 2 * each).tolist()
        assert found.labels[rows].tolist() == [0] * each + [1] * each + ([0] * each + [1] * each) * 3
    middle = found.images[:, 48, 48].astype(int)
    centre = np.array([CENTRES.index(name) for name in found.column("centre")])
    assert np.abs(middle[:, 0] - 60 * centre).max() < 6
    assert np.abs(middle[:, 1] - 200 * found.labels).max() < 6


@pytest.mark.parametrize("bring", [archive, unpacked])
def test_images_classes_and_centres(
    tmp_path: Path, store: Store, bring: Callable[[Path, dict[str, bytes]], None]
) -> None:
    bring(tmp_path, images())
    check(data.load("retina", store, [tmp_path]))


def test_a_copy_with_an_address_is_fetched(tmp_path: Path, store: Store, server: Server) -> None:
    """Google Drive has no address for programs; who has a copy elsewhere names it, with its checksum, in a recipe."""
    base, served = server
    archive(tmp_path, images())
    content = (tmp_path / "retina/retina_balanced.zip").read_bytes()
    (tmp_path / "retina/retina_balanced.zip").unlink()  # or it would be at hand, beside the recipe
    served["/copy"] = Served(content)
    path = 'path = "retina/retina_balanced.zip"\n'
    more = f'sha256 = "{hashlib.sha256(content).hexdigest()}"\nurls = ["{base}/copy"]\n'
    mine = tmp_path / "retina_copy.toml"
    mine.write_text((RECIPES / "retina.toml").read_text().replace(path, path + more))
    assert data.fetch(str(mine), store) == [store.home / "downloads/retina/retina_balanced.zip"]
    check(data.load(str(mine), store))


def test_without_an_address_the_user_is_told_what_to_bring(store: Store) -> None:
    with pytest.raises(FedbenchError, match="no address is known to download retina from") as error:
        data.fetch("retina", store)
    assert "put retina/retina_balanced.zip into a folder" in str(error.value.hint)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("REFUGE/Training/Suspect/1.png", "Training/.*: REFUGE has the class folders Suspect, glaucoma, non-glaucoma;"),
        ("Fifth/Testing/Normal/1.png", "Testing/.*: Fifth has the class folders Normal; the recipe has 2 classes"),
        ("RIM/Training/0/9.png", r"RIM/Training/0/9\.png\) is not a readable image"),
    ],
)
def test_archives_that_cannot_be_it(tmp_path: Path, store: Store, name: str, told: str) -> None:
    archive(tmp_path, {**images(), name: b"no PNG"})
    with pytest.raises(FedbenchError, match=told):
        data.load("retina", store, [tmp_path])
    assert not list(store.list("dataset"))


def test_ordered_classes_are_told_by_the_label_folder(tmp_path: Path) -> None:
    text = (RECIPES / "retina.toml").read_text()
    path = tmp_path / "mine.toml"
    for old, new, told in (
        ("{centre}/Training/{label}/", "{centre}/Training/", r"with ordered_classes member .* must have \{label\}"),
        ('kind = "folder"', 'kind = "parquet"', "kind parquet has no ordered_classes"),
        ("resize = true", "resize = true\nonly_classes = true", "only_classes or ordered_classes, not both"),
    ):
        path.write_text(text.replace(old, new))
        with pytest.raises(FedbenchError, match=told):
            data.recipe(str(path))
