"""Frames that many tests have: the one line in which bad input ends, and examples that Hypothesis draws."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedbench.errors import FedbenchError

#: What NumPy's and torch's generators begin with.
SEEDS = st.integers(0, 2**32 - 1)
CALM = [HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much]


def refused(says: str, call: Callable[..., object], *arguments: Any, **more: Any) -> str:
    """The one line in which the call with these arguments ends, and which this regular expression finds."""
    with pytest.raises(FedbenchError) as caught:
        call(*arguments, **more)
    line = str(caught.value)
    assert "\n" not in line
    assert re.search(says, line), line
    return line


def or_line(call: Callable[..., Any], *arguments: Any) -> Any:
    """What the call makes, or the line in which it ends."""
    try:
        return call(*arguments)
    except FedbenchError as error:
        return str(error)


def few(*drawn: Any, examples: int = 20, **named: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Hypothesis's `given`, of so many examples."""
    return lambda test: settings(max_examples=examples, suppress_health_check=CALM)(given(*drawn, **named)(test))
