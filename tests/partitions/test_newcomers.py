"""Clients that never train, and that come again under corruptions: what they hold, see and look like."""

from __future__ import annotations

import json
import re
import tracemalloc
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from fedbench import data, partitions
from fedbench.__main__ import main
from fedbench.partitions import Partition, tables, view
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.transforms import CORRUPTIONS, Transform, apply, of_clients
from fedbench.partitions.transforms.corruption import named as corruption
from fedbench.specs import DatasetSpec, PartitionSpec
from fedbench.store import Store

MADE = DatasetSpec("made", "here", "now")


def dataset(n: int = 240, channels: int = 3, size: int = 8) -> data.Dataset:
    """Noise in 6 classes."""
    images = np.random.default_rng(0).integers(0, 256, (n, size, size, channels), dtype=np.uint8)
    return data.Dataset(MADE, images, np.arange(n) % 6, np.zeros(n, np.uint8), {}, tuple("abcdef"))


def spec(**fields: Any) -> PartitionSpec:
    values = {"scheme": "iid", "clients": 6, "seed": 1, "train_fraction": 0.75, **fields}
    return partition_spec(MADE, **values)


AGAIN = ("fog-3", "gaussian_noise-1")
ASKED = spec(unseen=2, unseen_as=AGAIN, shift="corrupted")


@st.composite
def with_newcomers(draw: st.DrawFn) -> PartitionSpec:
    clients = draw(st.integers(2, 7))
    kinds = st.lists(st.sampled_from([f"{c}-{s}" for c in CORRUPTIONS for s in (1, 4)]), max_size=3, unique=True)
    own = draw(
        st.sampled_from(
            [{}, {"scheme": "limited", "alpha": 0.5, "size": 12}, {"scheme": "dirichlet", "alpha": 5.0, "min_size": 4}]
        )
    )
    return spec(
        clients=clients,
        unseen=draw(st.integers(1, clients - 1)),
        unseen_as=draw(kinds),
        subsample=draw(st.sampled_from([None, 0.5])),
        shift=draw(st.sampled_from(["none", "high", "corrupted"])),
        **own,
    )


def same(a: Partition, b: Partition) -> bool:
    arrays = ("client", "sample", "test", "label", "n_train", "n_test", "unseen")
    return (a.spec, a.classes, a.transforms, a.groups, a.clients) == (
        b.spec, b.classes, b.transforms, b.groups, b.clients
    ) and all(np.array_equal(getattr(a, n), getattr(b, n)) for n in arrays)  # fmt: skip


# -- who they are ---------------------------------------------------------------------------------------------


@given(with_newcomers())
def test_newcomers_come_last_and_again_with_the_same_samples(asked: PartitionSpec) -> None:
    of = dataset()
    made = partitions.make(asked, of)
    alone = partitions.make(PartitionSpec.from_dict({**asked.to_dict(), "newcomers": None, "newcomers_as": None}), of)
    new, again = asked.unseen or 0, asked.unseen_as or ()
    assert made.clients == asked.clients + new * len(again) == len(made.transforms) == len(made.groups)
    assert made.unseen.tolist() == [False] * (asked.clients - new) + [True] * (new * (1 + len(again)))
    for c in range(asked.clients):  # they change nothing of what all others hold and see
        assert made.sample[made.rows(c)].tolist() == alone.sample[alone.rows(c)].tolist()
        assert made.transforms[c] == alone.transforms[c]
    for k in range(asked.clients, made.clients):
        kind, who = divmod(k - asked.clients, new)
        first = asked.clients - new + who
        name, severity = corruption(again[kind])
        assert made.transforms[k] == Transform(corruption=name, severity=severity)
        for test in (False, True):
            assert made.sample[made.rows(k, test)].tolist() == made.sample[made.rows(first, test)].tolist()
            assert made.label[made.rows(k, test)].tolist() == made.label[made.rows(first, test)].tolist()
    assert made.class_counts().shape == (made.clients, 6)
    assert made.class_counts().sum() == len(made.sample) == (made.n_train + made.n_test).sum()
    assert made.densities.train.shape == (made.clients, 6)
    np.testing.assert_allclose(made.densities.train.sum(axis=1), 1)


