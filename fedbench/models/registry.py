"""Networks by name, with options as in `resnet18_gn:projection_size=512`. Imports torch only to build one."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError, check_known, unknown
from fedbench.imports import Import
from fedbench.plugins.named import Named

if TYPE_CHECKING:
    from fedbench.models.base import FLModel


networks = Named("model", "--model")
own_name, is_plugin, known = networks.name, networks.is_plugin, networks.known


def own_class(name: str) -> Callable[..., FLModel]:
    """A function that builds a user's network from an image shape and the number of classes, and checks it.

    Raises FedbenchError for a class that is not a network, PluginError for a file that does not load.
    """
    from fedbench.models.base import FLModel
    from fedbench.models.form import check, check_arguments
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

#: Network -> its version, if not 1. Increase it when a change affects results (tests/golden shows that).
_VERSIONS: dict[str, int] = {}

#: Options of a network's name: option -> its default, or its choices, of which the first is the default.
_OPTIONS: dict[str, dict[str, int | tuple[str, ...]]] = {
    "cifar_cnn_projection": {"projection_size": 128},
    "lenet_gn": {"branch": ("deep", "mid", "shallow", "none")},
    "mlp": {"width": 200, "layers": 2},
    "resnet18_gn": {"projection_size": 256},
}

#: Network -> what a paper calls it.
_TITLES = {
    "cifar_cnn": "a 5-layer CNN",
    "cifar_cnn_bn": "a 5-layer CNN with batch norm",
    "cifar_cnn_projection": "a small CNN with a projection layer",
    "digits_cnn": "a small CNN",
    "emnist_cnn": "a 4-layer CNN",
    "lenet5": "LeNet-5",
    "lenet5_binary": "LeNet-5",
    "lenet5_flux": "LeNet-5",
    "lenet_gn": "LeNet with group norm",
    "lenet_tanh": "LeNet-5 with tanh",
    "mlp": "a multilayer perceptron",
    "resnet18_bn": "ResNet-18",
    "resnet18_fedml": "ResNet-18 with group norm",
    "resnet18_gn": "ResNet-18 with group norm",
    "resnet9": "ResNet-9",
}

#: The largest number as an option, because memory is short long before.
MOST = 10_000

#: Networks of torchvision: the network's name, the name of pretrained weights, and `frozen` to keep these unchanged.
_STANDARD = re.compile(r"torchvision:(?P<network>\w+)(?::(?P<weights>\w+)(?P<frozen>:frozen)?)?")
_SUCH = "such as torchvision:resnet18, or with pretrained weights torchvision:resnet18:IMAGENET1K_V1[:frozen]"


def names() -> list[str]:
    """Names of fedbench's networks, without importing torch."""
    return sorted(_MODELS)


def named(name: str) -> str:
    """A network's name in specs: a user's class with a digest of its file; options in a fixed order, without those that
    have default values. Raises FedbenchError for a missing class and for an invalid option."""
    if name.partition(":")[0] not in _MODELS:
        return own_name(name)
    base, options = _parsed(name)
    text = ",".join(f"{option}={value}" for option, value in options.items() if value != _default(base, option))
    return f"{base}:{text}" if text else base


def title(name: str) -> str:
    """The network of this name, with or without options, in words; a network of torchvision or a user's by its own
    name."""
    network, _, rest = name.partition(":")
    if network == "torchvision":
        return f"torchvision's {rest.partition(':')[0]}" + (", pretrained" if ":" in rest else "")
    return _TITLES.get(network, network.partition("@")[0])


def version(name: str) -> int:
    """The version of a network; always 1 for users' networks, which a digest identifies."""
    return _VERSIONS.get(name.partition(":")[0], 1)


def _parsed(name: str) -> tuple[str, dict[str, Any]]:
    """Split the name of a fedbench network into network and options, in the order of declaration."""
    base, _, text = name.partition(":")
    there, values = _OPTIONS.get(base, {}), {}
    for part in text.split(",") if text else ():
        option, _, value = part.partition("=")
        check_known(f"option of model {base}", option, there)
        if option in values:
            raise FedbenchError(f"{option} of model {base} is given twice", f"give one, as in {base}:{option}={value}")
        values[option] = _value(base, option, value)
    return base, {option: values[option] for option in there if option in values}


def _value(base: str, option: str, text: str) -> int | str:
    of = _OPTIONS[base][option]
    if isinstance(of, tuple):
        check_known(f"{option} of model {base}", text, of)
        return text
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        wrong = f"{option} of model {base} is a number from 1 to {MOST:,}, not '{text}'"
        raise FedbenchError(wrong, f"{base}:{option}={of}")
    return int(text)


def _default(base: str, option: str) -> int | str:
    of = _OPTIONS[base][option]
    return of[0] if isinstance(of, tuple) else of


def check(name: str) -> None:
    """Raise FedbenchError unless the network exists, in fedbench, torchvision or the given files."""
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
    """A network's code: its file in the package, or the import statements of a user's file. Raises FedbenchError for an
    unknown name."""
    check(name)
    if is_plugin(name):
        return (), known(name).source.statements
    if name.startswith("torchvision:"):
        return ("models/standard.py",), ()
    base, _ = _parsed(name)
    return (f"models/{_MODELS[base].split(':')[0].rsplit('.', 1)[1]}.py",), ()


def class_of(name: str) -> Callable[..., FLModel]:
    """A function that builds the network of this name; imports torch. Raises FedbenchError for an unknown name."""
    check(name)
    if is_plugin(name):
        return own_class(name)
    if named := _STANDARD.fullmatch(name):
        from fedbench.models.standard import Standard, StandardName

        return partial(Standard, StandardName(named["network"], named["weights"], bool(named["frozen"])))
    base, options = _parsed(name)
    module, attribute = _MODELS[base].split(":")
    factory: Callable[..., FLModel] = getattr(importlib.import_module(module), attribute)
    return partial(factory, **options) if options else factory
