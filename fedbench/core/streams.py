"""Large networks on a GPU: captured steps of single clients, replayed in parallel on streams.

Stacking large networks is slow (a grouped convolution takes twice as long). A single one does not fill the GPU, and the
host needs longer to launch its kernels than the GPU to run them. So several clients train on parallel lanes. A lane has
its own network, stream and memory pool for graphs; only one graph of a lane runs at a time. On a CPU nothing is
captured; the same steps are called, with bitwise the results of `sequential`.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedbench.core.captured import best_algorithms, cached, captured, pool_of, warm_up, whole_images
from fedbench.core.client import Answer, Batch, Client, Collect, Loss, Train, Trained
from fedbench.core.hooks import loss_of, output_of
from fedbench.core.images import CHUNK, Piece
from fedbench.core.local_update import LocalUpdate
from fedbench.core.network import Network, Networks
from fedbench.core.stacked import StackedWorker, kind
from fedbench.core.state import State
from fedbench.core.worker import Worker, on_device

T = TypeVar("T")

#: Capture a request's output after this many uses; capturing is not worth its time for fewer.
USES = 8


class StreamedWorker(StackedWorker):
    """Trains one client per lane in parallel; answers requests other than Train as `sequential` does.

    compiled: run losses and outputs through torch.compile, which first takes about a minute. If compiling fails, the
    functions run uncompiled.
    """

    def __init__(self, *arguments: Any, lanes: int = 1, compiled: bool = False) -> None:
        super().__init__(*arguments)
        self.compiled = compiled
        if compiled:  # float32 products are exact on purpose, so torch's hint to enable TF32 is noise
            warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
        self.functions: dict[Hashable, Callable[..., Any]] = {}
        self.lanes = [Lane(self) for _ in range(lanes)]
        self.pool = pool_of(self.device)
        self.passes: OrderedDict[Hashable, CapturedOutput] = OrderedDict()
        self.uses: dict[Hashable, int] = {}

    def answer(self, clients: Sequence[Client], requests: Sequence[Any]) -> Sequence[Answer]:
        if isinstance(requests[0], Train):
            return self.train_stack(clients, requests)
        return [self.answer_one(client, request) for client, request in zip(clients, requests, strict=True)]

    scores = Worker.scores

    def train_stack(self, clients: Sequence[Client], requests: Sequence[Train]) -> list[Trained]:
        """Train the clients on parallel lanes and update each `client.state`. The host launches all work before it
        waits for the device."""
        pairs, n = list(zip(clients, requests, strict=True)), len(self.lanes)
        answers: list[Callable[[], Trained]] = []
        for lane in self.lanes:
            lane.fork()
        for at in range(0, len(pairs), n):
            under_way = [lane.begin(*pair) for lane, pair in zip(self.lanes, pairs[at : at + n], strict=False)]
            for t in range(max(len(batches) for _, batches in under_way)):
                self.stop_if_cancelled()
                for update, batches in under_way:
                    if t < len(batches):
                        update.take(*batches[t])
            answers += [update.leave() for update, _ in under_way]
        for lane in self.lanes:
            lane.join()
        return [answer() for answer in answers]

    def output(self, request: Collect, piece: Piece, position: Tensor) -> Tensor:
        key = kind(request)
        self.uses[key] = self.uses.get(key, 0) + 1
        if len(piece.rows) > CHUNK or self.uses[key] <= USES:
            return super().output(request, piece, position)
        self.stop_if_cancelled()
        key, y = (key, piece.windows is None), self.labels(piece.rows, request.split)
        output = cached(self.passes, key, lambda: CapturedOutput(self, request, piece, y))
        return output(request, piece, y, position)

    def function(self, key: Hashable, plain: Callable[..., T]) -> Callable[..., T]:
        """The function, compiled with torch.compile if this worker compiles; all lanes share the compiled one."""
        if not self.compiled:
            return plain
        if key not in self.functions:
            self.functions[key] = torch.compile(plain, dynamic=False)
        return self.functions[key]

    def warm(self, run: Callable[[], Any]) -> None:
        """Run the function that is to be captured, to warm up; if compiling fails, switch to uncompiled functions."""
        with best_algorithms():
            try:
                warm_up(run)
            except Exception as error:
                if not self.compiled:
                    raise
                warnings.warn(f"not compiled: {type(error).__name__}: {error}", stacklevel=2)
                self.compiled = False
                self.functions.clear()
                warm_up(run)


class Lane:
    """A copy of the network with its captured updates, a stream, and a memory pool for graphs."""

    def __init__(self, worker: StreamedWorker) -> None:
        self.worker = worker
        self.networks = Networks(copy.deepcopy(worker.model))
        self.stream = torch.cuda.Stream(worker.device) if worker.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.pool = pool_of(worker.device)
        self.updates: OrderedDict[Hashable, CapturedUpdate] = OrderedDict()

    def begin(self, client: Client, request: Train) -> tuple[CapturedUpdate, list[tuple[Tensor, Tensor | None]]]:
        """(update loaded with the client's tensors and request, [(positions, crop windows or None) of each batch]).

        Positions and windows take one transfer each to the device.
        """
        with self.busy():
            schedule = self.worker.batches(client, request)
            crops = self.worker.crops(client)
            positions = on_device(schedule, self.worker.device)
            drawn = [] if crops is None else [crops.draw(len(batch)) for batch in schedule]
            windows = on_device(drawn, self.worker.device) if drawn else [None] * len(positions)
            network = self.networks.of(request.model)
            update = cached(self.updates, kind(request), lambda: CapturedUpdate(self, network, request))
            update.load(client, request)
        return update, list(zip(positions, windows, strict=True))

    def fork(self) -> None:
        """Make the lane's stream wait for the work queued on the current stream."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.worker.device))

    def join(self) -> None:
        """Make the current stream wait for the lane's. After that the lane's tensors may be read and freed, because
        later work on the lane waits for the current stream (`fork`)."""
        if self.stream is not None:
            torch.cuda.current_stream(self.worker.device).wait_stream(self.stream)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Run the block on the lane's stream."""
        with contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            yield


class CapturedUpdate(LocalUpdate):
    """A local update whose tensors have fixed addresses, so that its step on a full batch can be replayed."""

    def __init__(self, lane: Lane, network: Network, request: Train) -> None:
        super().__init__(lane.worker, network, request)
        self.lane, self.key = lane, kind(request)
        self.size = lane.worker.setting.batch_size
        self.places: dict[tuple[str, str], Tensor] = {}
        self.replay: Callable[[], Tensor | None] | None = None

    def load(self, client: Client, request: Train) -> None:
        self._load(client, request)
        if self.replay is None and client.n_train >= self.size:
            self._capture()
            self._load(client, request)  # because the capture ran training steps

    def _load(self, client: Client, request: Train) -> None:
        super().load(client, request)
        most = max(client.n_train, *client.work.plan.n_train)
        rows = client.work.rows
        self.rows = self._at("rows", "", rows.new_zeros(most))
        self.rows[: len(rows)] = rows
        if self.lane.stream is not None:  # a graph reads it from a tensor; a float gives bitwise reference results
            rate = self.lr
            self.lr = self._at("lr", "", self.total.float())
            self.lr.fill_(rate)

    def placed(self, kind: str, tensors: Mapping[str, Tensor]) -> State:
        return {name: self._at(kind, name, value).copy_(value) for name, value in tensors.items()}

    def _at(self, kind: str, name: str, like: Tensor) -> Tensor:
        """The tensor with a fixed address for this kind and name."""
        place = self.places.get((kind, name))
        if place is None or place.shape != like.shape:
            self.replay = None  # the graph uses the old address
            place = self.places[kind, name] = torch.empty_like(like)
        return place

    def take(self, position: Tensor, windows: Tensor | None) -> None:
        with self.lane.busy():
            self.rest()
            if self.replay is None or len(position) != self.size:
                collected = self.step(position, windows)
            else:
                self.places["position", ""].copy_(position)
                if windows is not None:
                    self.places["windows", ""].copy_(windows)
                collected = self.replay()
                collected = None if collected is None else collected.clone()  # the next replay overwrites it
        if collected is not None:
            self.collected.append(collected)
        self.count(position)

    def leave(self) -> Callable[[], Trained]:
        with self.lane.busy():
            return super().leave()

    def loss(self, batch: Batch) -> Loss:
        if len(batch.y) != self.size:  # short batches are too rare to compile for
            return super().loss(batch)
        request = self.request

        def of_loss(model: Any, batch: Batch) -> Loss:
            return loss_of(request.loss, model, batch)

        return self.lane.worker.function(self.key, of_loss)(self.network.module, batch)

    def _capture(self) -> None:
        """Capture the step on a full batch (the first image repeated)."""
        worker = self.lane.worker
        position = self._at("position", "", torch.empty(self.size, dtype=torch.long, device=worker.device)).zero_()
        windows = None
        if worker.setting.augment != "none":
            whole = whole_images(worker, self.size)
            windows = self._at("windows", "", whole).copy_(whole)

        def run() -> Tensor | None:
            return self.step(position, windows)

        self.replay = captured(run, self.lane.stream, self.lane.pool, lambda: worker.warm(run))


class CapturedOutput:
    """A captured forward pass over CHUNK images: gives a request's output for up to CHUNK images."""

    def __init__(self, worker: StreamedWorker, request: Collect, piece: Piece, y: Tensor) -> None:
        device = worker.device
        self.rows = torch.zeros(CHUNK, dtype=torch.long, device=device)
        self.windows = None if piece.windows is None else whole_images(worker, CHUNK)
        self.y, self.position = y.new_zeros(CHUNK, *y.shape[1:]), torch.zeros_like(self.rows)
        self.extras = {n: t.clone() for n, t in request.extras.items()}
        network, key = worker.networks.of(request.model), ("output", kind(request))

        def of_output(model: Any, batch: Batch) -> Tensor:
            return output_of(request.output, model, batch)

        @torch.no_grad()
        def run() -> Tensor:
            batch = Batch(worker.batch(self.rows, self.windows), self.y, self.position, self.extras)
            with worker.autocast():
                return worker.function(key, of_output)(network.module, batch)

        self.replay = captured(run, None, worker.pool, lambda: worker.warm(run))

    @torch.no_grad()
    def __call__(self, request: Collect, piece: Piece, y: Tensor, position: Tensor) -> Tensor:
        n = len(piece.rows)
        for place, value in ((self.rows, piece.rows), (self.y, y), (self.position, position)):
            place[:n].copy_(value)
        if self.windows is not None and piece.windows is not None:
            self.windows[:n].copy_(piece.windows)
        for name, place in self.extras.items():
            place.copy_(request.extras[name])
        return self.replay()[:n].clone()
