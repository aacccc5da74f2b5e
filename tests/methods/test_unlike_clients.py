"""Methods against client drift: where clients have a few classes each and take many local steps, they beat FedAvg."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lab import Run, federation, setting, train


def trained(name: str, where: Path) -> Run:
    """Ten epochs a round."""
    s = setting(rounds=5, window=1, epochs=10, momentum=0.0, lr=0.05)
    return train(name, federation((90, 90, 90, 90), skew=0.5), where, s)


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained("fedavg", tmp_path_factory.mktemp("fedavg"))


@pytest.mark.parametrize("name", ["feddc", "feddyn", "scaffold"])
def test_many_local_steps_on_unlike_clients_go_less_astray_than_fedavgs(name: str, fedavg: Run, tmp_path: Path) -> None:
    assert trained(name, tmp_path).accuracy > fedavg.accuracy + 0.1
