"""What a method's updates ask for while a run goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedbench.core.client import Client, ClientUpdate, Collect, following, opened
from fedbench.core.executors import Executor


class Recorded(NamedTuple):
    """What matters of a client's request for stacking it with those of others."""

    client: int
    function: Callable[..., Any]  #: its loss or output
    shapes: Mapping[str, tuple[int, ...]]  #: of its extras


#: (round, hook, number of the request in its update) -> the clients' requests
Requests = dict[tuple[int, str, int], list[Recorded]]


def recording(executor: Executor) -> Requests:
    """All requests that the executor will be given, filled while it works."""
    requests: Requests = {}
    run = executor.run

    def listen(clients: Sequence[Client], update: Callable[[Client], ClientUpdate | None]) -> None:
        run(clients, lambda client: _passed_on(update, opened(update, client), client, requests))

    executor.run = listen  # type: ignore[method-assign]
    return requests


def _passed_on(
    hook: Callable[[Client], ClientUpdate | None], update: ClientUpdate | None, client: Client, requests: Requests
) -> ClientUpdate:
    """The same requests and answers, written down."""
    answer: Any = None
    count = 0
    while update is not None and (request := following(hook, update, answer, client)) is not None:
        function = request.output if isinstance(request, Collect) else request.loss
        shapes = {name: tuple(t.shape) for name, t in request.extras.items()}
        key = client.round, getattr(hook, "__name__", "update"), count
        requests.setdefault(key, []).append(Recorded(client.index, function, shapes))
        count += 1
        answer = yield request


def other_shapes(requests: Sequence[Recorded]) -> tuple[str, Recorded, Recorded] | None:
    """(name, one request, another) of extras that have other shapes in requests with the same function."""
    first: dict[tuple[Any, str], Recorded] = {}
    for request in requests:
        for name, shape in request.shapes.items():
            before = first.setdefault((request.function, name), request)
            if before.shapes[name] != shape:
                return name, before, request
    return None


def made_anew(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any] | None:
    """A function among them that was made of the same code as another one, and is not that one: a lambda, a function
    within a hook, or a partial one, made for each client."""
    by_code: dict[Any, Callable[..., Any]] = {}
    for function in functions:
        if by_code.setdefault(code_of(function), function) != function:
            return function
    return None


def code_of(function: Any) -> Any:
    """The code that a function, a method or a partial function runs."""
    while True:
        inner = getattr(function, "func", None) or getattr(function, "__func__", None)
        if inner is None:
            return getattr(function, "__code__", function)
        function = inner
