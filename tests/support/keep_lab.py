"""Small runs that keep their models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fedbench import models as networks
from fedbench.core.kept import MODEL, Models
from fedbench.core.trainer import Progress
from fedbench.methods.base import Method
from tests.support.lab import LabRun, federation, finish, setting, trainer

DATA = federation((40, 30, 50), groups=(0, 2, 0))
#: Long enough for answers that differ.
BRIEF: dict[str, Any] = {"rounds": 2, "window": 2, "epochs": 5}


def kept(
    how: Method,
    folder: Path,
    executor: str = "sequential",
    keep: frozenset[str] = frozenset({MODEL}),
    observe: Callable[[Progress], None] = lambda _: None,
    **values: Any,
) -> LabRun:
    it = trainer(how, DATA, folder, setting(**{**BRIEF, **values}), executor=executor)
    it.checkpoint.keep = keep
    return finish(it, observe)


def network(run: LabRun) -> torch.nn.Module:
    s = run.trainer.setting
    return networks.build(s.model, shape=DATA.shape, classes=DATA.classes, seed=99)


def models(run: LabRun) -> Models:
    return Models.read(run.trainer.checkpoint.models())
