"""What a name that does not exist is answered with: the nearest that does, or all, never a far one."""

from __future__ import annotations

import pytest

from fedbench import methods
from fedbench.errors import unknown


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("fedrdm", "feddrm"), ("FedAvg", "fedavg"), ("fedavgg", "fedavg"), ("scafold", "scaffold"), ("ditt", "ditto"),
        ("ifac", "ifca"), ("pfedfd", "pfedfda"), ("per-fedavg", "perfedavg"), ("fog", "fgo"), ("rum", "run"),
    ],
)  # fmt: skip
def test_a_slip_of_the_keyboard_is_offered_the_name(name: str, meant: str) -> None:
    known = ["cfl", "feddrm", "fedavg", "scaffold", "ditto", "ifca", "pfedfda", "perfedavg", "fgo", "run"]
    assert unknown("method", name, known).hint == f"did you mean '{meant}'?"


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("scaffold", ["cfl", "fedavg"]), ("apple", ["apfl", "local"]), ("fedprox", ["fedrep", "pfedfda"]),
        ("fedper", ["fedrep", "fedpac"]), ("moon", ["ditto", "local"]), ("resnet18", ["lenet5", "cnn"]),
        ("maximum", ["max", "min"]), ("last", ["best"]), ("6", ["feddrm/1", "1", "2"]), ("", ["a"]), ("x", []),
    ],
)  # fmt: skip
def test_another_name_is_offered_none(name: str, known: list[str]) -> None:
    assert unknown("method", name, known).hint == f"known: {', '.join(sorted(known)) or 'none'}"


def test_too_many_for_a_line_are_told_by_the_command_that_lists_them() -> None:
    assert str(unknown("table", "x", ["a/1"], "fedbench tables")) == "unknown table 'x'; 'fedbench tables' lists them"
    assert unknown("table", "feddrm/2", ["feddrm/1"], "fedbench tables").hint == "did you mean 'feddrm/1'?"


def test_every_method_is_its_own_nearest() -> None:
    for name in methods.names():
        assert unknown("method", name.upper(), methods.names()).hint == f"did you mean '{name}'?"
