"""`fedbench partition` as a user meets it, on the embedded digits: options, JSON, and what is refused in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

from fedbench import data
from fedbench.cli import app
from fedbench.cli.partition import _short_forms
from fedbench.partitions import Partition, schemes
from fedbench.partitions.transforms import CORRUPTIONS
from fedbench.store import Store
from tests.support import partitions_lab as lab
from tests.support.cli_user import fedbench, good
from tests.support.partitions_lab import MADE, cells, current
from tests.support.real_images import RealImages


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
                "scheme": "equal", "shift": "pxy+py", "level": 6, "clients": 5, "duplicates": 8, "validation": 0.25,
                "data_share": 0.05, "subsample": 0.5, "strict": True, "fewer_classes": True, "phases": None, "seed": 7,
                "copies": 2,
            },
        ),
        ("--equal --shift px --level 1 --phases 2", {"phases": 2}),
        ("--equal", {"shift": "none", "level": None}),  # the default protocol's covariate shift is none of these
        (
            "--dir 0.5 --size 30 --clients 8 --subsample 0.25 --unseen 3 --unseen-as fog-3,contrast-2",
            {
                "scheme": "limited", "alpha": 0.5, "size": 30, "min_size": None, "subsample": 0.25, "unseen": 3,
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
        ("--scheme shards --spc 5", {"scheme": "shards", "shards": 5}),
        ("--scheme iid --iid", {"scheme": "iid"}),
    ],
)  # fmt: skip
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
    described = [one.described(p.classes) for one in p.distributions]
    assert said.get("distributions", []) == described
    assert json.loads(good("partition", "digits", *options.split(), "--json").out)["made"] is False


EQUAL = "--equal --shift px --level 5"
FTW_ERM = "--protocol ftw_erm"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--dir 0.3 --iid", "--dir and --iid exclude each other"),
        ("--scheme iid --dir 0.3", "--dir and --scheme exclude each other"),
        ("--scheme natural --by writer --iid", "--iid and --by and --scheme exclude each other"),
        ("--equal --iid", "--iid and --equal exclude each other"),
        ("--counts x.csv --iid", "--iid and --counts exclude each other"),
        ("--counts x.csv --preset two", "--counts and --preset exclude each other"),
        (f"{FTW_ERM} --preset two --dir 1", "--dir and --preset exclude each other"),
        ("--spc 0", "--spc of shards must be at least 1, not 0"),
        ("--dir 0", "--dir of dirichlet must be above 0"),
        ("--dir -2", "--dir of dirichlet must be above 0"),
        ("--scheme dirichlet --alpha -2", "--alpha of dirichlet must be above 0"),
        ("--iid --min-size 4", "partitioner iid has no min size: only dirichlet can have it"),
        ("--scheme mixture", "one row a group; for example --counts FILE.csv"),
        ("--scheme nonsense --help", "unknown partitioner 'nonsense'"),
        ("--by writer", "unknown column of digits 'writer'"),
        ("--iid --clients 1000", "1797 samples cannot serve 1000 clients"),
        ("--iid --clients 60 --shift pool", "the pool has 54 shifts"),
        ("--protocol feddrn", "did you mean 'feddrm'"),
        ("--iid --as-json 1", "unknown option of partition by iid '--as-json'; did you mean '--json'?"),
        ("--iid --datasets digits", "known: --by, --clients, --counts, --dir, --duplicates"),
        ("--equal --shift px", "shift px has levels 1 to 8, and none is given"),
        ("--equal --shift px --level 0", "levels 1 to 8, not 0"),
        ("--equal --shift px --level 9", "levels 1 to 8, not 9"),
        ("--equal --level 3", "level 3 of which shift?"),
        ("--equal --shift px+px --level 3", "unknown shift 'px+px'"),
        ("--equal --shift pool", "an equal partition has no shift pool"),
        ("--iid --shift px", "an iid partition has no shift px: equal can have it"),
        (f"{EQUAL} --clients 400", "355 test images cannot serve 400 clients"),
        (f"{EQUAL} --duplicates 0", "at least once, not 0 times"),
        (f"{EQUAL} --validation 1.5", "must lie between 0 and 1, not 1.5"),
        (f"{EQUAL} --phases 2", "shift px has levels 1 to 3 in drift phases, not 5"),
        (f"{EQUAL} --round-robin", "partitioner equal has no round robin: only natural can have it"),
        ("--iid --data-share 0.01", "partitioner iid has no data share: only equal can have it"),
        ("--iid --size 5", "only limited and sampled can have it"),
        ("--dir 1 --size 400", "1797 samples cannot give 10 clients 400 each"),
        ("--dir 1 --size 20 --min-size 5", "partitioner dirichlet has no size: only limited"),
        ("--dir 1 --size 20 --within domain", "partitioner dirichlet has no size: only limited"),
        ("--dir 1 --within domain", "unknown column of digits 'domain'"),
        ("--dir 1 --cap 20", "a cap needs the column whose groups it limits"),
        ("--iid --subsample 0", "must lie in (0, 1], not 0.0"),
        ("--iid --subsample 1.5", "must lie in (0, 1], not 1.5"),
        ("--iid --unseen 10", "10 of 10 clients cannot be unseen in training"),
        ("--iid --unseen-as fog-3", "but there are none"),
        ("--iid --unseen 2 --unseen-as fgo-3", "unknown corruption 'fgo'; did you mean 'fog'?"),
        ("--iid --unseen 2 --unseen-as fog-0", "1 to 5, not '0'"),
        ("--iid --unseen 2 --unseen-as all-6", "1 to 5, not '6'"),
        ("--iid --unseen 2 --unseen-as fog-3,", "corruption '' has no severity"),
        ("--iid --shift corrupt", "unknown shift 'corrupt'; did you mean 'corrupted'?"),
        (f"{FTW_ERM} --unseen 2", "a mixture partition has no unseen clients"),
        (f"{FTW_ERM} --preset tow", "unknown preset of protocol ftw_erm 'tow'; did you mean 'two'"),
        ("--preset two", "protocol plain has no preset 'two'; --protocol ftw_erm has it"),
        (f"{FTW_ERM} --min-size 3", "partitioner mixture has no min size: only dirichlet"),
        (f"{FTW_ERM} --split 0.5", "a mixture partition has no training share"),
        (f"{FTW_ERM} --shift low", "a mixture partition has no shift low"),
        (f"{FTW_ERM} --clients 7", "7 clients cannot be 5 groups of the same size"),
        (f"{FTW_ERM} --preset colored --clients 3", "blocks: 4 numbers for each of its 3"),
        (f"{FTW_ERM} --preset colored", "client 0 asks for images 40000 to 50000, but digits has 1797 training images"),
        ("--counts absent.csv", "cannot read absent.csv"),
    ],
)
def test_bad_input(home: Path, options: str, says: str) -> None:
    said = fedbench("partition", "digits", *options.split())
    assert (said.code, said.out) == (2, "")
    assert says in said.line
    assert said.line.startswith("fedbench: ")
    assert "Traceback" not in said.err
    assert "partition" not in Store(home).current


def test_the_data_set_is_named(home: Path) -> None:
    assert "did you mean 'digits'" in fedbench("partition", "digit").line
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
    train, test = ((4, 1, 1, 1), (1, 4, 1, 1)), ((1, 1, 4, 1), (1, 1, 1, 4))
    rows = [
        f"{k},{side},{c},{mix[k][c]}\n"
        for side, mix in (("train", train), ("test", test))
        for k in (0, 1)
        for c in range(4)
    ]
    counts = home / "weights.csv"
    counts.write_text("client,split,class,value\n" + "".join(rows))
    made = run("--counts", str(counts), of="made")
    assert (made.spec.scheme, made.clients, made.spec.seed, made.spec.shift) == ("mixture", 2, 0, "none")
    assert (made.spec.options["train_mix"], made.spec.options["test_mix"]) == (train, test)
    assert run("--counts", str(counts), "--clients", "6", "--seed", "3", of="made").groups == [0, 0, 0, 1, 1, 1]
    wrong = fedbench("partition", "made", "--protocol", "ftw_erm")
    assert "weights for 10 classes, but made has 4" in wrong.line


def test_start_up_imports_nothing_heavy() -> None:
    code = (
        "import sys, fedbench.cli.partition\n"
        "print([m for m in ('numpy', 'pyarrow', 'torch', 'PIL', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_short_forms_are_those_of_the_partitioners() -> None:
    command = get_command(app).commands["partition"]  # type: ignore[attr-defined]
    assert set(_short_forms(command)) == {short for name in schemes.names() for short in schemes.load(name).short}


def test_the_default_layout_on_real_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_root: Path, real_images: RealImages
) -> None:
    real_images.lend(tmp_path, "fashion_mnist")
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path))
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))
    said = cells(good("partition", "fashion_mnist", "--protocol", "ftw_erm").out, r"^ *\S* +(train|test) ")
    assert said[0] == ["0", "train", *["34"] * 5, "5,862", *["34"] * 4, "6,168"]
    assert said[-1] == ["test", *["5"] * 4, "977", *["5"] * 5, "1,022"]