def test_a_copy_sees_its_images_under_its_corruption() -> None:
    """By streams of its own: two newcomers, and both sides of a split, do not share their noise."""
    of = dataset()
    made = partitions.make(ASKED, of)
    seen = made.transformed_images(of)
    assert seen.shape == (len(made.sample), 8, 8, 3)
    for c, shift in enumerate(made.transforms):
        for test in (False, True):
            plain = of.images[made.sample[made.rows(c, test)]]
            expected = apply(plain, shift, key=2 * c + test) if shift != Transform() else plain
            assert np.array_equal(seen[made.rows(c, test)], expected)
    assert np.array_equal(seen[made.rows(5)], of.images[made.sample[made.rows(5)]])
    grey = data.Dataset(MADE, np.full((240, 8, 8, 3), 128, np.uint8), of.labels, of.split, {}, of.classes)
    noisy = made.transformed_images(grey)  # 8 and 9 are newcomers 4 and 5 under Gaussian noise
    sides = [noisy[made.rows(c, test)][:5] for c in (8, 9) for test in (False, True)]
    assert len({side.tobytes() for side in sides}) == 4


def test_images_are_the_same_in_every_process_and_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    of, made = dataset(), partitions.make(ASKED, dataset())
    once = made.transformed_images(of)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert np.array_equal(partitions.make(ASKED, of).transformed_images(of), once)


def test_grey_newcomers_see_corruptions_too() -> None:
    of = dataset(channels=1)
    made = partitions.make(spec(unseen=2, unseen_as=AGAIN, shift="high"), of)
    assert made.transforms[:6] == tuple(s.on_grey() for s in of_clients("high", 6))
    assert [str(s) for s in made.transforms[6:]] == ["fog 3"] * 2 + ["gaussian_noise 1"] * 2
    seen = made.transformed_images(of)
    assert not np.array_equal(seen[made.rows(6)], seen[made.rows(4)])


