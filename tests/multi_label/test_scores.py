"""Clients whose images have several labels: the loss, what models answer, executors, and methods that cannot; the area
under the ROC curve against scikit-learn's, predictions that are damaged, and the whole way: made files of CheXpert, its
partition, runs, areas, a table of them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F

from fedbench import methods
from fedbench.core.client import Batch, Client, Collect
from fedbench.core.federation import task_of, to_input
from fedbench.core.network import OfEach
from fedbench.data import catalogue
from fedbench.data.catalogue import read
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method, cross_entropy
from fedbench.methods.parts import responsibilities
from fedbench.methods.parts.clustered import probabilities, right, sample_losses
from fedbench.metrics import evaluate
from fedbench.metrics.accuracy import macro_area
from fedbench.metrics.read import load, spec_of
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.resources import TABLES
from fedbench.specs import DatasetSpec, RunSpec, Setting
from fedbench.store import Artifact, Store
from tests.support.cli_user import fedbench, good
from tests.support.lab import Run, method, setting, train, trainer
from tests.support.rays_lab import made_rows, many_labelled, small_recipe, write_release

#: Methods that fill a table with FLUX's, by their options.
ABLE: dict[str, dict[str, Any]] = {"fedavg": {}, "flux": {}, "ifca": {"clusters": 2}, "mr_mtl": {}, "cfl": {}}
ABLE |= {"fedem": {"clusters": 2}, "fedrc": {"clusters": 2}, "feddrift": {}, "apfl_flux": {}}


def brief(**changes: Any) -> Setting:
    values = {"rounds": 1, "epochs": 1, "votes": False, "window": 1, "test_phase": True, "weight_decay": 0.0}
    return setting(**{**values, "momentum_restarts": True, **changes})


def scores(run: Run, name: str = "own_scores") -> np.ndarray:
    table = run.predictions.filter(run.predictions["round"].to_numpy() == run.trainer.setting.rounds)
    column = table[name].combine_chunks()
    return np.asarray(column.flatten()).reshape(len(column), -1)


def test_loss_of_labels_and_of_classes() -> None:
    """By hand: one number a label, and their mean; classes are as they were."""
    logits, x = torch.tensor([[0.5, -2.0, 3.0], [0.0, 1.0, -1.0]]), torch.zeros(2, 1)
    y = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    p = 1 / (1 + np.exp(-logits.numpy().astype(np.float64)))
    by_hand = -np.where(y.numpy() > 0, np.log(p), np.log(1 - p))
    many = Batch(x, y, torch.arange(2), {})
    assert float(cross_entropy(lambda x: logits, many).total) == pytest.approx(by_hand.mean())
    assert sample_losses(lambda x: logits, many).tolist() == pytest.approx(by_hand.mean(1).tolist())
    assert probabilities(logits, y).numpy() == pytest.approx(p)
    assert task_of(y).answer(torch.from_numpy(p)).numpy() == pytest.approx(p)
    one = Batch(x, torch.tensor([2, 1]), torch.arange(2), {})
    assert torch.equal(cross_entropy(lambda x: logits, one).total, F.cross_entropy(logits, one.y))
    assert torch.equal(sample_losses(lambda x: logits, one), F.cross_entropy(logits, one.y, reduction="none"))
    assert torch.equal(probabilities(logits, one.y), torch.softmax(logits, 1))
    assert task_of(one.y).answer(torch.from_numpy(p)).tolist() == p.argmax(1).tolist()
    values = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], dtype=torch.float64).log()
    y = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    by_hand = [[np.sqrt(0.5 * 0.25), 1.0, 0.25], [np.sqrt(0.1 * 0.8), 1.0, 0.1]]
    assert responsibilities.of_labels(values, y).exp().numpy() == pytest.approx(np.array(by_hand))
    assert torch.equal(responsibilities.of_labels(values, torch.tensor([2, 0])), values[:, [2, 0]])
    logits, y = torch.tensor([[1.0, -1.0, 2.0, -3.0]]), torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    assert right(logits, y).tolist() == [0.5]


def test_a_federation_of_multi_label(tmp_path: Path) -> None:
    """Some methods refuse it; a box may answer with scores."""
    refusing = {n for n in methods.names() if not methods.load(n)[0].takes_multi_label}
    assert refusing >= {"pfedfda", "fedpac", "feddrm", "fedrod", "atp", "haccs", "ftw_erm", "fitw_erm"}
    assert refusing.isdisjoint({*ABLE, "flux_soft", "fesem", "local"})
    plain, half = (train(how, many_labelled(2, 40), tmp_path / str(how), brief()) for how in ("fedavg", Ensemble()))
    assert scores(half) == pytest.approx((scores(plain) + 0.5) / 2, abs=1e-6)
    data = many_labelled(3, 20)
    assert data.multi_label
    rows = data.train[1]
    assert torch.equal(data.class_counts[1], data.labels[rows].sum(0))
    assert torch.equal(data.counts(rows), data.labels[rows].sum(0))
    joined = data.joined([data, many_labelled(2, 30)])
    assert torch.equal(joined[1].labels[joined[1].train[0]], many_labelled(2, 30).labels[many_labelled(2, 30).train[0]])


def test_it_learns_and_answers_with_probabilities(tmp_path: Path) -> None:
    data = many_labelled(3, 200)
    it = train("fedavg", data, tmp_path, brief(rounds=8, lr=0.2))
    table = it.predictions
    assert [str(table.schema.field(n).type) for n in ("label", "own_scores")] == [
        "fixed_size_list<element: uint8>[4]", "fixed_size_list<element: float>[4]",
    ]  # fmt: skip
    assert {"own", "votes", "test_phase"}.isdisjoint(table.column_names)
    rows = np.concatenate([t.numpy() for t in data.test])
    own, labels = scores(it), data.labels.numpy()[rows]
    assert np.asarray(table["label"].combine_chunks().flatten()).reshape(-1, 4).tolist() == labels.tolist()
    assert macro_area(own, labels) > 0.85
    # The scores are the network's probabilities, of every label by itself.
    network = it.trainer.executor.model
    network.load_state_dict({n: it.trainer.server.shared[n] for n in network.state_dict()})
    with torch.no_grad():
        expected = torch.sigmoid(network.eval()(to_input(data.images[torch.from_numpy(rows)]))).numpy()
    assert own == pytest.approx(expected, abs=1e-5)
    # What is shown while it trains is the share of labels on the right side of one half.
    clients = np.split((own > 0.5) == (labels > 0.5), 3)
    assert it.accuracy == pytest.approx(np.mean([c.mean() for c in clients]), abs=1e-6)


@dataclass(frozen=True)
class Ensemble(Method):
    """Answers with the mean of the shared model's probabilities and one half."""

    name = "half"
    takes_votes = False

    def personalise(self, client: Client) -> Any:
        found = yield Collect(OfEach(probabilities), split="test")
        assert found.labels.shape == found.rows[:, 0].shape
        assert bool((found.labels == -1).all())
        client.answer = (found.rows[:, 0] + 0.5) / 2


