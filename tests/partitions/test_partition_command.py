"""`fedbench partition` as a user meets it, on the embedded digits: options, JSON, what is refused in one line; its
options without the command line; and partitioners of one's own."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench import data, partition_options, partitions, protocol
from fedbench.partition_options import PartitionerChoice
from fedbench.partitions import Partition, schemes, view
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.transforms import of_clients
from fedbench.partitions.transforms.corruption import CORRUPTIONS
from fedbench.specs import PartitionSpec, RunSpec
from fedbench.specs.fields import typed
from fedbench.store import Store
from tests.support import partitions_lab as lab
from tests.support.cli_user import bad, fedbench, good
from tests.support.frames import refused
from tests.support.partitions_lab import MADE, TEST, TRAIN, cells, current, shown, weights


def run(*options: str, of: str = "digits") -> Partition:
    """The partition that the command made."""
    good("partition", of, *options)
    return current()


def test_defaults_are_the_main_setting(home: Path) -> None:
    said = good("partition", "digits", "--protocol", "feddrm")
    assert "taking --dir 0.3" in said.err
    made = current()
    spec = made.spec
    assert (schemes.label(spec), spec.clients, spec.shift, spec.train_fraction) == ("Dir-0.3", 8, "high", 0.7)
    assert (spec.seed, spec.options.get("min_size")) == (2025, 10)
    assert Store(home).current["protocol"] == "feddrm"
    assert made.id in said.out
    assert f"{made.n_train.sum():,} training and {made.n_test.sum():,} test images" in said.out
    assert "taking" not in good("partition", "digits", "--dir", "0.3", "--protocol", "feddrm").err


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        (
            "--dir 5 --clients 3 --shift pool --split 0.5 --seed 4 --min-size 90",
            {"alpha": 5.0, "clients": 3, "shift": "pool", "train_fraction": 0.5, "seed": 4, "min_size": 90},
        ),
        ("--spc 2", {"scheme": "shards", "shards": 2}),
        ("--iid --protocol pfedfda", {"scheme": "iid", "clients": 10, "seed": 42}),
        (
            "--equal --shift pxy+py --level 6 --clients 5 --duplicates 8 --validation 0.25 --data-share 0.05 --strict "
            "--fewer-classes --subsample 0.5 --seed 7 --copies 2",
            {
                "scheme": "equal",
                "shift": "pxy+py",
                "level": 6,
                "clients": 5,
                "duplicates": 8,
                "validation": 0.25,
                "data_share": 0.05,
                "subsample": 0.5,
                "strict": True,
                "fewer_classes": True,
                "phases": None,
                "seed": 7,
                "copies": 2,
            },
        ),
        ("--equal --shift px --level 1 --phases 2", {"phases": 2}),
        ("--equal", {"shift": "none", "level": None}),  # the default protocol's covariate shift is none of these
        (
            "--dir 0.5 --size 30 --clients 8 --subsample 0.25 --unseen 3 --unseen-as fog-3,contrast-2",
            {
                "scheme": "limited",
                "alpha": 0.5,
                "size": 30,
                "min_size": None,
                "subsample": 0.25,
                "unseen": 3,
                "unseen_as": ("fog-3", "contrast-2"),
            },
        ),
        ("--iid --unseen 1 --unseen-as all-3", {"unseen_as": tuple(f"{c}-3" for c in CORRUPTIONS)}),
        ("--protocol ftw_erm --iid --seed 4", {"scheme": "iid", "seed": 4}),
        (
            "--protocol ftw_erm --dir 0.5",  # a chosen scheme sets the protocol's default preset aside
            {"scheme": "dirichlet", "alpha": 0.5, "clients": 5, "seed": 0, "train_fraction": 0.8, "min_size": 10},
        ),
        # What an error offers to one who has named the partitioner ("for example --dir 0.5") is no second one.
        ("--scheme dirichlet --dir 0.5", {"scheme": "dirichlet", "alpha": 0.5}),
        ("--scheme dirichlet --alpha 0.5", {"scheme": "dirichlet", "alpha": 0.5}),
        ("--alpha 0.5 --protocol plain", {"scheme": "dirichlet", "alpha": 0.5}),
        ("--scheme shards --spc 5", {"scheme": "shards", "shards": 5}),
        ("--scheme iid --iid", {"scheme": "iid"}),
    ],
)
def test_options_reach_the_spec(home: Path, options: str, fields: dict[str, Any]) -> None:
    spec = run(*options.split()).spec
    assert {name: getattr(spec, name, spec.options.get(name)) for name in fields} == fields
    words = options.split()
    if "--protocol" in words:
        assert Store(home).current["protocol"] == words[words.index("--protocol") + 1]


@pytest.mark.parametrize(
    "options",
    [
        "--iid --protocol feddrm",
        "--equal --shift pyx --level 3 --clients 4 --validation 0.2",
        "--dir 0.5 --size 30 --clients 8 --unseen 3 --unseen-as fog-3,contrast-2 --shift corrupted",
    ],
)
def test_json(home: Path, options: str) -> None:
    said = json.loads(good("partition", "digits", *options.split(), "--json").out)
    p = current()
    assert (said["id"], said["made"], Path(said["path"])) == (p.id, True, home / "partition" / p.id)
    assert said["spec"] == p.spec.to_dict()
    assert len(said["clients"]) == p.clients
    groups = p.phase_groups
    for c, told in enumerate(said["clients"]):
        assert (told["n_train"], told["n_test"], told["group"]) == (p.n_train[c], p.n_test[c], p.groups[c])
        assert told["class_counts"] == p.class_counts()[c].tolist()
        assert (told["train_counts"], told["test_counts"]) == tuple(p.class_counts(t)[c].tolist() for t in (0, 1))
        assert told["unseen"] == p.unseen[c]
        seen = p.transforms[c]
        nothing = dict.fromkeys(("hue", "saturation", "posterize", "mean", "std"))
        own = {"gamma": seen.gamma, "corruption": seen.corruption, "severity": seen.severity}
        assert told["shift"] == {**nothing, **own}
        if p.drawn is None:
            assert "n_validation" not in told
        else:
            assert told["n_validation"] == p.n_validation[c]
            assert (told["test_group"], told["phase_groups"]) == (p.test_groups[c], [g[c] for g in groups])
            assert told["distribution"] == said["distributions"][told["group"]]
    assert said.get("distributions", []) == [one.described(p.classes) for one in p.distributions]
    assert json.loads(good("partition", "digits", *options.split(), "--json").out)["made"] is False


FTW_ERM = "--protocol ftw_erm"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--scheme iid --dir 0.3", "--dir and --scheme exclude each other"),
        ("--scheme natural --by writer --iid", "--iid and --by and --scheme exclude each other"),
        (f"{FTW_ERM} --preset two --dir 1", "--dir and --preset exclude each other"),
        ("--spc 0", "--spc of shards must be at least 1, not 0"),
        ("--scheme mixture", "one row a group; for example --counts FILE.csv"),
        ("--scheme nonsense --help", "unknown partitioner 'nonsense'"),
        ("--by writer", "unknown column of digits 'writer'"),
        ("--iid --clients 1000", "1797 samples cannot serve 1000 clients"),
        ("--iid --clients 60 --shift pool", "the pool has 54 shifts"),
        ("--protocol feddrn", "did you mean 'feddrm'"),
        ("--iid --as-json 1", "unknown option of partition by iid '--as-json'; did you mean '--json'?"),
        ("--iid --datasets digits", "known: --by, --clients, --counts, --dir, --duplicates"),
        ("--iid --shift px", "an iid partition has no shift px: equal can have it"),
        ("--equal --shift px --level 5 --clients 400", "355 test images cannot serve 400 clients"),
        ("--dir 1 --size 400", "1797 samples cannot give 10 clients 400 each"),
        ("--dir 1 --size 20 --min-size 5", "partitioner dirichlet has no size: only limited"),
        ("--dir 1 --within domain", "unknown column of digits 'domain'"),
        ("--iid --unseen 2 --unseen-as all-6", "1 to 5, not '6'"),
        ("--iid --unseen 2 --unseen-as fog-3,", "corruption '' has no severity"),
        (f"{FTW_ERM} --preset tow", "unknown preset of protocol ftw_erm 'tow'; did you mean 'two'"),
        ("--preset two", "protocol plain has no preset 'two'; --protocol ftw_erm has it"),
        (f"{FTW_ERM} --preset colored", "client 0 asks for images 40000 to 50000, but digits has 1797 training images"),
        ("--counts absent.csv", "cannot read absent.csv"),
    ],
)
def test_bad_input(home: Path, options: str, says: str) -> None:
    assert says in bad("partition", "digits", *options.split())
    assert "partition" not in Store(home).current


def test_the_data_set_is_named(home: Path) -> None:
    assert "did you mean 'digits'" in bad("partition", "digit")
    good("partition", "digits", "--iid", "--unseen", "1", "--unseen-as", "all-3")
    assert "again under each corruption" in " ".join(good("list", "partition").out.split())


def test_counts_option(
    home: Path, monkeypatch: pytest.MonkeyPatch, made_up: Callable[[data.Dataset], data.Dataset]
) -> None:
    """A client a row, whatever the protocol's number; neither its split nor its shift."""
    split = (np.arange(1200) >= 800).astype(np.uint8)
    of = made_up(lab.noise(np.arange(1200) % 4, split, (3, 3, 1)))
    monkeypatch.setattr(data, "resolve", lambda *given: MADE)
    monkeypatch.setattr(data, "info", lambda *given: data.Info("made", (3, 3, 1), of.classes, None, 4, ()))
    counts = weights(home / "weights.csv")
    made = run("--counts", str(counts), of="made")
    assert (made.spec.scheme, made.clients, made.spec.seed, made.spec.shift) == ("mixture", 2, 0, "none")
    assert made.spec.options == lab.spec("mixture", train_mix=TRAIN, test_mix=TEST).options
    assert run("--counts", str(counts), "--disjoint", "--clients", "6", of="made").groups == [0, 0, 0, 1, 1, 1]
    assert "weights for 10 classes, but made has 4" in bad("partition", "made", "--protocol", "ftw_erm")


