"""Data sets of folders that somebody hands round: RETINA in the layout of FedLGD's release, centres as natural groups
and classes by the order of their folders; Office-Home in its authors' layout, 20 of its classes and four domains."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench import data, partitions, protocol
from fedbench.core.federation import Federation
from fedbench.core.worker import Worker
from fedbench.data import Dataset, check, recipe, resolve
from fedbench.data.build import obtain
from fedbench.engine.training import loaded
from fedbench.models import initial
from fedbench.partitions import Partition, Transform
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.transforms import apply
from fedbench.resources import RECIPES
from fedbench.specs import DatasetSpec, PartitionSpec, Setting
from fedbench.store import Store
from tests.support.data_makers import encoded, written, zipped
from tests.support.frames import refused
from tests.support.real_images import RealImages
from tests.support.server import Server, whole

CENTRES = ("Drishti", "REFUGE", "RIM", "kaggle_arima")
#: What the class folders may be called; of each the first in alphabetical order is the first class.
FOLDERS = (("Glaucoma", "Normal"), ("glaucoma", "non-glaucoma"), ("0", "1"), ("Glaucomatous", "Normal"))
SIDES = {"Training": 4, "Testing": 2}
DOMAINS = ("Art", "Clipart", "Product", "Real World")
#: Three of those that are kept, and two that are not.
CLASSES = ("Alarm_Clock", "Desk_Lamp", "Fan", "File_Cabinet", "Webcam")
EACH = 5


def retina_images() -> dict[str, bytes]:
    """Images by name, each of another size, whose colour tells centre and class; two formats, and what Macs leave."""
    out = {".DS_Store": b"Mac"}
    for c, (centre, folders) in enumerate(zip(CENTRES, FOLDERS, strict=True)):
        for k, folder in enumerate(folders):
            for side, count in SIDES.items():
                for i in range(count):
                    pixels = np.full((40 + 9 * i, 130 - 7 * k, 3), (60 * c, 200 * k, 20), np.uint8)
                    form = ("PNG", "JPEG")[i % 2]
                    out[f"{centre}/{side}/{folder}/{i:03}.{form[:3].lower()}"] = encoded(pixels, form)
                out[f"{centre}/{side}/{folder}/.DS_Store"] = b"Mac"
    return out


def homes() -> dict[str, bytes]:
    """Images by name: of another size each, their colour telling domain and class."""
    out = {"ImageInfo.csv": b"what comes with it"}
    for d, domain in enumerate(DOMAINS):
        for k, name in enumerate(CLASSES):
            for i in range(EACH):
                pixels = np.full((90 - 3 * k, 30 + 7 * i, 3), (60 * d, 60 * k, 20), np.uint8)
                out[f"{domain}/{name}/{i:05}.jpg"] = encoded(pixels, "JPEG")
    return out


#: Of each data set its folder, the name of its archive, and what that holds.
RETINA = ("retina", "retina_balanced", "retina_balanced")
HOMES = ("office_home", "OfficeHomeDataset_10072016", "OfficeHomeDataset_10072016")


def archive(root: Path, of: tuple[str, str, str], files: dict[str, bytes]) -> Path:
    folder, name, inside = of
    (root / folder).mkdir(parents=True)
    return zipped(root / folder / f"{name}.zip", {f"{inside}/{path}": content for path, content in files.items()})


def unpacked(root: Path, of: tuple[str, str, str], files: dict[str, bytes]) -> Path:
    return written(root / of[0] / of[2], files)


def is_retina(found: data.Dataset) -> None:
    """All that `retina_images` says."""
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
def test_images_classes_and_centres_of_retina(tmp_path: Path, store: Store, bring: Callable[..., Path]) -> None:
    bring(tmp_path, RETINA, retina_images())
    is_retina(data.load("retina", store, [tmp_path]))


def test_images_classes_and_domains_of_office_home(tmp_path: Path, store: Store) -> None:
    archive(tmp_path, HOMES, homes())
    found = data.load("office_home", store, [tmp_path])
    assert found.images.shape == (4 * 3 * EACH, 64, 64, 3)
    assert found.classes[:2] == ("Alarm_Clock", "Backpack")
    assert (len(found.classes), found.classes[-1]) == (20, "Fan")
    assert list(found.classes) == sorted(found.classes)
    assert [found.classes[k] for k in found.labels[::EACH]] == list(CLASSES[:3]) * 4
    assert found.column("domain").tolist() == np.repeat(DOMAINS, 3 * EACH).tolist()
    kept = [CLASSES.index(found.classes[k]) for k in found.labels]
    domain = [DOMAINS.index(name) for name in found.column("domain")]
    middle = found.images[:, 32, 32].astype(int)
    assert np.abs(middle[:, 0] - 60 * np.array(domain)).max() < 6
    assert np.abs(middle[:, 1] - 60 * np.array(kept)).max() < 6
    assert not (found.split == 1).any()
    spec = protocol.load("flux").partition_spec(found.spec, 20, scheme="natural", by="domain", round_robin=True)
    p = partitions.make(spec, found)
    assert (p.clients, p.spec.validation) == (10, 0.2)
    assert sorted(np.bincount(p.groups).tolist()) == [2, 2, 3, 3]
    names = [found.column("domain")[p.sample[p.rows(c)]] for c in range(10)]
    assert all(len(set(of.tolist())) == 1 for of in names)
    assert {p.distributions[g].name for g in p.groups} == {f"domain {d}" for d in DOMAINS}


def test_a_copy_with_an_address_is_fetched(tmp_path: Path, store: Store, server: Server) -> None:
    """Google Drive has no address for programs; who has a copy elsewhere names it, with its checksum, in a recipe."""
    there = archive(tmp_path, RETINA, retina_images())
    content = there.read_bytes()
    there.unlink()  # or it would be at hand, beside the recipe
    server.answers["/copy"] = whole(content)
    path = 'path = "retina/retina_balanced.zip"\n'
    more = f'sha256 = "{hashlib.sha256(content).hexdigest()}"\nurls = ["{server.base}/copy"]\n'
    mine = tmp_path / "retina_copy.toml"
    mine.write_text((RECIPES / "retina.toml").read_text().replace(path, path + more))
    assert data.fetch(str(mine), store) == [store.home / "downloads/retina/retina_balanced.zip"]
    is_retina(data.load(str(mine), store))
    says = r"no address is known to download retina from; .*put retina/retina_balanced\.zip into a folder"
    refused(says, data.fetch, "retina", store)


@pytest.mark.parametrize(
    ("of", "files", "says"),
    [
        (RETINA, {"REFUGE/Training/Suspect/1.png": b""}, "REFUGE has the class folders Suspect, glaucoma, non-glauc"),
        (RETINA, {"Fifth/Testing/Normal/1.png": b""}, "Fifth has the class folders Normal; the recipe has 2 classes"),
        (RETINA, {"RIM/Training/0/9.png": b"no PNG"}, r"RIM/Training/0/9\.png\) is not a readable image"),
        (HOMES, {"Art/Fan/00001.jpg": b"no JPEG"}, r"OfficeHomeDataset_10072016/Art/Fan/00001\.jpg\) is not a readab"),
        (HOMES, {"Art/Webcam/00001.jpg": b""}, "has no file like .* of one of the recipe's classes"),
        (HOMES, {"Art/readme.txt": b""}, "has no file like"),
    ],
)
def test_archives_that_cannot_be_it(
    tmp_path: Path, store: Store, of: tuple[str, str, str], files: dict[str, bytes], says: str
) -> None:
    archive(tmp_path, of, {**(retina_images() if of is RETINA else {}), **files})
    refused(says, data.load, of[0], store, [tmp_path])
    assert not list(store.list("dataset"))


@pytest.mark.parametrize(
    ("recipe", "old", "new", "says"),
    [
        ("retina", "{centre}/Training/{label}/", "{centre}/Training/", r"with ordered_classes member .* must have"),
        ("retina", 'kind = "folder"', 'kind = "parquet"', "kind parquet has no ordered_classes"),
        ("retina", "resize = true", "resize = true\nonly_classes = true", "only_classes or ordered_classes, not both"),
        ("office_home", "{domain}/{label}/*.jpg", "{domain}/*.jpg", r"with only_classes member .* must have \{label\}"),
        ("office_home", 'kind = "folder"', 'kind = "parquet"', "kind parquet has no only_classes"),
        ("chexpert", '{ "1" = 1', '{ "1" = 2', "which values of a label are 0 and which are 1"),
        ("chexpert", "label_columns = [", 'label_columns = [ "Extra",', "label_columns must name 14 columns"),
        ("chexpert", 'kind = "csv"', 'kind = "parquet"', "kind parquet has no label_columns"),
        ("chexpert", "skip = 100000", "skip = 0", "skip must be at least 1"),
    ],
)
def test_recipes_that_make_no_sense(tmp_path: Path, recipe: str, old: str, new: str, says: str) -> None:
    path, text = tmp_path / "mine.toml", (RECIPES / f"{recipe}.toml").read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    refused(says, data.recipe, str(path))


# -- natural groups by name, each normalised by numbers of its own: FedDRM's three centres --------------------


ORDER = ("kaggle_arima", "RIM", "REFUGE")
MEANS = ((0.7238, 0.3767, 0.1002), (0.5886, 0.2652, 0.1481), (0.7085, 0.4822, 0.3445))
STDS = ((0.1001, 0.1057, 0.0503), (0.1147, 0.0937, 0.0461), (0.1663, 0.1541, 0.1066))


@pytest.fixture
def retina(tmp_path: Path, store: Store) -> Dataset:
    """Images of the form of RETINA, 12 a centre."""
    archive(tmp_path / "brought", RETINA, retina_images())
    return data.load("retina", store, [tmp_path / "brought"])


def preset(retina: Dataset) -> Partition:
    return partitions.make(protocol.load("feddrm").partition_spec(retina.spec, 2, preset="retina"), retina)


def test_the_paper_s_clients(retina: Dataset) -> None:
    p = preset(retina)
    assert [set(retina.column("centre")[p.sample[p.rows(c)]].tolist()) for c in range(3)] == [{one} for one in ORDER]
    assert [(t.mean, t.std) for t in p.transforms] == list(zip(MEANS, STDS, strict=True))
    assert (p.n_train.tolist(), p.n_test.tolist()) == ([8] * 3, [4] * 3)  # int(0.7 x 12)
    # As FedDRM's code splits a centre's images, those of its training folder first: one generator, client after client.
    rng = np.random.RandomState(2025)
    for c, centre in enumerate(ORDER):
        rows = np.flatnonzero(retina.column("centre") == centre)
        order = np.arange(12)
        rng.shuffle(order)
        np.testing.assert_array_equal(p.sample[p.rows(c)], rows[order])
    np.testing.assert_array_equal(p.transformed_images(retina), retina.images[p.sample])


def _worker(federation: Federation) -> Worker:
    """What feeds a network with the federation's images."""
    spec = partition_spec(DatasetSpec("any", "one", "0"), "iid", 3, 0, 0.7)
    setting = Setting(spec, "cifar_cnn", 1, batch_size=4, lr=0.1, seed=0, epochs=1)
    return Worker(initial(setting, federation.shape, federation.classes), federation, setting, threading.Event())


