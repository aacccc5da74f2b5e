"""What keeps one test's own recipes from the next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_user_recipes() -> Iterator[None]:
    from fedbench.data import catalogue

    yield
    catalogue._users.clear()
