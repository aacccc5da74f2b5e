"""Times in words."""

from __future__ import annotations

import pytest

from fedbench.words import duration


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (89, "89 s"), (90, "2 min"), (700, "12 min"), (12_600, "3.5 h"), (181_440, "2.1 days")],
)
def test_a_duration_is_rough(seconds: float, words: str) -> None:
    assert duration(seconds) == words
