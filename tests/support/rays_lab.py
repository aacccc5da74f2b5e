"""A made CheXpert: tiny JPEGs in the release's folders, its CSV file, and the shipped recipe for so many images."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedbench.core.federation import Federation
from fedbench.resources import RECIPES

LABELS = [
    "No Finding",
    "Enlarged Cardiomediastinum",
    "Cardiomegaly",
    "Lung Opacity",
    "Lung Lesion",
    "Edema",
    "Consolidation",
    "Pneumonia",
    "Atelectasis",
    "Pneumothorax",
    "Pleural Effusion",
    "Pleural Other",
    "Fracture",
    "Support Devices",
]
HEADS = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *LABELS]
#: What the release writes for a label that is there, that is not, that is uncertain, that is not mentioned.
VALUES = ("1.0", "0.0", "-1.0", "")

Row = dict[str, str]


def made_rows(count: int, images_a_patient: int = 3) -> list[Row]:
    """Lines of the CSV file: views, sexes and ages in turn, so that the eight groups are of one size, and labels."""
    rng = np.random.default_rng(5)
    rows = []
    for i in range(count):
        patient = i // images_a_patient + 1
        frontal = i % 2 == 0
        name = f"view1_{'frontal' if frontal else 'lateral'}.jpg"
        drawn = dict(zip(LABELS, rng.choice(VALUES, len(LABELS)).tolist(), strict=True))
        # Of the labels one can be seen: brightness says whether there is a fracture.
        drawn["Fracture"] = ("1.0", "")[i // 8 % 2]
        rows.append(
            {
                "Path": f"CheXpert-v1.0-small/train/patient{patient:05}/study{i}/{name}",
                "Sex": ("Female", "Male")[i // 2 % 2],
                "Age": (("49", "50"), ("12", "87"))[i // 16 % 2][i // 4 % 2],
                "Frontal/Lateral": "Frontal" if frontal else "Lateral",
                "AP/PA": "AP" if frontal else "",
                **drawn,
            }
        )
    return rows


def write_release(folder: Path, rows: Sequence[Row], without: Callable[[Row], bool] = lambda row: False) -> Path:
    """The release below `folder`/chexpert, but for images that are to be missing; the path of its CSV file."""
    release = folder / "chexpert" / "CheXpert-v1.0-small"
    rng = np.random.default_rng(6)
    for row in rows:
        path = release / row["Path"].removeprefix("CheXpert-v1.0-small/")
        path.parent.mkdir(parents=True, exist_ok=True)
        grey = 170 if row["Fracture"] == "1.0" else 60
        if not without(row):
            Image.fromarray(rng.integers(grey, grey + 60, (32, 39), dtype=np.uint8)).save(path)
    table = release / "train.csv"
    with table.open("w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, HEADS)
        writer.writeheader()
        writer.writerows(rows)
    return table


def small_recipe(folder: Path, train: int, test: int, side: int = 64) -> Path:
    """The shipped recipe, in `folder`, for so many images of another size: its path."""
    text = (RECIPES / "chexpert.toml").read_text(encoding="utf-8")
    for old, new in (
        (r"^shape = .*$", f"shape = [{side}, {side}, 1]"),
        (r"^train = 100000$", f"train = {train}"),
        (r"^test = 20000$", f"test = {test}"),
        (r"^rows = 100000$", f"rows = {train}"),
        (r"^skip = 100000$", f"skip = {train}"),
        (r"^rows = 20000$", f"rows = {test}"),
    ):
        text, changes = re.subn(old, new, text, flags=re.MULTILINE)
        assert changes == 1, old
    path = folder / "chexpert.toml"
    path.write_text(text, encoding="utf-8")
    return path


def many_labelled(clients: int = 3, size: int = 50, labels: int = 4) -> Federation:
    """Clients of so many digits, 56 % for training, 14 % for validation, with labels that overlap: whether the digit is
    even, above 4, 3 or 8, and, the same for all but one image, whether it is a digit."""
    from tests.support.lab import digits

    images, y = digits()
    chosen = np.random.default_rng(4).permutation(len(y))[: size * clients]
    y = y[chosen]
    rare = np.arange(len(y)) > 0
    each = np.stack([y % 2 == 0, y > 4, np.isin(y, (3, 8)), rare], 1).astype(np.uint8)[:, :labels]
    client, place = np.repeat(np.arange(clients), size), np.tile(np.arange(size), clients)
    is_test, held = place >= 0.7 * size, (place >= 0.56 * size) & (place < 0.7 * size)
    groups = [i % 2 for i in range(clients)]
    return Federation.of(images[chosen], each, client, chosen, is_test, labels, validation=held, groups=groups)
