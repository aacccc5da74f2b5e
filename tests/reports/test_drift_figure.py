"""Figure 3 of FedDRM: simulated drift, its two readings, its forms."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import Result

from fedbench.errors import FedbenchError
from fedbench.reports import figures
from fedbench.reports.figures import draw
from fedbench.reports.figures.drift import CLIENT, RATIO, SEEDS, TARGET
from fedbench.store import Store
from fedbench.theory.feddrm import drift

Call = Callable[..., Result]
FIGURE = figures.load("feddrm/3")


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "simulate", partial(drift.simulate, rounds=4))


def test_both_readings_and_both_claims(store: Store) -> None:
    content = figures.kind_of(FIGURE).gather(FIGURE, figures.Ask(store))
    relative, ratio = (panel.marks.lines for panel in content.panels)
    assert {name: values.shape for name, values in {**relative, **ratio}.items()} == {
        name: (len(SEEDS), 4) for name in (CLIENT, TARGET, RATIO)
    }
    for i, seed in enumerate(SEEDS):
        client, target = drift.simulate(seed)
        np.testing.assert_allclose(relative[CLIENT][i], client.drift / client.squared_gradient)
        np.testing.assert_allclose(relative[TARGET][i], target.drift / target.squared_gradient)
        np.testing.assert_allclose(ratio[RATIO][i], client.drift / target.drift)
    assert [(v.state, v.held, v.asked) for v in content.claims] == [("holds", 20, 20)] * 2
    left, right = draw.draw(FIGURE, content).axes
    assert [line.get_label() for line in left.lines] == [CLIENT, TARGET]
    np.testing.assert_allclose(right.lines[0].get_ydata(), np.median(ratio[RATIO], axis=0))
    assert len(left.collections) == 2  # the range of the seeds


def test_a_claim_fails_where_the_heads_are_exchanged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    right = drift.simulate
    monkeypatch.setattr(drift, "simulate", lambda seed: right(seed)[::-1])
    content = figures.kind_of(FIGURE).gather(FIGURE, figures.Ask(store))
    assert [v.state for v in content.claims] == ["fails", "fails"]


def test_one_seed_as_picture_text_csv_and_json(call: Call, tmp_path: Path) -> None:
    result = call("figure", "feddrm/3", "--seed", "7")
    assert (tmp_path / "feddrm-3.png").read_bytes().startswith(b"\x89PNG")
    assert "one seed: client head" in result.stdout
    assert "every round: holds" in result.stdout
    document = json.loads(call("figure", "feddrm/3", "--seed", "7", "--json").stdout)
    assert document["seeds"] == [7]
    (courses,) = document["panels"][0]["lines"][CLIENT]
    assert courses == drift.simulate(7)[0].relative.tolist()
    rows = list(csv.DictReader(io.StringIO(call("figure", "feddrm/3", "--seed", "7", "--csv").stdout)))
    own = [row for row in rows if row["line"] == CLIENT]
    assert [int(row["round"]) for row in own] == [1, 2, 3, 4]
    assert [float(row["value"]) for row in own] == courses
    assert len(rows) == 3 * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "small"], "--budget does not go with feddrm/3"),
        (["--seed", "-1"], "the seed must be in 0..2"),
    ],
)
def test_bad_input(call: Call, arguments: list[str], message: str) -> None:
    with pytest.raises(FedbenchError, match=message):
        call("figure", "feddrm/3", *arguments)
