"""Captured training steps: of stacks of small networks, and of single large networks that run on parallel streams."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedbench.core.client import Answer, Batch, Client, Collect, Loss, Train, Trained, loss_of, output_of
from fedbench.core.network import Network, Networks
from fedbench.core.stacked import Stack, StackedWorker, Step, Tick, kind
from fedbench.core.state import State
from fedbench.core.worker import CHUNK, LocalUpdate, Piece, Worker, on_device

T = TypeVar("T")

#: Capacity of a cache of captures (steps, updates or outputs) per worker or lane; the oldest is removed first.
KEPT = 8

# -- stacks ----------------------------------------------------------------------------------------------------


#: A replay takes as long for few clients as for all, so below this share of active clients the step is not replayed.
LEAST_SHARE = 0.5


@dataclass
class CapturedStep:
    """One captured step of a whole stack. Its tensors have fixed addresses: copy inputs to them, replay, read outputs.

    The step takes effect for the clients of `active` [C] only; it leaves the other clients' tensors unchanged.
    """

    stack: Stack
    tick: Tick
    active: Tensor
    lr: Tensor
    replay: Callable[[], Step]

    def load(self, stack: Stack) -> None:
        """Copy the tensors of a stack, which must not have more clients than this one."""
        for field in fields(Stack):
            ours, theirs = getattr(self.stack, field.name), getattr(stack, field.name)
            for name, value in theirs.items() if isinstance(theirs, dict) else ():
                (ours[name] if field.name == "common" else ours[name][: len(value)]).copy_(value)
        self.stack.lr = stack.lr  # for steps that are not replayed
        self.lr.fill_(stack.lr)

    def __call__(self, tick: Tick) -> Step:
        self.active.zero_()
        self.active[tick.members] = True
        for place, value in ((self.tick.rows, tick.rows), (self.tick.positions, tick.positions)):
            place[tick.members] = value
        if tick.windows is not None and self.tick.windows is not None:
            self.tick.windows[tick.members] = tick.windows
        logged, collected = self.replay()
        # Indexing copies, because the next replay overwrites the output.
        who = torch.arange(len(self.active), device=self.active.device)[tick.members]
        return Step(logged[who], None if collected is None else collected[who])


class GraphedWorker(StackedWorker):
    """Runs training requests with captured steps; on a CPU it calls the same step without capturing it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.captured: OrderedDict[Hashable, CapturedStep] = OrderedDict()
        self.current: CapturedStep | None = None

    least = 1

    def stack(self, clients: Sequence[Client], requests: Sequence[Train]) -> Stack:
        """Copy the clients' tensors into the stack of a captured step and return that stack."""
        stack = super().stack(clients, requests)
        size = min(self.setting.batch_size, max(c.n_train for c in clients))
        room = capacity(len(clients))
        key = (kind(requests[0]), tuple(stack.common), room, size)
        step = _kept(self.captured, key, lambda: self.capture(stack, room, size))
        step.load(stack)
        self.current = step
        return step.stack

    def moved(self, stack: Stack) -> dict[str, Sequence[Tensor]]:
        # Clones, not views: the next block of clients overwrites these tensors.
        return {name: t.clone().unbind() for name, t in (*stack.trained.items(), *stack.buffers.items())}

    def step(self, stack: Stack, tick: Tick) -> Step:
        step = self.current
        assert step is not None
        count, size = tick.positions.shape
        if size != step.tick.positions.shape[1] or count < LEAST_SHARE * len(step.active):
            return super().step(stack, tick)
        return step(tick)

    def capture(self, like: Stack, room: int, size: int) -> CapturedStep:
        """Capture a step for stacks like `like`, with `room` clients and batches of `size`."""
        states = {f.name: value for f in fields(Stack) if isinstance(value := getattr(like, f.name), dict)}
        places: dict[str, Any] = {name: _places(value, name, room) for name, value in states.items()}
        stack = replace(like, **places)
        zeros = torch.zeros(room, size, dtype=torch.long, device=self.device)
        windows = None if self.setting.augment == "none" else _whole_images(self, room, size)
        tick = Tick(slice(0, room), zeros, zeros.clone(), windows)
        active = torch.zeros(room, dtype=torch.bool, device=self.device)
        lr = torch.tensor(like.lr, device=self.device)

        def run() -> Step:
            return self.masked_step(stack, tick, active, lr)

        return CapturedStep(stack, tick, active, lr, captured(run, None, _pool(self.device), lambda: _warm(run)))

    def masked_step(self, stack: Stack, tick: Tick, active: Tensor, lr: Tensor) -> Step:
        """Step all clients, then restore the inactive ones. Reads no value on the host, so it can be captured."""
        moving = [*stack.trained.values(), *stack.buffers.values(), *stack.memory.values()]
        before = [t.clone() for t in moving]
        step = super().step(replace(stack, lr=lr, optimizer=stack.optimizer.apart()), tick)
        for place, value in zip(moving, before, strict=True):
            place.copy_(torch.where(active.view(-1, *[1] * (place.dim() - 1)), place, value))
        return step


