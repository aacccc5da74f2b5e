"""Office-Home in the authors' layout: the first 20 of its classes, four domains, and FLUX's clients of them."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedbench import data, partitions, protocol
from fedbench.errors import FedbenchError
from fedbench.resources import RECIPES
from fedbench.store import Store

DOMAINS = ("Art", "Clipart", "Product", "Real World")
#: Three of those that are kept, and two that are not.
CLASSES = ("Alarm_Clock", "Desk_Lamp", "Fan", "File_Cabinet", "Webcam")
EACH = 5


def members() -> dict[str, bytes]:
    """Images by name: of another size and form each, their colour telling domain and class."""
    out = {}
    for d, domain in enumerate(DOMAINS):
        for k, name in enumerate(CLASSES):
            for i in range(EACH):
                buffer = io.BytesIO()
                Image.new("RGB", (30 + 7 * i, 90 - 3 * k), (60 * d, 60 * k, 20)).save(buffer, "JPEG", quality=95)
                out[f"{domain}/{name}/{i:05}.jpg"] = buffer.getvalue()
    return out


def archive(folder: Path, files: dict[str, bytes]) -> None:
    (folder / "office_home").mkdir(parents=True)
    with zipfile.ZipFile(folder / "office_home" / "OfficeHomeDataset_10072016.zip", "w") as out:
        for name, content in {**files, "ImageInfo.csv": b"what comes with it"}.items():
            out.writestr(f"OfficeHomeDataset_10072016/{name}", content)


def unpacked(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in {**files, "ImageInfo.csv": b"what comes with it"}.items():
        path = folder / "office_home" / "OfficeHomeDataset_10072016" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize("bring", [archive, unpacked])
def test_images_classes_and_domains(tmp_path: Path, store: Store, bring: object) -> None:
    assert callable(bring)
    bring(tmp_path, members())
    found = data.load("office_home", store, [tmp_path])
    assert found.images.shape == (4 * 3 * EACH, 64, 64, 3)
    assert found.classes[:2] == ("Alarm_Clock", "Backpack")
    assert (len(found.classes), found.classes[-1]) == (20, "Fan")
    assert list(found.classes) == sorted(found.classes)
    assert [found.classes[k] for k in found.labels[::EACH]] == list(CLASSES[:3]) * 4
    assert found.column("domain").tolist() == np.repeat(DOMAINS, 3 * EACH).tolist()
    red, green = found.images[:, 32, 32, 0].astype(int), found.images[:, 32, 32, 1].astype(int)
    kept = [CLASSES.index(found.classes[k]) for k in found.labels]
    domain = [DOMAINS.index(name) for name in found.column("domain")]
    assert np.abs(red - 60 * np.array(domain)).max() < 6
    assert np.abs(green - 60 * np.array(kept)).max() < 6
    assert not (found.split == 1).any()


def test_clients_of_the_protocol(tmp_path: Path, store: Store) -> None:
    archive(tmp_path, members())
    found = data.load("office_home", store, [tmp_path])
    spec = protocol.load("flux").partition_spec(found.spec, 20, scheme="natural", by="domain", round_robin=True)
    p = partitions.make(spec, found)
    assert (p.clients, p.spec.validation) == (10, 0.2)
    assert sorted(np.bincount(p.groups).tolist()) == [2, 2, 3, 3]
    names = [found.column("domain")[p.sample[p.rows(c)]] for c in range(10)]
    assert all(len(set(of.tolist())) == 1 for of in names)
    assert {p.distributions[g].name for g in p.groups} == {f"domain {d}" for d in DOMAINS}


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"Art/Fan/00001.jpg": b"no JPEG"}, r"OfficeHomeDataset_10072016/Art/Fan/00001\.jpg\) is not a readable image"),
        ({"Art/Webcam/00001.jpg": b""}, "has no file like .* of one of the recipe's classes"),
        ({"Art/readme.txt": b""}, "has no file like"),
    ],
)
def test_archives_that_cannot_be_it(tmp_path: Path, store: Store, files: dict[str, bytes], told: str) -> None:
    archive(tmp_path, files)
    with pytest.raises(FedbenchError, match=told):
        data.load("office_home", store, [tmp_path])
    assert not list(store.list("dataset"))


def test_only_classes_is_told_by_the_label_folder(tmp_path: Path) -> None:
    text = (RECIPES / "office_home.toml").read_text()
    path = tmp_path / "mine.toml"
    for old, new, told in (
        ("{domain}/{label}/*.jpg", "{domain}/*.jpg", r"with only_classes member .* must have \{label\}"),
        ('kind = "folder"', 'kind = "parquet"', "kind parquet has no only_classes"),
    ):
        path.write_text(text.replace(old, new))
        with pytest.raises(FedbenchError, match=told):
            data.recipe(str(path))
