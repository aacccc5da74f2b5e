"""A run that has not learnt: its loss is that of a guess after the last round."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from fedbench.results.learnt import not_learnt
from fedbench.store import Artifact, Store
from tests.support.make_runs import clients_table, predictions, rounds_table, run_spec, write

GUESS = math.log(4)


def run(
    store: Store, losses: Sequence[float], seed: int = 0, classes: int = 4, trained: bool = True, own: int = 1
) -> Artifact:
    rounds = len(losses)
    rows = [{"round": rounds, "view": "plain", "client": c, "label": 0, "own": own} for c in (0, 1)]
    spec = run_spec(2, rounds, seed=seed)
    more = {} if trained else {"participants": [2, 0], "images": [9, 0]}
    tables = {
        "predictions": predictions(rows, classes),
        "rounds": rounds_table(rounds, loss=list(losses), **more),
        "clients": clients_table([1, 1], [1, 1]),
    }
    return write(store, spec, **tables)


@pytest.mark.parametrize(
    ("losses", "says"),
    [
        ([GUESS, GUESS], True),
        ([0.3, 1.011 * GUESS], False),
        ([0.3, 1.009 * GUESS], True),
        ([GUESS, 0.989 * GUESS], False),
        ([GUESS, 0.3], False),
    ],
)
def test_the_last_loss_is_within_a_hundredth_of_that_of_a_guess(store: Store, losses: list[float], says: bool) -> None:
    made = run(store, losses)
    lines = not_learnt([made])
    assert bool(lines) is says
    if says:
        assert lines[0].startswith(
            f"1 run has not learnt ({made.id}): after the last round its loss is that of a guess"
        )
        assert f"of 4 classes: {GUESS:.3f}" in lines[0]
        assert lines[0].endswith("More rounds, or a larger --lr.")


def test_several_are_one_line_and_a_round_without_training_has_no_loss(store: Store) -> None:
    same = [run(store, [1.0, GUESS], seed) for seed in range(5)]
    (line,) = not_learnt([*same, run(store, [1.0, 0.1], 9)])
    assert line.startswith("5 runs have not learnt (")
    assert line.count(", ...") == 1
    assert not_learnt([run(store, [0.5, GUESS], 11, trained=False)]) == []
    assert len(not_learnt([run(store, [GUESS, 0.0], 12, trained=False)])) == 1


def test_who_answers_well_has_learnt_whatever_the_loss(store: Store) -> None:
    """As FedBABU, whose body trains below a head that stays as it was drawn."""
    assert not_learnt([run(store, [GUESS, GUESS], 1, own=0)]) == []
