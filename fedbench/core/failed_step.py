"""With --debug: the step at which a client's work failed or diverged, in one file.

Nothing is noted while clients work. After an error, the unfinished clients of the block work once more, one by one from
what they had received, by the reference (`Worker`), which now notes what each step starts from. A client's work is
arithmetic on its own tensors and on the plan's draws, so that it fails again, whichever executor ran it and whichever
clients were in its stack.
"""

from __future__ import annotations

import io
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from fedbench.core.client import Answer, Batch, Client, ClientUpdate, Collect, Differentiated, Gradient, Request, Train
from fedbench.core.images import Piece, windows_of
from fedbench.core.local_update import LocalUpdate, all_finite, check_finite
from fedbench.core.network import has_no_variance, single_image
from fedbench.core.state import State
from fedbench.core.worker import Cancelled, Worker
from fedbench.files import disk_errors, write_whole

#: What failed (`failed_in` in the file), which says what `state` and `batch` are.
STEP = "this step: `state` is what the client had before it"
CODE = "the method's code between requests: `state` is what the client had there, `batch` is of its last step, if any"
UNKNOWN = "no step of a client that works alone: `state` is what this client received, `batch` is of its first step"

Update = Callable[[Client], ClientUpdate | None]


class Serving:
    """An update of many clients by an executor's workers.

    With --debug (`Work.failure_file`), the first error leaves the file, and a note of every error names it, because
    workers can fail at the same time and any of their errors may be the one that is raised.
    """

    def __init__(self, update: Update) -> None:
        self.update = update
        self.lock = threading.Lock()
        self.note: str | None = None  #: once there is a file

    def serve(self, worker: Worker, clients: Sequence[Client]) -> None:
        """`worker.serve` of some of the clients."""
        begun = [(client, _copied(client)) for client in clients if client.work.failure_file is not None]
        try:
            worker.serve(clients, self.update)
        except Cancelled:
            raise
        except Exception as error:
            # A client's seconds are counted when it has done its work.
            unfinished = [(now, start) for now, start in begun if now.work.seconds == start.work.seconds]
            if unfinished:
                with self.lock:
                    self.note = self.note or _leave_file(worker, unfinished, self.update, error)
                error.add_note(self.note)
            if has_no_variance(error):  # of a request that `rehearse` has not met
                size = worker.setting.batch_size
                client = next((c for c in clients if c.work.plan.leaves_one(c.n_train, size)), clients[0])
                raise single_image(client.work.plan, client.index, client.work.plan.n_train) from error
            raise


def _copied(client: Client) -> Client:
    """The client as it is now. Shares the tensors, because nothing may write to them."""
    work, momenta = client.work, client.work.momenta
    work = replace(
        work, losses=[*work.losses], parts=dict(work.parts), momenta=None if momenta is None else dict(momenta)
    )
    state, received, metrics = dict(client.state), dict(client.received), dict(client.metrics)
    return replace(client, state=state, received=received, metrics=metrics, work=work)


def _leave_file(worker: Worker, unfinished: Sequence[tuple[Client, Client]], update: Update, error: Exception) -> str:
    """Find the step that fails and write the file; a sentence about it. `unfinished`: clients now and at the start."""
    try:
        # A client of a stack whose tensors are not finite has diverged, so try it first.
        ordered = sorted(unfinished, key=lambda pair: _finite(pair[0].state))
        client, contents = _found(worker, [start for _, start in ordered], update, error)
        path = client.work.failure_file
        assert path is not None
        with disk_errors("writing what a client had", path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, contents)
    except Exception as another:  # a full disk, say, or a GPU that does not answer any more
        return f"What the client had could not be written: {type(another).__name__}: {another}"
    return f"What client {client.index} had in round {client.round} is in {path}"


def _finite(state: State) -> bool:
    return bool(all_finite([t for t in state.values() if t.is_floating_point()]))


def _found(worker: Worker, starts: Sequence[Client], update: Update, error: Exception) -> tuple[Client, bytes]:
    """The client that fails, and the file's content. Raises Cancelled if the run is interrupted meanwhile."""
    first: dict[str, Any] = {}
    for start in starts:
        client, noting = _copied(start), NotingWorker(worker)
        try:
            noting.serve([client], update)
        except Cancelled:
            raise
        except Exception as again:
            if noting.answering:
                return start, _content(start, update, again, STEP, noting.step)
            return start, _content(start, update, again, CODE, {**noting.step, "state": client.state})
        first = first or noting.first
    return starts[0], _content(starts[0], update, error, UNKNOWN, {**first, "state": starts[0].state})


