"""A run that answered more serves a cell that asks less; one that answered less does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedbench import protocol
from fedbench.results.frame import Frame
from fedbench.specs import DatasetSpec, RunSpec, Setting
from fedbench.store import Store
from tests.support.make_runs import tiny_run

FLUX = protocol.load("flux")
PART = FLUX.partition_spec(DatasetSpec("mnist", "", ""), 10)


def asked(**values: Any) -> Setting:
    """A setting of ten rounds that asks for these answers."""
    usual = {"window": 2, "every": 4, "votes": False, "test_phase": None}
    return replace(FLUX.setting(PART, "small"), **{**usual, **values})


@pytest.mark.parametrize(
    ("more", "covered"),
    [
        ({}, True),
        ({"every": 1}, True),
        ({"every": 2}, True),
        ({"window": 10}, True),
        ({"votes": True}, True),
        ({"test_phase": True}, True),
        ({"every": 3}, False),  # rounds 4 and 8 are not among 3, 6, 9
        ({"window": 1}, False),
        ({"seed": 43}, False),
        ({"lr": 0.5}, False),
        ({"precision": "bf16"}, False),
        ({"rounds": 11}, False),
        ({"executor": "sequential"}, False),
    ],
)
def test_what_covers_what(more: dict[str, Any], covered: bool) -> None:
    assert asked(**more).covers(asked()) is covered


def test_fewer_answers_cover_nothing_more() -> None:
    assert not asked().covers(asked(votes=True))
    assert not asked().covers(asked(test_phase=True))
    assert not asked().covers(asked(every=1))


def test_where_evaluated_rounds_choose_the_round_they_must_be_the_same() -> None:
    assert asked(select="best", votes=True).covers(asked(select="best"))
    assert not asked(select="best", every=1).covers(asked(select="best"))


def test_a_cell_finds_the_run_that_answered_more(store: Store) -> None:
    """It is done as it stands, so no table trains it again; a run that answered less leaves the cell missing."""
    run = tiny_run(store)
    more = run.spec
    assert isinstance(more, RunSpec)
    less = replace(more, setting=replace(more.setting, votes=False))
    assert less.id != more.id
    assert more.setting.covers(less.setting)
    found = Frame(store).find(less)
    assert found is not None
    assert (found.id, found.complete is not None) == (more.id, True)
    assert Frame(store).find(replace(more, setting=replace(more.setting, every=1, rounds=9))) is None
    assert Frame(store).find(replace(less, method="local")) is None
