"""`train --select best`: the models of the round with the lowest validation loss answer."""

from __future__ import annotations

import json
from pathlib import Path

from fedbench.specs import RunSpec
from fedbench.store import Store
from tests.support.cli_user import SMOKE, fedbench, good

TRAIN = ("train", "--method", "fedavg", *SMOKE)


def test_it_is_another_run_and_says_so(ready: Path) -> None:
    store = Store(ready)
    before = str(store.current["run"])
    good(*TRAIN, "--select", "best")
    run = store.find(str(Store(ready).current["run"]))
    assert isinstance(run.spec, RunSpec)
    assert run.id != before
    assert run.spec.setting.select == "best"
    (listed,) = (line for line in good("list", "run").out.splitlines() if run.id in line)
    assert "best round" in listed
    assert json.loads(good("evaluate", "--json").out)


def test_another_word_is_told(ready: Path) -> None:
    said = fedbench(*TRAIN, "--select", "last")
    assert said.code == 2
    assert "unknown select 'last'; known: best" in said.err
