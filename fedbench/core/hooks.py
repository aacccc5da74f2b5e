"""Calls of a method's functions for a client (its update, losses and outputs), with checks of what they give."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from torch import Tensor

from fedbench.core.client import (
    Answer,
    Batch,
    Client,
    ClientUpdate,
    Collect,
    Gradient,
    Loss,
    LossFunction,
    Request,
    Train,
)
from fedbench.core.state import check_state, matches
from fedbench.errors import FedbenchError
from fedbench.plugins import FILES, shown

REQUESTS = (Train, Gradient, Collect)


def opened(hook: Callable[[Client], ClientUpdate | None], client: Client) -> ClientUpdate | None:
    """Call the hook; its generator, not yet started, or None. Raises FedbenchError if it returns anything else."""
    update: Any = hook(client)
    if update is None or isinstance(update, Generator):
        return update
    if isinstance(update, REQUESTS):
        raise _returned(hook, update)
    raise FedbenchError(f"{_where(hook)} returns {words(update)}", "yield requests, and return nothing")


def following(
    hook: Callable[[Client], ClientUpdate | None], update: ClientUpdate, answer: Answer | None, client: Client
) -> Request | None:
    """Send an answer and return the next request; None at the end. Raises FedbenchError for an invalid request or an
    invalid `client.state`."""
    ended = False
    try:
        request: Any = update.send(answer)
    except StopIteration as end:
        ended, request = True, end.value
        if isinstance(request, REQUESTS):
            raise _returned(hook, request) from None
    check_state(client.state, client.received, f"{_where(hook)} leaves client.state")
    if ended:
        return None
    if not isinstance(request, REQUESTS):
        raise FedbenchError(f"{_where(hook)} yields {words(request)}, not a request", f"yield {_names(' or ')}")
    _check_fits(hook, request, client)
    return request


def _check_fits(hook: Callable[..., Any], request: Request, client: Client) -> None:
    """Raise FedbenchError if the client lacks the models, tensors or images that a request names."""
    where = f"{_where(hook)} asks for"
    for name in (request.model,) if isinstance(request.model, str) else request.model:
        if name and not any(tensor.startswith(f"{name}/") for tensor in client.state):
            raise FedbenchError(f"{where} the model '{name}', which no client holds", "name it in personal_models")
    if not isinstance(request, Collect) and not any(matches(name, request.trains) for name in client.state):
        raise FedbenchError(f"{where} gradients of {request.trains}, and no tensor's name begins so")
    if isinstance(request, Gradient) and (request.part is not None or request.split != "train"):
        (first, end), images = request.part or (0, 0), client.count(request.split)
        if not first < end <= images:
            wrong = f"{where} a gradient on images {first} to {end} of {images} ({request.split})"
            raise FedbenchError(wrong, "give part=(first, end)")


def loss_of(function: LossFunction, model: Any, batch: Batch) -> Loss:
    """Call a request's loss on a batch. Raises FedbenchError if the result is not a valid Loss."""
    loss: Any = function(model, batch)
    if not isinstance(loss, Loss):
        raise FedbenchError(f"{_where(function)} returns {words(loss)}, not a Loss", "return Loss(total)")
    if not isinstance(loss.total, Tensor) or loss.total.dim():
        raise FedbenchError(
            f"{_where(function)} returns a Loss whose total is {words(loss.total)}, not a single number's tensor",
            "take the mean over the batch",
        )
    return loss


def output_of(function: Callable[[Any, Batch], Tensor], model: Any, batch: Batch) -> Tensor:
    """Call a request's output on a batch: [B, ...]. Raises FedbenchError if the result has another form."""
    output: Any = function(model, batch)
    if not isinstance(output, Tensor) or not output.dim() or len(output) != len(batch.x):
        raise FedbenchError(f"{_where(function)} returns {words(output)}, not a tensor with a row for each image")
    return output


def _returned(hook: Callable[..., Any], request: Request) -> FedbenchError:
    kind = type(request).__name__
    return FedbenchError(
        f"{_where(hook)} returns {kind}(...), and what is returned is not done", f"write `yield {kind}(...)`"
    )


def _where(hook: Any) -> str:
    """Where a hook is, for an error message: "fedavg: local", or in a user's file "mine.py, line 7: local"."""
    method, name = getattr(getattr(hook, "__self__", None), "name", ""), getattr(hook, "__name__", "an update")
    code = getattr(hook, "__code__", None)
    if not method and code is not None and code.co_filename in FILES:
        method = f"{shown(code.co_filename)}, line {code.co_firstlineno}"
    return f"{method}: {name}" if method else str(name)


def words(value: object) -> str:
    """A short description of a value, for an error message."""
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    return f"{value!r}" if isinstance(value, bool | int | float | str | None) else f"a {type(value).__name__}"


def _names(between: str) -> str:
    return between.join(f"{kind.__name__}(...)" for kind in REQUESTS)
