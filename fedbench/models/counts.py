"""Sizes of a network: parameters per part, latents, and operations of a forward pass.

They are counted on torch's meta device, where tensors have shapes but no memory. counts.json stores the cases that
tables need, so that reports do not import torch:

    python -m fedbench.models.counts                         recompute the cases in the file
    python -m fedbench.models.counts resnet9 32x32x3 100     ... and add this case
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError
from fedbench.models import registry

if TYPE_CHECKING:
    from torch import nn

FILE = Path(__file__).with_name("counts.json")
#: A network of torchvision that is only counted (pFedFDA's Table 8).
MOBILENET = "mobilenet_v3_small"

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class NetworkSizes:
    """Sizes of a network for images of one shape."""

    backbone: int  #: number of parameters
    projection: int  #: ...
    head: int  #: ...; for mobilenet_v3_small the last two layers
    features: int  #: d, inputs of the last linear layer
    latents: int  #: z, inputs of the first linear layer
    forward: int  #: multiply-accumulates (MAC) of convolutions and linear layers in one image's forward pass
    buffers: int  #: bytes of the state other than parameters: statistics and counters of batch norms
    tensors: int  #: number of floating-point tensors in the state

    @property
    def body(self) -> int:
        return self.backbone + self.projection

    @property
    def total(self) -> int:
        return self.body + self.head


def counts(model: str, shape: Shape, classes: int) -> NetworkSizes:
    """The sizes of a model for images of `shape` (height, width, channels). Imports torch for cases not in counts.json.

    Raises FedbenchError for an unknown model and for images that are too small for it.
    """
    kept = _kept().get(_name(model, shape, classes))
    return kept or _count(model, shape, classes)


def check(model: str) -> None:
    """Raise FedbenchError unless the model can be counted."""
    if model != MOBILENET:
        registry.check(model)


@cache
def _kept() -> dict[str, NetworkSizes]:
    return {name: NetworkSizes(**numbers) for name, numbers in json.loads(FILE.read_text()).items()}


def _name(model: str, shape: Shape, classes: int) -> str:
    return f"{model} {'x'.join(map(str, shape))} {classes}"


@cache
def _count(model: str, shape: Shape, classes: int) -> NetworkSizes:
    check(model)
    import torch
    from torch import nn

    sizes: dict[nn.Module, tuple[int, int]] = {}  # layer -> number of input values per image, and its MAC

    def note(layer: Any, inputs: Any, out: Any) -> None:
        sizes[layer] = (inputs[0][0].numel(), out[0].numel() * layer.weight[0].numel())

    with torch.device("meta"), torch.no_grad():
        network, parts = _mobilenet(shape, classes) if model == MOBILENET else _own(model, shape, classes)
        network.eval()
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.register_forward_hook(note)
        network(torch.zeros(1, shape[2], *shape[:2]))
    linear = [size for layer, (size, _) in sizes.items() if isinstance(layer, nn.Linear)]
    state, parameters = network.state_dict(), dict(network.named_parameters())
    backbone, projection, head = (sum(p.numel() for p in part.parameters()) for part in parts)
    return NetworkSizes(
        backbone=backbone,
        projection=projection,
        head=head,
        features=linear[-1],
        latents=linear[0],
        forward=sum(mac for _, mac in sizes.values()),
        buffers=sum(t.numel() * t.element_size() for name, t in state.items() if name not in parameters),
        tensors=sum(t.is_floating_point() for t in state.values()),
    )


def _own(model: str, shape: Shape, classes: int) -> tuple[nn.Module, list[nn.Module]]:
    """The network, and its backbone, projection and head."""
    network = registry.class_of(model)(shape, classes)
    return network, [network.backbone, network.projection, network.head]


def _mobilenet(shape: Shape, classes: int) -> tuple[nn.Module, list[nn.Module]]:
    """torchvision's network; its head has two layers, and d counts the features between them."""
    from torch import nn

    from fedbench.vision import torchvision

    if shape[2] != 3:
        raise FedbenchError(f"{MOBILENET} is counted on images of three channels, not of {shape[2]}")
    if min(shape) < 1:
        raise FedbenchError(f"{MOBILENET} is counted on images of pixels, not of {shape[0]}x{shape[1]}")
    network = torchvision().models.mobilenet_v3_small(num_classes=classes)
    return network, [network.features, nn.Identity(), network.classifier]


def main(arguments: list[str]) -> None:
    """Write counts.json."""
    names = dict.fromkeys([*_kept(), *([" ".join(arguments)] if arguments else [])])
    FILE.write_text(json.dumps({name: asdict(_count(*case(name))) for name in names}, indent=1) + "\n")


def case(name: str) -> tuple[str, Shape, int]:
    """Model, image shape and number of classes, from a key of counts.json."""
    model, size, classes = name.split(" ")
    height, width, channels = map(int, size.split("x"))
    return model, (height, width, channels), int(classes)


if __name__ == "__main__":
    main(sys.argv[1:])