def test_a_network_gets_normalised_images(retina: Dataset, store: Store) -> None:
    def federations(*specs: PartitionSpec) -> list[Federation]:
        """Of these partitions, on common images."""
        made = [partitions.obtain(spec, store) for spec in specs]
        return loaded(obtain(retina.spec, store), made, torch.device("cpu"))

    p, plain = preset(retina), partition_spec(retina.spec, "iid", 3, 0, 0.7)
    federation, beside = federations(p.spec, plain)
    rows = torch.randperm(len(p.client), generator=torch.Generator().manual_seed(0))
    got = _worker(federation).batch(rows).numpy()
    client = p.client[rows]
    mean, std = np.array(MEANS)[client, :, None, None], np.array(STDS)[client, :, None, None]
    whole = retina.images[p.sample[rows]].transpose(0, 3, 1, 2) / 255
    np.testing.assert_allclose(got, (whole - mean) / std, rtol=0, atol=1e-5)
    (alone,) = federations(plain)  # who has none gets the same bits beside others as alone
    rows = torch.arange(len(retina.labels))
    assert torch.equal(_worker(beside).batch(rows + len(p.client)), _worker(alone).batch(rows))
    read = partitions.build(p.spec, store)  # stored, it is the one that was drawn
    assert (read.transforms, read.groups) == (p.transforms, [0, 1, 2])
    np.testing.assert_array_equal(read.scaling(), p.scaling())


