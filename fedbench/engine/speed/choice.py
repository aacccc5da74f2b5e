"""Which executor runs a setting here: measured once for a network, its shapes and this device, then remembered."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fedbench.errors import FedbenchError
from fedbench.files import alone, disk_errors, read_json, write_json
from fedbench.store import Store
from fedbench.store.provenance import fingerprint, libraries

if TYPE_CHECKING:
    from torch import nn

    from fedbench.core.client import Client
    from fedbench.core.federation import Federation
    from fedbench.specs import Setting

T = TypeVar("T")

#: In the store's home: what was measured, by network, shapes and device.
FILE = "executors.json"
#: What is measured. The first is taken unless another is faster by MARGIN: near a tie the choice must not depend on
#: the moment. On a CPU `sequential` is `cores` with one core, and there is nothing for `graphed` to capture.
CANDIDATES = {"cpu": ("cores", "stacked"), "cuda": ("sequential", "cores", "stacked", "graphed")}
MARGIN = 1.15
#: A step of one client that takes longer (seconds) keeps the device busy by itself: a stack has nothing to gain there.
LONG_STEP = {"cpu": 0.01, "cuda": 0.2}
#: Clients of a measurement at most.
CLIENTS = {"cpu": 32, "cuda": 256}


@dataclass(frozen=True)
class Choice:
    """An executor's name, how it was chosen, and the client-steps a second measured of each candidate."""

    name: str
    how: str  #: "forced" or "measured"
    steps_per_second: dict[str, float] = field(default_factory=dict)
    date: str = ""


def choose(
    wanted: str,
    model: nn.Module,
    federation: Federation,
    setting: Setting,
    cohort: Sequence[T],
    client: Callable[[T], Client],
    store: Store,
) -> Choice:
    """The executor `wanted`, or for 'auto' the fastest one here, measured on clients of a round: `client` makes those
    of the `cohort` that take part in that.

    A measurement takes a second or so; the same network, shapes and device are measured once a store.
    """
    if wanted != "auto":
        return Choice(wanted, "forced")
    path, key = store.home / FILE, _key(setting, model, federation, len(cohort))
    choice = _remembered(path).get(key)
    if choice is None:
        some = [client(i) for i in cohort[: CLIENTS[federation.images.device.type]]]
        choice = _measured(model, federation, setting, some)
        with disk_errors("remembering the executors' speeds", store.home), alone(store.home):
            write_json(path, {k: asdict(c) for k, c in {**_remembered(path), key: choice}.items()})
    return choice


def _remembered(path: Path) -> dict[str, Choice]:
    """The choices of a file; what is damaged or of another layout is measured again."""
    try:
        entries = read_json(path)
    except (FileNotFoundError, FedbenchError):
        return {}
    choices = {}
    for key, entry in entries.items():
        with contextlib.suppress(TypeError, AttributeError, ValueError, KeyError):
            rates = {str(name): float(rate) for name, rate in entry["steps_per_second"].items()}
            if entry["name"] in {name for names in CANDIDATES.values() for name in names}:
                choices[key] = Choice(entry["name"], str(entry["how"]), rates, str(entry["date"]))
    return choices


def _measured(model: nn.Module, federation: Federation, setting: Setting, clients: Sequence[Client]) -> Choice:
    from fedbench.core.executors import available_cores

    device = federation.images.device.type
    workers = available_cores() if device == "cpu" else 1
    default, *others = CANDIDATES[device]
    rates = {default: _rate(default, model, federation, setting, clients)}
    # Autocast under vmap is not the same arithmetic on a CPU: convolutions would stay float32.
    same = device != "cpu" or setting.precision == "fp32"
    if len(clients) > 1 and same and workers / rates[default] < LONG_STEP[device]:
        rates.update({name: _rate(name, model, federation, setting, clients) for name in others})
    fastest = max(rates, key=lambda name: rates[name])
    name = fastest if rates[fastest] > MARGIN * rates[default] else default
    return Choice(name, "measured", rates, time.strftime("%Y-%m-%d"))


def _rate(name: str, model: nn.Module, federation: Federation, setting: Setting, clients: Sequence[Client]) -> float:
    from fedbench.core import executors
    from fedbench.engine.speed.probe import steps_per_second

    executor = executors.make(name, model, federation, setting)
    try:
        return round(steps_per_second(executor, clients), 1)
    finally:
        executor.close()


def _key(setting: Setting, model: nn.Module, federation: Federation, clients: int) -> str:
    """What the speed depends on, as text."""
    import torch

    from fedbench.core.executors import available_cores

    device = federation.images.device
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu x{available_cores()}"
    parameters = sum(p.numel() for p in model.parameters())
    parts = (
        *("executors", "gradients", "graph", "grouped", "optimizer", "pieces", "stack", "stacked", "stacked_collect"),
        *("waiting", "worker"),
    )
    code = fingerprint(*(f"core/{n}.py" for n in parts))
    return ", ".join(
        (
            f"{setting.model} of {parameters} parameters",
            f"images {'x'.join(map(str, federation.shape))}",
            f"batch {setting.batch_size}"
            + (", one step" if setting.steps == 1 else "")
            + (f", {setting.optimizer}" if setting.optimizer else ""),
            f"up to {1 << max(clients - 1, 0).bit_length()} clients",
            setting.precision,
            where,
            f"torch {libraries().get('torch')}",
            f"code {code}",
        )
    )
