"""A folder with a table of one's own and the files that it names, as `fedbench new` writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from fedbench.cli.new import new

TABLE = """
title = "Mine"
protocol = "feddrm"
metric = "system_accuracy"
statistic = "last_rounds"
unit = "percent"
decimals = 1
rows = [
  { label = "FedAvg", method = "fedavg" },
  { label = "Mine", method = "./idea.py:Idea" },
  { label = "Mine, 0.1", method = "./idea.py:Idea", params = { mu = 0.1 } },
]

[[column]]
label = "Net"
dataset = "digits"
partition = { scheme = "dirichlet", alpha = 0.3, clients = 4 }
train = { model = "./net.py:Net" }

[[column]]
label = "Bands"
dataset = "digits"
partition = { scheme = "./bright.py:Bright", bands = 2, clients = 4 }
"""
FIGURES = """
[[figure]]
title = "By μ"
kind = "sweep"
series = { tables = { "" = "./mine.toml" }, x = "mu", label = "μ" }

[[figure]]
title = "Round by round"
kind = "rounds"
series = { tables = { "" = "./mine.toml" }, x = "round", label = "round" }
"""


def own_table(folder: Path, *changes: tuple[str, str]) -> Path:
    """mine.toml with these texts replaced, and beside it the files that it names."""
    for what, name in (("method", "idea"), ("model", "net"), ("partitioner", "bright")):
        if not (folder / f"{name}.py").exists():
            new(what, name, folder)
    text = TABLE
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    (folder / "mine.toml").write_text(text)
    return folder / "mine.toml"


def own_images(folder: Path, classes: tuple[str, ...] = ("cat", "dog"), each: int = 20) -> Path:
    """The recipe pets.toml as `fedbench new` writes it, and its images beside it: a class is a tint."""
    if not (folder / "pets.toml").exists():
        new("dataset", "pets", folder)
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for tint, label in enumerate(classes):
            place = folder / "pets" / split / label
            place.mkdir(parents=True)
            for i in range(each):
                pixels = rng.integers(0, 150, (40, 40, 3), np.uint8)
                pixels[..., tint] += 90
                Image.fromarray(pixels).save(place / f"{i}.png")
    return folder / "pets.toml"