def test_what_does_not_fit_a_centre_is_told(retina: Dataset) -> None:
    def made(**values: Any) -> Partition:
        return partitions.make(partition_spec(retina.spec, "natural", seed=0, train_fraction=0.7, **values), retina)

    right = {"by": "centre", "clients": 3, "order": ORDER, "means": MEANS, "stds": STDS}
    for changes, told in (
        ({"order": ("RIM", "REFUGEE", "Drishti")}, "unknown centre 'REFUGEE'"),
        ({"clients": 2}, "2 clients, but 3 groups are named in order"),
        ({"order": ("RIM", "RIM", "REFUGE")}, "order names a group twice"),
        ({"means": MEANS[:2]}, "means has 2 rows, and order names 3 groups"),
        ({"order": ORDER[:2], "clients": 2}, "means has 3 rows, and order names 2 groups"),
        ({"stds": None}, "means and stds go together"),
        ({"stds": ((0.1, 0.1),) * 3}, "a mean of 3 channels and a standard deviation of 2"),
        ({"stds": ((0.1, 0.0, 0.1),) * 3}, "a standard deviation must be above 0"),
        ({"means": ((0.5,),) * 3, "stds": ((0.5,),) * 3}, "means has 1 numbers a client, and images of retina have 3"),
        ({"round_robin": True}, "groups with an order are not given in turn"),
    ):
        refused(told, made, **{**right, **changes})


