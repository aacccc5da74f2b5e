"""torchvision's image classifiers: `torchvision:NAME`, with `:WEIGHTS` pretrained, with a further `:frozen` for a
backbone that keeps its pretrained weights."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple
from urllib.error import URLError

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from fedbench.errors import FedbenchError, check_known
from fedbench.models.base import FLModel, Pixels
from fedbench.vision import torchvision

#: Normalisation for which torchvision's weights were trained, per channel, for pixels in [0, 1].
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: Layers that are renamed to `norm`.
_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm)
#: Networks of torchvision whose last layer is not one linear layer.
_OTHER_HEADS = ("googlenet", "inception", "squeezenet")


class StandardName(NamedTuple):
    """The parsed name of a network, such as torchvision:resnet18:IMAGENET1K_V1:frozen."""

    network: str
    weights: str | None = None  #: their name in torchvision
    frozen: bool = False


class Standard(FLModel):
    """A network of torchvision whose last linear layer is the head and all before it the backbone.

    Grey images are expanded to three equal channels. Norm layers get the name `norm`. Dropout and stochastic depth are
    off, because their draws would not come from the run's streams. Without weights, torchvision initialises it.
    """

    def __init__(self, choice: StandardName, shape: tuple[int, int, int], classes: int) -> None:
        if shape[2] not in (1, 3):
            raise FedbenchError(f"torchvision's {choice.network} takes images of 1 or 3 channels, not {shape[2]}")
        network, size = _without_head(choice)
        layers = OrderedDict(pixels=Pixels(MEAN, STD), network=Frozen(network) if choice.frozen else network)
        super().__init__(nn.Sequential(layers), nn.Identity(), nn.Linear(size, classes), backbone_size=size)
        self.choice = choice
        self._check(shape)

    def initialise(self, module: nn.Module) -> None:
        if module is not self:
            super().initialise(module)
            return
        if self.choice.weights is None:
            self.backbone.network.load_state_dict(_without_head(self.choice)[0].state_dict())  # type: ignore[union-attr]
        self.head.reset_parameters()

    def as_torchvision(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state dict under torchvision's names, as `get_model(network, num_classes=...)` loads it, including frozen
        weights. The inputs of that network must be normalised with MEAN and STD."""
        self.load_state_dict(state)
        whole = self.backbone.network  # type: ignore[union-attr]
        network = whole.network if isinstance(whole, Frozen) else whole
        out = {}
        for path, layer in network.named_modules():  # type: ignore[union-attr,operator]
            path = path.removesuffix(".norm") if isinstance(layer, _NORMS) else path
            for name, tensor in (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)):
                out[f"{path}.{name}"] = tensor.detach()
        plain = torchvision().models.get_model(self.choice.network, num_classes=self.classes)
        head = list(plain.named_modules())[-1][0]
        out |= {f"{head}.{name}": tensor.detach() for name, tensor in self.head.state_dict().items()}
        return {name: out[name] for name in plain.state_dict()}

    @torch.no_grad()
    def _check(self, shape: tuple[int, int, int]) -> None:
        """Raise FedbenchError unless the backbone accepts images of (height, width, channels)."""
        try:
            self.eval()(torch.zeros(1, shape[2], *shape[:2]))
        except (AssertionError, RuntimeError) as error:
            sizes = "x".join(map(str, shape))
            wrong = f"torchvision's {self.choice.network} cannot take images of {sizes}: {error}"
            raise FedbenchError(wrong, "choose another network, or larger images") from error
        finally:
            self.train()


class Frozen(nn.Module):
    """A network whose weights and running statistics never change and are not part of the state."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        for layer in network.modules():
            for name, tensor in (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)):
                delattr(layer, name)
                layer.register_buffer(name, tensor.detach(), persistent=False)
            if isinstance(layer, _NormBase):
                layer.track_running_stats = False  # otherwise loading a state requires num_batches_tracked

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.network(x)
        return out

    def train(self, mode: bool = True) -> Frozen:
        return super().train(False)


def _without_head(choice: StandardName) -> tuple[nn.Module, int]:
    """torchvision's network without its last linear layer, and that layer's number of inputs."""
    models = torchvision().models
    names = [name for name in models.list_models(module=models) if not name.startswith(_OTHER_HEADS)]
    check_known("network of torchvision", choice.network, names)
    weights = {w.name: w for w in models.get_model_weights(choice.network)}
    check_known(f"weights of torchvision's {choice.network}", choice.weights, weights)
    try:
        network: nn.Module = models.get_model(choice.network, weights=weights.get(choice.weights or ""))
    except URLError as error:
        wrong = f"the weights {choice.weights} of torchvision's {choice.network} cannot be downloaded: {error.reason}"
        raise FedbenchError(wrong, "put the file into $TORCH_HOME/hub/checkpoints") from error
    name, head = list(network.named_modules())[-1]
    assert isinstance(head, nn.Linear)
    network.set_submodule(name, nn.Identity())
    for name, layer in list(network.named_modules()):
        if isinstance(layer, _NORMS):
            network.set_submodule(name, nn.Sequential(OrderedDict(norm=layer)))
        elif isinstance(layer, _DropoutNd | torchvision().ops.StochasticDepth):
            layer.p = 0.0
        elif hasattr(layer, "inplace"):
            layer.inplace = False
    return network, head.in_features
