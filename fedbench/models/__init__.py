"""Networks, each with three named parts: backbone, projection and head. Listing them does not import torch."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from fedbench.errors import FedbenchError
from fedbench.models.registry import check, class_of, code_of, named, names, version

if TYPE_CHECKING:
    from fedbench.models.base import FLModel
    from fedbench.specs import Setting

__all__ = ["build", "check", "code_of", "initial", "named", "names", "version"]


def initial(setting: Setting, shape: tuple[int, int, int], classes: int, further: int = 0) -> FLModel:
    """The initial network of a setting's runs; for further networks, `further` is added to the seed."""
    seed = setting.initial_seed + further
    return build(setting.model, shape=shape, classes=classes, seed=seed, as_torch=setting.init == "torch")


def build(name: str, *, shape: tuple[int, int, int], classes: int, seed: int, as_torch: bool = False) -> FLModel:
    """Build a model on the CPU. `seed` alone determines its initial weights; torch's global generators do not change.

    With `as_torch`, the weights are those of a script that calls torch.manual_seed(seed) and creates the layers in this
    order; otherwise they come from a stream for this purpose only.

    `shape` is (height, width, channels) of an image. Raises FedbenchError for an unknown name or option and for images
    that are too small for the model.
    """
    check(name)
    if len(shape) != 3 or min(shape) < 1:
        raise FedbenchError(f"model {name} cannot take images of shape {shape}", "give height, width and channels")
    if classes < 2:
        raise FedbenchError(f"model {name} needs at least 2 classes, not {classes}")
    from fedbench.models.base import seeded

    model_class = class_of(name)
    with seeded(seed, "model"):
        model: FLModel = model_class(shape, classes)
        with seeded(seed, None) if as_torch else contextlib.nullcontext():
            model.initialise(model)
    return model
