"""Bad input: exit code 2, one line that says what, where and what to do, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbench.store import Store
from tests.support.cli_user import DIGITS, SMOKE, complete, fedbench, good, own_method, own_recipe

TRAIN = ("train", "--method", "fedavg", *SMOKE)
QUICK = (*SMOKE, "--rounds", "2", "--steps", "1")
FEDDRM = ("train", "--method", "feddrm", *SMOKE)
FT = ("train", "--method", "fedavgft", *SMOKE)

CASES = [
    # names that do not exist
    ((*TRAIN, "--model", "lenet"), "unknown model 'lenet'; did you mean 'lenet5'?"),
    ((*TRAIN, "--device", "gpu"), "unknown device 'gpu'; did you mean 'cpu'?"),
    ((*TRAIN, "--executor", "core"), "unknown executor 'core'; did you mean 'cores'?"),
    ((*TRAIN, "--precision", "bf61"), "unknown precision 'bf61'; did you mean 'bf16'?"),
    ((*TRAIN, "--protocol", "feddrn"), "unknown protocol 'feddrn'; did you mean 'feddrm'?"),
    (("train", "--method", "fedavg", "--budget", "smal"), "unknown budget 'smal'; did you mean 'small'?"),
    (("train", "--method", "fedavgg"), "unknown method 'fedavgg'; did you mean 'fedavg'?"),
    (("methods", "//"), "unknown method '//'; known: apfl, "),
    (("train", "--table", "feddrm/12"), "unknown table 'feddrm/12'; did you mean 'feddrm/"),
    (("train", "--table", "9"), "unknown table '9'"),
    (("train", "--table", "1", "--budget", "smal"), "unknown budget 'smal'; did you mean 'small'?"),
    (("train", "--table", "1", "--dataset", "digit"), "unknown dataset 'digit'; did you mean 'digits'?"),
    (("train", "--table", "1", "--dataset", "digits", *SMOKE, "--method", "fedavgg"), "did you mean 'fedavg'?"),
    (("train", "--table", "1", "--dataset", "digits", *SMOKE, "--executor", "core"), "did you mean 'cores'?"),
    (("train", "--table", "1", "--dataset", "digits", *SMOKE, "--device", "gpu"), "did you mean 'cpu'?"),
    (("train", "--table", "1", *DIGITS, "--precision", "bf61"), "unknown precision 'bf61'; did you mean 'bf16'?"),
    (("report", "--table", "1", "--budget", "smal"), "unknown budget 'smal'; did you mean 'small'?"),
    (("partition", "digits", "--shift", "hihg"), "unknown shift 'hihg'; did you mean 'high'?"),
    (("partition", "mnists"), "unknown dataset 'mnists'; did you mean 'mnist'?"),
    (("demo", "--budget", "smok"), "unknown budget 'smok'; did you mean 'smoke'?"),
    # a method's options
    ((*FEDDRM, "--lamda", "0.7"), "unknown option of train --method feddrm '--lamda'; did you mean '--lambda'?"),
    ((*FEDDRM, "--round", "4"), "did you mean '--rounds'?"),
    ((*FEDDRM, "--betas", "2"), "unknown option of train --method feddrm '--betas'"),
    ((*FEDDRM, "--lambda"), "--lambda needs a value"),
    ((*FEDDRM, "--lambda", "much"), "--lambda of feddrm takes a number, not 'much'"),
    ((*FEDDRM, "--lambda", "1.5"), "--lambda of feddrm must be in (0, 1], not 1.5"),
    ((*FEDDRM, "--lambda=nan"), "--lambda of feddrm must be in (0, 1], not nan"),
    ((*FEDDRM, "--lambda", "0.7", "more"), "unknown dataset 'more'"),
    (("train", "--method", "pfedfda", *SMOKE, "--betas", "1.5"), "--betas of pfedfda takes a whole number, not '1.5'"),
    (("train", "--method", "pfedfda", *SMOKE, "--feature-store", "all_epoch"), "did you mean 'all_epochs'?"),
    ((*FT, "--finetune-rounds", "4"), "--finetune-rounds of fedavgft must be below the number of rounds, 4, not 4"),
    ((*FT, "--rounds", "1"), "--finetune-rounds of fedavgft must be below the number of rounds, 1, not 1"),
    # values out of range or of another kind
    ((*TRAIN, "--rounds", "0"), "rounds must be at least 1, not 0"),
    ((*TRAIN, "--rounds", "many"), "'--rounds'"),
    (
        (*TRAIN, "--seed", "1,2"),
        "--seed takes a whole number, not '1,2'; for several seeds: fedbench sweep --seeds",
    ),
    ((*TRAIN, "--observe", "tensorboard:"), "--observe tensorboard: names no DIR; such as tensorboard:board"),
    ((*TRAIN, "--batch-size", "0"), "batch size must be at least 1, not 0"),
    ((*TRAIN, "--lr", "0"), "the learning rate must be above 0, not 0.0"),
    ((*TRAIN, "--lr", "nan"), "lr must be a finite number, not nan"),
    ((*TRAIN, "--momentum", "1"), "momentum must lie in [0, 1), not 1.0"),
    ((*TRAIN, "--momentum", "-0.1"), "momentum must lie in [0, 1), not -0.1"),
    ((*TRAIN, "--weight-decay", "-1"), "weight decay must be at least 0, not -1.0"),
    ((*TRAIN, "--weight-decay", "inf"), "weight_decay must be a finite number, not inf"),
    ((*TRAIN, "--every", "-1"), "--every must be at least 0, not -1; 0: only the last rounds that count"),
    ((*TRAIN, "--optimizer", "adam"), "unknown optimizer 'adam'; did you mean 'adamw'?"),
    ((*TRAIN, "--optimizer", "adamw", "--momentum", "0.5"), "momentum is SGD's: adamw has betas of its own"),
    (
        ("train", "--method", "pfedme", *SMOKE, "--optimizer", "adamw"),
        "pfedme takes its steps by a rule of its own, not by adamw; leave --optimizer out",
    ),
    ((*TRAIN, "--participation", "1.5"), "participation must lie in (0, 1], not 1.5"),
    ((*TRAIN, "--seed", "-1"), "the seed must be in 0..2^32-1, not -1"),
    ((*TRAIN, "--epochs", "1", "--steps", "2"), "give either local epochs or local steps, not both"),
    (("partition", "digits", "--dir", "0"), "--dir of dirichlet must be above 0, not 0.0"),
    (("partition", "digits", "--dir", "inf"), "alpha of dirichlet must be a finite number, not inf"),
    (("partition", "digits", "--split", "1"), "the training share must lie between 0 and 1, not 1.0"),
    (("partition", "digits", "--clients", "0"), "the number of clients must be at least 1, not 0"),
    # what the data cannot give
    (("partition", "digits", "--iid", "--clients", "1000"), "1797 samples cannot serve 1000 clients"),
    (("partition", "digits", "--dir", "0.3", "--protocol", "feddrm", "--clients", "500"), "500 clients"),
    (("partition", "digits", "--iid", "--clients", "700", "--split", "0.1", "--shift", "none"), "client"),
    (("partition", "digits", "--spc", "400"), "4000 shards"),
    (("partition", "digits", "--by", "writer"), "unknown column of digits 'writer'"),
    (("partition", "cifar10"), "the images of cifar10 are not at hand"),
    (("train", "--table", "flux/13"), "nothing can be run: the images of mnist are not at hand"),
    (
        ("train", "--table", "1"),
        "nothing can be run: the images of cifar10, cifar20, cifar100 are not at hand; 'fedbench data fetch NAME' for",
    ),
    ((*TRAIN, "--precision", "tf32", "--device", "cpu"), "tf32 needs a GPU, and this is a CPU; use --precision fp32"),
    (("train", "--table", "1", *DIGITS, "--precision", "tf32", "--device", "cpu"), "tf32 needs a GPU"),
    ((*TRAIN, "--model", "resnet18_gn"), "images of 8x8x1 are too small for model resnet18_gn"),
    # what does not go together
    (("train", "--method", "fedavg", "--dataset", "digits"), "--dataset goes with --table only"),
    (("train",), "train needs --method NAME or --table NAME"),
    ((*TRAIN, "--dir", "0.3"), "--dir says how a data set is dealt out, and none is named"),
    ((*TRAIN, "--partition-seed", "3"), "--partition-seed says how a data set"),
    (("train", "digits", "-m", "fedavg", "--dir", "0.3", "--spc", "2"), "--dir and --spc exclude each other"),
    (("train", "digits", "-m", "fedavg", "--partition", "ffff"), "give either digits or --partition ffff, not both"),
    (("train", "digits", "mnist", "-m", "fedavg"), "unexpected argument 'mnist'"),
    (("train", "digits"), "train needs --method NAME or --table NAME"),
    (("train", "digtis", "-m", "fedavg"), "unknown dataset 'digtis'; did you mean 'digits'?"),
    (("train", "digits", "-m", "fedavgg"), "unknown method 'fedavgg'; did you mean 'fedavg'?"),
    (("train", "digits", "-m", "fedprox", "--muu", "1"), "'--muu'; did you mean '--mu'?"),
    (("train", "digits", "-m", "fedprox", "--clints", "3"), "'--clints'; did you mean '--clients'?"),
    (
        ("train", "digits", "-m", "fedavg", "--iid", "--min-size", "3"),
        "iid has no min size: only dirichlet can have it",
    ),
    (
        ("train", "digits", "-m", "fedavg", "-m", "local", "--mu", "1"),
        "unknown option of train --method fedavg --method",
    ),
    (("train", "digits", "--table", "1"), "with --table it is --dataset digits"),
    (("train", "--table", "1", "--clients", "3"), "--clients does not go with --table"),
    (("train", "--table", "1", "--columm", "x"), "option of train --table '--columm'; did you mean '--column'?"),
    (("train", "--table", "1", "--head-epochs", "2"), "--head-epochs does not go with --table but for one method"),
    (("train", "--table", "1", "-m", "local", "--datset=cifar10"), "'--datset'; did you mean '--dataset'?"),
    (("train", "--table", "1", "--datset", "cifar10"), "'--datset'; did you mean '--dataset'?"),
    ((*TRAIN, "--partition", "ffff"), "no partition 'ffff'"),
    (("evaluate", "ffff"), "no run 'ffff'"),
    (("evaluate", "ffff", "--all"), "give either a run's id or --all, not both"),
    (("train", "--method", "./nowhere.py:Mine"), "no file ./nowhere.py to take the method from"),
    (("partition", "./nowhere.toml"), "there is no recipe file nowhere.toml"),
]


@pytest.mark.parametrize(("arguments", "says"), CASES, ids=[" ".join(a) for a, _ in CASES])
def test_one_line(
    ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before, current = complete(ready), Store(ready).current
    said = fedbench(*arguments)
    assert (said.code, said.out) == (2, "")
    assert says in said.line
    assert said.line.startswith("fedbench: ")
    assert said.err.count("fedbench: ") == 1
    assert "Traceback" not in said.err
    assert complete(ready) == before, "nothing is made, and nothing half-made"
    kept = {"run": current["run"]} if arguments[0] == "partition" else current
    assert Store(ready).current == kept
    assert not (ready / "failed").exists()
    assert list(ready.glob("work/[!.]*")) == []


def test_no_current_partition(home: Path) -> None:
    said = fedbench("train", "--method", "fedavg")
    assert said.code == 2
    assert said.err == (
        "fedbench: there is no current partition (none was made, or the last 'partition' failed); "
        "name a data set: fedbench train digits --dir 0.3 --method fedavg\n"
    )
    assert complete(home) == {}


def test_no_current_run(home: Path) -> None:
    said = fedbench("evaluate")
    assert said.code == 2
    assert said.err.startswith("fedbench: there is no current run; 'fedbench train' makes one")


def test_the_current_partition_is_gone(ready: Path) -> None:
    good("remove", Store(ready).current["partition"], "--yes")
    said = fedbench(*TRAIN)
    assert said.code == 2
    assert "no partition" in said.line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import nothing_of_that_name", "cannot load"),
        ("class Other: pass", "defines 0 methods"),
        ("syntax error", "cannot load"),
    ],
)
def test_a_faulty_method_file(ready: Path, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    said = fedbench("train", "--method", tmp_path / "mine.py", *SMOKE)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert says in said.err


def test_a_method_of_ones_own(ready: Path, tmp_path: Path) -> None:
    mine = own_method(tmp_path)
    good("train", "--method", mine, *QUICK)
    first = Store(ready).current["run"]
    good("train", "--method", mine, *QUICK, "--half", "0.25", "--loud")
    assert Store(ready).current["run"] != first
    assert Store(ready).find(Store(ready).current["run"]).manifest["spec"]["params"] == {"half": 0.25, "loud": True}
    said = fedbench("train", "--method", mine, *QUICK, "--hafl", "0.25")
    assert (said.code, "did you mean '--half'?" in said.err) == (2, True)
    # Another text is another method.
    good("train", "--method", own_method(tmp_path, "yield Train(cross_entropy)"), *QUICK)
    assert Store(ready).current["run"] != first


def test_data_of_ones_own(home: Path, tmp_path: Path) -> None:
    recipe = own_recipe(tmp_path)
    made = good("partition", recipe, "--iid", "--clients", "3")
    assert "mine" in made.out
    good("train", "--method", "fedavg", "--model", "digits_cnn", *QUICK)
    run = Store(home).find(Store(home).current["run"])
    assert run.manifest["spec"]["setting"]["partition"]["dataset"]["name"] == "mine"


def test_a_wrong_checksum(home: Path, tmp_path: Path) -> None:
    said = fedbench("partition", own_recipe(tmp_path, images="0" * 64), "--iid", "--clients", "3")
    assert said.code == 2
    assert "images.gz" in said.line
    assert "checksum" in said.line
    assert complete(home) == {}
    assert "partition" not in Store(home).current


def test_a_damaged_image_file(home: Path, tmp_path: Path) -> None:
    recipe = own_recipe(tmp_path)
    path = tmp_path / "images.gz"
    path.write_bytes(path.read_bytes()[:-200])
    said = fedbench("partition", recipe, "--iid", "--clients", "3")
    assert said.code == 2
    assert "images.gz" in said.line
    assert complete(home) == {}
    own_recipe(tmp_path)
    good("partition", recipe, "--iid", "--clients", "3")
