"""What a network is made of, in numbers: its parameters by part, its latents, what a forward pass computes.

They are counted on the network itself, on torch's meta device, where tensors have shapes but no memory. Those that the
tables ask for are kept in counts.json beside this file, so that a report needs no torch:

    python -m fedbench.models.counts                         counts what the file has again
    python -m fedbench.models.counts resnet9 32x32x3 100     ... and this network
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
#: Of torchvision, and only ever counted (pFedFDA's Table 8).
MOBILENET = "mobilenet_v3_small"

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Counts:
    """Of a network on images of one shape."""

    backbone: int  #: parameters
    projection: int  #: ...
    head: int  #: ..., of mobilenet_v3_small those of its last two layers
    features: int  #: d, what the last linear layer reads
    latents: int  #: z, what the first linear layer reads
    forward: int  #: multiply-accumulates (MAC) of an image's forward pass, in convolutions and linear layers
    buffers: int  #: bytes of the state that are no parameters: statistics and counters of batch norms
    tensors: int  #: of floating-point numbers in the state

    @property
    def body(self) -> int:
        return self.backbone + self.projection

    @property
    def total(self) -> int:
        return self.body + self.head


def counts(model: str, shape: Shape, classes: int) -> Counts:
    """Of a model on images of `shape` (height, width, channels). A case that is not kept needs torch.

    Raises FedbenchError for an unknown model and for images that are too small for it.
    """
    kept = _kept().get(_name(model, shape, classes))
    return kept or _count(model, shape, classes)


def check(model: str) -> None:
    """Raise FedbenchError unless there is such a network to count."""
    if model != MOBILENET:
        registry.check(model)


@cache
def _kept() -> dict[str, Counts]:
    return {name: Counts(**numbers) for name, numbers in json.loads(FILE.read_text()).items()}


def _name(model: str, shape: Shape, classes: int) -> str:
    return f"{model} {'x'.join(map(str, shape))} {classes}"


@cache
def _count(model: str, shape: Shape, classes: int) -> Counts:
    check(model)
    import torch
    from torch import nn

    sizes: dict[nn.Module, tuple[int, int]] = {}  # layer -> values that it reads of an image, and its MAC

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
    return Counts(
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
    """The network; backbone, projection and head."""
    network = registry.class_of(model)(shape, classes)
    return network, [network.backbone, network.projection, network.head]


def _mobilenet(shape: Shape, classes: int) -> tuple[nn.Module, list[nn.Module]]:
    """torchvision's; its head has two layers, and d are the features between them."""
    from torch import nn

    from fedbench.vision import torchvision

    if shape[2] != 3:
        raise FedbenchError(f"{MOBILENET} is counted on images of three channels, not of {shape[2]}")
    if min(shape) < 1:
        raise FedbenchError(f"{MOBILENET} is counted on images of pixels, not of {shape[0]}x{shape[1]}")
    network = torchvision().models.mobilenet_v3_small(num_classes=classes)
    return network, [network.features, nn.Identity(), network.classifier]


def main(arguments: list[str]) -> None:
    """Write the file."""
    names = dict.fromkeys([*_kept(), *([" ".join(arguments)] if arguments else [])])
    FILE.write_text(json.dumps({name: asdict(_count(*case(name))) for name in names}, indent=1) + "\n")


def case(name: str) -> tuple[str, Shape, int]:
    """Model, shape of an image and classes, from their name in the file."""
    model, size, classes = name.split(" ")
    height, width, channels = map(int, size.split("x"))
    return model, (height, width, channels), int(classes)


if __name__ == "__main__":
    main(sys.argv[1:])