def test_rows_that_train_one_client_and_test_another_are_said(home: Path, tmp_path: Path) -> None:
    leaky = tmp_path / "leak.csv"
    leaky.write_text("client,sample,split\n0,0,train\n0,1,test\n1,1,train\n1,2,train\n1,0,test\n1,3,test\n")
    line = "2 of 3 test images are training images of other clients"
    assert line in good("partition", "digits", "--from", leaky).out
    assert json.loads(good("partition", "digits", "--from", leaky, "--json").out)["leaked"] == 2
    assert line in good("train", "digits", "--from", leaky, "-m", "fedavg", "--rounds", "1").err
    assert line in good("compare", "dataset=digits", "--notes", "full").out
    assert "test images that train other clients" in good("compare", "dataset=digits").out
    assert line in good("figure", "curves", "dataset=digits", "-o", tmp_path / "curves.csv").err
    pack = tmp_path / "leaky.parquet"
    good("results", "export", "dataset=digits", "--by", "us", "-o", pack)
    good("results", "import", pack, "--home", tmp_path / "elsewhere")
    assert line in good("compare", "shipped=yes", "--notes", "full", "--home", tmp_path / "elsewhere").out
    leaky.write_text("client,sample,split\n0,0,train\n0,1,test\n1,2,train\n1,3,test\n")
    assert "other clients" not in good("partition", "digits", "--from", leaky).out