def test_images_take_no_second_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of clients: those that are at work, beside the images themselves."""
    of = dataset(3000, size=16)
    made = partitions.make(spec(clients=100, unseen=99, unseen_as=[f"contrast-{s}" for s in range(1, 6)]), of)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    tracemalloc.start()
    images = made.transformed_images(of)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(images) == 3000 + 5 * 99 * 30
    assert peak < 1.3 * images.nbytes


# -- on disk --------------------------------------------------------------------------------------------------


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> data.Dataset:
    of = dataset()
    made_up_images = SimpleNamespace(digest="", provenance={})
    monkeypatch.setattr(import_module("fedbench.data.build"), "obtain", lambda *given: made_up_images)
    monkeypatch.setattr("fedbench.data.dataset.from_artifact", lambda artifact: of)
    return of


@pytest.mark.parametrize(
    ("asked", "columns"),
    [
        (spec(), []),
        (spec(shift="high"), []),
        (spec(unseen=2), ["newcomer"]),
        (spec(shift="corrupted"), ["corruption", "severity"]),
        (spec(shift="corrupted_code", unseen=3), ["corruption", "severity", "newcomer"]),
        (ASKED, ["corruption", "severity", "newcomer"]),
        (spec(scheme="limited", alpha=0.5, size=20, subsample=0.5), []),
    ],
)
def test_comes_back_as_it_was_made(
    store: Store, made_up: data.Dataset, asked: PartitionSpec, columns: list[str]
) -> None:
    """Columns of corruptions and newcomers are there only where there are any: others keep their bytes."""
    built = partitions.build(asked, store)
    artifact = store.open("partition", built.id)
    assert same(built, partitions.make(asked, made_up))
    assert same(built, partitions.read(artifact))
    clients = artifact.table("clients")
    usual = ["client", "n_train", "n_test", "gamma", "hue", "saturation", "posterize", "group"]
    assert clients.column_names == usual + columns
    if "corruption" in columns:
        assert clients["corruption"].to_pylist() == [s.corruption for s in built.transforms]
        assert clients["severity"].to_pylist() == [s.severity for s in built.transforms]
        assert [str(clients.schema.field(n).type) for n in ("corruption", "severity")] == ["string", "int8"]
    if "newcomer" in columns:
        assert clients["newcomer"].to_pylist() == built.unseen.tolist()


@settings(max_examples=30)
@given(with_newcomers())
def test_any_partition_round_trips(tmp_path_factory: pytest.TempPathFactory, asked: PartitionSpec) -> None:
    of = dataset()
    made = partitions.make(asked, of)
    store = Store(tmp_path_factory.mktemp("store"))
    with store.writing(asked) as writer:
        tables.write(writer, made)
    assert same(partitions.read(store.open("partition", asked.id)), made)


def test_older_partitions_are_read(tmp_path: Path) -> None:
    """One that was written before there were corruptions and newcomers."""
    old = Store(Path(__file__).parents[1] / "fixtures" / "schema1")
    (artifact,) = old.list("partition")
    read = partitions.read(artifact)
    assert "corruption" not in artifact.table("clients").column_names
    assert {s.corruption for s in read.transforms} == {None}
    assert not read.unseen.any()


# -- for the eye, and on the command line ---------------------------------------------------------------------


def told(p: Partition, width: int = 100) -> str:
    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        view.display(console, p)
    return captured.get()


def test_view() -> None:
    made = partitions.make(ASKED, dataset())
    text = told(made)
    assert "180 training and 60 test images\n" in text  # those that come again are not counted again
    assert "6 clients  shift corrupted in 4 groups" in text
    assert (
        "2 unseen clients, again under fog 3, gaussian noise 1\nclients 4 to 9 (counted from 0) never train (*)" in text
    )
    assert "grey" not in text
    rows = [line.split() for line in text.splitlines() if re.match(r" +\d+[* ]", line)]
    names = ["0", "1", "2", "3", "4*", "5*", "6*", "7*", "8*", "9*"]
    seen = ["motion blur 1", "defocus blur 1", "gaussian noise 1", "-", "-", "-"]
    seen += ["fog 3", "fog 3", "gaussian noise 1", "gaussian noise 1"]
    for row, name, shift, c in zip(rows, names, seen, range(10), strict=True):
        assert row[0] == name
        assert row[7:] == [str(made.n_train[c]), str(made.n_test[c]), *shift.split()]


def test_narrow_terminals_tell_corruptions_below_the_table() -> None:
    text = told(partitions.make(spec(unseen=2, unseen_as=["gaussian_noise-1"]), dataset()), 40)
    assert max(map(len, text.splitlines())) <= 40
    assert "client 5: none" in text
    assert re.search(r"client 6: gaussian.noise 1", text)


@pytest.mark.parametrize("width", [70, 100])
def test_views_of_hundreds_of_clients_fit(width: int) -> None:
    again = [f"{c}-{s}" for c in CORRUPTIONS for s in (3, 4)]
    made = partitions.make(spec(clients=60, unseen=30, unseen_as=again, shift="corrupted", subsample=0.25), dataset())
    text = told(made, width)
    assert max(map(len, text.splitlines())) <= width
    assert "training images subsampled to 25 %" in text
    assert "clients 30 to 659 (counted from 0) never train (*)" in text
    assert "The first 10 clients" in text
    summary = next(line for line in text.splitlines() if line.startswith("training images  ")).split()
    assert summary[2:] == ["1"] * 5  # of four images a client keeps one of three for training


def test_corruptions_of_clients_that_are_not_shown_have_no_column() -> None:
    made = partitions.make(spec(clients=40, unseen=1, unseen_as=AGAIN), dataset())
    assert "corruption" not in told(made)
    assert "corruption" in told(partitions.make(spec(unseen=1, unseen_as=AGAIN), dataset()))


def test_sizes_and_groups_are_told() -> None:
    text = told(partitions.make(spec(scheme="limited", alpha=0.5, size=20), dataset()))
    assert "made  Dir-0.5 (20 samples each)  6 clients  no covariate shift  seed 1" in text
    assert "newcomer" not in text


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path))
    monkeypatch.delenv("FEDBENCH_DATA", raising=False)
    return tmp_path


def run(*arguments: str) -> Partition:
    """The partition that the command made of the embedded digits."""
    try:
        main(["partition", "digits", *arguments])
    except SystemExit as end:
        if end.code:
            raise
    store = Store()
    return partitions.read(store.open("partition", store.current["partition"]))


def test_options_reach_the_spec(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = run(
        "--dir", "0.5", "--size", "30", "--clients", "8", "--subsample", "0.25", "--unseen", "3",
        "--unseen-as", "fog-3, contrast-2", "--shift", "corrupted", "--json",
    )  # fmt: skip
    asked = made.spec
    assert (asked.scheme, asked.options.get("alpha"), asked.options.get("size"), asked.options.get("min_size")) == (
        "limited",
        0.5,
        30,
        None,
    )
    assert (asked.subsample, asked.unseen, asked.unseen_as) == (0.25, 3, ("fog-3", "contrast-2"))
    said = json.loads(capsys.readouterr().out)["clients"]
    assert len(said) == made.clients == 8 + 2 * 3
    assert [c["unseen"] for c in said] == [False] * 5 + [True] * 9
    assert [(c["shift"]["corruption"], c["shift"]["severity"]) for c in said[8:]] == [("fog", 3)] * 3 + [
        ("contrast", 2)
    ] * 3
    assert said[0]["shift"]["corruption"] == CORRUPTIONS[0]
    assert said[8]["train_counts"] == said[5]["train_counts"]


def test_all_corruptions_at_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = run("--iid", "--unseen", "1", "--unseen-as", "all-3")
    assert made.spec.unseen_as == tuple(f"{c}-3" for c in CORRUPTIONS)
    assert "1 unseen client, again under each corruption at severity 3" in capsys.readouterr().out
    main_list = ["list", "partition"]
    with pytest.raises(SystemExit):
        main(main_list)
    assert "again under each corruption" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--iid", "--size", "5"), "only limited and sampled can have it"),
        (("--dir", "1", "--size", "400"), "1797 samples cannot give 10 clients 400 each"),
        (("--dir", "1", "--size", "20", "--min-size", "5"), "partitioner dirichlet has no size: only limited"),
        (("--dir", "1", "--size", "20", "--within", "domain"), "partitioner dirichlet has no size: only limited"),
        (("--dir", "1", "--within", "domain"), "unknown column of digits 'domain'"),
        (("--dir", "1", "--cap", "20"), "a cap needs the column whose groups it limits"),
        (("--iid", "--subsample", "0"), "must lie in (0, 1], not 0.0"),
        (("--iid", "--subsample", "1.5"), "must lie in (0, 1], not 1.5"),
        (("--iid", "--unseen", "10"), "10 of 10 clients cannot be unseen in training"),
        (("--iid", "--unseen-as", "fog-3"), "but there are none"),
        (("--iid", "--unseen", "2", "--unseen-as", "fgo-3"), "unknown corruption 'fgo'; did you mean 'fog'?"),
        (("--iid", "--unseen", "2", "--unseen-as", "fog-0"), "1 to 5, not '0'"),
        (("--iid", "--unseen", "2", "--unseen-as", "all-6"), "1 to 5, not '6'"),
        (("--iid", "--unseen", "2", "--unseen-as", "fog-3,"), "corruption '' has no severity"),
        (("--iid", "--shift", "corrupt"), "unknown shift 'corrupt'; did you mean 'corrupted'?"),
        (("--protocol", "ftw_erm", "--unseen", "2"), "a mixture partition has no unseen clients"),
    ],
)
def test_bad_options(home: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], says: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(["partition", "digits", *options])
    assert end.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert says in said[-1]
    assert said[-1].startswith("fedbench: ")
    assert "partition" not in Store().current
