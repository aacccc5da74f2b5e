"""The conformance checks' small federation and runs on it, and what else these tests share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench import methods
from fedbench.conformance.lab import LabRun, digits, federation, finish, parquet_bytes, same, setting, trainer, vectors
from fedbench.core.client import Client, Context
from fedbench.core.federation import ByClient, Federation
from fedbench.core.plan import Plan
from fedbench.core.simulation import new_client
from fedbench.core.state import State
from fedbench.methods.base import Method
from fedbench.specs import Setting

__all__ = [
    "LabRun",
    "client",
    "digits",
    "drive",
    "equal",
    "federation",
    "finish",
    "method",
    "needs_gpu",
    "own",
    "parquet_bytes",
    "same",
    "setting",
    "staged",
    "train",
    "trainer",
    "vectors",
]

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def method(name: str, **overrides: Any) -> Method:
    """A registered method with these hyper-parameters."""
    return methods.load(name)[0].create(overrides)


def own(base: type[Method] = Method, **hooks: Any) -> Method:
    """A method of a test's own: of `base` with these hooks (functions of the method and what they are handed), or
    other values of the class."""
    return type("Own", (base,), {"name": "own", **hooks})()


def staged(data: Federation, *stages: tuple[Sequence[Tensor], Sequence[Tensor]]) -> Federation:
    """The same clients with these rows to train on and to validate on, at each stage."""

    def by_client(rows: Sequence[Tensor]) -> ByClient:
        return ByClient(torch.cat(list(rows)), np.cumsum([0, *map(len, rows)]))

    return replace(data, stages=[(by_client(train), by_client(held)) for train, held in stages])


def client(data: Federation, plan: Plan, index: int, state: State, t: int = 1) -> Client:
    """A client that holds `state` in round t of the plan's setting."""
    return new_client(index, t, state, Context.of(data, plan.setting), data, plan)


def train(
    how: Any, data: Federation, where: Path, s: Setting | None = None, observe: Any = lambda _: None, **more: Any
) -> LabRun:
    """Train a method, or that of a name, to the end (or on from the checkpoint in `where`); `observe` hears of each
    Progress, and a `trainer` takes the rest."""
    return finish(trainer(method(how) if isinstance(how, str) else how, data, where, s, **more), observe)


def equal(ours: LabRun, its: LabRun) -> None:
    """The same tensors, predictions, notes and lines, bit for bit."""
    assert same(ours.tensors, its.tensors)
    assert parquet_bytes(ours.predictions) == parquet_bytes(its.predictions)
    assert ours.trainer.clients_table().equals(its.trainer.clients_table())
    for a, b in zip(ours.trainer.checkpoint.rounds, its.trainer.checkpoint.rounds, strict=True):
        assert a.keys() == b.keys()
        assert [key for key in a if a[key] != b[key] and not key.endswith(("seconds", "peak_bytes"))] == []


def drive(update: Any, *answers: Any) -> list[Any]:
    """The requests of a client update that gets these answers."""
    requests = [next(update)]
    for answer in answers:
        try:
            requests.append(update.send(answer))
        except StopIteration:
            break
    return requests
