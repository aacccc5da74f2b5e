"""Networks in the words of a paper."""

from __future__ import annotations

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


def title(name: str) -> str:
    """The network of this name, with or without options, in words; a network of torchvision or a user's by its own
    name."""
    network, _, rest = name.partition(":")
    if network == "torchvision":
        return f"torchvision's {rest.partition(':')[0]}" + (", pretrained" if ":" in rest else "")
    return _TITLES.get(network, network.partition("@")[0])
