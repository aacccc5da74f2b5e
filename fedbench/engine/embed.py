"""Compute a frozen encoder's embeddings of a data set's images once, as a table of vectors with its recipe."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.engine.run import choose_device
from fedbench.files import write_whole
from fedbench.specs import require

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from fedbench.data import Dataset, Recipe

#: Column of the table that holds the vectors.
COLUMN = "embedding"
#: Batch size.
BATCH = 64


def encoder(name: str, shape: tuple[int, int, int]) -> nn.Module:
    """Build a network by its registry name for images of (height, width, channels), in evaluation mode.

    `torchvision:NETWORK:FILE` loads the weights from a torchvision state dict (.pt, .pth, .safetensors).
    Raises FedbenchError for an unknown name, and for weights that are not that network's.
    """
    from fedbench import models
    from fedbench.models.base import seeded
    from fedbench.models.standard import WEIGHTS, Choice, Standard

    own = re.fullmatch(r"torchvision:(\w+):(.+)", name)
    if own and own[2].endswith(WEIGHTS):
        with seeded(0, "model"):
            return Standard(Choice(own[1], own[2]), shape, 2).eval()
    return models.build(models.named(name), shape=shape, classes=2, seed=0).eval()


def embeddings(
    network: nn.Module, images: np.ndarray, size: tuple[int, int], device: str, advance: Callable[[int], object]
) -> np.ndarray:
    """Features float32 [N, d] of images uint8 [N, H, W, C], which are resized to `size` (bilinear, antialiased)."""
    import numpy as np
    import torch
    from torch.nn.functional import interpolate

    from fedbench.core.federation import to_input

    place = choose_device(device)
    network, out = network.to(place), []
    with torch.no_grad():
        for start in range(0, len(images), BATCH):
            x = to_input(torch.from_numpy(images[start : start + BATCH]).to(place))
            if x.shape[2:] != size:
                x = interpolate(x, size, mode="bilinear", antialias=True)
            out.append(network.features(x).float().cpu().numpy())  # type: ignore[operator]
            advance(len(x))
    values = np.concatenate(out)
    require(bool(np.isfinite(values).all()), "the encoder gives embeddings that are not finite", "choose other weights")
    return values


def target(dataset: Dataset, encoder: str, folder: Path) -> Path:
    """The path of the recipe to write; its table gets the suffix .parquet. Raises FedbenchError if the data set cannot
    be embedded, if the folder is missing, or if one of the two files exists."""
    name = dataset.spec.name
    require(not dataset.spec.vectors, f"{name} holds vectors, and an encoder takes images", "partition it as it is")
    require(not dataset.multi_label, f"{name} has several labels an image, and a table of vectors has one class")
    require(COLUMN not in dataset.columns, f"{name} has a column {COLUMN} of its own", "rename that")
    require(folder.is_dir(), f"there is no folder {folder}", "choose another one with -o FOLDER")
    words = (Path(word).stem for word in (name, *encoder.split(":")) if word != "torchvision")
    path = folder / ("_".join(re.sub(r"\W+", "_", word) for word in words) + ".toml")
    for one in (path, path.with_suffix(".parquet")):
        require(not one.exists(), f"{one} is there already", "choose another folder with -o FOLDER")
    return path


def write(dataset: Dataset, recipe: Recipe, values: np.ndarray, encoder: str, path: Path) -> None:
    """Write the recipe to `path`, and its table next to it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from fedbench.data.part import as_column

    table, by = path.with_suffix(".parquet"), ":".join(Path(word).name for word in encoder.split(":"))
    columns = {"label": [dataset.classes[k] for k in dataset.labels.tolist()], COLUMN: as_column(values)}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({**dataset.columns, **columns}), sink)
    train = int((dataset.split == 0).sum())
    cut = {"train": f", rows = {train}" if train < len(values) else "", "test": f", skip = {train}" if train else ""}
    there = [side for side, rows in (("train", train), ("test", len(values) - train)) if rows]
    files = ", ".join(f'{{ path = "{table.name}", split = "{side}"{cut[side]} }}' for side in there)
    facts: dict[str, object] = {
        "title": f"{recipe.title}: embeddings by {by}", "licence": recipe.licence, "citation": recipe.citation,
        "shape": [values.shape[1]], "classes": list(dataset.classes),
    }  # fmt: skip
    if dataset.partition_label is not None:
        facts |= {"partition_label": dataset.partition_label, "partition_classes": dataset.partition_classes}
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in facts.items()]
    named = ", ".join(f"{json.dumps(one)} = {json.dumps(one)}" for one in dataset.columns)
    source = ["", "[[source]]", 'name = "embeddings"', 'kind = "table"', f'features = ["{COLUMN}"]']
    lines += [*source, f"file = [{files}]"]
    lines += [f"columns = {{ {named} }}"] if named else []
    hint = "choose a folder with -o FOLDER"
    write_whole(table, sink.getvalue().to_pybytes(), hint)
    write_whole(path, ("\n".join(lines) + "\n").encode(), hint)
