"""Images on their way through a network: which rows and crop windows a forward pass takes, to the device and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedbench.core.plan import CropStream

#: Images whose crop windows are drawn at once, and that a forward pass takes at once where no gradient is needed.
#: Fixed: it shapes the draws, and float rounding.
CHUNK = 512
#: ... of those, how many at most one model takes at once on a CPU: more take memory, and hardly less time.
CPU_CHUNK = 64


class Piece(NamedTuple):
    """Images that a forward pass takes at once: rows [B] of the federation, crop windows [B, 4] or None."""

    rows: Tensor
    windows: Tensor | None

    @classmethod
    def joined(cls, pieces: Sequence[Piece]) -> Piece:
        """One piece of all these."""
        windows = [piece.windows for piece in pieces if piece.windows is not None]
        return cls(torch.cat([piece.rows for piece in pieces]), torch.cat(windows) if windows else None)

    def split(self, size: int) -> list[Piece]:
        """The images in pieces of `size`; the last may be shorter."""
        rows = torch.split(self.rows, size)
        windows = torch.split(self.windows, size) if self.windows is not None else (None,) * len(rows)
        return [Piece(*both) for both in zip(rows, windows, strict=True)]


def pieces(rows: Tensor, crops: CropStream | None) -> list[Piece]:
    """The rows in pieces that one model takes at once, each with its windows if they are cropped."""
    drawn = [Piece(part, windows_of(crops, part)) for part in torch.split(rows, CHUNK)]
    if rows.device.type != "cpu":
        return drawn
    return [part for piece in drawn for part in piece.split(_even(len(piece.rows)))]


def _even(n: int) -> int:
    """How many of n are in each of the fewest parts of CPU_CHUNK at most: a last image by itself would be computed by
    another kernel."""
    return -(-n // max(1, -(-n // CPU_CHUNK)))


def windows_of(crops: CropStream | None, rows: Tensor) -> Tensor | None:
    return None if crops is None else torch.from_numpy(crops.draw(len(rows))).to(rows.device)


def on_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """The arrays as tensors there, brought in one transfer."""
    if not arrays:
        return []
    flat = torch.from_numpy(np.concatenate([a.reshape(-1) for a in arrays]))
    if device.type == "cuda":  # from other memory the host would wait for the device
        flat = flat.pin_memory()
    flat = flat.to(device, non_blocking=True)
    return [part.view(a.shape) for part, a in zip(torch.split(flat, [a.size for a in arrays]), arrays, strict=True)]


def on_host(parts: Sequence[Tensor]) -> np.ndarray:
    """Answers, piece by piece, on the host: classes as [T] uint16, scores of several labels as [T, U] float32."""
    answers: np.ndarray = torch.cat(list(parts)).cpu().numpy()
    return answers.astype(np.float32 if answers.dtype.kind == "f" else np.uint16)
