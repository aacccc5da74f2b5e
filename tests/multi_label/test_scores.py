"""Images of several labels: CheXpert's files, samples of natural groups, the loss, what models answer, methods that
cannot, the area under the ROC curve against scikit-learn's, and the whole way from the files to a table."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
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

from fedbench import data, methods, protocol
from fedbench.core.client import Batch, Client, Collect
from fedbench.core.images import to_input
from fedbench.core.network import OfEach
from fedbench.core.task import task_of
from fedbench.data import catalogue
from fedbench.data.dataset import Dataset
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method, cross_entropy
from fedbench.methods.parts import responsibilities
from fedbench.methods.parts.clustered import probabilities, right, sample_losses
from fedbench.metrics import evaluate
from fedbench.metrics.read import load, spec_of
from fedbench.metrics.scores import macro_area
from fedbench.partitions import make, read
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.tables import write
from fedbench.planner import table as tables
from fedbench.resources import TABLES
from fedbench.specs import DatasetSpec, PartitionSpec, Setting
from fedbench.store import Artifact, Store
from tests.data.conftest import _no_user_recipes  # noqa: F401
from tests.support.cli_user import bad, good
from tests.support.data_makers import encoded, holds, pixels, recipe_file
from tests.support.frames import few, refused
from tests.support.lab import LabRun, method, setting, train, trainer
from tests.support.make_runs import clients_table, rounds_table, run_spec
from tests.support.make_runs import write as write_run
from tests.support.partitions_lab import noise, same, shown
from tests.support.rays_lab import LABELS as FINDINGS
from tests.support.rays_lab import VALUES, Row, made_rows, many_labelled, small_recipe, write_release

#: Methods that fill a table with FLUX's, by their options.
ABLE: dict[str, dict[str, Any]] = {"fedavg": {}, "flux": {}, "ifca": {"clusters": 2}, "mr_mtl": {}, "cfl": {}}
ABLE |= {"fedem": {"clusters": 2}, "fedrc": {"clusters": 2}, "feddrift": {}, "apfl_flux": {}}


def brief(**changes: Any) -> Setting:
    values = {"rounds": 1, "epochs": 1, "votes": False, "window": 1, "test_phase": True, "weight_decay": 0.0}
    return setting(**{**values, "momentum_restarts": True, **changes})


def scores(run: LabRun, name: str = "own_scores") -> np.ndarray:
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
        "fixed_size_list<element: uint8>[4]",
        "fixed_size_list<element: float>[4]",
    ]
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
    spec = run_spec(CLIENTS, 2, window=2)
    table = pa.table(columns).replace_schema_metadata({"classes": str(LABELS)})
    sizes, rounds = [EACH] * CLIENTS, rounds_table(2, loss=[0.7, 0.6])
    return write_run(store, spec, predictions=table, rounds=rounds, clients=clients_table(sizes, sizes))


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
    assert np.isnan(each).tolist() == [False, True, False]  # the values of the others stay theirs
    assert found.series("client_auc_mean", "plain")[2] == pytest.approx(np.nanmean(each))


INFINITE = np.float32([0, np.inf, 0, 0, 0])


def unlike(name: str, change: Any) -> dict[str, Any]:
    columns, arrays = predictions()
    return {**columns, name: change(arrays)}


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (unlike("label", lambda a: lists(a["label"] * 2)), "column 'label' .* holds others than 0 and 1"),
        (unlike("label", lambda a: a["label"][:, 0]), "column 'label' .* must hold lists of one length"),
        (unlike("own_scores", lambda a: lists(a["own"][:, :3].copy())), "column 'own_scores' .* has 3 scores a row"),
        (unlike("own_scores", lambda a: lists(a["own"], np.arange(72) != 5)), "column 'own_scores' .* has gaps"),
        (unlike("own_scores", lambda a: lists(a["own"] + INFINITE)), "column 'own_scores' .* not finite"),
        (unlike("client", lambda a: np.zeros(72, np.int32)), "does not hold every client's test images"),
        ({k: v for k, v in predictions()[0].items() if k != "label"}, "has no column 'label'"),
        ({k: v for k, v in predictions()[0].items() if k != "view"}, "has no column 'view'"),
    ],
)
def test_damaged_predictions(store: Store, columns: dict[str, Any], told: str) -> None:
    damaged = run(store, columns)
    refused(told, evaluate, damaged, store)
    assert not list(store.list("metrics"))


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """160 images at 32 x 32 pixels, as the data set chexpert; two labels of each eight in turn are seen in them."""
    write_release(tmp_path, made_rows(160))
    small = catalogue.read(small_recipe(tmp_path, 96, 64, side=32))
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
    assert (flux.whole_run("clustering_round"), flux.whole_run("true_clusters")) == (2, 2)
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
    assert "chexpert is multi-label" in bad("partition", "chexpert", "--dir", "0.3")


DATASET = DatasetSpec("chexpert", "made", "0")
ROWS, TRAIN = 600, 400


def rays(rows: int = ROWS, train: int = TRAIN, labels: int = 14) -> Dataset:
    """Of patients with five images each; a patient stands on both sides of the split."""
    rng = np.random.default_rng(0)
    columns = {
        "view": np.where(rng.random(rows) < 0.5, "Frontal", "Lateral"),
        "age": rng.integers(20, 90, rows),
        "sex": np.where(rng.random(rows) < 0.5, "Female", "Male"),
        "patient": np.array([f"patient{(i + 2) // 5:05}" for i in range(rows)]),
    }
    columns["sex"][7] = "Unkno"
    found, split = rng.integers(0, 2, (rows, labels), dtype=np.uint8), (np.arange(rows) >= train).astype(np.uint8)
    classes = tuple(f"finding {u}" for u in range(labels))
    return noise(found, split, (4, 4, 1), spec=DATASET, columns=columns, classes=classes)


def spec(**changes: Any) -> PartitionSpec:
    values: dict[str, Any] = {
        "scheme": "sampled",
        "clients": 8,
        "seed": 42,
        "by": "view+age",
        "threshold": 50.0,
        "size": 20,
        "test_size": 12,
        "disjoint_by": "patient",
        "validation": 0.2,
    }
    return partition_spec(DATASET, **{**values, **changes})


#: What other schemes have not.
UNSAMPLED = dict.fromkeys(("by", "threshold", "size", "test_size", "disjoint_by", "validation"))


@few(seed=st.integers(0, 50), by=st.sampled_from(["view", "view+age", "view+age+sex"]), examples=15)
def test_clients_hold_samples_of_their_group(seed: int, by: str) -> None:
    data = rays()
    p = make(spec(seed=seed, by=by, clients=5, size=10, test_size=5), data)
    assert (p.n_train.tolist(), p.n_validation.tolist(), p.n_test.tolist()) == ([8] * 5, [2] * 5, [5] * 5)
    told = {"view": data.column("view"), "age": data.column("age") >= 50, "sex": data.column("sex")}
    held = [[told[name][p.sample[p.rows(c)]].tolist() for name in by.split("+")] for c in range(5)]
    kinds = []
    for columns in held:
        assert all(len(set(column)) == 1 for column in columns)
        kinds.append(tuple(column[0] for column in columns))
    assert [kinds.index(k) for k in kinds] == [p.groups.index(g) for g in p.groups]
    training = p.sample[~p.test]
    assert len(set(training.tolist())) == len(training)  # of each client alone
    assert (training < TRAIN).all()
    assert (p.sample[p.test] >= TRAIN).all()
    assert all(len(np.unique(tested := p.sample[p.rows(c, True)])) == len(tested) for c in range(5))
    patients = data.column("patient")
    assert not set(patients[training]) & set(patients[p.sample[p.test]])


def test_every_group_is_drawn_alike_and_tiny_ones_never() -> None:
    """Leaky clients of a group hold the same and are tested on it."""
    data = rays()
    drawn = [make(spec(seed=s, by="view+sex", size=5, test_size=3), data) for s in range(60)]
    names = [p.distributions[g].name for p in drawn for g in p.groups]
    counts = {name: names.count(name) for name in set(names)}
    assert set(counts) == {f"view {v}, sex {s}" for v in ("Frontal", "Lateral") for s in ("Female", "Male")}
    assert min(counts.values()) > 80  # of 480, 120 each; three standard deviations are 28
    assert len(set(map(tuple, (p.groups for p in drawn)))) > 10
    data = rays()
    p = make(spec(leak_test=True, disjoint_by=None, test_size=30, by="view", clients=4, seed=3), data)
    for c in range(4):
        view = p.distributions[p.groups[c]].name
        assert view is not None
        first = np.flatnonzero((data.column("view") == view.split()[1]) & (data.split == 0))
        trained = np.concatenate([p.sample[p.rows(c, False)], p.sample[p.validation_rows(c)]])
        assert sorted(trained.tolist()) == first[:20].tolist()
        assert p.sample[p.rows(c, True)].tolist() == first[:30].tolist()


def test_seeds_labels_and_the_cut() -> None:
    """... and no patient is on both sides, even if the training image is held by nobody."""
    data = rays()
    a, b, other = (make(spec(seed=s), data) for s in (1, 1, 2))
    assert np.array_equal(a.sample, b.sample)
    assert not np.array_equal(a.sample, other.sample)
    assert np.array_equal(a.label, data.labels[a.sample])
    counts = a.class_counts(test=False)
    assert counts.tolist() == [data.labels[a.sample[a.rows(c, False)]].sum(0).tolist() for c in range(8)]
    assert a.class_counts().sum() == a.label.sum()
    images, index = a.distinct(data)
    assert np.array_equal(images[index], data.images[a.sample])
    assert a.densities.train.shape == (8, 1)
    data = rays()
    data.column("age")[:] = np.where(np.arange(ROWS) % 2, 49, 50)
    p = make(spec(by="age", threshold=50.0), data)
    names = {p.distributions[g].name for g in p.groups}
    assert names == {"age below 50", "age 50 or more"}
    for c in range(p.clients):
        age = 49 if p.distributions[p.groups[c]].name == "age below 50" else 50
        assert set(data.column("age")[p.sample[p.rows(c)]].tolist()) == {age}
    assert {d.name for d in make(spec(by="age", threshold=60.0), data).distributions} == {"age below 60"}
    data = rays()
    split_patient = data.column("patient")[TRAIN - 1]
    assert split_patient == data.column("patient")[TRAIN]
    seen = {apart: make(spec(by="view", disjoint_by=apart, test_size=60), data) for apart in ("patient", None)}
    of = {apart: data.column("patient")[p.sample[p.test]] for apart, p in seen.items()}
    assert split_patient not in of["patient"]
    assert split_patient in of[None]


def test_written_read_and_seen(store: Store) -> None:
    made = make(spec(clients=6), rays())
    with store.writing(made.spec) as writer:
        write(writer, made)
    artifact = store.get(made.spec)
    assert artifact is not None
    again = read(artifact)
    assert same(again, made)
    text = " ".join(shown(again, 120).split())
    told = "20 training and 12 test images a client; threshold 50; every patient in one split only"
    for words in ("by view+age, drawn", told, "view Frontal, age below 50"):
        assert words in text


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"size": 300}, r"no group by view\+age of chexpert has 300 training and 12 test images"),
        ({"size": 40, "clients": 30}, r"training images of view .* cannot give \d+ clients 40 each"),
        ({"by": "view+height"}, "column of chexpert.*'height'"),
        ({"disjoint_by": "person"}, "column of chexpert.*'person'"),
        ({"by": None}, "a sampled partition needs by"),
        ({"test_size": None}, "a sampled partition needs test size"),
        ({"size": 1}, "a size of 2 at least"),
        ({"leak_test": True}, "cannot be disjoint by a column"),
        ({"scheme": "iid", "train_fraction": 0.5, "size": None}, "partitioner iid has no"),
        ({"train_fraction": 0.5}, "a sampled partition has no training share"),
        *(
            ({**UNSAMPLED, **changes}, "is multi-label, so it cannot be partitioned")
            for changes in (
                {"scheme": "dirichlet", "alpha": 1.0, "train_fraction": 0.5},
                {"scheme": "shards", "shards": 2, "train_fraction": 0.5},
                {"scheme": "equal", "shift": "py", "level": 3},
            )
        ),
    ],
)
def test_what_cannot_be_drawn(changes: dict[str, Any], told: str) -> None:
    refused(told, lambda: make(spec(**changes), rays()))


def test_schemes_that_do_not_go_by_classes_deal_multi_label_images() -> None:
    data = rays()
    for changes in (
        {"scheme": "iid", "train_fraction": 0.5},
        {"scheme": "natural", "by": "view", "clients": 2, "train_fraction": 0.5},
        {"scheme": "equal", "shift": "px", "level": 2},
    ):
        p = make(spec(**{**UNSAMPLED, **changes}), data)
        assert np.array_equal(p.label, data.labels[p.sample])
        assert len(p.transformed_images(data)) == len(p.sample)


@pytest.mark.parametrize("name", ["flux/59", "flux/1"])
def test_the_tables_ask_for_these_partitions(name: str) -> None:
    """Sizes of the protocol, of a data set large enough; three levels with at most 2, 4 and 8 groups."""
    data = replace(rays(40_000, 30_000), spec=DATASET)
    columns = [c for c in tables.load(name).columns if c.dataset == "chexpert"]
    assert len(columns) == 6
    seen = []
    for column in columns[:3]:
        made = make(protocol.load("flux").partition_spec(DATASET, 14, **column.partition), data)
        assert made.clients == 20
        assert [set(n.tolist()) for n in (made.n_train, made.n_validation, made.n_test)] == [{120}, {30}, {280}]
        assert made.spec.options.get("cut") == 50
        seen.append(len(made.distributions))
    assert seen[0] == 2
    assert 2 < seen[1] <= 4 < seen[2] <= 8
    assert [c.partition for c in columns[:3]] == [c.partition for c in columns[3:]]
    # The protocol's layouts are these, and the same with the released code's leak.
    rules = protocol.load("flux")
    for level, column in zip(("low", "medium", "high"), columns, strict=False):
        chosen = dict(column.partition)
        plain = rules.partition_spec(DATASET, 14, preset=f"chexpert_{level}")
        assert plain == rules.partition_spec(DATASET, 14, **chosen)
        del chosen["disjoint_by"]
        chosen["threshold"] = 60
        leaky = rules.partition_spec(DATASET, 14, preset=f"chexpert_leak_{level}")
        assert leaky == rules.partition_spec(DATASET, 14, **chosen, leak_test=True)


def loaded(folder: Path, store: Store, train: int, test: int) -> Dataset:
    return data.load(str(small_recipe(folder, train, test, side=16)), store)


def test_images_labels_and_columns(tmp_path: Path, store: Store) -> None:
    rows = made_rows(40)
    write_release(tmp_path, rows)
    found = loaded(tmp_path, store, 24, 10)
    assert found.images.shape == (34, 16, 16, 1)
    assert found.classes == tuple(FINDINGS)
    rows = rows[:34]  # lines behind the last are read by nobody
    # Uncertain counts as there, not mentioned as not.
    meaning = dict(zip(VALUES, (1, 0, 1, 0), strict=True))
    labels = [[meaning[row[name]] for name in FINDINGS] for row in rows]
    ages, patients = [int(row["Age"]) for row in rows], [row["Path"].split("/")[2] for row in rows]
    views = [row["Frontal/Lateral"] for row in rows]
    holds(found, labels=labels, split=[0] * 24 + [1] * 10, view=views, age=ages, patient=patients)
    assert found.labels.dtype == np.uint8
    assert found.multi_label
    bright = found.images.reshape(34, -1).mean(1) > 140
    assert bright.tolist() == [row["Fracture"] == "1.0" for row in rows]  # each image has its own labels
    assert loaded(tmp_path, store, 20, 10).spec.id != found.spec.id, "other numbers in the recipe"
    # Read back from the artifact, and counted there.
    again = data.load(found.spec, store)
    assert np.array_equal(again.labels, found.labels)
    counts = data.class_counts(found.spec, store)
    assert counts is not None
    train, test = found.labels[:24].sum(0), found.labels[24:].sum(0)
    assert counts == {name: (train[k], test[k]) for k, name in enumerate(FINDINGS)}


@pytest.mark.parametrize(
    ("count", "change", "told"),
    [
        (40, {"Edema": "2.0"}, "train.csv, line 6: Edema is '2.0', which is no label"),
        (40, {"Edema": "yes"}, "train.csv, line 6: Edema is 'yes', which is no label"),
        (40, {"Path": "other/train/patient1/study1/a.jpg"}, "line 6: the image 'other/train"),
        (40, {"Path": "CheXpert-v1.0-small/train/../study1/a.jpg"}, "does not lie below the file's folder"),
        (20, {}, "lists no image behind its first 24"),
        (30, {}, "holds 6 test images; its recipe says 10"),
    ],
)
def test_bad_lines(tmp_path: Path, store: Store, count: int, change: Row, told: str) -> None:
    rows = made_rows(count)
    rows[4] |= change
    write_release(tmp_path, rows)
    refused(re.escape(told), loaded, tmp_path, store, 24, 10)
    assert not list(store.list("dataset"))


def test_images_and_tables_with_faults(tmp_path: Path, store: Store) -> None:
    rows = made_rows(40)
    gone = rows[26]["Path"]
    table = write_release(tmp_path, rows, without=lambda row: row["Path"] == gone)
    refused(r"train\.csv, line 28: the image .*study26.*\.jpg is not there", loaded, tmp_path, store, 24, 10)
    (table.parent / gone.removeprefix("CheXpert-v1.0-small/")).write_bytes(b"no JPEG")
    refused(r"study26.*\(train\.csv, line 28\) is not a readable image", loaded, tmp_path, store, 24, 10)
    table = write_release(tmp_path / "2", made_rows(40))
    text = table.read_text()
    table.write_text(text.replace("Frontal/Lateral", "View", 1))
    refused(r"column of .*train\.csv.* 'Frontal/Lateral'", loaded, tmp_path / "2", store, 24, 10)
    first, *others = text.splitlines()
    table.write_text("\n".join([first, others[0] + ",", *others[1:]]))
    refused(r"line 2: 20 values under 19 column names", loaded, tmp_path / "2", store, 24, 10)
    says = r"no chexpert/CheXpert-v1\.0-small/train\.csv in.*FEDBENCH_DATA"
    refused(says, data.resolve, "chexpert", store, [tmp_path / "3"])


ONE_CLASS = """
[[source]]
name = "list"
kind = "csv"
image = "file"
label = "{label}"
pattern = "{{folder}}/*.png"
[[source.file]]
path = "list.csv"
rows = 4
[[source.file]]
path = "list.csv"
split = "test"
skip = 4
"""


def one_class(folder: Path, cells: list[str], label: str = "kind", classes: tuple[str, ...] = ("cat", "dog")) -> str:
    """A recipe of images `x/I.png` that a CSV lists with these values of one column of classes; returns its path."""
    (folder / "x").mkdir()
    for i, image in enumerate(pixels(len(cells), 4, 5)):
        (folder / f"x/{i}.png").write_bytes(encoded(image))
    lines = [f'"x/{i}.png",{cell}' for i, cell in enumerate(cells)]
    (folder / "list.csv").write_text("\n".join(['"file","kind"', *lines, ""]))
    return recipe_file(folder, ONE_CLASS.format(label=label), classes=classes)


@pytest.mark.parametrize(
    ("cells", "label", "classes", "codes"),
    [
        (["dog", "cat", '"dog"', "cat", "dog"], "kind", ("cat", "dog"), [1, 0, 1, 0, 1]),
        (["1", "0", "1", "0", " 1"], "kind", ("cat", "dog"), [1, 0, 1, 0, 1]),
        (["7", "3", "7", "3", "7"], "kind", ("7", "3"), [0, 1, 0, 1, 0]),
        (["?", "?", "?", "?", "?"], "folder", ("x", "y"), [0, 0, 0, 0, 0]),
    ],
)
def test_one_column_of_classes(
    tmp_path: Path, store: Store, cells: list[str], label: str, classes: tuple[str, ...], codes: list[int]
) -> None:
    got = data.load(one_class(tmp_path, cells, label, classes), store)
    assert not got.multi_label
    holds(got, pixels(5, 4, 5), labels=codes, split=[0, 0, 0, 0, 1])


OTHER = r"has another class than in .*csv"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"x/1.png",cat', '"x/1.png",catt', r"unknown class in .*list\.csv, line 3: 'catt'; did you mean 'cat'"),
        ('"x/1.png",cat', '"x/1.png",1', r"unknown class in .*list\.csv, line 3: '1'"),
        ('"x/1.png",cat', '"x/1.png",', r"unknown class in .*list\.csv, line 3: ''"),
        ('"x/1.png",cat', '"x/0.png",cat', rf"list\.csv, line 3: x/0\.png {OTHER}, line 2; list"),
        ('"x/4.png",dog', '"x/1.png",dog', rf"list\.csv, line 6: x/1\.png {OTHER}, line 3; list"),
        ('"kind"', '"kinds"', r"unknown column of .*list\.csv 'kind'; did you mean 'kinds'"),
    ],
)
def test_a_wrong_class_names_its_line(tmp_path: Path, store: Store, old: str, new: str, told: str) -> None:
    path = one_class(tmp_path, ["dog", "cat", "dog", "cat", "dog"])
    table = tmp_path / "list.csv"
    table.write_text(table.read_text().replace(old, new, 1))
    refused(told, data.load, path, store)
