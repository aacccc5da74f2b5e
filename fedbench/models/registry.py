"""The networks by name, which may carry options: `resnet18_gn:projection_size=512`. Only making one imports torch."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError, check_known, unknown
from fedbench.imports import Import
from fedbench.plugins.load import Named

if TYPE_CHECKING:
    from fedbench.models.base import FLModel


# -- plugin ----------------------------------------------------------------------------------------------------
# Networks that are a user's own files.


networks = Named("model", "--model")
own_name, is_plugin, known = networks.name, networks.is_plugin, networks.known


def own_class(name: str) -> Callable[..., FLModel]:
    """What makes that network of the shape of an image and the number of classes, and checks its form.

    Raises FedbenchError for a class that is no network, PluginError for a file that does not load.
    """
    from fedbench.models.base import FLModel, check, check_arguments
    from fedbench.plugins import reported

    cls, at = networks.load(name, FLModel)
    check_arguments(cls, at.reference)

    @wraps(cls, updated=())
    def make(shape: tuple[int, int, int], classes: int, **options: Any) -> FLModel:
        with reported():
            network = cls(shape, classes, **options)  # type: ignore[arg-type]
            check(network, at.reference, shape, classes)
        return network

    return make


# -- registry --------------------------------------------------------------------------------------------------


_MODELS = {
    "cifar_cnn": "fedbench.models.cnn:CifarCNN",
    "cifar_cnn_bn": "fedbench.models.cnn:CifarCNNBN",
    "cifar_cnn_projection": "fedbench.models.cnn:CifarCNNProjection",
    "digits_cnn": "fedbench.models.cnn:DigitsCNN",
    "emnist_cnn": "fedbench.models.cnn:EmnistCNN",
    "lenet5": "fedbench.models.cnn:LeNet5",
    "lenet5_binary": "fedbench.models.cnn:LeNet5Binary",
    "lenet5_flux": "fedbench.models.cnn:LeNet5Flux",
    "lenet_gn": "fedbench.models.cnn:LeNetGN",
    "lenet_tanh": "fedbench.models.cnn:LeNetTanh",
    "mlp": "fedbench.models.cnn:MLP",
    "resnet18_bn": "fedbench.models.resnet:ResNet18BN",
    "resnet18_fedml": "fedbench.models.resnet:ResNet18FedML",
    "resnet18_gn": "fedbench.models.resnet:ResNet18GN",
    "resnet9": "fedbench.models.resnet:ResNet9",
}

#: Network -> its version, where that is not 1. Raise it when a change gives other numbers (tests/golden says when).
_VERSIONS: dict[str, int] = {}

#: What a name may say of a network: by option its default, or its choices, of which the first is the default.
_OPTIONS: dict[str, dict[str, int | tuple[str, ...]]] = {
    "cifar_cnn_projection": {"projection_size": 128},
    "lenet_gn": {"branch": ("deep", "mid", "shallow", "none")},
    "mlp": {"width": 200, "layers": 2},
    "resnet18_gn": {"projection_size": 256},
}

#: Networks of torchvision: its name, the name of pretrained weights, and whether these stay as they are.
_STANDARD = re.compile(r"torchvision:(?P<network>\w+)(?::(?P<weights>\w+)(?P<frozen>:frozen)?)?")
_SUCH = "such as torchvision:resnet18, or with pretrained weights torchvision:resnet18:IMAGENET1K_V1[:frozen]"


def names() -> list[str]:
    """The models that there are, without importing torch."""
    return sorted(_MODELS)


def named(name: str) -> str:
    """The name under which a spec knows a network: a user's file by its class and source, options in one order and
    without those that say the default. Raises FedbenchError for a file without the class and for a wrong option."""
    if name.partition(":")[0] not in _MODELS:
        return own_name(name)
    base, options = _parsed(name)
    text = ",".join(f"{option}={value}" for option, value in options.items() if value != _default(base, option))
    return f"{base}:{text}" if text else base


def version(name: str) -> int:
    """The version of a network; users' own are known by their text and are always of the first."""
    return _VERSIONS.get(name.partition(":")[0], 1)


def _parsed(name: str) -> tuple[str, dict[str, Any]]:
    """The network of fedbench that a name means and the options that it says, in the order of their declaration."""
    base, _, text = name.partition(":")
    there, values = _OPTIONS.get(base, {}), {}
    for part in text.split(",") if text else ():
        option, _, value = part.partition("=")
        check_known(f"option of model {base}", option, there)
        values[option] = _value(base, option, value)
    return base, {option: values[option] for option in there if option in values}


def _value(base: str, option: str, text: str) -> int | str:
    of = _OPTIONS[base][option]
    if isinstance(of, tuple):
        check_known(f"{option} of model {base}", text, of)
        return text
    if not text.isdecimal() or int(text) < 1:
        raise FedbenchError(f"{option} of model {base} is a number from 1 on, not '{text}'", f"{base}:{option}={of}")
    return int(text)


def _default(base: str, option: str) -> int | str:
    of = _OPTIONS[base][option]
    return of[0] if isinstance(of, tuple) else of


def check(name: str) -> None:
    """Raise FedbenchError unless there is such a network, in fedbench or among the files that were given."""
    if is_plugin(name):
        known(name)
    elif name.startswith("torchvision:"):
        if not _STANDARD.fullmatch(name):
            raise FedbenchError(f"'{name}' does not name a network of torchvision", _SUCH)
    elif name.partition(":")[0] in _MODELS:
        _parsed(name)
    else:
        raise unknown("model", name, (*_MODELS, "torchvision:NAME", "FILE.py:Class"))


def code_of(name: str) -> tuple[tuple[str, ...], tuple[Import, ...]]:
    """Where a network's code is: its file in the package, or the import statements of a user's own. Raises
    FedbenchError for an unknown name."""
    check(name)
    if is_plugin(name):
        return (), known(name).source.statements
    if name.startswith("torchvision:"):
        return ("models/standard.py",), ()
    base, _ = _parsed(name)
    return (f"models/{_MODELS[base].split(':')[0].rsplit('.', 1)[1]}.py",), ()


def class_of(name: str) -> Callable[..., FLModel]:
    """The class of a network, by name; imports torch. Raises FedbenchError for an unknown one."""
    check(name)
    if is_plugin(name):
        return own_class(name)
    if named := _STANDARD.fullmatch(name):
        from fedbench.models.standard import Choice, Standard

        return partial(Standard, Choice(named["network"], named["weights"], bool(named["frozen"])))
    base, options = _parsed(name)
    module, attribute = _MODELS[base].split(":")
    factory: Callable[..., FLModel] = getattr(importlib.import_module(module), attribute)
    return partial(factory, **options) if options else factory
