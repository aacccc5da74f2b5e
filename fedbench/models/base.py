"""The base class of all networks: backbone, projection, head."""

from __future__ import annotations

import contextlib
import copy
import inspect
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from fedbench.errors import FedbenchError


@contextlib.contextmanager
def seeded(seed: int, purpose: str | None) -> Iterator[None]:
    """Inside the block, torch draws (initial weights) on the CPU from a stream of (seed, purpose), or without a purpose
    as after torch.manual_seed(seed); afterwards torch's generator has its old state."""
    key = seed
    if purpose is not None:
        stream = np.random.SeedSequence([seed, zlib.crc32(purpose.encode())])
        key = int(stream.generate_state(1, np.uint64)[0] >> np.uint64(1))
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # torch.manual_seed would also reseed the accelerators, which fork_rng does not restore here.
        torch.default_generator.manual_seed(key)
        yield


class FLModel(nn.Module):
    """A classifier for federated learning: logits = head(projection(backbone(images))).

    `backbone` extracts features, `projection` projects them (the identity in many models), `head` is the last linear
    layer and nothing else. The body (or representation) is backbone and projection. Parameter names start with
    "backbone.", "projection." or "head."; norm layers have names such as norm or norm1, by which methods find their
    tensors. Forward passes are pure tensor code, so they can be vmapped over parameters and over the running statistics
    of batch norms.
    """

    def __init__(self, backbone: nn.Module, projection: nn.Module, head: nn.Linear, backbone_size: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.projection = projection
        self.head = head
        self.backbone_size = backbone_size  #: number of the backbone's output features
        self.feature_size = head.in_features  #: d, number of the projection's output features
        self.classes = head.out_features

    def features(self, x: Tensor) -> Tensor:
        """Features z [B, d] of images [B, channels, height, width]."""
        return self.projection(self.backbone(x))

    def latent(self, x: Tensor) -> Tensor:
        """Latents h [B, z] of images [B, channels, height, width]: the flattened maps after the last convolution, which
        are the inputs of the first linear layer. Default: the backbone's output; networks whose backbone contains
        linear layers override this."""
        h: Tensor = self.backbone(x)
        return h

    def from_latent(self, h: Tensor) -> Tensor:
        """Logits [B, classes] of latents [B, z]: forward(x) = from_latent(latent(x))."""
        return self.head(self.projection(h))

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, classes] of images [B, channels, height, width]."""
        return self.head(self.features(x))

    def branch(self, outputs: int, seed: int = 0) -> nn.Module:
        """A second head on the backbone's features, [B, backbone_size] -> [B, outputs]: a new projection and a linear
        layer.

        It is FedDRM's client branch if `outputs` is the number of clients. `seed` determines its weights, which are
        initialised like the model's; it is on the model's device.
        """
        projection = copy.deepcopy(self.projection).cpu()
        with seeded(seed, "branch"):
            branch = nn.Sequential(OrderedDict(projection=projection, head=nn.Linear(self.feature_size, outputs)))
            self.initialise(branch)
        return branch.to(self.head.weight.device)

    def initialise(self, module: nn.Module) -> None:
        """Initialise `module` (this model or one of its branches); default: torch's initialisation, with weights and
        biases uniform in +-1/sqrt(fan in), norms 1 and 0."""
        for part in module.modules():
            reset = getattr(part, "reset_parameters", None)
            if reset is not None:
                reset()


class Pixels(nn.Module):
    """First layer of networks that expect inputs other than the trainer's [-1, 1]: maps them to (pixel - mean) / std
    per channel, for pixels in [0, 1]. It has no trainable parameters."""

    def __init__(self, mean: Sequence[float] = (0.0,), std: Sequence[float] = (1.0,)) -> None:
        super().__init__()
        m, s = torch.tensor(mean), torch.tensor(std)
        self.register_buffer("scale", (0.5 / s)[:, None, None], persistent=False)
        self.register_buffer("offset", ((0.5 - m) / s)[:, None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.offset


def normalised_linear(inputs: int, outputs: int) -> nn.Sequential:
    """A linear layer, LayerNorm and ReLU: FedDRM's projection, and hidden layers of its LeNet."""
    layers = OrderedDict(linear=nn.Linear(inputs, outputs), norm=nn.LayerNorm(outputs), act=nn.ReLU())
    return nn.Sequential(layers)


def flat_size(layers: nn.Module, name: str, shape: tuple[int, int, int]) -> int:
    """Number of output values of `layers` for one image of `shape` (H, W, C).

    Raises FedbenchError if the image is too small.
    """
    height, width, channels = shape
    try:
        with torch.no_grad():
            # In evaluation mode, since a batch norm would learn from this image, or reject a batch of one.
            return layers.eval()(torch.zeros(1, channels, height, width)).numel()
    except RuntimeError as error:
        raise too_small(name, shape) from error
    finally:
        layers.train()


def too_small(name: str, shape: tuple[int, int, int]) -> FedbenchError:
    """The error for images that are too small for a model's pooling."""
    size = "x".join(str(n) for n in shape)
    if shape[:2] == (1, 1) and shape[2] not in (1, 3):
        return FedbenchError(f"model {name} takes images, not vectors of {shape[2]} values", "mlp is for vectors")
    return FedbenchError(f"images of {size} are too small for model {name}", "digits_cnn is the model for small images")


# -- form ------------------------------------------------------------------------------------------------------
# What the trainer, the methods and the executors require of a network.


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
            ("forward(x)", network(images)), ("head(features(x))", network.head(network.features(images))),
            ("from_latent(latent(x))", network.from_latent(network.latent(images))),
        ):  # fmt: skip
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
