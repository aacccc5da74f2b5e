"""Checks that all executors agree with the reference: equal random draws, and parameters up to float rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from fedbench.conformance.lab import (
    LabRun,
    Recorder,
    federation,
    require_same_run,
    setting,
)
from fedbench.conformance.subject import Subject
from fedbench.core.federation import Federation
from fedbench.core.state import STATISTICS, State
from fedbench.specs import Setting, require

#: Largest allowed difference of two tensors, as a fraction of the largest value of the reference.
TOLERANCE = 1e-4
#: ... and an absolute one: a solver that ends on its bound may leave a last bit where the reference has zero.
NOTHING = 1e-12
#: Largest allowed norm of the difference of two steps, as a fraction of the reference step's norm (ResNet-9: 1e-3).
STEP = 1e-2
#: Executors to compare with the sequential one. Two cores, so that clients end in any order.
WAYS = ("cores", "stacked", "graphed")
CORES = {"cores": 2}


class Scenario(NamedTuple):
    """Data, setting and network of the comparison."""

    data: Federation
    setting: Setting
    norm: bool = False


#: 22, 37, 1, 29, 7 and 23 training images: a single one, less than a batch, and not sorted as in stacks.
UNEQUAL = (38, 66, 2, 52, 12, 40)
COMMON: dict[str, Any] = {
    "window": 3,
    "seed": 5,
    "lr": 0.02,
    "epochs": 2,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "batch_size": 16,
}
#: Clients leave the stack at different steps, short batches occur in the middle, cohorts and learning rates change; two
#: groups, validation images, an unseen client, and clients without labels.
CHANGES: dict[str, Any] = {**COMMON, "participation": 0.7, "schedule": "cosine", "test_phase": True}
RAGGED = Scenario(federation(UNEQUAL, groups=(0, 1, 0, 1, 0, 1), validation=0.2), setting(**CHANGES), norm=True)


def executors_agree(subject: Subject, ways: Sequence[str] = WAYS) -> None:
    """The executors (one client per core, stacks of clients, captured steps of stacks) agree with training one client
    after another, on clients of unequal sizes and a network with batch norm."""
    reference = run_of(subject, "sequential")
    for way in ways:
        compare(run_of(subject, way), reference, f"by executor {way}", exact=way == "cores")


def executors_agree_on_a_step(subject: Subject) -> None:
    """The executors (one client per core, stacks of clients, captured steps) move the network as training one client
    after another does. (One step, with the parameters as one vector, since deep networks with batch norm amplify
    rounding.)"""
    change = {"participation": 1.0, "schedule": "constant", "rounds": 1, "epochs": None, "steps": 1}
    reference = run_of(subject, "sequential", **change)
    start, end = (_vector(getattr(reference.trainer.server, name)) for name in ("initial", "shared"))
    remedy = (
        "a network is tensor code: no Python `if` about a tensor's values, no .item(), no tensor kept between calls"
    )
    for way in WAYS:
        gap = _vector(run_of(subject, way, **change).trainer.server.shared) - end
        share = float(gap.norm() / (end - start).norm())
        require(share <= STEP, f"by executor {way} a step differs by {share:.0e} of its length", remedy)


def _vector(state: State) -> torch.Tensor:
    return torch.cat([state[name].double().flatten().cpu() for name in sorted(state)])


def run_of(subject: Subject, way: str, **changes: Any) -> LabRun:
    """The subject's run in the scenario RAGGED by the executor `way`."""
    s = subject.with_unseen_client(subject.setting(**{**CHANGES, **changes}))
    options = {} if way == "sequential" else CORES
    network = partial(subject.network, norm=RAGGED.norm)
    return subject.train(RAGGED.data, s, executor=way, options=options, plan=Recorder, network=network)


def compare(ours: LabRun, reference: LabRun, where: str, exact: bool = False) -> None:
    """Raise FedbenchError unless a run has the draws, tensors, losses and predictions of the reference (bitwise if
    `exact`)."""
    remedy = "an update may not depend on other clients, the order of work, or Python's `if` about a tensor's values"
    plans = ours.trainer.plan, reference.trainer.plan
    assert isinstance(plans[0], Recorder)
    assert isinstance(plans[1], Recorder)
    require(plans[0].draws == plans[1].draws, f"{where} other batches are drawn", remedy)
    a, b = ours.trainer.server.tensors(), reference.trainer.server.tensors()
    require(a.keys() == b.keys(), f"{where} the server holds other tensors", remedy)
    far = {name: gap for name, gap in gaps(a, b).items() if gap > (0 if exact else TOLERANCE)}
    worst = max(far, key=lambda name: far[name], default="")
    require(not far, f"{where} '{worst}' differs by {far.get(worst, 0):.0e} of its largest value", remedy)
    _compare_lines(ours, reference, where, remedy, exact)
    if exact:
        require_same_run(reference, ours, f"{where} the run differs", remedy)
    _compare_answers(ours, reference, where, remedy)


def _compare_lines(ours: LabRun, reference: LabRun, where: str, remedy: str, exact: bool) -> None:
    for a, b in zip(ours.trainer.checkpoint.rounds, reference.trainer.checkpoint.rounds, strict=True):
        close = math.isclose(a["loss"], b["loss"], rel_tol=0 if exact else TOLERANCE)
        require(close, f"{where} the loss of round {b['round']} is {a['loss']:.6g}, not {b['loss']:.6g}", remedy)
        for key in ("images", "participants", "bytes_up", "bytes_down"):
            require(a[key] == b[key], f"{where} round {b['round']} has {a[key]} {key}, not {b[key]}", remedy)


def _compare_answers(ours: LabRun, reference: LabRun, where: str, remedy: str) -> None:
    a, b = ours.predictions, reference.predictions
    require(a.schema == b.schema, f"{where} predictions have other columns", remedy)
    for column in b.column_names:
        same = np.array(a[column].to_pylist()) == np.array(b[column].to_pylist())
        rounded = column in ("own", "votes") or column.startswith("route")
        enough = bool(np.mean(same) >= (0.99 if rounded else 1))
        require(enough, f"{where} '{column}' of the predictions differs", remedy)


def gaps(ours: State, reference: State) -> dict[str, float]:
    """Name -> relative difference of a tensor: to its largest value or, for a further model besides the network, to the
    largest value of that model. The parameters of such a model may be differences (control variates), and a single
    tensor can then be pure rounding error: the bias before a BatchNorm has no gradient."""
    large: dict[str, float] = {}
    for name, t in reference.items():
        if (model := _model(name)) and t.numel():
            large[model] = max(large.get(model, 0.0), float(t.abs().max()))
    return {name: differs(ours[name], t, large.get(_model(name), 0.0)) for name, t in reference.items()}


def _model(name: str) -> str:
    """The further model that a tensor belongs to: "personal/3/own" for "personal/3/own/head.bias"; "" if none."""
    place, _, tensor = name.rpartition("/")
    within = place.count("/") > name.startswith(("personal/", "model/"))
    return place if within and not tensor.endswith(STATISTICS) else ""


def differs(ours: Any, reference: Any, large: float = 0.0) -> float:
    """The largest difference, relative to the largest value of the reference or to `large` if that is larger."""
    a, b = torch.as_tensor(ours).double().cpu(), torch.as_tensor(reference).double().cpu()
    if a.shape != b.shape:
        return math.inf
    if not a.numel() or torch.equal(a, b):
        return 0.0
    gap = float((a - b).abs().max()) / max(float(b.abs().max()), large, NOTHING / TOLERANCE)
    return gap if math.isfinite(gap) else math.inf
