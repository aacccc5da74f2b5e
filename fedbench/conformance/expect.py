"""How a check says that something does not hold: FedbenchError, what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedbench.conformance.lab import Run, parquet_bytes, same
from fedbench.errors import FedbenchError


def expect(holds: bool, wrong: str, remedy: str) -> None:
    """Raise FedbenchError(wrong, remedy) unless it holds."""
    if not holds:
        raise FedbenchError(wrong, remedy)


def differing(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> str:
    """The first name under which two states differ, in quotes."""
    names = sorted(a.keys() ^ b.keys()) or [n for n in a if not np.array_equal(a[n], b[n])]
    return f"'{names[0]}'" if names else "nothing"


def expect_same_run(a: Run, b: Run, wrong: str, remedy: str) -> None:
    """Raise FedbenchError unless two runs have left the same bits: tensors, predictions, what is noted of clients."""
    expect(same(a.tensors, b.tensors), f"{wrong}: {differing(a.tensors, b.tensors)} differs", remedy)
    predictions = parquet_bytes(a.predictions) == parquet_bytes(b.predictions)
    expect(predictions, f"{wrong}: predictions differ", remedy)
    notes: tuple[Any, Any] = (a.trainer.clients_table(), b.trainer.clients_table())
    expect(notes[0].equals(notes[1]), f"{wrong}: client.metrics differ", remedy)
