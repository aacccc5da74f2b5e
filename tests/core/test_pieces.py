"""The pieces in which images go through a network where no gradient is needed."""

from __future__ import annotations

import pytest
import torch

from fedbench import models
from fedbench.core.augment import to_input
from fedbench.core.pieces import CHUNK, CPU_CHUNK, Piece, pieces
from fedbench.core.plan import CropStream
from fedbench.rng import stream


@pytest.mark.parametrize("n", [0, 1, CPU_CHUNK, CPU_CHUNK + 1, CHUNK, CHUNK + 1, 3 * CHUNK - 7])
def test_pieces_are_small_and_of_like_length_and_change_no_window(n: int) -> None:
    rows = torch.arange(100, 100 + n)
    parts = pieces(rows, CropStream(stream(0, "windows"), (8, 8)))
    assert max(len(part.rows) for part in parts) <= CPU_CHUNK
    of_a_draw = [len(part.rows) for part in parts[: -(-min(n, CHUNK) // CPU_CHUNK)]]
    assert sum(of_a_draw) == min(n, CHUNK)
    assert not of_a_draw or 2 * min(of_a_draw) >= max(of_a_draw)
    whole = Piece.joined(parts)
    assert torch.equal(whole.rows, rows)
    drawn = CropStream(stream(0, "windows"), (8, 8))
    windows = [torch.from_numpy(drawn.draw(min(CHUNK, n - at))) for at in range(0, n, CHUNK)]
    assert whole.windows is not None
    assert torch.equal(whole.windows, torch.cat(windows) if windows else whole.windows[:0])


@pytest.mark.parametrize(("name", "shape"), [("lenet5", (28, 28, 1)), ("cifar_cnn", (32, 32, 3))])
def test_a_network_puts_out_for_the_pieces_what_it_does_for_all(name: str, shape: tuple[int, int, int]) -> None:
    network = models.build(name, shape=shape, classes=10, seed=0).eval().to(memory_format=torch.channels_last)
    images = torch.randint(0, 256, (CHUNK, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for n in (CPU_CHUNK + 1, 3 * CPU_CHUNK - 1, 301, CHUNK):
            parts = [network(to_input(images[part.rows])) for part in pieces(torch.arange(n), None)]
            torch.testing.assert_close(torch.cat(parts), network(to_input(images[:n])), rtol=1e-6, atol=1e-6)
