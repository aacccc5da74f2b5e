"""Partitions that draw training and test samples apart: as artifacts, for the eye, from a file, on the command line."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedbench import data, partitions
from fedbench.__main__ import main
from fedbench.errors import FedbenchError
from fedbench.partitions import Partition, view
from fedbench.partitions.density import realised
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.specs import DatasetSpec, PartitionSpec
from fedbench.store import Store
from tests.support.real_images import RealImages

MADE = DatasetSpec("made", "here", "now")
TRAIN, TEST = [[4, 1, 1, 1], [1, 4, 1, 1]], [[1, 1, 4, 1], [1, 1, 1, 4]]


def dataset(classes: int = 4) -> data.Dataset:
    """1,200 grey images, the last 400 of them test images, in as many of each class."""
    rng = np.random.default_rng(2)
    return data.Dataset(
        spec=MADE,
        images=rng.integers(0, 256, (1200, 3, 3, 1), dtype=np.uint8),
        labels=np.arange(1200) % classes,
        split=np.repeat(np.array([0, 1], np.uint8), [800, 400]),
        columns={},
        classes=tuple(f"class{k}" for k in range(classes)),
    )


def mixture(clients: int = 2, **fields: Any) -> PartitionSpec:
    return partition_spec(MADE, "mixture", clients, 1, **{"train_mix": TRAIN, "test_mix": TEST, **fields})


def colored() -> PartitionSpec:
    blocks, flips = [(0, 300, 600, 700), (300, 600, 700, 800)], [(0.5, 0.2), (0.2, 0.8)]
    return partition_spec(MADE, "colored", 2, 1, blocks=blocks, flips=flips, label_noise=0.25)


ASKED = {"mixture": mixture(4, keep=(0.5, 1)), "disjoint": mixture(4, disjoint=True), "colored": colored()}


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> data.Dataset:
    """The data set that every spec of these tests is of."""
    of = dataset()
    made_up_images = SimpleNamespace(digest="", provenance={})
    monkeypatch.setattr(import_module("fedbench.data.build"), "obtain", lambda *given: made_up_images)
    monkeypatch.setattr("fedbench.data.dataset.from_artifact", lambda artifact: of)
    return of


# -- artifacts ------------------------------------------------------------------------------------------------


def same(a: Partition, b: Partition) -> bool:
    names = ("client", "sample", "test", "label")
    arrays = [(getattr(a, n), getattr(b, n)) for n in names] + [
        (getattr(a.densities, n), getattr(b.densities, n)) for n in ("strata", "train", "test")
    ]
    if a.colour is not None and b.colour is not None:
        arrays.append((a.colour, b.colour))
    return (
        (a.spec, a.classes, a.transforms, a.groups) == (b.spec, b.classes, b.transforms, b.groups)
        and (a.colour is None) == (b.colour is None)
        and all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in arrays)
    )


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_comes_back_as_it_was_made(store: Store, made_up: data.Dataset, asked: PartitionSpec) -> None:
    built = partitions.build(asked, store)
    artifact = store.open("partition", built.id)
    assert same(built, partitions.make(asked, made_up))
    assert same(built, partitions.read(artifact))
    assert same(built, partitions.build(asked, store))
    columns = ["client", "sample", "split", "label"] + ["colour"] * (asked.scheme == "colored")
    assert artifact.table("samples").column_names == columns
    assert artifact.table("clients")["group"].to_pylist() == built.groups


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_same_spec_same_bytes(store: Store, made_up: data.Dataset, tmp_path: Path, asked: PartitionSpec) -> None:
    def digests(home: Store) -> dict[str, str]:
        partitions.build(asked, home)
        return {n: f["sha256"] for n, f in home.open("partition", asked.id).manifest["files"].items()}

    assert digests(store) == digests(Store(tmp_path / "second"))


def test_rows_and_counts_of_copies(made_up: data.Dataset) -> None:
    """Each client has its own rows, training first, whoever else holds the same samples."""
    made = partitions.make(mixture(4), made_up)
    for c in range(4):
        rows = made.rows(c)
        assert set(made.client[rows]) == {c}
        assert made.test[rows].tolist() == [False] * made.n_train[c] + [True] * made.n_test[c]
    assert made.class_counts().sum() == len(made.sample)
    assert np.array_equal(made.class_counts(), made.class_counts(False) + made.class_counts(True))
    assert np.array_equal(made.transformed_images(made_up), made_up.images[made.sample])


# -- densities of the other schemes ---------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=40))
def test_realised_densities_are_class_shares(rows: list[tuple[int, int]]) -> None:
    client, label = (np.array(column) for column in zip(*rows, strict=True))
    known = realised(label, client, 3, 4)
    for c in range(3):
        mine = [k for who, k in rows if who == c]
        expected = [mine.count(k) / len(mine) if mine else 0 for k in range(4)]
        np.testing.assert_allclose(known.train[c], expected)
    assert np.array_equal(known.train, known.test)
    assert known.strata.tolist() == label.tolist()


def test_densities_of_a_dirichlet_partition_are_those_it_drew() -> None:
    made = partitions.make(partition_spec(MADE, "dirichlet", 4, 1, 0.7, alpha=0.5, min_size=10), dataset())
    counts = made.class_counts()
    for table in (made.densities.train, made.densities.test):  # a random split is no shift
        np.testing.assert_allclose(table, counts / counts.sum(axis=1, keepdims=True))


# -- for the eye ----------------------------------------------------------------------------------------------


def told(p: Partition, width: int = 100) -> str:
    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        view.display(console, p)
    return captured.get()


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if re.search(r"^ *\S* +(train|test) ", line)]


def test_a_line_for_either_side() -> None:
    made = partitions.make(mixture(), dataset())
    text = told(made)
    assert f"{made.n_train.sum():,} training and {made.n_test.sum():,} test images\n" in text
    train, test = made.class_counts(False), made.class_counts(True)
    expected = [
        line
        for c in range(2)
        for line in (
            [str(c), "train", *map(str, train[c]), str(train[c].sum())],
            ["test", *map(str, test[c]), str(test[c].sum())],
        )
    ]
    assert lines(text) == expected


@pytest.mark.parametrize("disjoint", [False, True])
def test_a_group_is_one_client_or_all_that_share(disjoint: bool) -> None:
    made = partitions.make(mixture(20, disjoint=disjoint), dataset())
    one = partitions.make(mixture(), dataset())
    text = told(made)
    shared = "share the images of their group out" if disjoint else "hold the same images"
    assert f"2 groups of 10 clients, who {shared}" in text
    assert f"{one.n_train.sum():,} training and {one.n_test.sum():,} test images;" in text
    named = [["0-9", *lines(told(one))[0][1:]], lines(told(one))[1], ["10-19", *lines(told(one))[2][1:]]]
    assert lines(text)[:3] == named


@pytest.mark.parametrize("width", [60, 100])
def test_many_classes_are_summed_up(width: int) -> None:
    wide = [[9, 1, 0, 1, *[0] * 36]]
    made = partitions.make(mixture(1, train_mix=wide, test_mix=[[0] * 39 + [1]]), dataset(40))
    text = told(made, width)
    assert max(map(len, text.splitlines())) <= width
    counts = made.class_counts(False)[0]
    assert lines(text)[0][:6] == ["0", "train", str(counts.sum()), "3", "class0", f"{counts[0] / counts.sum():.0%},"]
    assert lines(text)[1] == ["test", "10", "1", "class39", "100%"]


def test_many_groups_are_cut() -> None:
    made = partitions.make(mixture(40, train_mix=TRAIN * 20, test_mix=TEST * 20), dataset())
    assert len(lines(told(made))) == 20
    assert "and 30 more" in told(made)


def test_colored_view() -> None:
    made = partitions.make(colored(), dataset())
    rows = made.rows(1, test=True)
    agree = int((made.colour[rows] == made.label[rows]).sum())  # type: ignore[index]
    ones = int(made.label[rows].sum())
    assert lines(told(made))[3] == ["test", str(100 - ones), str(ones), str(100 - agree), str(agree), "0.8", "100"]
    assert "25% of the labels are flipped" in told(made)


# -- from a file ----------------------------------------------------------------------------------------------

HEAD = "client,split,class,value\n"


def file(folder: Path, text: str) -> Path:
    path = folder / "weights.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize("first", [0, 1])
def test_weights_from_a_file(tmp_path: Path, first: int) -> None:
    rows = [
        f"x,{k + first},{side},{c},{mix[k][c]}\n"
        for side, mix in (("train", TRAIN), ("test", TEST))
        for k in (1, 0)
        for c in range(4)
    ]
    read = partitions.read_mixture(file(tmp_path, "table," + HEAD + "".join(rows)), 4)
    assert partition_spec(MADE, clients=2, seed=1, **read) == mixture()


def test_a_class_without_a_row_weighs_nothing(tmp_path: Path) -> None:
    read = partitions.read_mixture(file(tmp_path, HEAD + "1,train,2,3\n1,test,0,0.5\n"), 4)
    assert (read["train_mix"], read["test_mix"]) == (((0, 0, 3, 0),), ((0.5, 0, 0, 0),))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("client,split,value\n", "has no column 'class'"),
        ("", "has no column 'client'"),
        (HEAD, "has no class weights"),
        (HEAD + "1,train,0\n", "line 2: has not as many values"),
        (HEAD + "1,train,0,1,5\n", "line 2: has not as many values"),
        (HEAD + "1-10,train,0,1\n", "line 2: client must be a whole number, not '1-10'"),
        (HEAD + "1,valid,0,1\n", "split must be train or test, not 'valid'"),
        (HEAD + "1,train,4,1\n", "class 4 is not one of the data set's classes 0 to 3"),
        (HEAD + "1,train,0,-1\n", "a class weight must be a number from 0 on, not '-1'"),
        (HEAD + "1,train,0,nan\n", "a class weight must be a number from 0 on, not 'nan'"),
        (HEAD + "1,train,0,much\n", "not 'much'"),
        (HEAD + "1,train,0,1\n1,train,0,2\n", "line 3: class 0 of client 1, train, has a value already"),
        (HEAD + "1,train,0,1\n1,test,0,1\n3,train,0,1\n3,test,0,1\n", "without gaps, not 1, 3"),
        (HEAD + "2,train,0,1\n2,test,0,1\n", "counted from 0 or 1"),
        (HEAD + "0,train,0,1\n", "gives client 0 no test class with a weight above 0"),
        (HEAD + "0,train,0,1\n0,test,1,0\n", "gives client 0 no test class with a weight above 0"),
        ("table," + HEAD + "8,1,train,0,1\n9,1,test,0,1\n", "holds several tables (8, 9); keep the rows of one"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = file(tmp_path, text)
    with pytest.raises(FedbenchError) as caught:
        partitions.read_mixture(path, 4)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(FedbenchError, match=r"cannot read .*: No such file"):
        partitions.read_mixture(tmp_path / "absent.csv", 4)
    (tmp_path / "weights.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FedbenchError, match="not a CSV file in UTF-8"):
        partitions.read_mixture(tmp_path / "weights.csv", 4)


# -- on the command line --------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_up: data.Dataset) -> Path:
    """A store in which the made-up images go by the name of fashion_mnist, in four classes."""
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(data, "resolve", lambda *given: MADE)
    about = data.Info("made", (3, 3, 1), made_up.classes, None, 4, ())
    monkeypatch.setattr(data, "info", lambda *given: about)
    return tmp_path


def command(*arguments: str, dataset: str = "made") -> None:
    """The command line up to its exit; a clean end may or may not exit explicitly."""
    try:
        main(["partition", dataset, *arguments])
    except SystemExit as end:
        if end.code:
            raise


def run(*arguments: str) -> Partition:
    command(*arguments)
    store = Store()
    return partitions.read(store.open("partition", store.current["partition"]))


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(["partition", "made", *arguments])
    assert end.value.code == 2
    assert "partition" not in Store().current
    return capsys.readouterr().err.splitlines()[-1]


def weights_file(folder: Path) -> str:
    rows = [
        f"{k},{side},{c},{mix[k][c]}\n"
        for side, mix in (("train", TRAIN), ("test", TEST))
        for k in (0, 1)
        for c in range(4)
    ]
    return str(file(folder, HEAD + "".join(rows)))


def test_counts_option(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A client a row, whatever the protocol's number; neither its split nor its shift."""
    made = run("--counts", weights_file(home), "--json")
    assert (made.spec.scheme, made.clients, made.spec.seed, made.spec.shift) == ("mixture", 2, 0, "none")
    assert (made.spec.options.get("train_mix"), made.spec.options.get("test_mix")) == (
        mixture().options["train_mix"],
        mixture().options["test_mix"],
    )
    said = json.loads(capsys.readouterr().out)
    assert [c["train_counts"] for c in said["clients"]] == made.class_counts(False).tolist()
    assert [c["test_counts"] for c in said["clients"]] == made.class_counts(True).tolist()
    assert [c["class_counts"] for c in said["clients"]] == made.class_counts().tolist()
    assert run("--counts", weights_file(home), "--clients", "6", "--seed", "3").groups == [0, 0, 0, 1, 1, 1]


