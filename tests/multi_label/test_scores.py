"""The area under the ROC curve against scikit-learn's, predictions of several labels that are damaged, and the whole
way: made files of CheXpert, its partition, runs, areas, a table of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from fedbench.data import catalogue
from fedbench.data.parse import read
from fedbench.errors import FedbenchError
from fedbench.metrics import evaluate
from fedbench.metrics import read as metrics
from fedbench.metrics.read import load
from fedbench.metrics.scores import macro_area
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.resources import TABLES
from fedbench.specs import DatasetSpec, RunSpec, Setting
from fedbench.store import Artifact, Store
from tests.support.cli_user import fedbench, good
from tests.support.rays_lab import made_rows, small_recipe, write_release

CLIENTS, EACH, LABELS = 3, 12, 5


@given(seed=st.integers(0, 10_000), n=st.integers(2, 40), ties=st.booleans())
def test_area_is_scikit_learns(seed: int, n: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, (n, 6))
    labels[:, 0], labels[:, 1] = 1, 0  # constant: no area
    scores = rng.integers(0, 4, (n, 6)).astype(float) if ties else rng.normal(size=(n, 6))
    known = [u for u in range(6) if 0 < labels[:, u].sum() < n]
    found = macro_area(scores, labels)
    if known:
        assert found == pytest.approx(np.mean([roc_auc_score(labels[:, u], scores[:, u]) for u in known]))
    else:
        assert np.isnan(found)


def lists(values: np.ndarray, there: np.ndarray | None = None) -> pa.Array:
    if there is None:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    rows = [row.tolist() if ok else None for row, ok in zip(values, there, strict=True)]
    return pa.array(rows, pa.list_(pa.float32(), values.shape[1]))


def predictions(**changes: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Columns of two evaluated rounds, of which the second has a test phase, and the arrays behind them."""
    rng = np.random.default_rng(1)
    n = CLIENTS * EACH
    label = np.tile(rng.integers(0, 2, (n, LABELS), dtype=np.uint8), (2, 1))
    label[:, 4] = 0  # constant for everybody
    own, met = (rng.random((2 * n, LABELS), np.float32) for _ in range(2))
    second = np.arange(2 * n) >= n
    columns = {
        "round": np.where(second, 2, 1).astype(np.int32),
        "view": pa.array(["plain"] * (2 * n)).dictionary_encode(),
        "client": np.tile(np.repeat(np.arange(CLIENTS, dtype=np.int32), EACH), 2),
        "sample": np.arange(2 * n, dtype=np.int32),
        "label": lists(label),
        "own_scores": lists(own),
        "test_phase_scores": lists(met, second),
    }
    return {**columns, **changes}, {"label": label, "own": own, "met": met}


def run(store: Store, columns: dict[str, Any]) -> Artifact:
    dataset = DatasetSpec("rays", "made", "0")
    partition = partition_spec(dataset, "iid", CLIENTS, 1, 0.5)
    spec = RunSpec(Setting(partition, "custom", "digits_cnn", 2, 4, 0.1, 1, epochs=1, window=2, votes=False), "fedavg")
    zero = [0.0, 0.0]
    with store.writing(spec) as writer:
        writer.table("predictions", pa.table(columns).replace_schema_metadata({"classes": str(LABELS)}))
        counts = {"participants": [3, 3], "images": [9, 9], "bytes_up": [1, 1], "bytes_down": [1, 1]}
        seconds = {f"{part}_seconds": zero for part in ("local", "server", "evaluation", "total")}
        writer.table("rounds", pa.table({"round": [1, 2], "loss": [0.7, 0.6], **counts, **seconds}))
        sizes = pa.array([EACH] * CLIENTS, pa.int64())
        writer.table("clients", pa.table({"client": pa.array(range(CLIENTS)), "n_train": sizes, "n_test": sizes}))
    return store.open("run", spec.id)


def test_areas_of_clients_and_their_mean(store: Store, tmp_path: Path) -> None:
    """A client whose labels are constant does not count."""
    columns, arrays = predictions()
    found = load(evaluate(run(store, columns), store))

    def area(scores: np.ndarray, t: int, c: int) -> float:
        rows = slice((t - 1) * CLIENTS * EACH + c * EACH, (t - 1) * CLIENTS * EACH + (c + 1) * EACH)
        return float(np.mean([roc_auc_score(arrays["label"][rows, u], scores[rows, u]) for u in range(LABELS - 1)]))

    for t in (1, 2):
        expected = [area(arrays["own"], t, c) for c in range(CLIENTS)]
        assert found.per_client("client_auc", "plain", t) == pytest.approx(expected)
        assert found.series("client_auc_mean", "plain")[t] == pytest.approx(np.mean(expected))
    met = [area(arrays["met"], 2, c) for c in range(CLIENTS)]
    assert found.per_client("test_phase_auc", "plain") == pytest.approx(met)
    assert found.series("test_phase_auc_mean", "plain") == {2: pytest.approx(np.mean(met))}
    # There are no classes, and so no accuracies.
    assert not [name for name in found.names if "accuracy" in name]
    assert found.series("train_loss") == {1: 0.7, 2: 0.6}
    label, store = arrays["label"].copy(), Store(tmp_path / "constant")
    label[columns["client"] == 1] = 1
    found = load(evaluate(run(store, {**columns, "label": lists(label)}), store))
    each = found.per_client("client_auc", "plain", 2)
    assert len(each) == 2
    assert found.series("client_auc_mean", "plain")[2] == pytest.approx(each.mean())


def unlike(name: str, change: Any) -> dict[str, Any]:
    columns, arrays = predictions()
    return {**columns, name: change(arrays)}


