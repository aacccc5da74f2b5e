"""The base class of all networks: backbone, projection, head."""

from __future__ import annotations

import contextlib
import copy
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

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
