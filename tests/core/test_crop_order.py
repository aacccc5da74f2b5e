"""Colours are shifted once, then cropped; FedDRM's code crops first. How far apart the pixels are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedbench.core.augment import resized_crop
from fedbench.core.plan import CropStream
from fedbench.partitions.transforms import apply, of_clients
from fedbench.rng import stream
from tests.support.real_images import RealImages


@pytest.mark.slow
def test_the_order_of_crop_and_colour_hardly_matters(real_images: RealImages) -> None:
    images = real_images.load("cifar10").images[:200]
    windows = torch.from_numpy(CropStream(stream(1, "order"), (32, 32)).draw(len(images)))
    for shift in of_clients("high", 8):
        ours = resized_crop(torch.from_numpy(apply(images, shift)), windows).numpy()
        cropped = resized_crop(torch.from_numpy(images), windows).numpy().astype(np.uint8)
        theirs = apply(cropped, shift).astype(np.float32)
        gap = np.abs(ours - theirs)
        assert gap.mean() < 1.0, f"{shift}: {gap.mean():.2f} grey levels on average"
        assert gap.mean() > 0, "the orders do differ; if not, this test compares nothing"
