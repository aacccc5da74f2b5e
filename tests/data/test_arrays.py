"""Arrays in memory as a data set: what they become, that their content is their identity, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

import fedbench as fb
from fedbench import data
from fedbench.data import arrays
from fedbench.store import Store
from tests.support.frames import refused

X = np.random.default_rng(0).normal(size=(30, 4))
Y = np.arange(30) % 3
HOSPITALS = np.array(["Graz", "Bern", "Z\u00fcrich"])[np.arange(30) // 10]


def test_vectors_with_groups_are_clients_by_name(store: Store) -> None:
    part = fb.partition((X, Y), groups=HOSPITALS, store=store)
    assert part.data.names == ("Bern", "Graz", "Z\u00fcrich")
    assert part.counts["train"].sum() + part.counts["test"].sum() == 30
    loaded = data.load(part.spec.dataset, store)
    assert loaded.images[:, 0, 0] == pytest.approx(X)
    assert loaded.labels.tolist() == Y.tolist()
    run = fb.train(part, "fedavg", rounds=1, steps=1, progress=False, executor="sequential")
    assert run.accuracies.index.tolist() == ["Bern", "Graz", "Z\u00fcrich"]
    assert fb.partition((X, Y), groups=HOSPITALS, iid=True, clients=2, store=store).spec.scheme == "iid"


def test_the_content_is_the_identity(store: Store, tmp_path: Path) -> None:
    first = arrays.store(X, Y, HOSPITALS, store)
    same = [
        (pd.DataFrame(X), pd.Series(Y), pd.Series(HOSPITALS)),
        (X.tolist(), [float(y) for y in Y], HOSPITALS.astype(object)),
        (np.asfortranarray(X), Y.astype(np.int8), HOSPITALS),
    ]
    assert {arrays.store(*one, store).id for one in same} == {first.id}
    assert arrays.store(X, Y, HOSPITALS, Store(tmp_path / "another")) == first
    other = [(X + 1, Y, HOSPITALS), (X, Y[::-1], HOSPITALS), (X, Y, HOSPITALS[::-1]), (X, Y, None)]
    assert len({first.id, *(arrays.store(*one, store).id for one in other)}) == 5
    elsewhere = Store(tmp_path / "a_third")
    refused("the arrays of data set .* are not in the store .*; give them again", data.load, first, elsewhere)


def test_images_and_classes_by_name(store: Store) -> None:
    digits = load_digits()
    images, names = (digits.images * 15).astype(np.uint8), np.array(["even", "odd"])[digits.target % 2]
    part = fb.partition((images, names), dir=1.0, clients=3, store=store)
    loaded = data.load(part.spec.dataset, store)
    assert (loaded.images[..., 0] == images).all()
    assert loaded.classes == ("even", "odd")
    assert part.samples["label"].tolist() == names[part.samples["sample"]].tolist()


def test_a_sample_of_no_group_is_left_out(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    groups = [None, np.nan, "", *HOSPITALS[3:]]
    part = fb.partition((X, Y), groups=groups, store=store)
    assert "3 vectors of no group left out" in capsys.readouterr().err
    assert len(part.samples) == 27


@pytest.mark.parametrize(
    ("x", "y", "groups", "line"),
    [
        (X, Y[:5], None, "y is an array of shape \\[5\\], and X has 30 samples"),
        (X, Y, HOSPITALS[:7], "groups is an array of shape \\[7\\], and X has 30 samples"),
        (X, np.where(Y, Y, np.nan), None, "the arrays: column y is empty in row 1"),
        (np.where(X > 2, np.nan, X), Y, None, "X: column X has no number in row"),
        (X.astype(str), Y, None, "X: column X holds text"),
        (pd.DataFrame(X).assign(name="a"), Y, None, "X holds object, and not numbers alone"),
        (X[:, 0], Y, None, "float64 \\[30\\], neither vectors nor images; vectors are"),
        (X.reshape(30, 2, 2), Y, None, "float64 \\[30, 2, 2\\], neither vectors nor images"),
        (X[:0], Y[:0], None, "it holds no sample"),
        (X, X[:, 0], None, "the arrays: column y has 30 values: it holds no classes"),
        (X, np.zeros(30, int), None, "arrays holds one class only"),
    ],
)
def test_what_is_no_data_set(x: Any, y: Any, groups: Any, line: str, store: Store) -> None:
    refused(line, fb.partition, (x, y), groups=groups, store=store)


def test_groups_go_with_arrays(store: Store) -> None:
    refused("partition: groups go with arrays", fb.partition, "digits", groups=HOSPITALS, store=store)
    refused("a data set of arrays is \\(X, y\\), not 3 of them", fb.partition, (X, Y, Y), store=store)