def _content(client: Client, update: Update, error: Exception, where: str, step: Mapping[str, Any]) -> bytes:
    """The file: plain values and tensors, which `torch.load(path, weights_only=True)` reads."""
    values = {
        "error": f"{type(error).__name__}: {error}",
        "traceback": "".join(traceback.format_exception(error)),
        "failed_in": where,
        "hook": getattr(update, "__name__", "update"),
        "client": client.index,
        "kind": client.kind,
        "round": client.round,
        "seed": client.setting.seed,
        "setting": client.setting.to_dict(),
        "received": client.received,
        **step,
    }
    content, copies = io.BytesIO(), dict[int, Tensor]()

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: plain(one) for name, one in value.items()}
        if not isinstance(value, Tensor):
            return value
        if id(value) not in copies:  # one of a stack's tensors would be saved with the whole stack
            copies[id(value)] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return copies[id(value)]

    torch.save(plain(values), content)
    return content.getvalue()


class NotingWorker(Worker):
    """The reference, which notes a step before it is taken."""

    def __init__(self, like: Worker) -> None:
        super().__init__(like.model, like.federation, like.setting, like.cancel)
        self.step: dict[str, Any] = {}  #: the last step, or the last forward pass of a Collect
        self.first: dict[str, Any] = {}  #: the first one
        self.answering = False  #: whether a request is being answered, so that an error is not of the method's code
        self.client: Client | None = None  #: whose request that is

    def note(self, request: Request, state: State, rows: Tensor, batch: Batch, **more: Any) -> None:
        """Note a step: the client's state before it, and its batch, rows [B] of the federation."""
        client = self.client
        assert client is not None
        sample = torch.from_numpy(self.federation.sample[rows.cpu().numpy()])
        self.step = {
            "state": state,
            "batch": {
                "samples": sample,  # positions in the data set
                "positions": batch.position,  # in this split of the client's data
                "inputs": batch.x,
                "labels": batch.y,
                "extras": dict(batch.extras),
            },
            "phase": client.work.phase,
            "request": _described(request),
            "training": not isinstance(request, Collect),
            **more,
        }
        self.first = self.first or self.step

    def answer_one(self, client: Client, request: Request) -> Answer:
        self.client, self.answering = client, True
        answer = super().answer_one(client, request)
        self.answering = False
        return answer

    def local_update(self, request: Train) -> LocalUpdate:
        return NotingUpdate(self, self.networks.of(request.model), request)

    def gradient(self, client: Client, request: Gradient) -> Differentiated:
        position = torch.from_numpy(self.batch_of(client, request)).to(self.device)
        rows = client.work.rows_of(request.split)[position]
        x, y = self.batch(rows, windows_of(self.crops(client), rows)), self.labels(rows, request.split)
        self.note(request, client.state, rows, Batch(x, y, position, request.extras))
        return super().gradient(client, request)

    def output(self, request: Collect, piece: Piece, position: Tensor) -> Tensor:
        assert self.client is not None
        batch = Batch(self.batch(*piece), self.labels(piece.rows, request.split), position, request.extras)
        self.note(request, self.client.state, piece.rows, batch)
        return super().output(request, piece, position)


class NotingUpdate(LocalUpdate):
    """The reference's local update, which notes each step, and ends with the first that diverges."""

    worker: NotingWorker

    def step(self, position: Tensor, windows: Tensor | None) -> Tensor | None:
        rows, request = self.rows[position], self.request
        batch = Batch(self.worker.batch(rows, windows), self.worker.federation.labels[rows], position, self.extras)
        moving = {name: self.network.tensors[name] for name in (*self.trained, *self.network.buffers)}
        self.worker.note(
            request,
            {**self.client.state, **{name: t.detach().clone() for name, t in moving.items()}},
            rows,
            batch,
            step=self.steps + 1,
            lr=float(self.lr),
            optimizer={name: t.clone() for name, t in self.memory.items()},
            centre={n: t.clone() for n, t in zip(self.trained, self.centre, strict=bool(self.centre))},
        )
        collected = super().step(position, windows)
        check_finite(self.client, float(self.total), bool(all_finite(self.parameters)))
        return collected


def _described(request: Request) -> dict[str, Any]:
    """A request in plain values."""
    described: dict[str, Any] = {"kind": type(request).__name__}
    for field in fields(request):
        value = getattr(request, field.name)
        if callable(value):
            described[field.name] = getattr(value, "__qualname__", repr(value))
        elif field.name != "extras":
            described[field.name] = value if isinstance(value, str | int | float | None) else repr(value)
    return described