def capacity(clients: int) -> int:
    """The stack size that is captured for so many clients, rounded up to 2^k or 3/4 of it, so that cohorts of similar
    size share a graph."""
    power = 1 << max(clients - 1, 0).bit_length()
    return 3 * power // 4 if power >= 4 and 3 * power // 4 >= clients else power


def _places(value: State, field: str, room: int) -> State:
    if field == "common":
        return {name: t.detach().clone() for name, t in value.items()}
    return {name: torch.zeros(room, *t.shape[1:], dtype=t.dtype, device=t.device) for name, t in value.items()}


# -- streams ---------------------------------------------------------------------------------------------------
# Large networks on a GPU: captured steps of single clients, replayed in parallel on streams.
#
# Stacking large networks is slow (a grouped convolution takes twice as long). A single one does not fill the GPU, and
# the host needs longer to launch its kernels than the GPU to run them. So several clients train on parallel lanes. A
# lane has its own network, stream and memory pool for graphs; only one graph of a lane runs at a time. On a CPU nothing
# is captured; the same steps are called, with bitwise the results of `sequential`.


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
        self.pool = _pool(self.device)
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
        output = _kept(self.passes, key, lambda: CapturedOutput(self, request, piece, y))
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
        with _best_algorithms():
            try:
                _warm(run)
            except Exception as error:
                if not self.compiled:
                    raise
                warnings.warn(f"not compiled: {type(error).__name__}: {error}", stacklevel=2)
                self.compiled = False
                self.functions.clear()
                _warm(run)


class Lane:
    """A copy of the network with its captured updates, a stream, and a memory pool for graphs."""

    def __init__(self, worker: StreamedWorker) -> None:
        self.worker = worker
        self.networks = Networks(copy.deepcopy(worker.model))
        self.stream = torch.cuda.Stream(worker.device) if worker.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.pool = _pool(worker.device)
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
            update = _kept(self.updates, kind(request), lambda: CapturedUpdate(self, network, request))
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
            whole = _whole_images(worker, self.size)
            windows = self._at("windows", "", whole).copy_(whole)

        def run() -> Tensor | None:
            return self.step(position, windows)

        self.replay = captured(run, self.lane.stream, self.lane.pool, lambda: worker.warm(run))


class CapturedOutput:
    """A captured forward pass over CHUNK images: gives a request's output for up to CHUNK images."""

    def __init__(self, worker: StreamedWorker, request: Collect, piece: Piece, y: Tensor) -> None:
        device = worker.device
        self.rows = torch.zeros(CHUNK, dtype=torch.long, device=device)
        self.windows = None if piece.windows is None else _whole_images(worker, CHUNK)
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


# -- captures --------------------------------------------------------------------------------------------------

#: Calls before a capture, in which libraries select algorithms and torch.compile compiles.
WARM_UP = 3


def captured(
    run: Callable[[], T], stream: torch.cuda.Stream | None, pool: Any, warm: Callable[[], None]
) -> Callable[[], T]:
    """Capture `run` in a CUDA graph and return a function that replays it on the same tensors. On a CPU return `run`.

    stream: stream of the replays (None: any); pool: memory shared by graphs that never run at the same time.
    """
    if pool is None:
        return run
    side = stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        warm()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=side):
        answer = run()
    torch.cuda.current_stream().wait_stream(side)

    def replay() -> T:
        graph.replay()
        return answer

    return replay


def _warm(run: Callable[[], Any]) -> None:
    for _ in range(WARM_UP):
        run()


@contextlib.contextmanager
def _best_algorithms() -> Iterator[None]:
    """Let cuDNN benchmark its algorithms for each shape, which pays off if a step is captured and replayed often."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _pool(device: torch.device) -> Any:
    """Memory pool for graphs of which only one runs at a time; None on a CPU."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


def _kept(kept: OrderedDict[Hashable, T], key: Hashable, make: Callable[[], T]) -> T:
    """Get the key's value from an LRU cache of KEPT entries, or make it."""
    value = kept[key] = kept.pop(key, None) or make()
    while len(kept) > KEPT:
        kept.popitem(last=False)
    return value


def _whole_images(worker: Worker, *lengths: int) -> Tensor:
    """Crop windows [*lengths, 4] of whole images."""
    window = torch.tensor([0, 0, *worker.federation.shape[:2]], device=worker.device)
    return window.expand(*lengths, 4).contiguous()
