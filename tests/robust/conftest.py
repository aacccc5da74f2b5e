"""Generated hostile cases: how many, from which seed, and what they add up to.

`--budget hundreds` (the default) draws the same cases every time; `--budget thousands` draws new ones from a seed that
is printed, and its tests have the marker `long` (README.md). The number of examples comes from Hypothesis's profile,
which holds for the tests of this folder only: they need no `@settings`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis.errors import HypothesisException

HERE = Path(__file__).parent
BUDGETS = ("hundreds", "thousands")
SEED = "--hypothesis-seed"
#: Under which name a test's report carries its tally to the session's last line.
PROPERTY = "robust"

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


@dataclass
class Tally:
    """What became of the cases of one test."""

    cases: int = 0
    #: Anything raised that a command should have turned into one line.
    tracebacks: int = 0
    #: What a test asserts: exit codes, one line, numbers.
    wrong: int = 0

    @contextlib.contextmanager
    def case(self) -> Iterator[None]:
        """Count one case, and what it ends in."""
        try:
            yield
        except HypothesisException:  # a case that did not meet an `assume`
            raise
        except AssertionError:
            self.cases, self.wrong = self.cases + 1, self.wrong + 1
            raise
        except Exception:
            self.cases, self.tracebacks = self.cases + 1, self.tracebacks + 1
            raise
        self.cases += 1


TALLY = pytest.StashKey[Tally]()


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """For a test without `@given`: `with tally.case():` around each of its cases."""
    return request.node.stash[TALLY]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[TALLY] = Tally()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Every example of a `@given` is a case."""
    tally, handle = item.stash[TALLY], getattr(getattr(item, "obj", None), "hypothesis", None)
    inner = getattr(handle, "inner_test", None)
    if inner is not None:

        @functools.wraps(inner)
        def counted(*args: Any, **kwargs: Any) -> Any:
            with tally.case():
                return inner(*args, **kwargs)

        handle.inner_test = counted
    try:
        return (yield)
    finally:
        if inner is not None:
            handle.inner_test = inner
        item.user_properties.append((PROPERTY, dataclasses.astuple(tally)))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """One line for the tests of this folder; with xdist for those of all workers."""
    reports = [r for rs in terminalreporter.stats.values() for r in rs if getattr(r, "when", None) == "call"]
    tallies = [value for report in reports for name, value in report.user_properties if name == PROPERTY]
    if tallies:
        cases, tracebacks, wrong = map(sum, zip(*tallies, strict=True))
        seed = f" ({SEED}={config.getoption(SEED)})" if config.getoption(SEED) is not None else ""
        terminalreporter.write_line(
            f"robust: {len(tallies)} tests, {cases} cases{seed}: "
            f"{tracebacks} tracebacks, {wrong} wrong exit codes, lines or numbers"
        )
