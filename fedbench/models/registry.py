"""The networks by name. Only making one imports torch."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError, unknown

if TYPE_CHECKING:
    from fedbench.models.base import FLModel
    from fedbench.spec import Setting

_MODELS = {
    "cifar_cnn": "fedbench.models.cnn:CifarCNN",
    "cifar_cnn_bn": "fedbench.models.cnn:CifarCNNBN",
    "digits_cnn": "fedbench.models.cnn:DigitsCNN",
    "emnist_cnn": "fedbench.models.cnn:EmnistCNN",
    "lenet5": "fedbench.models.cnn:LeNet5",
    "lenet5_binary": "fedbench.models.cnn:LeNet5Binary",
    "lenet5_flux": "fedbench.models.cnn:LeNet5Flux",
    "lenet_tanh": "fedbench.models.cnn:LeNetTanh",
    "resnet18_bn": "fedbench.models.resnet:ResNet18BN",
    "resnet18_fedml": "fedbench.models.resnet:ResNet18FedML",
    "resnet18_gn": "fedbench.models.resnet:ResNet18GN",
    "resnet9": "fedbench.models.resnet9:ResNet9",
}


def names() -> list[str]:
    """The models that `build` knows, without importing torch."""
    return sorted(_MODELS)


def file_of(name: str) -> str:
    """The file of a model's code within fedbench/models. Raises FedbenchError for an unknown name."""
    if name not in _MODELS:
        raise unknown("model", name, _MODELS)
    return _MODELS[name].split(":")[0].rsplit(".", 1)[1] + ".py"


def initial(setting: Setting, shape: tuple[int, int, int], classes: int, further: int = 0) -> FLModel:
    """The network that runs of a setting begin with; `further` ones have the seeds after its own (see `build`)."""
    seed = setting.initial_seed + further
    return build(setting.model, shape=shape, classes=classes, seed=seed, as_torch=setting.init == "torch")


def build(
    name: str, *, shape: tuple[int, int, int], classes: int, seed: int, as_torch: bool = False, **options: Any
) -> FLModel:
    """A model on the CPU, its initial weights determined by `seed` alone; torch's global generators stay untouched.

    With `as_torch` the weights are those that a script gets which calls torch.manual_seed(seed) and makes the layers in
    order; else they come from a stream that no other use of the seed shares.

    `shape` is (height, width, channels) of an image in pixels; `options` are the model's own, such as `neck` of
    resnet18_gn. Raises FedbenchError for an unknown name or option and for images too small for the model.
    """
    if name not in _MODELS:
        raise unknown("model", name, _MODELS)
    if len(shape) != 3 or min(shape) < 1:
        raise FedbenchError(f"model {name} cannot take images of shape {shape}", "give height, width and channels")
    if classes < 2:
        raise FedbenchError(f"model {name} needs at least 2 classes, not {classes}")
    from fedbench.models.base import seeded

    module, attribute = _MODELS[name].split(":")
    model_class = getattr(importlib.import_module(module), attribute)
    known = set(inspect.signature(model_class).parameters) - {"shape", "classes"}
    for option in options:
        if option not in known:
            raise unknown(f"option of model {name}", option, known)
    with seeded(seed, "model"):
        model: FLModel = model_class(shape, classes, **options)
        with seeded(seed, None) if as_torch else contextlib.nullcontext():
            model.initialise(model)
    return model
