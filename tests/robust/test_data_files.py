"""Whatever a data file holds, a data set of the recipe's form comes of it, or one line that says what is wrong."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hostile_data
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fedbench.data import catalogue, load
from fedbench.errors import FedbenchError
from fedbench.store import Store

SECONDS = 60  #: of one case, after which it counts as stuck


@contextmanager
def not_stuck() -> Iterator[None]:
    """Ends a case that waits for ever, as on a pipe that nobody writes to."""

    def stuck(*_: object) -> None:
        raise AssertionError("the case is stuck")

    before = signal.signal(signal.SIGALRM, stuck)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


#: An example is some odd file: made smaller, it would say no more.
QUICK = settings(phases=(Phase.explicit, Phase.reuse, Phase.generate))


@pytest.mark.filterwarnings("ignore")  # of what is odd, but no error, Pillow and SciPy warn
@pytest.mark.parametrize(
    "kinds", [("idx", "cifar-binary", "mat"), ("parquet", "folder", "tar", "zip"), ("leaf", "csv")], ids=", ".join
)
@QUICK
@given(data=st.data())
def test_a_data_set_or_one_line(kinds: tuple[str, ...], data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(kinds))
    case = data.draw(hostile_data.cases(kind))
    catalogue._users.clear()
    with tempfile.TemporaryDirectory() as name, not_stuck():
        folder = Path(name)
        store = Store(folder / "store")
        path = case.lay(folder)
        try:
            got = load(str(path), store)
        except FedbenchError as error:
            text = str(error)
            assert "toy" in text or name in text  # the data set, or a file of it
            assert "\n" not in text
            assert len(text) < 2_000
            assert not list((store.home / "dataset").glob("*"))
            return
        count = len(got.images)
        assert count >= 1
        assert got.images.shape == (count, *hostile_data.SHAPE)
        assert got.labels.shape == ((count, 3) if kind == "csv" else (count,))
        assert np.isin(got.labels, [0, 1, 2]).all()
        assert all(len(values) == count for values in got.columns.values())
        assert [entry.name for entry in (store.home / "dataset").iterdir()] == [got.spec.id]
