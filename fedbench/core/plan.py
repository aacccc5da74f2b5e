"""The plan of a run: cohorts, batches and augmentation, drawn from the run's random streams only.

Given the plan, a round is deterministic arithmetic. So every executor computes the same, and all methods of a table
have the same cohorts and batches.
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
#: Black pixels that `pad_flip` adds on each side of an image before it crops to the old size.
PADDING = 4


class Plan:
    """Random draws of one run. `n_train[i]` is the number of training images of client i."""

    def __init__(self, setting: Setting, n_train: Sequence[int], size: tuple[int, int]) -> None:
        self.setting = setting
        self.n_train = [int(n) for n in n_train]
        self.trainees = len(self.n_train) - setting.partition.outsiders  #: clients that train; unseen clients come last
        self.size = size
        self._counted = 0  #: number of rounds counted in `_turns`
        self._turns = [0] * len(self.n_train)
        self._lock = threading.Lock()
        self._orders: dict[int, tuple[tuple[int, ...], Ints]] = {}

    def cohort(self, t: int) -> list[int]:
        """Clients that take part in round t (1-based): each independently with probability `participation`, or, if the
        setting has `cohort`, this number of clients, uniformly without replacement."""
        clients, s = self.trainees, self.setting
        if s.cohort is not None and not (s.full_last_round and t == s.rounds):
            return sorted(stream(s.seed, "cohort", t).permutation(clients)[: s.cohort].tolist())
        if s.participation == 1 or (s.full_last_round and t == s.rounds):
            return list(range(clients))
        takes_part = stream(s.seed, "cohort", t).random(clients) < s.participation
        return [int(i) for i in np.flatnonzero(takes_part)]

    def turn(self, client: int, t: int) -> int:
        """Number of rounds before t in which the client took part."""
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

        Each pass uses a new shuffle. With `steps`, passes repeat until the number of steps is reached; if the setting's
        passes are endless, steps continue where the client's last round ended. The setting's tail decides whether a
        pass keeps its last, smaller batch. A client with fewer images than one batch has one smaller batch per pass.
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
        """The shuffle of a client's endless pass number `number`; caches the client's last one."""
        key, (last_key, order) = (number, phase), self._orders.get(client, ((), np.zeros(0, np.int64)))
        if last_key != key:
            order = stream(self.setting.seed, "pass", client, number, phase).permutation(self.n_train[client])
            self._orders[client] = (key, order)
        return order

    def batches_a_pass(self, client: int) -> int:
        """Batches of one pass over the client's training set."""
        return -(-self.pass_rows(client) // min(self.setting.batch_size, self.n_train[client]))

    def pass_rows(self, client: int) -> int:
        """Images in one pass over the client's training set: all, or full batches only."""
        n, s = self.n_train[client], self.setting
        return n - n % min(s.batch_size, n) if s.tail == "drop" else n

    def training_images(self) -> float:
        """Images in all steps of the run, from its setting; for random cohorts the expected number."""
        s = self.setting
        sizes = self.n_train[: self.trainees]
        if s.steps is not None:
            a_round = s.steps * sum(min(s.batch_size, n) for n in sizes)
        else:
            a_round = (s.epochs or 0) * sum(self.pass_rows(i) for i in range(len(sizes)))
        return a_round * ((s.rounds - 1) * self.share + 1 if s.full_last_round else s.rounds * self.share)

    @property
    def share(self) -> float:
        """The expected share of the clients that train in a round's cohort."""
        s = self.setting
        return s.participation if s.cohort is None else s.cohort / max(self.trainees, 1)

    def leaves_one(self, images: int, batch_size: int) -> bool:
        """Whether a pass over so many images has a batch of one with this batch size."""
        size = min(batch_size, images)
        return size == 1 or (size > 1 and images % size == 1 and self.setting.tail == "keep")

    def lone(self) -> int | None:
        """The first client whose local work, as the setting counts it, has a batch of one image; None if none has."""
        s = self.setting
        for client, n in enumerate(self.n_train[: self.trainees]):
            whole = n // (min(s.batch_size, n) or 1)
            reached = s.steps is None or s.passes == "endless" or s.steps > whole or whole == n
            if reached and self.leaves_one(n, s.batch_size):
                return client
        return None

    def crops(self, purpose: str, t: int, client: int, phase: int) -> CropStream | None:
        """The stream of crop windows for one pass over a client's images; None if they are not augmented."""
        augment = self.setting.augment
        if augment == "none" or (augment == "pad_flip" and purpose != "train"):
            return None
        kind = PadFlipStream if augment == "pad_flip" else CropStream
        return kind(stream(self.setting.seed, f"crop {purpose}", t, client, phase), self.size)


class CropStream:
    """Windows of random resized crops, drawn in the order of the images."""

    def __init__(self, rng: np.random.Generator, size: tuple[int, int]) -> None:
        self.rng, self.size = rng, size

    def draw(self, n: int) -> Ints:
        """[n, 4] windows (top, left, height, width).

        Up to ten tries of area and aspect ratio (log-uniform), like torchvision's RandomResizedCrop; if none fits, the
        window is the whole image.
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
    """Offsets and flips of the usual CIFAR augmentation: pad by PADDING, crop at random, flip half of the images."""

    def draw(self, n: int) -> Ints:
        """[n, 4]: top and left in the padded image, 1 for a flip left to right, and an unused column."""
        return np.stack(
            [*self.rng.integers(0, 2 * PADDING + 1, (2, n)), self.rng.integers(0, 2, n), np.zeros(n, int)], 1
        )
