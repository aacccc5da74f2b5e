"""Confusion matrices, from predictions made by hand."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import Result

from fedbench.errors import FedbenchError
from fedbench.metrics.confusion import confusion
from fedbench.reports import figures
from fedbench.reports.figures import draw
from fedbench.store import Artifact, Store
from tests.support.make_runs import clients_table, predictions, rounds_table, run_spec, write

Call = Callable[..., Result]
#: (client, label, answer) after the last of two rounds; client 2 is unseen.
LAST = [(0, 0, 0), (0, 0, 1), (0, 2, 2), (1, 2, 0), (1, 2, 2), (2, 1, 1), (2, 0, 2)]


@pytest.fixture
def call(call: Call) -> Call:
    """`fedbench figure`."""
    return partial(call, "figure")


def made(store: Store, seed: int = 0, unseen: int | None = 1, answers: list[int] | None = None) -> Artifact:
    """A run whose answers after the first round, and to cropped images, are all class 0."""
    rows: list[dict[str, Any]] = []
    for t, view in ((1, "plain"), (2, "crop"), (2, "plain")):
        for i, (client, label, own) in enumerate(LAST):
            answer = (answers[i] if answers else own) if (t, view) == (2, "plain") else 0
            rows.append({"round": t, "view": view, "client": client, "label": label, "own": answer})
    tables = {"predictions": predictions(rows, classes=3), "clients": clients_table([5, 5, 5], [3, 2, 2])}
    return write(store, run_spec(3, 2, window=2, seed=seed, unseen=unseen), **tables, rounds=rounds_table(2))


def test_counts_after_the_last_round_of_the_clients_that_train(store: Store) -> None:
    run = made(store)
    np.testing.assert_array_equal(confusion(run), [[1, 1, 0], [0, 0, 0], [1, 0, 2]])
    np.testing.assert_array_equal(confusion(run, client=1), [[0, 0, 0], [0, 0, 0], [1, 0, 1]])
    np.testing.assert_array_equal(confusion(run, client=2), [[0, 0, 1], [0, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(confusion(run, "crop"), [[2, 0, 0], [0, 0, 0], [3, 0, 0]])


def test_numbers_words_and_forms(store: Store, call: Call, tmp_path: Path) -> None:
    run = made(store)
    rows = list(csv.DictReader(io.StringIO(call("confusion", run.id, "--csv").stdout)))
    assert [int(r["images"]) for r in rows] == [1, 1, 0, 0, 0, 0, 1, 0, 2]
    assert [r["share"] for r in rows[3:6]] == ["", "", ""]  # no image of class 1
    (panel,) = json.loads(call("confusion", "--json").stdout)["panels"]
    assert panel["class_accuracy"] == [0.5, None, pytest.approx(2 / 3)]
    assert (panel["accuracy"], panel["classes"]) == (0.6, ["0", "1", "2"])
    told = call("confusion").stdout
    assert "60.00 % of 5 test images are answered rightly; the worst class is 0 (50.0 %)" in told
    assert "50.0 % of 0 are taken for 1" in told
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")


def test_seeds_are_added_and_clients_are_panels(store: Store, call: Call) -> None:
    made(store)
    made(store, seed=1, answers=[0, 0, 2, 2, 2, 1, 0])
    (panel,) = json.loads(call("confusion", "--json").stdout)["panels"]
    assert panel["counts"] == [[3, 1, 0], [0, 0, 0], [1, 0, 5]]
    panels = json.loads(call("confusion", "seed=1", "--client", "0", "--client", "1", "--json").stdout)["panels"]
    assert [(p["client"], p["counts"][2]) for p in panels] == [(0, [0, 0, 1]), (1, [0, 0, 2])]


def test_the_picture(store: Store) -> None:
    made(store)
    figure = figures.FREE["confusion"]
    picture = draw.draw(figure, figures.kind_of(figure).gather(figure, figures.Ask(store)))
    matrix, bars = picture.axes
    assert [text.get_text() for text in matrix.texts] == ["50", "50", "33", "67"]
    assert [bar.get_width() for bar in bars.patches] == pytest.approx([50, 0, 200 / 3])  # type: ignore[attr-defined]


def test_a_matrix_of_no_mistake(store: Store, call: Call) -> None:
    made(store, unseen=None, answers=[label for _, label, _ in LAST])
    told = call("confusion").stdout
    assert "100.00 % of 7 test images" in told
    assert "taken for" not in told


def test_what_cannot_be_shown(store: Store, call: Call) -> None:
    run = made(store)
    for arguments, message in (
        (("--client", "3"), rf"run {run.id} has no client 3; it has 0\.\.2"),
        (("--test-augmentation", "cop"), "unknown test augmentation 'cop'; did you mean 'crop'"),
        (("--metric", "x"), "--metric does not go with confusion; it takes FILTER, --client"),
        (("seed=3",), "no run is seed=3"),
    ):
        with pytest.raises(FedbenchError, match=message):
            call("confusion", *arguments)
    scores = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(6)), 2)
    table = predictions([{"round": 1, "view": "plain", "client": 0, "label": 0, "own": 0}] * 3)
    several = table.append_column("own_scores", scores)
    spec = run_spec(1, 1, seed=9)
    write(store, spec, predictions=several, clients=clients_table([1], [3]), rounds=rounds_table(1))
    with pytest.raises(FedbenchError, match="have several labels each; a confusion matrix is of one"):
        call("confusion", spec.id)
    for i in range(9):
        made(store, seed=20 + i)
    with pytest.raises(FedbenchError, match=r"9 matrices are too many for one picture \(up to 8\)"):
        call("confusion", f"seed={','.join(str(20 + i) for i in range(9))}", "--by", "seed")