def test_a_normalisation_changes_no_pixel_and_goes_with_what_does() -> None:
    own = Transform(mean=MEANS[0], std=STDS[0])
    assert not own.alters
    assert str(own) == "normalised by 0.7238±0.1001 0.3767±0.1057 0.1002±0.0503"
    both = own | Transform(gamma=0.6)
    assert (both.alters, both.mean, both.gamma) == (True, MEANS[0], 0.6)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 4, 3), np.uint8)
    np.testing.assert_array_equal(apply(pixels, both), apply(pixels, Transform(gamma=0.6)))


# -- the real images of FEDBENCH_DATA: counts as published, pixels as they should look ------------------------


MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST += [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
#: Of the first 5,000 training and 1,000 test images of MNIST.
MNIST_M = [479, 563, 488, 493, 535, 434, 501, 550, 462, 495, 85, 126, 116, 107, 110, 87, 87, 99, 89, 94]
USPS = [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644, 359, 264, 198, 166, 200, 160, 170, 147, 166, 177]


def counts(got: Dataset, labels: np.ndarray | None = None, classes: int | None = None) -> list[int]:
    values = got.labels if labels is None else labels
    return [int(n) for s in (0, 1) for n in np.bincount(values[got.split == s], minlength=classes or len(got.classes))]


#: The moments of the training images, in grey levels, by which everybody normalises these data sets.
MOMENTS = {
    "mnist": ([33.32], [78.57]),
    "fashion_mnist": ([72.94], [90.02]),
    "cifar10": ([125.3, 123.0, 113.9], [63.0, 62.1, 66.7]),
    "cifar100": ([129.3, 124.1, 112.4], [68.2, 65.4, 70.4]),
}
#: A frog, twice a truck, then a deer and two automobiles open the training images of CIFAR-10.
FIRST = {"cifar10": [6, 9, 9, 4, 1, 1], "mnist": [5, 0, 4, 1, 9]}
slow = pytest.mark.slow  # thousands of PNG files to decode


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mnist", MNIST),
        ("mnist_writers", MNIST),
        ("fashion_mnist", [6000] * 10 + [1000] * 10),
        ("usps", USPS),
        ("mnist_m", MNIST_M),
        pytest.param("cifar10", [5000] * 10 + [1000] * 10, marks=slow),
        pytest.param("cifar20", [2500] * 20 + [500] * 20, marks=slow),
        pytest.param("cifar100", [500] * 100 + [100] * 100, marks=slow),
        pytest.param("tinyimagenet", [40] * 200 + [10] * 200, marks=slow),
    ],
)
def test_class_counts_and_moments(name: str, expected: list[int], real_images: RealImages) -> None:
    got = real_images.load(name)
    assert counts(got) == expected
    assert (np.diff(got.split.astype(int)) >= 0).all()  # training images first
    assert got.images.shape[1:] == recipe(name).shape
    assert got.labels[: len(first := FIRST.get(name, []))].tolist() == first
    levels = np.arange(256)
    for channel, (m, s) in enumerate(zip(*MOMENTS.get(name, ([], [])), strict=True)):
        share = np.bincount(got.images[got.split == 0][..., channel].ravel(), minlength=256)
        found = np.average(levels, weights=share)
        assert abs(found - m) < 0.3
        assert abs(np.sqrt(np.average((levels - found) ** 2, weights=share)) - s) < 0.5