def test_the_short_forms_are_those_of_the_partitioners() -> None:
    forms = {name for name, field in typed(PartitionerChoice).items() if field.metadata["panel"]}
    assert forms == {short for name in schemes.names() for short in schemes.load(name).short}


# -- from what a user wrote to a spec, without the command line -----------------------------------------------


def spec_of(store: Store, **options: Any) -> PartitionSpec:
    return partition_options.spec_of("digits", options, protocol.load("feddrm"), store)


def test_texts_and_values_make_one_spec(store: Store) -> None:
    texts = {"dir": "0.5", "clients": "5", "shift": "none", "seed": "3", "split": "0.6", "min-size": "2", "iid": False}
    values = {"dir": 0.5, "clients": 5, "shift": "none", "seed": 3, "split": 0.6, "min_size": 2, "spc": None}
    made = spec_of(store, **texts)
    assert made == spec_of(store, **values)
    assert (made.clients, made.seed, made.train_fraction, made.shift) == (5, 3, 0.6, "none")
    assert made.options == {"alpha": 0.5, "min_size": 2}
    assert spec_of(store, seed=str(2**32 - 1)).seed == 2**32 - 1, "more than any other option's whole number"
    names = partition_options.names()
    assert {"dir", "spc", "iid", "by", "equal", "counts", "scheme", "clients", "min_size", "round_robin"} <= names
    # NumPy's scalars too: float32(0.3) is 0.30000001192, which would be a second partition, shown as Dir-0.3 too.
    values = {"dir": 0.3, "clients": 5, "min_size": 2, "split": 0.7, "seed": 3}
    kinds = {"dir": np.float32, "clients": np.int64, "min_size": np.array, "split": np.float64, "seed": np.uint8}
    assert spec_of(store, **{n: kinds[n](value) for n, value in values.items()}).id == spec_of(store, **values).id
    assert spec_of(store, iid=np.bool_(True)).id == spec_of(store, iid=True).id


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dir": True}, "--dir of dirichlet takes a number, not True"),
        ({"dir": np.array([0.3])}, "--dir of dirichlet takes a number, not array([0.3])"),
        ({"iid": "false"}, "--iid of iid must be true, or left out, not False"),
        ({"iid": 3}, "--iid of iid takes true or false, not 3"),
        ({"counts": 3}, "--counts of partition takes a word, not 3"),
        ({"counts": "x" * 999}, "(File name too long); give a shorter one"),
        ({"from": ""}, "--from is empty; give a path"),
        ({"dir": "0"}, "--dir of dirichlet must be above 0"),
        ({"clients": "2.5"}, "--clients of partition takes a whole number, not '2.5'"),
        ({"iid": True, "clientz": 4}, "unknown option of partitioner iid 'clientz'; did you mean 'clients'?"),
    ],
)
def test_bad_options(store: Store, options: dict[str, Any], message: str) -> None:
    refused(re.escape(message), spec_of, store, **options)


