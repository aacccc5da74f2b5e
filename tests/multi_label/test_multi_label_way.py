"""The whole way of multi-label images: made files of CheXpert, its partition, runs, areas, a table of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fedbench.data import catalogue
from fedbench.data.parse import read
from fedbench.metrics import read as metrics
from fedbench.resources import TABLES
from fedbench.store import Store
from tests.support.cli_user import fedbench, good
from tests.support.rays_lab import made_rows, small_recipe, write_release


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