def infinite(arrays: dict[str, np.ndarray]) -> pa.Array:
    own = arrays["own"].copy()
    own[3, 1] = np.inf
    return lists(own)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (unlike("label", lambda a: lists(a["label"] * 2)), "column 'label' .* holds others than 0 and 1"),
        (unlike("label", lambda a: a["label"][:, 0]), "column 'label' .* must hold lists of one length"),
        (unlike("own_scores", lambda a: lists(a["own"][:, :3].copy())), "column 'own_scores' .* has 3 scores a row"),
        (
            unlike("own_scores", lambda a: lists(a["own"], np.arange(len(a["own"])) != 5)),
            "column 'own_scores' .* has gaps",
        ),
        (unlike("own_scores", infinite), "column 'own_scores' .* not finite"),
        (unlike("client", lambda a: np.zeros(72, np.int32)), "does not hold every client's test images"),
        ({k: v for k, v in predictions()[0].items() if k != "label"}, "has no column 'label'"),
        ({k: v for k, v in predictions()[0].items() if k != "view"}, "has no column 'view'"),
    ],
)
def test_damaged_predictions(store: Store, columns: dict[str, Any], told: str) -> None:
    damaged = run(store, columns)
    with pytest.raises(FedbenchError, match=told):
        evaluate(damaged, store)
    assert not list(store.list("metrics"))


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """160 images at 32 x 32 pixels, as the data set chexpert; two labels of each eight in turn are seen in them."""
    write_release(tmp_path, made_rows(160))
    small = read(small_recipe(tmp_path, 96, 64, side=32))
    known = {**catalogue.recipes(), "chexpert": small}
    monkeypatch.setattr(catalogue, "recipes", lambda: known)
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path))
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path / "store"))
    return tmp_path


def small_table(folder: Path, rows: str) -> Path:
    """Table 59 with these rows, for four clients of a few images and a small network; FLUX clusters in round 2."""
    text = (TABLES / "flux" / "59.toml").read_text(encoding="utf-8")
    kept = [line for line in text.splitlines() if not line.startswith("  { label") or re.search(rows, line)]
    text = "\n".join(kept) + "\n"
    for old, new in (
        ("clients = 20, size = 150, test_size = 280", "clients = 4, size = 10, test_size = 6"),
        ("[[claim]]", '[budget.smoke]\nmodel = "lenet5_flux"\nrounds = 3\nlr = 0.05\n\n[[claim]]'),
        ('{ name = "Medium", by = "view+age" }, { name = "High", by = "view+age+sex" }', ""),
    ):
        assert old in text
        text = text.replace(old, new, 1)
    text = re.sub(r"\[\[claim\]\].*", "", text, flags=re.DOTALL)
    text = re.sub(r"\[\[undefined\]\].*?(?=\n\[)", "", text, flags=re.DOTALL)
    path = folder / "rays59.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_from_files_to_the_table(release: Path) -> None:
    table = small_table(release, r'label = "(FedAvg|FLUX|FLUX-prior)"')
    said = good("train", "--table", table, "--budget", "smoke")
    assert said.line == "3 of 3 runs made"
    (told,) = json.loads(good("report", "--table", table, "--budget", "smoke", "--format", "json").out)
    shown = {(cell["row"], cell["group"]): cell["value"] for cell in told["cells"]}
    store = Store(release / "store")
    assert len(list(store.list("dataset"))) == len(list(store.list("partition"))) == 1
    runs = {
        (r.manifest["spec"]["method"], r.manifest["spec"]["params"].get("clustering")): r for r in store.list("run")
    }
    rows = {"FedAvg": ("fedavg", None), "FLUX": ("flux", "density"), "FLUX-prior": ("flux", "prior")}
    for row, key in rows.items():
        found = metrics.read(store, runs[key].id)
        assert found is not None
        for column, metric in (("Known association", "client_auc_mean"), ("Test phase", "test_phase_auc_mean")):
            each = found.per_client(metric.removesuffix("_mean"), "plain")
            assert shown[row, column] == pytest.approx(100 * each.mean())
            assert 0 < each.mean() < 1
    flux = metrics.read(store, runs["flux", "density"].id)
    assert flux is not None
    assert flux.whole_run("clustering_round") == 2
    assert flux.whole_run("true_clusters") == 2
    # The predictions hold the partition's labels.
    predictions = runs["fedavg", None].frame("predictions")
    samples = next(iter(store.list("partition"))).frame("samples")
    tested = samples[samples["split"] == "test"]
    assert [list(x) for x in predictions["label"]] == [list(x) for x in tested["label"]]
    assert {len(x) for x in predictions["own_scores"]} == {14}
    told = good("evaluate", runs["flux", "density"].id, "--again").out
    assert "macro ROC AUC in %" in told
    assert f"{shown['FLUX', 'Known association']:.2f}" in told


def test_the_data_set_is_shown(release: Path) -> None:
    said = json.loads(good("partition", "chexpert", "--by", "view", "--clients", "2", "--split", "0.5", "--json").out)
    assert len(said["classes"]) == 14
    labels = np.array([c["class_counts"] for c in said["clients"]])
    shown = json.loads(good("data", "show", "chexpert", "--json").out)
    assert shown["columns"] == ["patient", "view", "age", "sex"]
    totals = [shown["class_counts"][name]["train"] + shown["class_counts"][name]["test"] for name in said["classes"]]
    assert labels.sum(0).tolist() == totals
    good("partition", "chexpert", "--by", "view", "--clients", "2", "--split", "0.5")
    told = fedbench("partition", "chexpert", "--dir", "0.3")
    assert told.code == 2
    assert "chexpert is multi-label" in told.err
