"""The start and the requests of a client's update; what is none is told by the method's and the hook's name."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from fedbench.core.client import Answer, Client, ClientUpdate, Collect, Gradient, Request, Train
from fedbench.errors import FedbenchError

REQUESTS = (Train, Gradient, Collect)


def opened(hook: Callable[[Client], ClientUpdate | None], client: Client) -> ClientUpdate | None:
    """The client's update, not yet begun. Raises FedbenchError where the hook gives neither a generator nor None."""
    update: Any = hook(client)
    if update is None or isinstance(update, Generator):
        return update
    if isinstance(update, REQUESTS):
        raise _returned(hook, update)
    raise FedbenchError(f"{_where(hook)} returns {_words(update)}", "yield requests, and return nothing")


def following(
    hook: Callable[[Client], ClientUpdate | None], update: ClientUpdate, answer: Answer | None
) -> Request | None:
    """The request that follows the answer to the one before; None at the end. Raises FedbenchError for what is none."""
    try:
        request: Any = update.send(answer)
    except StopIteration as end:
        if isinstance(end.value, REQUESTS):
            raise _returned(hook, end.value) from None
        return None
    if not isinstance(request, REQUESTS):
        raise FedbenchError(f"{_where(hook)} yields {_words(request)}, not a request", f"yield {_names(' or ')}")
    return request


def _returned(hook: Callable[..., Any], request: Request) -> FedbenchError:
    kind = type(request).__name__
    return FedbenchError(
        f"{_where(hook)} returns {kind}(...), and what is returned is not done", f"write `yield {kind}(...)`"
    )


def _where(hook: Any) -> str:
    """Such as "fedavg: local"."""
    method, name = getattr(getattr(hook, "__self__", None), "name", ""), getattr(hook, "__name__", "an update")
    return f"{method}: {name}" if method else str(name)


def _words(value: object) -> str:
    """What it is, in few words, however large."""
    return f"{value!r}" if isinstance(value, bool | int | float | str | None) else f"a {type(value).__name__}"


def _names(between: str) -> str:
    return between.join(f"{kind.__name__}(...)" for kind in REQUESTS)
