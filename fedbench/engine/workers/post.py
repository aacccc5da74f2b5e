"""Messages as bytes and arrays. Tensors go once: both ends number them, and whoever has a tensor is sent its number.

So a tensor that a worker sends back as it came is, for the driver, the very same one; what all clients share goes to a
worker once a round; and a client's personal state stays with the worker that it was at.
"""

from __future__ import annotations

import io
import pickle
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from ray import cloudpickle
from torch import Tensor

from fedbench.core.client import Client
from fedbench.engine.workers.message import Traveller
from fedbench.errors import FedbenchError

#: What both ends of a run have: they are sent by name. Of these types there is one each; of methods only the run's.
SAME = ("context", "federation", "plan", "method")


class Flat(NamedTuple):
    """A tensor's memory, and how it lies there."""

    bytes: Any  #: [n] uint8, or what a `share` has made of it
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Flat:
        tensor = tensor.detach().cpu()
        if not tensor.is_contiguous():
            tensor = tensor.clone()  # dense, in the same order of dimensions
        whole = tensor.as_strided((tensor.numel(),), (1,))
        return cls(whole.view(torch.uint8).numpy(), tensor.dtype, tuple(tensor.shape), tensor.stride())

    def tensor(self, device: torch.device) -> Tensor:
        """The tensor in memory of its own."""
        copy = torch.empty(len(self.bytes), dtype=torch.uint8)
        copy.numpy()[:] = self.bytes
        return copy.view(self.dtype).as_strided(self.size, self.stride).to(device)


@dataclass(frozen=True)
class Parcel:
    """A message on its way."""

    data: bytes
    tensors: Sequence[tuple[int, Flat]] = ()  #: by their numbers, those that are new to the receiver
    gone: Sequence[int] = ()  #: numbers that the receiver may forget


class Post:
    """One end of the way between a driver and one worker. The driver's end (`lasts` False) remembers tensors only as
    long as somebody else has them, the worker's until the driver's tells it that they are gone."""

    def __init__(self, same: Mapping[str, Any], *, lasts: bool, device: torch.device | str = "cpu") -> None:
        self.same, self.lasts, self.device = same, lasts, torch.device(device)
        self.types = {type(value): name for name, value in same.items() if name != "method"}
        self.step = -1 if lasts else 1  #: the worker counts downwards
        self.last = 0
        self.numbers: dict[int, tuple[int, int]] = {}  #: id of a tensor -> its number, its version when it had it
        self.tensors: dict[int, Any] = {}  #: number -> the tensor, or a weak reference to it
        self.gone: list[int] = []

    def pack(self, message: Any, share: Callable[[Tensor, Flat], Flat] = lambda _, flat: flat) -> Parcel:
        """A message for the other end; `share` may replace what there is of a tensor.

        Raises FedbenchError for what cannot be sent."""
        new: list[tuple[int, Flat]] = []

        def number_of(tensor: Tensor) -> int:
            number, version = self.numbers.get(id(tensor), (0, 0))
            if not number or version != tensor._version:
                self.last += self.step
                number = self.last
                self._remember(number, tensor)
                new.append((number, share(tensor, Flat.of(tensor))))
            return number

        gone, self.gone = self.gone, []
        file = io.BytesIO()
        try:
            _Pickler(file, self, number_of).dump(message)
        except (pickle.PicklingError, TypeError, AttributeError, NotImplementedError) as error:
            raise FedbenchError(f"it cannot be sent to workers: {error}", "take --executor cores") from error
        return Parcel(file.getvalue(), new, gone)

    def open(self, parcel: Parcel, fetch: Callable[[list[Flat]], list[Flat]] = lambda flats: flats) -> Any:
        """The message; `fetch` is the inverse of `share`."""
        flats = fetch([flat for _, flat in parcel.tensors])
        arrived = [flat.tensor(self.device) for flat in flats]  # all stay until the message is there
        for (number, _), tensor in zip(parcel.tensors, arrived, strict=True):
            self._remember(number, tensor)
        message = _Unpickler(io.BytesIO(parcel.data), self).load()
        for number in parcel.gone:
            self._forget(number, id(self.tensors[number]))
        return message

    def tensor(self, number: int) -> Tensor:
        """The tensor of a number."""
        there = self.tensors[number]
        tensor: Tensor = there if self.lasts else there()
        return tensor

    def _remember(self, number: int, tensor: Tensor) -> None:
        key = id(tensor)
        self.numbers[key] = number, tensor._version
        if self.lasts:
            self.tensors[number] = tensor
            return

        def forget(_: Any) -> None:
            self._forget(number, key)
            self.gone.append(number)

        self.tensors[number] = weakref.ref(tensor, forget)

    def _forget(self, number: int, key: int) -> None:
        del self.tensors[number]
        if self.numbers.get(key, (0,))[0] == number:
            del self.numbers[key]


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Leaves out tensors, what both ends have, and of clients what is at the other end already."""

    def __init__(self, file: io.BytesIO, post: Post, number_of: Callable[[Tensor], int]) -> None:
        super().__init__(file, protocol=5)
        self.post, self.number_of = post, number_of

    def persistent_id(self, value: Any) -> int | str | None:
        if type(value) is Tensor:
            return self.number_of(value)
        return "method" if value is self.post.same["method"] else self.post.types.get(type(value))

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Client):
            same = self.post.same
            return _arrived, (Traveller.of(value), same["context"], same["federation"], same["plan"])
        return super().reducer_override(value)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, post: Post) -> None:
        super().__init__(file)
        self.post = post

    def persistent_load(self, place: Any) -> Any:
        return self.post.tensor(place) if isinstance(place, int) else self.post.same[place]


def _arrived(traveller: Traveller, *same: Any) -> Client:
    return traveller.arrive(*same)
