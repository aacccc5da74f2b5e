"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from fedbench import resources
from fedbench.store import Store
from tests.support.real_images import RealImages
from tests.support.server import Server

# A shell's background jobs ignore interrupts, and so would all that a suite run there starts and stops.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What is imported until the first test stays to the end: the garbage collector need not go through it again and again.
gc.disable()

# A busy machine is no reason to fail.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


def names_slow(path: Path) -> bool:
    return path.suffix != ".py" or "slow" in path.read_text()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of the second tier, files are imported that name its marker, and no others."""
    return True if config.option.markexpr == "slow" and not names_slow(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not names_slow(item.path):
            raise pytest.UsageError(f"{item.nodeid} is slow, and -m slow would not see it: write `slow` in its file")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def no_paper_named_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's paper that a command names by its path is known to that process, which here is that of all tests."""
    monkeypatch.setattr(resources, "_given", {})


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """One intra-op thread: on a busy machine small tensors are many times slower with more."""
    torch = sys.modules.get("torch")  # tests that have not imported it need not wait for it
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_shipped_results(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packs that come with fedbench grow with every release: only tests that ask for them see them."""
    if "shipped" not in request.keywords:
        monkeypatch.setattr("fedbench.results.packs.with_fedbench", list)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "store")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """To download from, without a pause between attempts."""
    monkeypatch.setattr(importlib.import_module("fedbench.data.fetch"), "PAUSE", 0.0)
    made = Server()
    yield made
    made.listener.close()


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with the real data sets; the test is skipped where there is none."""
    given = os.environ.get("FEDBENCH_DATA", "")
    folder = Path(given.split(os.pathsep)[0]).expanduser() if given else None
    if folder is None or not folder.is_dir():
        pytest.skip("needs real images: set FEDBENCH_DATA to the folder that holds them")
    return folder


@pytest.fixture(scope="session")
def real_images(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> RealImages:
    """Data sets of real images; the processes of one session share them."""
    folder = tmp_path_factory.getbasetemp()
    return RealImages((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "real-images", data_root)
