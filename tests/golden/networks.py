"""Checksums of what every network computes: its initial weights, and its answers after two steps of SGD.

    python -m tests.golden.networks compare | write

The images are of the size that the network is for, drawn at random. As with predictions, a change needs another version
(`models/registry.py:_VERSIONS`), and `write` refuses one without.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import torch

from fedbench import models
from fedbench.models import registry
from tests.golden import portable
from tests.golden.compare import command

FILE = Path(__file__).with_name("networks.json")

#: (height, width, channels) of images, by the beginning of a network's name; else those of CIFAR-10.
SHAPES = {"digits": (8, 8, 1), "emnist": (28, 28, 1), "lenet5": (28, 28, 1), "lenet_tanh": (28, 28, 1)}


def digest(name: str) -> str:
    """SHA-256 of a network's initial weights and of its answers to four images after two steps."""
    shape = next((shape for start, shape in SHAPES.items() if name.startswith(start)), (32, 32, 3))
    classes = 2 if "binary" in name else 10
    network = models.build(name, shape=shape, classes=classes, seed=3)
    sums = hashlib.sha256()
    for key, value in sorted(network.state_dict().items()):
        sums.update(key.encode() + value.numpy().tobytes())
    draw = torch.Generator().manual_seed(0)
    images = torch.rand(4, shape[2], *shape[:2], generator=draw)
    labels = torch.arange(4) % classes
    steps = torch.optim.SGD(network.parameters(), lr=0.05)
    network.train()
    for _ in range(2):
        steps.zero_grad()
        torch.nn.functional.cross_entropy(_logits(network(images)), labels).backward()
        steps.step()
    network.eval()
    with torch.no_grad():
        sums.update(_logits(network(images)).numpy().tobytes())
    return sums.hexdigest()[:16]


def _logits(answer: Any) -> torch.Tensor:
    return answer if isinstance(answer, torch.Tensor) else answer[-1]


def measure() -> tuple[dict[str, str], dict[str, str]]:
    """Network -> checksum; and -> its version."""
    names = registry.names()
    return {name: digest(name) for name in names}, {name: str(registry.version(name)) for name in names}


def main(what: str) -> int:
    return command(what, FILE, ("versions", "networks"), measure()[::-1], lambda name: True)


if __name__ == "__main__":
    portable.again("tests.golden.networks")
    sys.exit(main(*sys.argv[1:]))