@slow
def test_cifar20_is_cifar100_with_coarse_labels(real_images: RealImages) -> None:
    coarse, fine = real_images.load("cifar20"), real_images.load("cifar100")
    np.testing.assert_array_equal(coarse.images, fine.images)
    np.testing.assert_array_equal(coarse.partition_labels, fine.labels)
    np.testing.assert_array_equal(coarse.labels, fine.columns["coarse"])
    assert coarse.partition_classes == fine.partition_classes == 100
    pairs = {(int(c), int(f)) for c, f in zip(coarse.labels, fine.labels, strict=True)}
    assert len(pairs) == 100  # each fine class lies in one coarse one
    names = {fine.classes[f]: coarse.classes[c] for c, f in pairs}
    assert (names["maple_tree"], names["shark"], names["bus"]) == ("trees", "fish", "vehicles_1")


def test_writers(real_images: RealImages) -> None:
    got = real_images.load("mnist_writers")
    train, test = (set(got.columns["writer"][got.split == s].tolist()) for s in (0, 1))
    assert (len(train), len(test), len(train & test)) == (539, 297, 0)
    series = got.columns["series"][got.split == 0]
    assert [(series == s).sum() for s in (0, 4)] == [30950, 29050]
    sizes = np.unique(got.columns["writer"][got.split == 0], return_counts=True)[1]
    assert (sizes.min(), sizes.max(), np.median(sizes)) == (19, 131, 116)
    np.testing.assert_array_equal(got.images, real_images.load("mnist").images)


@slow
def test_three_domains_of_digit5(real_images: RealImages) -> None:
    mnist, usps, mnist_m = (real_images.load(name) for name in ("mnist", "usps", "mnist_m"))
    got = real_images.load("digit3")
    assert got.images.shape == (85298, 32, 32, 3)
    domain = got.columns["domain"]
    assert np.bincount(domain).tolist() == [70000, 9298, 6000]
    assert [counts(got, domain, 3)] == [[60000, 7291, 5000, 10000, 2007, 1000]]
    for code, part in enumerate((mnist, usps, mnist_m)):
        np.testing.assert_array_equal(got.labels[domain == code], part.labels)
        np.testing.assert_array_equal(got.split[domain == code], part.split)
        # Interpolation leaves the mean of an image about where it was.
        means = [images.mean((1, 2, 3)) for images in (got.images[domain == code], part.images)]
        assert np.abs(means[0] - means[1]).max() < 4
    grey = got.images[domain < 2]
    assert (grey[..., 0] == grey[..., 2]).all()
    np.testing.assert_array_equal(got.images[domain == 2], mnist_m.images)
    # The sample of MNIST-M was made from the first images of MNIST.
    np.testing.assert_array_equal(mnist_m.labels[:5000], mnist.labels[:5000])


def test_resolving_reads_no_file(store: Store, data_root: Path) -> None:
    opened: list[str] | None = []

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and opened is not None:
            opened.append(str(arguments[0]))

    sys.addaudithook(hook)  # there is no taking it away
    for name in ("cifar10", "cifar100", "mnist", "tinyimagenet"):
        resolve(name, store, [data_root])
    Path(__file__).open().close()
    files, opened = opened, None
    assert __file__ in files, "the hook must hear of files"
    assert [path for path in files if path.startswith(str(data_root))] == []


def test_the_files_at_hand_are_whole(store: Store, data_root: Path) -> None:
    found = [f for name in ("cifar10", "usps", "tinyimagenet", "digit3") for f in check(name, store, [data_root])]
    other = ("binary", "folder", "archive")  # sources that may be elsewhere
    assert {f.what: f.state for f in found if not f.what.startswith(other) and f.state != "good"} == {}
    assert sum(f.state == "good" for f in found) >= 18
