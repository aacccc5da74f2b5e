"""The networks by name. Only making one imports torch."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from fedbench.errors import FedbenchError, unknown
from fedbench.imports import Import
from fedbench.models import plugin

if TYPE_CHECKING:
    from fedbench.models.base import FLModel

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

#: Networks of torchvision: its name, the name of pretrained weights, and whether these stay as they are.
_STANDARD = re.compile(r"torchvision:(?P<network>\w+)(?::(?P<weights>\w+)(?P<frozen>:frozen)?)?")
_SUCH = "such as torchvision:resnet18, or with pretrained weights torchvision:resnet18:IMAGENET1K_V1[:frozen]"


def names() -> list[str]:
    """The models that there are, without importing torch."""
    return sorted(_MODELS)


def check(name: str) -> None:
    """Raise FedbenchError unless there is such a network, in fedbench or among the files that were given."""
    if plugin.is_plugin(name):
        plugin.known(name)
    elif name.startswith("torchvision:"):
        if not _STANDARD.fullmatch(name):
            raise FedbenchError(f"'{name}' does not name a network of torchvision", _SUCH)
    elif name not in _MODELS:
        raise unknown("model", name, _MODELS)


def code_of(name: str) -> tuple[tuple[str, ...], tuple[Import, ...]]:
    """Where a network's code is: its file in the package, or the import statements of a user's own. Raises
    FedbenchError for an unknown name."""
    check(name)
    if plugin.is_plugin(name):
        return (), plugin.statements(name)
    if name not in _MODELS:
        return ("models/standard.py",), ()
    return (f"models/{_MODELS[name].split(':')[0].rsplit('.', 1)[1]}.py",), ()


def class_of(name: str) -> Callable[..., FLModel]:
    """The class of a network, by name; imports torch. Raises FedbenchError for an unknown one."""
    check(name)
    if plugin.is_plugin(name):
        return plugin.class_of(name)
    if named := _STANDARD.fullmatch(name):
        from fedbench.models.standard import Choice, Standard

        return partial(Standard, Choice(named["network"], named["weights"], bool(named["frozen"])))
    module, attribute = _MODELS[name].split(":")
    factory: Callable[..., FLModel] = getattr(importlib.import_module(module), attribute)
    return factory
