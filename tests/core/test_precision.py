"""What a precision does to a run: TF32 switches, bfloat16 products, float32 weights; and where it cannot be had."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedbench.conformance import agreement
from fedbench.conformance.subject import small
from fedbench.core import precision as module
from fedbench.core import usage, worker
from fedbench.core.precision import arithmetic, autocast, check, layout
from fedbench.core.state import state_of
from fedbench.core.usage import bytes_of_step, clients_that_fit, fits, give_back_pages, keep_freed_pages
from fedbench.engine import run as engine
from fedbench.engine import run as place
from fedbench.engine.job import Job
from fedbench.engine.run import execute_all
from fedbench.errors import FedbenchError
from fedbench.specs import PRECISIONS
from fedbench.store import Store
from tests.support import lab
from tests.support.frames import or_line, refused

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (9, 0), (10, 0), (7, 5), (6, 1)])
def test_what_a_gpu_and_a_cpu_can_do(capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Old GPU")
    line = f"{{}} needs compute capability 8.0, and Old GPU has {capability[0]}.{capability[1]}; use --precision fp32"
    lines = {one: line.format(one) if capability < (8, 0) and one != "fp32" else None for one in PRECISIONS}
    assert {one: or_line(check, one, GPU) for one in PRECISIONS} == lines
    assert or_line(check, "fp32", CPU) is or_line(check, "bf16", CPU) is None
    assert or_line(check, "tf32", CPU) == "tf32 needs a GPU, and this is a CPU; use --precision fp32"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("name", "off", "on"), [("fp32_precision", "ieee", "tf32"), ("allow_tf32", False, True)])
def test_switches_of_a_new_and_an_old_torch(
    monkeypatch: pytest.MonkeyPatch, name: str, off: object, on: object, precision: str
) -> None:
    def backend(**parts: MagicMock) -> MagicMock:
        """It has one switch: since 2.9 the older is neither to be read nor to be set beside the newer one."""
        made = MagicMock(spec_set=[name, *parts])
        made.configure_mock(**{name: "as it was"}, **parts)
        return made

    parts = {"conv": backend(), "rnn": backend()} if name == "fp32_precision" else {}
    matmul, cudnn = backend(), backend(**parts)
    owners = [matmul, *(parts.values() or [cudnn])]
    backends = SimpleNamespace(cuda=SimpleNamespace(matmul=matmul), cudnn=cudnn)
    monkeypatch.setattr(module, "torch", SimpleNamespace(backends=backends))
    inside = []
    with contextlib.suppress(KeyError), arithmetic(precision, GPU):
        inside = [getattr(owner, name) for owner in owners]
        raise KeyError
    assert inside == [off, *[on if precision == "tf32" else off] * (len(owners) - 1)]
    assert [getattr(owner, name) for owner in owners] == ["as it was"] * len(owners), "put back, whatever happens"


def switches() -> list[Any]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(matmul, "fp32_precision"):
        return [b.fp32_precision for b in (matmul, cudnn.conv, cudnn.rnn)]
    return [matmul.allow_tf32, cudnn.allow_tf32]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_switches_of_this_torch(precision: str) -> None:
    """They turn without a warning, and back so that the older interface works as before."""
    before, legacy = switches(), (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with arithmetic(precision, GPU):
            inside = switches()
        with arithmetic("tf32", CPU):
            assert switches() == before, "of no use on a CPU, so not touched"
    assert inside[0] in ("ieee", False), "products are exact"
    assert set(inside[1:]) <= ({"tf32", True} if precision == "tf32" else {"ieee", False})
    assert switches() == before
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == legacy


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_run_computes_as_its_setting_says(store: Store, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    seen: list[Any] = []

    def stop(*_: Any) -> None:
        seen.extend(switches())
        raise FedbenchError("enough")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(place, "choose_device", lambda _: GPU)
    monkeypatch.setattr(engine, "prepared", stop)
    before, job = switches(), Job.of(lab.setting(precision=precision), "fedavg", {})
    refused("enough", execute_all, [job], store, [])
    assert [s in ("tf32", True) for s in seen] == [False, *[precision == "tf32"] * (len(before) - 1)]
    assert switches() == before
    assert "core/precision.py" in job.parts, "older code is noticed"


def test_nothing_is_claimed_where_the_device_cannot(store: Store) -> None:
    job = Job.of(lab.setting(precision="tf32"), "fedavg", {})
    refused("tf32 needs a GPU", execute_all, [job], store, [], device="cpu")
    assert not store.work(job.spec.id).exists()
    assert not list(store.home.glob("failed/*"))


def test_only_float32_on_a_gpu_lies_channels_first() -> None:
    found = {(one, device): layout(one, device) for one in PRECISIONS for device in (GPU, CPU)}
    assert [place for place, order in found.items() if order is torch.contiguous_format] == [("fp32", GPU)]
    assert set(found.values()) == {torch.contiguous_format, torch.channels_last}


@pytest.mark.parametrize("executor", ["sequential", "stacked", "graphed"])
def test_the_order_in_memory_changes_nothing_but_rounding(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, s, seen = lab.federation((40, 52, 31), color=True), lab.setting(rounds=2), []
    last = lab.train("fedavg", data, tmp_path / "last", s, executor=executor)

    def first(precision: str, device: torch.device) -> torch.memory_format:
        seen.append(device)
        return torch.contiguous_format

    monkeypatch.setattr(worker, "layout", first)
    ours = lab.train("fedavg", data, tmp_path / "first", s, executor=executor)
    assert seen
    gaps = agreement.gaps(ours.tensors, last.tensors)
    assert max(gaps.values()) < agreement.TOLERANCE
    if executor == "sequential":  # stacks lay their convolutions as their own way asks for
        assert any(gaps.values()), "nothing lay otherwise"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_products_are_rounded_and_weights_are_not(precision: str) -> None:
    (images, labels), net, seen = lab.digits(), small(norm=True), set()
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(lambda layer, given, out: seen.add(out.dtype))
    x = torch.from_numpy(images[:64]).permute(0, 3, 1, 2).float() / 255
    with autocast(precision, CPU):
        loss = F.cross_entropy(net(x), torch.from_numpy(labels[:64]))
    assert loss.dtype == torch.float32
    torch.autograd.backward(loss)
    assert seen == {torch.bfloat16 if precision == "bf16" else torch.float32}
    assert {t.dtype for p in net.parameters() for t in (p, p.grad) if t is not None} == {torch.float32}


def test_weights_count_as_they_are() -> None:
    """No rounded copy of an earlier state is used, even within one context."""
    layer, x = nn.Linear(8, 4, bias=False), torch.ones(1, 8)
    with autocast("bf16", CPU):
        once = layer(x).detach().float()
        with torch.no_grad():
            layer.weight.mul_(2)
        twice = layer(x)
    assert torch.equal(twice.detach().float(), 2 * once)
    with autocast("bf16", CPU):
        with torch.no_grad():
            layer(x)
        out = layer(x)
    assert out.requires_grad, "a pass without gradients leaves nothing to one with them"


def test_a_federation_in_bf16(tmp_path: Path) -> None:
    """State stays float32, the executors agree bit for bit, and it learns what it learns in float32."""
    data, s = lab.federation((100, 75, 90), skew=float("inf")), {"rounds": 5, "steps": 12, "lr": 0.1, "window": 1}
    exact = lab.train("fedavg", data, tmp_path / "exact", lab.setting(**s))
    one, two = (
        lab.train("fedavg", data, tmp_path / executor, lab.setting(**s, precision="bf16"), executor=executor)
        for executor in ("sequential", "cores")
    )
    assert {str(t.dtype) for t in one.tensors.values()} == {"float32"}
    assert lab.same(one.shared, two.shared)
    assert not lab.same(one.shared, exact.shared)
    assert min(exact.accuracy, one.accuracy) > 0.7, "chance is 0.1; how near they are is the processor's"


def test_bytes_of_a_step_counted_by_hand() -> None:
    """What the backward pass of a two-layer net needs: the images, the hidden layer's answer after its activation,
    the second layer's weights, the log-probabilities and the labels."""
    b, hidden, classes = 100, 32, 10
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    saved = 4 * (b * 64 + b * hidden + hidden * classes + b * classes) + 8 * b
    parameters = 4 * (64 * hidden + hidden + hidden * classes + classes)
    got = bytes_of_step(net, torch.zeros(b, 1, 8, 8))
    assert got == pytest.approx(2 * saved + 4 * parameters, abs=64)  # torch adds a scalar or two
    assert bytes_of_step(net, torch.zeros(b, 1, 8, 8), moments=2) == got + parameters, "AdamW remembers two"


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training: bool) -> None:
    model = small(norm=True).train(training)
    before, tensors = state_of(model), dict(model.state_dict(keep_vars=True))
    bytes_of_step(model, torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0)) + 3)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(t is tensors[name] for name, t in model.state_dict(keep_vars=True).items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert model.training is training


def test_clients_and_personal_states_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = small(), torch.zeros(16, 1, 8, 8)
    one = bytes_of_step(model, images)
    for room, clients in ((10 * one, 10), (10 * one - 1, 9), (one - 1, 1), (0, 1)):
        monkeypatch.setitem(usage.STACK_BYTES, "cpu", room)
        assert clients_that_fit(model, images) == clients
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 4000))  # free, all
    share = int(usage.PERSONAL_SHARE * 1000)
    assert [fits(share, GPU), fits(share + 1, GPU), fits(1 << 60, CPU)] == [True, False, True]


