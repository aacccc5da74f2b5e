"""Generated hostile cases: how many, and from which seed.

`--budget hundreds` (the default) draws the same cases every time; `--budget thousands` draws new ones from a seed that
is printed, and its tests have the marker `long` (README.md). The number of examples comes from Hypothesis's profile,
which holds for the tests of this folder only: they need no `@settings`.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from command import quickly

HERE = Path(__file__).parent
BUDGETS = ("hundreds", "thousands")
SEED = "--hypothesis-seed"

# Every case starts from a copy that it makes itself, so a fixture may serve all of them; a busy machine is no failure.
EASY: dict[str, Any] = {"deadline": None, "suppress_health_check": list(hypothesis.HealthCheck), "print_blob": True}
hypothesis.settings.register_profile("hundreds", max_examples=40, derandomize=True, **EASY)
hypothesis.settings.register_profile("thousands", max_examples=2000, **EASY)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget", choices=BUDGETS, default="hundreds", help="how many cases tests/robust generates")


def _budget(config: pytest.Config) -> str:
    return str(config.getoption("--budget", "hundreds"))  # pytest has no such option unless this folder is named


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """The long budget draws a seed of its own, before Hypothesis and the workers of xdist look for one."""
    if _budget(config) == "thousands" and config.getoption(SEED) is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """`@given` takes the profile of the moment, which is when a test's file is imported: for this folder, ours."""
    hypothesis.settings.load_profile(_budget(collector.config))
    try:
        return (yield)
    finally:
        hypothesis.settings.load_profile("patient")  # tests/conftest.py's


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _budget(config) == "thousands":
        for item in items:
            if item.path.is_relative_to(HERE):
                item.add_marker(pytest.mark.long)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if _budget(config) == "thousands":
        terminalreporter.write_line(f"robust: the same cases again by {SEED}={config.getoption(SEED)}")


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    """No data folder, and trainings of three rounds of two small steps."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FEDBENCH_DATA", "FEDBENCH_HOME", "COLUMNS", "FORCE_COLOR"):
            patch.delenv(name, raising=False)
        quickly(patch.setattr)
        yield
