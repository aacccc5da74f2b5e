"""What a method's boxes ask for while a run goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedbench.core.client import Box, Client, Collect
from fedbench.core.executors import Executor

#: (round, hook, number of the request in its box) -> the losses or outputs of the clients' requests
Functions = dict[tuple[int, str, int], list[Callable[..., Any]]]


def listening(executor: Executor) -> Functions:
    """The functions of all requests that the executor will be given, filled while it works."""
    functions: Functions = {}
    run = executor.run

    def listen(clients: Sequence[Client], box: Callable[[Client], Box | None]) -> None:
        run(clients, lambda client: _passed_on(box(client), client, getattr(box, "__name__", "box"), functions))

    executor.run = listen  # type: ignore[method-assign]
    return functions


def _passed_on(box: Box | None, client: Client, hook: str, functions: Functions) -> Box:
    """The same requests and answers, written down."""
    answer: Any = None
    count = 0
    while box is not None:
        try:
            request = box.send(answer)
        except StopIteration:
            return
        function = request.output if isinstance(request, Collect) else request.loss
        functions.setdefault((client.round, hook, count), []).append(function)
        count += 1
        answer = yield request


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
