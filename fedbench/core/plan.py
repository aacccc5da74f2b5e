"""The plan of a run: cohorts, batches and augmentation draws, made from the random streams alone.

With the plan fixed, what remains of a round is arithmetic, so every executor computes the same thing, and all
methods of a table see the same cohorts and the same batches.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from fedbench.rng import stream
from fedbench.specs import Setting

Ints = npt.NDArray[np.int64]

#: RandomResizedCrop of FedDRM's pipeline (feddrm/protocol.md#images-and-crops): area share and aspect ratio.
CROP_AREA = (0.9, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)
CROP_TRIES = 10
#: Black pixels that `pad_flip` sets around an image before it cuts one of the old size out.
PADDING = 4


class Plan:
    """Draws for one run. `n_train[i]` is the number of training images of client i."""

    def __init__(self, setting: Setting, n_train: Sequence[int], size: tuple[int, int]) -> None:
        self.setting = setting
        self.n_train = [int(n) for n in n_train]
        self.trainees = len(self.n_train) - setting.partition.outsiders  #: clients that train; unseen clients come last
        self.size = size
        self._counted = 0  #: rounds whose cohorts `_turns` counts
        self._turns = [0] * len(self.n_train)
        self._lock = threading.Lock()
        self._orders: dict[int, tuple[tuple[int, ...], Ints]] = {}

    def cohort(self, t: int) -> list[int]:
        """Clients that take part in round t (1-based): each with probability `participation`, independently, or so
        many as the setting's `cohort` says, uniformly without replacement."""
        clients, s = self.trainees, self.setting
        if s.cohort is not None and not (s.full_last_round and t == s.rounds):
            return sorted(stream(s.seed, "cohort", t).permutation(clients)[: s.cohort].tolist())
        if s.participation == 1 or (s.full_last_round and t == s.rounds):
            return list(range(clients))
        takes_part = stream(s.seed, "cohort", t).random(clients) < s.participation
        return [int(i) for i in np.flatnonzero(takes_part)]

    def turn(self, client: int, t: int) -> int:
        """How many rounds before t the client took part in."""
        s = self.setting
        if s.cohort is None and s.participation == 1:
            return t - 1
        with self._lock:
            if self._counted >= t:
                self._counted, self._turns = 0, [0] * len(self.n_train)
            while self._counted < t - 1:
                self._counted += 1
                for i in self.cohort(self._counted):
                    self._turns[i] += 1
            return self._turns[client]

    def batches(self, client: int, t: int, phase: int, epochs: int | None, steps: int | None) -> Iterator[Ints]:
        """Positions in the client's training set, batch by batch.

        Each pass is a fresh shuffle. With `steps`, passes follow one another until the steps are done; if the
        setting's passes are endless, the steps go on where those of the client's last round ended. The last short
        batch of a pass is kept or dropped as the setting's tail says; a client with less than one batch always gives
        one short batch a pass.
        """
        n, s = self.n_train[client], self.setting
        size, a_pass = min(s.batch_size, n), self.batches_a_pass(client)
        if s.passes == "endless" and steps is not None:
            first = self.turn(client, t) * steps
            for step in range(first, first + steps):
                number, k = divmod(step, a_pass)
                yield self._pass(client, number, phase)[k * size : (k + 1) * size]
            return
        total = steps if steps is not None else (epochs or 0) * a_pass
        rng = stream(s.seed, "batches", t, client, phase)
        for step in range(total):
            k = step % a_pass
            if k == 0:
                order = rng.permutation(n)
            yield order[k * size : (k + 1) * size]

    def _pass(self, client: int, number: int, phase: int) -> Ints:
        """The order of the client's images in its endless pass's round of that number; the last one is remembered."""
        key, (last_key, order) = (number, phase), self._orders.get(client, ((), np.zeros(0, np.int64)))
        if last_key != key:
            order = stream(self.setting.seed, "pass", client, number, phase).permutation(self.n_train[client])
            self._orders[client] = (key, order)
        return order

    def batches_a_pass(self, client: int) -> int:
        """Batches of one pass over the client's training set."""
        return -(-self.pass_rows(client) // min(self.setting.batch_size, self.n_train[client]))

    def pass_rows(self, client: int) -> int:
        """Images of one pass over the client's training set: all, or whole batches only."""
        n, s = self.n_train[client], self.setting
        return n - n % min(s.batch_size, n) if s.tail == "drop" else n

    def training_images(self) -> float:
        """Images of all steps of the run, as far as its setting says them; of cohorts by chance, what is expected."""
        s = self.setting
        sizes = self.n_train[: self.trainees]
        if s.steps is not None:
            a_round = s.steps * sum(min(s.batch_size, n) for n in sizes)
        else:
            a_round = (s.epochs or 0) * sum(self.pass_rows(i) for i in range(len(sizes)))
        share = s.participation if s.cohort is None else s.cohort / max(self.trainees, 1)
        return a_round * ((s.rounds - 1) * share + 1 if s.full_last_round else s.rounds * share)

    def lone(self, batch_size: int) -> int | None:
        """The first client that trains on a batch of a single image where batches have this size; None if none does."""
        s = self.setting
        for client, n in enumerate(self.n_train[: self.trainees]):
            whole, rest = divmod(n, size := min(batch_size, n) or 1)
            reached = s.steps is None or s.passes == "endless" or s.steps > whole
            if n and (size == 1 or (rest == 1 and s.tail == "keep" and reached)):
                return client
        return None

    def crops(self, purpose: str, t: int, client: int, phase: int) -> CropStream | None:
        """The stream of crop windows of one pass over a client's images, or None if they are taken as they are."""
        augment = self.setting.augment
        if augment == "none" or (augment == "pad_flip" and purpose != "train"):
            return None
        kind = PadFlipStream if augment == "pad_flip" else CropStream
        return kind(stream(self.setting.seed, f"crop {purpose}", t, client, phase), self.size)


class CropStream:
    """Windows of a random resized crop, drawn in the order of the images."""

    def __init__(self, rng: np.random.Generator, size: tuple[int, int]) -> None:
        self.rng, self.size = rng, size

    def draw(self, n: int) -> Ints:
        """[n, 4] windows (top, left, height, width).

        Up to ten tries of area and aspect (log-uniform) as torchvision's RandomResizedCrop makes them; an image
        for which none fits is taken whole.
        """
        height, width = self.size
        shape = (n, CROP_TRIES)
        area = height * width * self.rng.uniform(*CROP_AREA, shape)
        aspect = np.exp(self.rng.uniform(math.log(CROP_ASPECT[0]), math.log(CROP_ASPECT[1]), shape))
        w = np.rint(np.sqrt(area * aspect)).astype(np.int64)
        h = np.rint(np.sqrt(area / aspect)).astype(np.int64)
        fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
        first, some = fits.argmax(axis=1), fits.any(axis=1)
        rows = np.arange(n)
        h, w = np.where(some, h[rows, first], height), np.where(some, w[rows, first], width)
        place = self.rng.random((n, 2))
        top = (place[:, 0] * (height - h + 1)).astype(np.int64)
        left = (place[:, 1] * (width - w + 1)).astype(np.int64)
        return np.stack([top, left, h, w], axis=1)


class PadFlipStream(CropStream):
    """Offsets and flips of the usual CIFAR augmentation: pad by PADDING, cut at random, flip half of the images."""

    def draw(self, n: int) -> Ints:
        """[n, 4]: top and left in the padded image, 1 if flipped left to right, and a place left free."""
        return np.stack(
            [*self.rng.integers(0, 2 * PADDING + 1, (2, n)), self.rng.integers(0, 2, n), np.zeros(n, int)], 1
        )
