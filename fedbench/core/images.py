"""Images for a forward pass: which rows at a time, their crop windows, and pixels to network input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.core.plan import CropStream

#: Images per draw of crop windows, and per forward pass without gradients. Changing it changes draws and rounding.
CHUNK = 512
#: Images per forward pass of one model on a CPU, at most; larger passes need more memory and are hardly faster.
CPU_CHUNK = 64


class Piece(NamedTuple):
    """Images of one forward pass: rows [B] of the federation, crop windows [B, 4] or None."""

    rows: Tensor
    windows: Tensor | None

    @classmethod
    def joined(cls, pieces: Sequence[Piece]) -> Piece:
        windows = [piece.windows for piece in pieces if piece.windows is not None]
        return cls(torch.cat([piece.rows for piece in pieces]), torch.cat(windows) if windows else None)

    def split(self, size: int) -> list[Piece]:
        """Split into pieces of `size` images; the last may be smaller."""
        rows = torch.split(self.rows, size)
        windows = torch.split(self.windows, size) if self.windows is not None else (None,) * len(rows)
        return [Piece(*both) for both in zip(rows, windows, strict=True)]


def pieces(rows: Tensor, crops: CropStream | None) -> list[Piece]:
    """Split the rows into pieces for one model, with crop windows if the images are cropped."""
    drawn = [Piece(part, windows_of(crops, part)) for part in torch.split(rows, CHUNK)]
    if rows.device.type != "cpu":
        return drawn
    return [part for piece in drawn for part in piece.split(_even(len(piece.rows)))]


def _even(n: int) -> int:
    """Size of the parts if n images are split evenly into as few parts of at most CPU_CHUNK as possible; a last part of
    one image would use another kernel."""
    return -(-n // max(1, -(-n // CPU_CHUNK)))


def windows_of(crops: CropStream | None, rows: Tensor) -> Tensor | None:
    return None if crops is None else torch.from_numpy(crops.draw(len(rows))).to(rows.device)


def resized_crop(images: Tensor, windows: Tensor) -> Tensor:
    """Crop each image to its window and resize it back, bilinearly.

    images [B, H, W, C] uint8; windows [B, 4] int64 (top, left, height, width), not larger than the image, so that
    resizing only enlarges and needs two source pixels per direction. Resizes horizontally, then vertically, and rounds
    to 8 bits after each, as Pillow does. Returns [B, H, W, C] float32 in 0..255.

    Each direction is a batched product with a sparse [out, in] matrix, which is much faster than gathering the pixels.
    """
    b, h, w, c = images.shape
    top, left, height, width = windows.unbind(1)
    x = images.transpose(1, 2).float().reshape(b, w, h * c)
    x = torch.bmm(_taps(left, width, w), x).add_(0.5).floor_()  # rounds halves up, as Pillow does
    x = x.view(b, w, h, c).transpose(1, 2).reshape(b, h, w * c)
    return torch.bmm(_taps(top, height, h), x).add_(0.5).floor_().view(b, h, w, c)


def _taps(start: Tensor, length: Tensor, size: int) -> Tensor:
    """[B, size, size] float32 weights for bilinear resizing of pixels start..start + length - 1 to `size` pixels."""
    pixels = torch.arange(size, device=start.device)
    at = (pixels + 0.5) * (length / size)[:, None] - 0.5
    at = at.clamp(min=0).minimum((length - 1)[:, None]) + start[:, None]
    return (1 - (at[:, :, None] - pixels).abs()).clamp_(min=0)


def padded_flip(images: Tensor, places: Tensor, padding: int) -> Tensor:
    """Pad each image with black, crop it to its old size, and flip some left to right.

    images [B, H, W, C]; places [B, 4] int64 from PadFlipStream. Returns [B, H, W, C] of the same type.
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


def stored_to_input(images: Tensor) -> Tensor:
    """`to_input` for a federation's stored data. Vectors (float32 [B, 1, 1, D], `Partition.distinct`) are normalised
    already and become [B, D, 1, 1]."""
    return images.permute(0, 3, 1, 2) if images.dtype == torch.float32 else to_input(images)