# -- a partitioner of one's own, to the report; in a table: tests/cli/test_cli_own_table.py -------------------


MINE = '''
from dataclasses import dataclass

import numpy as np

from fedbench.options import option
from fedbench.partitions import Densities, Scheme


@dataclass(frozen=True)
class Mine(Scheme):
    """Parts by brightness."""

    noise: float = option(0.0, "how much of the order is chance", least=0, most=1)

    def deal(self, dataset, spec, rng):
        light = dataset.images.mean(axis=(1, 2, 3)) / 255 + self.noise * rng.random_sample(len(dataset.labels))
        return np.array_split(np.argsort(light, kind="stable"), spec.clients)

    def densities(self, partition):
        even = np.full((partition.clients, 10), 0.1)
        return Densities(partition.label.astype(np.int64), even, even)
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    return file


OWN = ("partition", "digits", "--scheme", "./mine.py:Mine")


def test_from_the_partition_to_the_report_without_its_file(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in ("Options of Mine", "how much of the order is chance"):
        assert words in " ".join(good(*OWN, "--help").out.split())
    assert "Mine noise 0.5" in good(*OWN, "--noise", "0.5", "--clients", "3", "--shift", "none").out
    mine.unlink()
    monkeypatch.setattr(schemes._own, "_known", {})  # as a new process, which was given no file
    assert current().densities.train.tolist() == [[0.1] * 10] * 3, "written down"
    assert current().densities.strata.tolist() == current().label.tolist()
    good("train", "--method", "fedavg", "--rounds", "1", "--steps", "1")
    (made,) = Store(mine.parent / "home").list("run")
    assert isinstance(made.spec, RunSpec)
    part = made.spec.setting.partition
    assert part.scheme.startswith("Mine@")
    assert part.options == {"noise": 0.5}
    monkeypatch.setenv("COLUMNS", "200")
    assert "fedavg  digits    Mine         3  " in good("list").out
    assert "Mine" in good("evaluate", made.id).out


def test_the_identity_is_class_source_and_options(mine: Path) -> None:
    def made(file: Path, **own: float) -> PartitionSpec:
        return schemes.spec(MADE, f"{file}:Mine", 3, 1, 0.7, **own)

    one, copy = made(mine), mine.with_name("copy.py")
    copy.write_text(MINE)
    assert made(copy).id == one.id
    assert made(mine, noise=0.1).id != one.id
    copy.write_text(MINE + "OVER = 1\n")
    assert made(copy).id != one.id
    assert PartitionSpec.from_dict(one.to_dict()).id == one.id


@pytest.mark.parametrize(
    ("words", "change", "says"),
    [
        ("--noise 2", (), "--noise of Mine must be in [0, 1], not 2"),
        ("--noise much", (), "--noise of Mine takes a number, not 'much'"),
        ("--level 3", (), "partitioner Mine has no level: only equal can have it"),
        ("--nois 1", (), "unknown option of partition by Mine '--nois'; did you mean '--noise'?"),
        ("--phases 2", (), "a Mine partition has no phases"),
        ("--shift px", (), "a Mine partition has no shift px: equal can have it"),
        ("", ("@dataclass(frozen=True)\n", ""), "noise of ./mine.py:Mine is no option, as the class is no dataclass"),
        ("", ("noise", "clients"), "./mine.py:Mine cannot call an option clients: any partition has one"),
        ("", ("noise", "home"), "./mine.py:Mine cannot call an option home: 'fedbench partition' has one"),
        ("", ("    def deal", "    stored = lambda: 1 / 0\n    def deal"), "options of ./mine.py:Mine: mine.py, line"),
        ("", ("light = ", "light = 1 / 0 + "), "mine.py, line 17, in deal: ZeroDivisionError"),
        ("", ("spec.clients)", "spec.clients - 1)"), "Mine gives samples to 9 clients, not to 10"),
        ("", ("np.argsort(", "-np.argsort("), "Mine gives sample -1796, and rows of the data set count from 0"),
        ("", ('np.argsort(light, kind="stable")', "light"), "Mine draws no partition: IndexError: "),
        ("", ("class Mine(Scheme)", "class Mine"), "./mine.py:Mine is no partitioner; derive it from"),
        ("", ("class Mine", "class Yours"), "unknown partitioner class in ./mine.py:Mine 'Mine'"),
    ],
)
def test_bad_options_and_files(mine: Path, words: str, change: tuple[str, ...], says: str) -> None:
    mine.write_text(MINE.replace(*change) if change else MINE)
    assert says in bad(*OWN, *words.split())


@pytest.mark.parametrize(
    ("change", "check", "why"),
    [
        (("rng.random_sample", "np.random.default_rng().random"), "same seed same draw", "differ in who holds which"),
        (("spec.clients)", "1) * spec.clients"), "no leak", "are in a training and in a test split"),
        (("spec.clients)", "spec.clients + 1)[1:]"), "draws", ""),
    ],
)
def test_checks_find_what_is_wrong(mine: Path, change: tuple[str, str], check: str, why: str) -> None:
    mine.write_text(MINE.replace(*change))
    said = fedbench("check", "./mine.py:Mine", "--noise", "0.5")
    text = " ".join(said.out.split())
    assert why in text
    assert (said.code == 1) == (f"✗ {check}" in text) == bool(why)


# -- how a partition looks: its tables at every width, who shares a distribution, what is said above them -----


AGAIN = ("fog-3", "gaussian_noise-1")


def of_digits(digits: data.Dataset, scheme: str = "iid", clients: int = 8, **fields: Any) -> Partition:
    return partitions.make(partition_spec(digits.spec, scheme, clients, 1, 0.7, shift="high", **fields), digits)


def made(asked: PartitionSpec, channels: int = 3) -> Partition:
    return partitions.make(asked, lab.noise(np.arange(240) % 6, shape=(8, 8, channels)))


spec = partial(lab.spec, clients=6, train_fraction=0.75)


def test_plain_text_is_aligned_and_complete(digits: data.Dataset) -> None:
    p = of_digits(digits, "dirichlet", alpha=0.3, min_size=10)
    text = shown(p, 500, force_terminal=False)
    assert "\x1b" not in text
    assert "grey images have no hue and no saturation to shift" in text
    rows = cells(text, r" +\d ")
    assert [row[0] for row in rows] == [str(c) for c in range(8)]
    for c, row in enumerate(rows):
        assert [0 if cell == "·" else int(cell) for cell in row[1:11]] == p.class_counts()[c].tolist()
        assert row[11:] == [str(p.n_train[c]), str(p.n_test[c]), f"{p.transforms[c].gamma:g}"]
    lengths = {len(line) for line in text.splitlines() if re.match(r" +\d ", line)}
    assert len(lengths) == 1
    assert max(lengths) <= view.WIDTH


def test_colours_on_a_terminal(digits: data.Dataset) -> None:
    p = of_digits(digits, "shards", shards=1)
    painted = shown(p, color_system="truecolor")
    assert "48;2;" in painted  # shaded cells
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == shown(p)


@pytest.mark.parametrize(("width", "form"), [(66, "compact"), (82, "two tables"), (100, "one table")])
def test_narrow_terminals(digits: data.Dataset, width: int, form: str) -> None:
    names = ("airplane", "automobile", "bird", "cat", "deer", "frog", "horse", "ship", "[large]", "truck")
    p = dataclasses.replace(of_digits(digits), classes=names, transforms=tuple(of_clients("high", 8)))
    text = shown(p, width)
    assert ("largest classes" in text) == (form == "compact")
    assert ("client 3: gamma 1.4, hue +0.1, saturation 0.5" in text) == (form == "two tables")
    assert ("[larg" in text) == (form != "compact")
    rows = cells(text, r" +\d ")
    assert [row[0] for row in rows] == [str(c) for c in range(8)]
    # Sizes and shifts are never cut short: only the column of the largest classes gives way.
    for c, row in enumerate(rows):
        seen = p.transforms[c]
        shift = [f"{seen.gamma:g}", f"{seen.hue:+g}", f"{seen.saturation:g}"]
        sizes = [str(p.n_train[c]), str(p.n_test[c])]
        assert row[-5:] == sizes + shift if form != "two tables" else row[-2:] == sizes


def test_many_clients_are_summed_up(digits: data.Dataset) -> None:
    p = of_digits(digits, clients=40)
    text = shown(p)
    assert "The first 10 clients" in text
    assert len(cells(text, r" +\d+ ")) == 10
    summary = next(line for line in text.splitlines() if line.startswith("training images")).split()
    assert (int(summary[2]), int(summary[-1])) == (p.n_train.min(), p.n_train.max())


def test_who_shares_a_distribution_is_told(digits: data.Dataset) -> None:
    p = partitions.make(partition_spec(digits.spec, "equal", 9, 1, shift="px", level=5, validation=0.2), digits)
    said = shown(p)
    assert f"P(X) in {len(p.distributions)} groups" in said
    sizes = (p.n_train, p.n_validation, p.n_test)
    assert "{:,} training, {:,} validation and {:,} test images".format(*(s.sum() for s in sizes)) in said
    of_client = {int(row[0]): row[-4:] for row in cells(said, r" +\d +\d") if len(row) == 15 and "," not in row[1]}
    assert of_client == {c: [*(str(s[c]) for s in sizes), str(p.groups[c])] for c in range(9)}
    below = said[said.index("distribution ") :].splitlines()
    groups = [re.split(r" {2,}", line.strip()) for line in below if re.match(r" +\d+  ", line)]
    assert [int(g) for g, *_ in groups] == list(range(len(p.distributions)))
    for g, who, what in groups:
        assert who == ", ".join(str(c) for c in range(9) if p.groups[c] == int(g))
        assert what.strip() == str(p.distributions[int(g)].rotation)


def test_a_drift_is_told() -> None:
    p = partitions.make(lab.equal(shift="py", level=1, phases=3), lab.equals_of())
    said = shown(p)
    for c in range(4):
        a, b, d = (stage[c] for stage in p.phase_groups)
        assert f"{a}→{b}→{d}, {p.test_groups[c]}\n" in said
    assert "behind the comma of the test data" in said


def test_no_line_of_groups_is_too_wide() -> None:
    for clients, shift, level in ((40, "pxy", 8), (10, "pyx", 8), (3, "none", None)):
        p = partitions.make(lab.equal(clients=clients, shift=shift, level=level), lab.equals_of())
        for width in (70, 100):
            assert (f"\nand {len(p.distributions) - 10} more\n" in shown(p, width)) == (clients == 40)


def test_clients_that_never_train() -> None:
    p = made(spec(unseen=2, unseen_as=AGAIN, shift="corrupted"))
    text = shown(p)
    assert "180 training and 60 test images\n" in text  # those that come again are not counted again
    assert "6 clients  shift corrupted in 4 groups" in text
    assert "2 unseen clients, again under fog 3, gaussian noise 1\n" in text
    assert "\nclients 4 to 9 (counted from 0) never train (*)" in text
    assert "grey" not in text
    kinds = ("motion blur 1", "defocus blur 1", "gaussian noise 1", "-", "-", "-", *["fog 3"] * 2)
    shifts = [*kinds, "gaussian noise 1", "gaussian noise 1"]
    for c, (row, shift) in enumerate(zip(cells(text), shifts, strict=True)):
        assert row[0] == f"{c}{'*' * (c > 3)}"
        assert row[7:] == [str(p.n_train[c]), str(p.n_test[c]), *shift.split()]


def test_narrow_terminals_tell_corruptions_below_the_table() -> None:
    text = shown(made(spec(unseen=2, unseen_as=["gaussian_noise-1"])), 40)
    assert "client 5: none" in text
    assert re.search(r"client 6: gaussian.noise 1", text)


@pytest.mark.parametrize("width", [70, 100])
def test_views_of_hundreds_of_clients_fit(width: int) -> None:
    again = [f"{c}-{s}" for c in CORRUPTIONS for s in (3, 4)]
    text = shown(made(spec(clients=60, unseen=30, unseen_as=again, shift="corrupted", subsample=0.25)), width)
    assert "training images subsampled to 25 %" in text
    assert "clients 30 to 659 (counted from 0) never train (*)" in text
    assert "The first 10 clients" in text
    summary = next(line for line in text.splitlines() if line.startswith("training images  ")).split()
    assert summary[2:] == ["1"] * 5  # of four images a client keeps one of three for training


def test_only_what_is_there_is_told() -> None:
    assert "corruption" not in shown(made(spec(clients=40, unseen=1, unseen_as=AGAIN)))  # none of the first ten
    assert "corruption" in shown(made(spec(unseen=1, unseen_as=AGAIN)))
    text = shown(made(spec(scheme="limited", alpha=0.5, size=20)))
    assert "made  Dir-0.5 (20 samples each)  6 clients  no covariate shift  seed 1" in text
    assert "newcomer" not in text


def mixture(clients: int = 2, classes: int = 4, **fields: Any) -> Partition:
    asked = lab.spec("mixture", clients, **{"train_mix": TRAIN, "test_mix": TEST, **fields})
    names, split = tuple(f"class{k}" for k in range(classes)), (np.arange(1200) >= 800).astype(np.uint8)
    return partitions.make(asked, lab.noise(np.arange(1200) % classes, split, (3, 3, 1), classes=names))


def lines(text: str) -> list[list[str]]:
    return cells(text, r"^ *\S* +(train|test) ")


def test_a_line_for_either_side() -> None:
    p = mixture()
    text = shown(p)
    assert f"{p.n_train.sum():,} training and {p.n_test.sum():,} test images\n" in text
    train, test = p.class_counts(False), p.class_counts(True)
    assert lines(text) == [
        [*name, *map(str, counts[c]), str(counts[c].sum())]
        for c in range(2)
        for name, counts in (((str(c), "train"), train), (("test",), test))
    ]


@pytest.mark.parametrize("disjoint", [False, True])
def test_a_group_is_one_client_or_all_that_share(disjoint: bool) -> None:
    one, text = mixture(), shown(mixture(20, disjoint=disjoint))
    shared = "share the images of their group out" if disjoint else "hold the same images"
    assert f"2 groups of 10 clients, who {shared}" in text
    assert f"{one.n_train.sum():,} training and {one.n_test.sum():,} test images;" in text
    first, test, second, *_ = lines(shown(one))
    assert lines(text)[:3] == [["0-9", *first[1:]], test, ["10-19", *second[1:]]]
    many = shown(mixture(40, train_mix=TRAIN * 20, test_mix=TEST * 20))
    assert (len(lines(many)), "and 30 more" in many) == (20, True)


@pytest.mark.parametrize("width", [60, 100])
def test_many_classes_are_summed_up(width: int) -> None:
    p = mixture(1, 16, train_mix=[[9, 1, 0, 1, *[0] * 12]], test_mix=[[0] * 15 + [1]])
    text = shown(p, width)
    counts = p.class_counts(False)[0]
    assert lines(text)[0][:6] == ["0", "train", str(counts.sum()), "3", "class0", f"{counts[0] / counts.sum():.0%},"]
    assert lines(text)[1] == ["test", str(p.n_test[0]), "1", "class15", "100%"]


def test_colours_of_either_side() -> None:
    blocks, flips = [(0, 30, 60, 70), (30, 60, 70, 80)], [(0.5, 0.2), (0.2, 0.8)]
    p = made(lab.spec("colored", 2, blocks=blocks, flips=flips, label_noise=0.25), channels=1)
    rows = p.rows(1, test=True)
    agree = int((p.colour[rows] == p.label[rows]).sum())  # type: ignore[index]
    ones = int(p.label[rows].sum())
    assert lines(shown(p))[3] == ["test", str(10 - ones), str(ones), str(10 - agree), str(agree), "0.8", "10"]
    assert "25% of the labels are flipped" in shown(p)
