"""What the trainer, the methods and the executors require of a network, and the checks of users' networks."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from fedbench.errors import FedbenchError
from fedbench.models.base import FLModel

PARTS = ("backbone", "projection", "head")
#: Number of images that the checks use.
_FEW = 2
#: Layers with random draws in training, from a generator that a run's seed does not control.
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


def check_arguments(cls: type[FLModel], label: str) -> None:
    """Raise FedbenchError unless the class takes (shape, classes)."""
    try:
        inspect.signature(cls).bind((1, 1, 1), 2)
    except TypeError:
        form = ", ".join(inspect.signature(cls).parameters)
        raise FedbenchError(f"{label} takes ({form}), not (shape, classes)", _INIT) from None


_INIT = "write def __init__(self, shape, classes): with shape = (height, width, channels) of an image"
_SUPER = "end __init__ with super().__init__(backbone, projection, head, backbone_size=...)"


def check(network: FLModel, label: str, shape: tuple[int, int, int], classes: int) -> None:
    """Raise FedbenchError unless the network has the three parts with the declared sizes, and can be trained by all
    executors and methods."""
    for part in PARTS:
        if not isinstance(getattr(network, part, None), nn.Module):
            raise FedbenchError(f"{label} has no {part}", _SUPER)
    for name in ("backbone_size", "feature_size", "classes"):
        if not isinstance(getattr(network, name, None), int):
            raise FedbenchError(f"{label} has no {name}", _SUPER)
    head = network.head
    if type(head) is not nn.Linear:
        raise FedbenchError(f"the head of {label} is {type(head).__name__}", "it is one nn.Linear and nothing else")
    if head.out_features != classes:
        wrong = f"the head of {label} gives {head.out_features} classes where there are {classes}"
        raise FedbenchError(wrong, "make it nn.Linear(features, classes)")
    _check_tensors(network, label)
    for name, layer in network.named_modules():
        _check_layer(name, layer, label)
    _check_values(network, label, shape)


def _check_tensors(network: FLModel, label: str) -> None:
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if name.split(".")[0] not in PARTS:
            raise FedbenchError(
                f"'{name}' of {label} is in none of its parts", "put it into the backbone, projection or head"
            )
        if tensor.is_floating_point() and tensor.dtype is not torch.float32:
            raise FedbenchError(f"'{name}' of {label} is {tensor.dtype}", "a network is float32 as it is made")


def _check_layer(name: str, layer: nn.Module, label: str) -> None:
    if isinstance(layer, _RANDOM) and getattr(layer, "p", 1) != 0:
        wrong = f"'{name}' of {label} is {type(layer).__name__}, which draws from torch's own generator"
        raise FedbenchError(wrong, "leave it out: a run made twice would not be the same")
    if isinstance(layer, _NormBase | nn.GroupNorm | nn.LayerNorm):
        if not any(part.startswith("norm") for part in name.split(".")):
            wrong = f"'{name}' of {label} is {type(layer).__name__}"
            raise FedbenchError(wrong, "call it norm, norm1, ...: FedBN tells by the name what a client keeps")
        if isinstance(layer, _BatchNorm) and layer.running_mean is None:
            wrong = f"'{name}' of {label} keeps no running statistics, so answers depend on who is asked together"
            raise FedbenchError(wrong, "leave out track_running_stats=False, or take nn.GroupNorm")
        if isinstance(layer, _BatchNorm) and layer.momentum is None:
            wrong = f"'{name}' of {label} averages its statistics over all batches (momentum=None)"
            raise FedbenchError(wrong, "give it a momentum, such as torch's own 0.1")


@torch.no_grad()
def _check_values(network: FLModel, label: str, shape: tuple[int, int, int]) -> None:
    """Raise FedbenchError unless each part's output has the declared size, on two black images."""
    height, width, channels = shape
    images, training = torch.zeros(_FEW, channels, height, width), network.training
    network.eval()
    try:
        backbone = _sized(network.backbone(images), network.backbone_size, f"the backbone of {label}", "backbone_size")
        size = network.feature_size
        z = _sized(
            network.projection(backbone),
            size,
            f"the projection of {label} (or the backbone, if it has none)",
            "in_features of head",
        )
        logits = network.head(z)
        for name, ours in (
            ("forward(x)", network(images)),
            ("head(features(x))", network.head(network.features(images))),
            ("from_latent(latent(x))", network.from_latent(network.latent(images))),
        ):
            if not (isinstance(ours, Tensor) and ours.shape == logits.shape and torch.allclose(ours, logits)):
                raise FedbenchError(
                    f"{name} of {label} is not head(projection(backbone(x)))", "override none of them, or all alike"
                )
    except RuntimeError as error:
        sizes = "x".join(str(n) for n in shape)
        if "size" in str(error) and "mat1" not in str(error):
            raise FedbenchError(f"{label} cannot take images of {sizes}: {error}", "see its layers") from error
        raise
    finally:
        network.train(training)


def _sized(out: object, size: int, what: str, name: str) -> Tensor:
    if not isinstance(out, Tensor) or out.shape != (_FEW, size):
        form = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise FedbenchError(
            f"{what} gives {form} for {_FEW} images, and {name} says {[_FEW, size]}",
            "end it with nn.Flatten(), and count what comes out (models.base.flat_size does)",
        )
    return out