def test_layout_option(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The default preset needs ten classes, which four are not; a chosen scheme sets it aside."""
    assert "weights for 10 classes, but made has 4" in failure(capsys, "--protocol", "ftw_erm")
    made = run("--protocol", "ftw_erm", "--dir", "0.5")
    assert (made.spec.scheme, made.spec.options.get("alpha"), made.clients, made.spec.seed) == ("dirichlet", 0.5, 5, 0)
    assert (made.spec.train_fraction, made.spec.options.get("min_size")) == (0.8, 4)
    assert run("--protocol", "ftw_erm", "--iid", "--seed", "4").spec.seed == 4
    assert Store().current["protocol"] == "ftw_erm"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--protocol", "ftw_erm", "--preset", "two", "--dir", "1"), "--dir and --preset exclude each other"),
        (("--counts", "x.csv", "--iid"), "--iid and --counts exclude each other"),
        (("--counts", "x.csv", "--preset", "two"), "--counts and --preset exclude each other"),
        (("--protocol", "ftw_erm", "--preset", "tow"), "unknown preset of protocol ftw_erm 'tow'; did you mean 'two'"),
        (("--preset", "two"), "protocol plain has no preset 'two'; --protocol ftw_erm has it"),
        (("--protocol", "ftw_erm", "--min-size", "3"), "partitioner mixture has no min size: only dirichlet"),
        (("--protocol", "ftw_erm", "--split", "0.5"), "a mixture partition has no training share"),
        (("--protocol", "ftw_erm", "--shift", "low"), "a mixture partition has no shift low"),
        (("--protocol", "ftw_erm", "--clients", "7"), "7 clients cannot be 5 groups of the same size"),
        (("--protocol", "ftw_erm", "--preset", "colored", "--clients", "3"), "blocks: 4 numbers for each of its 3"),
        (("--protocol", "ftw_erm", "--preset", "colored"), "but made has 800 training images"),
        (("--counts", "absent.csv"), "cannot read absent.csv"),
    ],
)
def test_bad_options(home: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], says: str) -> None:
    assert says in failure(capsys, *options)


@pytest.mark.data
def test_the_default_layout_on_real_images(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    data_root: Path,
    real_images: RealImages,
) -> None:
    real_images.lend(tmp_path, "fashion_mnist")
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path))
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))
    command("--protocol", "ftw_erm", dataset="fashion_mnist")
    said = lines(capsys.readouterr().out)
    assert said[0] == ["0", "train", *["34"] * 5, "5,862", *["34"] * 4, "6,168"]
    assert said[-1] == ["test", *["5"] * 4, "977", *["5"] * 5, "1,022"]
