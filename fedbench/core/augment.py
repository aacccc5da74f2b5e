"""Pixels to network input, whole batches at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def resized_crop(images: Tensor, windows: Tensor) -> Tensor:
    """Crop each image to its window and resize it back, bilinearly.

    images [B, H, W, C] uint8; windows [B, 4] int64 (top, left, height, width), not larger than the image, so that
    resizing only enlarges and has two taps a direction. Rounds to 8 bits after each direction, as Pillow does.
    Returns [B, H, W, C] float32 in 0..255.
    """
    size, channels = images.shape[1:3], images.shape[3]
    top, left, h, w = windows.unbind(1)
    x = images.float()
    x = _stretch(x, left, w, size[1], dim=2)
    x = _stretch(x, top, h, size[0], dim=1)
    assert x.shape[3] == channels
    return x


def _stretch(x: Tensor, start: Tensor, length: Tensor, out: int, dim: int) -> Tensor:
    at = (torch.arange(out, device=x.device)[None] + 0.5) * (length / out)[:, None] - 0.5
    at = at.clamp(min=0).minimum((length - 1)[:, None])
    low = at.floor()
    weight = at - low
    first = low.long() + start[:, None]
    second = torch.minimum(first + 1, (start + length - 1)[:, None])
    shape = [x.shape[0], 1, 1, 1]
    shape[dim] = out
    batch = torch.arange(x.shape[0], device=x.device)[:, None]
    if dim == 1:
        a, b = x[batch, first], x[batch, second]
    else:
        # Advanced indices on both sides of a slice come first: [B, W, H, C] back to [B, H, W, C].
        a, b = x[batch, :, first].transpose(1, 2), x[batch, :, second].transpose(1, 2)
    return torch.lerp(a, b, weight.reshape(shape)).round_()


def to_input(images: Tensor) -> Tensor:
    """[B, H, W, C] pixels 0..255 to [B, C, H, W] float32 in [-1, 1] (mean 0.5, std 0.5), channels-last in memory."""
    return (images.float() / 127.5 - 1.0).permute(0, 3, 1, 2)
