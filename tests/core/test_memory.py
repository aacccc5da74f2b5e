"""Memory: what a step takes, and pages that are kept."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedbench.conformance.small import small
from fedbench.core import precision
from fedbench.core.precision import bytes_of_step, clients_that_fit, fits, give_back_pages, keep_freed_pages
from fedbench.core.state import size_in_bytes, state_of


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


def test_it_grows_with_the_batch_and_not_from_nothing() -> None:
    model = small()
    one, two = (bytes_of_step(model, torch.zeros(n, 1, 8, 8)) for n in (64, 128))
    assert 1.8 * one < two + 4 * size_in_bytes(state_of(model)) < 2.2 * one + 4 * size_in_bytes(state_of(model))
    assert bytes_of_step(model, torch.zeros(1, 1, 8, 8)) > 4 * size_in_bytes(state_of(model))


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training: bool) -> None:
    model = small(norm=True).train(training)
    before, tensors = state_of(model), dict(model.state_dict(keep_vars=True))
    bytes_of_step(model, torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0)) + 3)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(t is tensors[name] for name, t in model.state_dict(keep_vars=True).items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert model.training is training


def test_clients_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = small(), torch.zeros(16, 1, 8, 8)
    one = bytes_of_step(model, images)
    for room, clients in ((10 * one, 10), (10 * one - 1, 9), (one - 1, 1), (0, 1)):
        monkeypatch.setitem(precision.STACK_BYTES, "cpu", room)
        assert clients_that_fit(model, images) == clients


def test_personal_states_stay_on_the_device_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fits(1 << 60, torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 4000))  # free, all
    room = int(precision.PERSONAL_SHARE * 1000)
    assert fits(room, torch.device("cuda"))
    assert not fits(room + 1, torch.device("cuda"))


#: Page faults a step, before and after, of a net whose activations the allocator maps anew each time.
STEPS = """
import resource
import torch
from torch import nn
from fedbench.core.precision import give_back_pages, keep_freed_pages
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

    def absent(error: type[Exception]) -> Any:
        def library(name: str | None) -> Any:
            if error is AttributeError:
                return object()  # a library without mallopt
            raise error

        return library

    for error in (OSError, TypeError, AttributeError):
        monkeypatch.setattr(precision.ctypes, "CDLL", absent(error))
        assert keep_freed_pages.__wrapped__() is False
        give_back_pages()
