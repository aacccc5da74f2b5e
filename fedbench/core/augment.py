"""Pixels to network input, whole batches at a time."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def resized_crop(images: Tensor, windows: Tensor) -> Tensor:
    """Crop each image to its window and resize it back, bilinearly.

    images [B, H, W, C] uint8; windows [B, 4] int64 (top, left, height, width), not larger than the image, so that
    resizing only enlarges and has two taps a direction. Horizontal first, then vertical, rounded to 8 bits after
    each, as Pillow does. Returns [B, H, W, C] float32 in 0..255.

    Each direction is a batched matrix product with a mostly empty [out, in] matrix: far faster here than gathering
    the two taps.
    """
    b, h, w, c = images.shape
    top, left, height, width = windows.unbind(1)
    x = images.transpose(1, 2).float().reshape(b, w, h * c)
    x = torch.bmm(_taps(left, width, w), x).add_(0.5).floor_()  # halves go up, as in Pillow
    x = x.view(b, w, h, c).transpose(1, 2).reshape(b, h, w * c)
    return torch.bmm(_taps(top, height, h), x).add_(0.5).floor_().view(b, h, w, c)


def _taps(start: Tensor, length: Tensor, size: int) -> Tensor:
    """[B, size, size] float32 weights of bilinear resizing from start..start + length - 1 to the whole size."""
    pixels = torch.arange(size, device=start.device)
    at = (pixels + 0.5) * (length / size)[:, None] - 0.5
    at = at.clamp(min=0).minimum((length - 1)[:, None]) + start[:, None]
    return (1 - (at[:, :, None] - pixels).abs()).clamp_(min=0)


def padded_flip(images: Tensor, places: Tensor, padding: int) -> Tensor:
    """Pad each image with black, cut one of its size out, and flip it left to right or not.

    images [B, H, W, C]; places [B, 4] int64 as PadFlipStream draws them. Returns [B, H, W, C] of the same type.
    """
    b, h, w, _ = images.shape
    top, left, flip, _ = places.unbind(1)
    down = torch.arange(h, device=images.device)
    across = torch.arange(w, device=images.device).expand(b, w)
    across = torch.where(flip[:, None] > 0, w - 1 - across, across)
    padded = F.pad(images, (0, 0, padding, padding, padding, padding))
    which = torch.arange(b, device=images.device)
    return padded[which[:, None, None], (top[:, None] + down)[:, :, None], (left[:, None] + across)[:, None, :]]


def to_input(images: Tensor) -> Tensor:
    """[B, H, W, C] pixels 0..255 to [B, C, H, W] float32 in [-1, 1] (mean 0.5, std 0.5), channels-last in memory."""
    return images.to(torch.float32, copy=True).div_(127.5).sub_(1.0).permute(0, 3, 1, 2)