def test_flux_clusters_in_round_four_and_describes_labels(tmp_path: Path) -> None:
    """The validation score is one half for ever (the released code), so warm-up ends after round 3."""
    data = many_labelled(4, 30)
    it = train("flux", data, tmp_path, brief(rounds=4))
    assert it.trainer.server.memory.accuracies == [0.5, 0.5, 0.5]
    lines = {line["round"]: line for line in it.trainer.checkpoint.rounds}
    assert lines[4]["figure_clustering_round"] == 4
    assert "figure_clustering_round" not in lines[3]
    found = it.trainer.method.described(it.trainer.server)
    assert found is not None
    assert found[1].shape == (4, 2 * (4 + 1) * 10)  # U labels, l = 10


@pytest.mark.parametrize("name", methods.names())
def test_every_method_takes_many_labels_or_says_that_it_does_not(name: str, tmp_path: Path) -> None:
    how = method(name, **ABLE.get(name, {}))
    if name == "fedavg":
        with pytest.raises(FedbenchError, match="cannot vote on multi-label images"):
            train(how, many_labelled(2, 20), tmp_path / "votes", brief(votes=True))
    if not how.takes_multi_label:
        with pytest.raises(FedbenchError, match=f"{name} works with one class an image, and these .* 4 labels each"):
            trainer(how, many_labelled(2, 20), tmp_path, brief())
        return
    once = {"steps": 1, "epochs": None, "momentum": 0.0} if name in ("fedsgd", "fedbn", "grayscale") else {}
    it = train(how, many_labelled(3, 30), tmp_path, brief(**once))
    own = scores(it)
    assert own.shape == (27, 4)
    assert ((own >= 0) & (own <= 1)).all()
    assert len(np.unique(own)) > 1


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
    spec = RunSpec(
        Setting(partition, "custom", "digits_cnn", 2, batch_size=4, lr=0.1, seed=1, epochs=1, window=2, votes=False),
        "fedavg",
    )
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
        found = load(store.open("metrics", spec_of(runs[key]).id))
        assert found is not None
        for column, metric in (("Known association", "client_auc_mean"), ("Test phase", "test_phase_auc_mean")):
            each = found.per_client(metric.removesuffix("_mean"), "plain")
            assert shown[row, column] == pytest.approx(100 * each.mean())
            assert 0 < each.mean() < 1
    flux = load(store.open("metrics", spec_of(runs["flux", "density"]).id))
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