#: Page faults a step, before and after, of a net whose activations the allocator maps anew each time.
STEPS = """
import resource
import torch
from torch import nn
from fedbench.core.usage import give_back_pages, keep_freed_pages
torch.set_num_threads(1)
net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
x = torch.zeros(64, 3, 32, 32)
def step():
    net(x).sum().backward()
def faults():
    for _ in range(4):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        step()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 5
def resident():
    return int(open("/proc/self/statm").read().split()[1])
print(faults(), keep_freed_pages(), faults())
before = resident()
give_back_pages()
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc's allocator")
def test_pages_that_are_kept_are_not_faulted_in_again() -> None:
    """An activation here is 4 MB: a thousand pages. In a process of its own, for the setting is the process's."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_") and k != "LD_PRELOAD"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", STEPS], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    freed, said, kept, back = done.stdout.split()
    assert said == "True"
    assert int(freed) > 1000, "this allocator keeps its pages anyway"
    assert int(kept) < int(freed) / 4
    assert int(back) > 1000


def test_where_there_is_no_such_allocator_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(keep_freed_pages(), bool)

    # No library, none by that name, and one without mallopt.
    for library in (MagicMock(side_effect=OSError), MagicMock(side_effect=TypeError), lambda name: object()):
        monkeypatch.setattr(usage.ctypes, "CDLL", library)
        assert keep_freed_pages.__wrapped__() is False
        give_back_pages()
