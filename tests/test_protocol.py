"""Protocols: the papers' settings as data, their budgets, and what a chosen value changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbench import protocol as module
from fedbench import resources
from fedbench.errors import FedbenchError, unknown
from fedbench.protocol import DEFAULT, Protocol, load, names
from fedbench.spec import DatasetSpec, PartitionSpec, Setting

CIFAR10 = DatasetSpec("cifar10", "png", "0123456789ab")
DIGITS = DatasetSpec("digits", "sklearn", "0123456789ab")


def partition(protocol: str = "feddrm", dataset: DatasetSpec = CIFAR10, **chosen: Any) -> PartitionSpec:
    return load(protocol).partition_spec(dataset, 10, **{"scheme": "dirichlet", "alpha": 0.3, **chosen})


def setting(budget: str = "small", protocol: str = "feddrm", **chosen: Any) -> Setting:
    return load(protocol).setting(partition(protocol), budget, **chosen)


# -- what the papers say --------------------------------------------------------------------------------------


def test_feddrm() -> None:
    """FedDRM (ICLR 2026), its code: 8 clients, 800 rounds of 10 steps at 128, cosine, last 50 rounds."""
    p = partition()
    assert (p.clients, p.seed, p.train_fraction, p.shift, p.min_size) == (8, 2025, 0.7, "high", 10)
    s = setting("paper")
    assert (s.rounds, s.steps, s.epochs, s.batch_size, s.window, s.model) == (800, 10, None, 128, 50, "resnet18_gn")
    assert (s.lr, s.momentum, s.weight_decay, s.schedule, s.participation) == (0.01, 0.9, 5e-4, "cosine", 1.0)
    assert s.votes
    assert s.budget == "paper"
    assert load("feddrm").method_params("fedavgft", "paper") == {"finetune_rounds": 100}


def test_pfedfda() -> None:
    """pFedFDA (NeurIPS 2024), section 4: 100 clients, 30 % of them, 200 rounds of 5 epochs at 50."""
    p = partition("pfedfda", alpha=0.5)
    assert (p.clients, p.train_fraction, p.shift, p.min_size) == (100, 0.8, "none", 63)
    s = setting("paper", "pfedfda")
    assert (s.rounds, s.epochs, s.steps, s.batch_size, s.model) == (200, 5, None, 50, "cifar_cnn")
    assert (s.lr, s.momentum, s.weight_decay, s.participation) == (0.01, 0.5, 5e-4, 0.3)
    assert s.full_last_round
    assert not s.votes


def test_every_protocol_serves_every_budget_on_digits() -> None:
    """The embedded data set must run everywhere, and every budget must be a valid setting."""
    assert DEFAULT in names()
    for name in names():
        protocol = load(name)
        assert {"paper", "small", "smoke"} <= set(protocol.budgets)
        rounds = []
        for budget in ("smoke", "small", "paper"):
            if name == "feddrm" and budget == "paper":
                continue  # ResNet-18 takes no 8x8 images
            s = protocol.setting(partition(name, DIGITS), budget)
            assert (s.budget, s.model) == (budget, "digits_cnn")
            rounds.append(s.rounds)
        assert rounds == sorted(set(rounds)), "smoke < small < paper"


def test_settings_of_one_data_set() -> None:
    """pFedFDA's hundred clients are ten on the 1,797 digits, unless the user says otherwise."""
    assert partition("pfedfda", DIGITS).clients == 10
    assert partition("pfedfda", DIGITS, clients=12).clients == 12
    assert partition("pfedfda", CIFAR10).clients == 100


# -- partitions -----------------------------------------------------------------------------------------------


def test_chosen_values_win_and_none_does_not() -> None:
    p = partition(clients=20, seed=7, shift="low", train_fraction=0.5, min_size=None)
    assert (p.clients, p.seed, p.shift, p.train_fraction, p.min_size) == (20, 7, "low", 0.5, 10)
    assert partition(min_size=3).min_size == 3
    assert partition(clients=None) == partition()


def test_minimum_size_is_the_number_of_classes() -> None:
    assert load("feddrm").partition_spec(CIFAR10, 100, scheme="dirichlet", alpha=0.3).min_size == 100


@pytest.mark.parametrize("own", [{"scheme": "iid"}, {"scheme": "shards", "shards": 5}])
def test_minimum_size_belongs_to_dirichlet(own: dict[str, Any]) -> None:
    """It must not enter the identity of a partition that does not use it."""
    p = load("feddrm").partition_spec(CIFAR10, 10, **own)
    assert p.min_size is None
    assert p.alpha is None


def test_unknown_key_of_a_partition() -> None:
    with pytest.raises(FedbenchError, match="'clents'; did you mean 'clients'"):
        partition(clents=3)


# -- budgets --------------------------------------------------------------------------------------------------


def test_a_chosen_value_makes_the_budget_custom() -> None:
    base = setting()
    assert base.budget == "small"
    assert setting(rounds=base.rounds, lr=base.lr) == base, "saying the default aloud changes nothing"
    assert setting(rounds=None, lr=None) == base
    changed = setting(rounds=base.rounds + 1)
    assert (changed.budget, changed.rounds) == ("custom", base.rounds + 1)
    assert setting(model="lenet5").budget == "custom"


def test_another_seed_or_precision_is_still_that_budget() -> None:
    s = setting(seed=3, precision="bf16")
    assert (s.budget, s.seed, s.precision) == ("small", 3, "bf16")
    assert setting().precision == "fp32", "the papers'"


@given(st.integers(1, 200))
def test_fewer_rounds_shorten_the_window(rounds: int) -> None:
    s = setting(rounds=rounds)
    assert s.window == min(6, rounds)
    assert s.evaluated_rounds()[-1] == rounds


def test_epochs_and_steps_replace_each_other() -> None:
    epochs = setting(epochs=2)
    assert (epochs.epochs, epochs.steps, epochs.budget) == (2, None, "custom")
    steps = setting(protocol="pfedfda", steps=20)
    assert (steps.epochs, steps.steps, steps.budget) == (None, 20, "custom")
    with pytest.raises(FedbenchError, match="epochs or local steps"):
        setting(epochs=2, steps=3)


def test_method_params() -> None:
    assert load("feddrm").method_params("pfedfda", "paper") == {}
    load("feddrm").method_params("fedavgft", "small")["finetune_rounds"] = 99
    assert load("feddrm").method_params("fedavgft", "small") == {"finetune_rounds": 12}, "the caller's copy is its own"


# -- bad names and files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (lambda: load("fedrdm"), "unknown protocol 'fedrdm'; did you mean 'feddrm'"),
        (lambda: load("xyz"), "known: feddrm, pfedfda"),
        (lambda: setting("papr"), "unknown budget 'papr'; did you mean 'paper'"),
        (lambda: load("feddrm").method_params("fedavgft", "big"), "unknown budget 'big'; known: paper, small, smoke"),
        (lambda: setting(round=3), "'round'; did you mean 'rounds'"),
    ],
)
def test_unknown_names(attempt: Any, says: str) -> None:
    with pytest.raises(FedbenchError) as caught:
        attempt()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_offers_the_nearest_whatever_the_case() -> None:
    assert str(unknown("data set", "CIFAR-10", ["cifar10", "mnist"])) == (
        "unknown data set 'CIFAR-10'; did you mean 'cifar10'?"
    )
    assert str(unknown("run", "x", [])) == "unknown run 'x'; known: none"


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of protocols in place of fedbench's own."""
    monkeypatch.setattr(module, "TABLES", tmp_path)
    load.cache_clear()
    (tmp_path / "mine").mkdir()
    yield tmp_path
    load.cache_clear()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"title = ", "is not valid TOML"),
        (b'title = "\xff"', "is not valid TOML"),
        (b'title = "Mine"', "lacks 'partition'"),
    ],
)
def test_broken_files(tables: Path, text: bytes, says: str) -> None:
    file = tables / "mine" / "protocol.toml"
    file.write_bytes(text)
    with pytest.raises(FedbenchError) as caught:
        load("mine")
    assert says in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_user_protocol(tables: Path) -> None:
    """A new folder is a new protocol; a budget without a model for a data set asks for one."""
    (tables / "mine" / "protocol.toml").write_text(
        'title = "Mine"\npartition = {clients = 4, seed = 1, train_fraction = 0.5}\n'
        "train = {batch_size = 8, epochs = 1, lr = 0.1, seed = 1}\n"
        'budget.small = {rounds = 2, models = {digits = "digits_cnn"}}\n'
    )
    assert names() == ["mine"]
    mine = load("mine")
    on_digits, on_cifar = (mine.partition_spec(d, 10, scheme="iid") for d in (DIGITS, CIFAR10))
    assert mine.setting(on_digits, "small").model == "digits_cnn"
    assert mine.setting(on_cifar, "small", model="lenet5", rounds=5).model == "lenet5"
    with pytest.raises(FedbenchError, match="mine names no model for cifar10; choose one with --model"):
        mine.setting(on_cifar, "small")


def test_a_misspelt_key_of_a_file(tables: Path) -> None:
    wrong = Protocol("mine", "Mine", {"clients": 2, "seed": 1, "train_fraction": 0.5}, {"bath_size": 8}, {"small": {}})
    spec = wrong.partition_spec(DIGITS, 10, scheme="iid")
    with pytest.raises(FedbenchError, match="protocol mine, budget small 'bath_size'; did you mean 'batch_size'"):
        wrong.setting(spec, "small", model="lenet5")


def test_declarative_files_are_found() -> None:
    assert (resources.TABLES / "feddrm" / "protocol.toml").is_file()
    assert any(resources.RECIPES.glob("*.toml"))


def test_a_missing_key_of_a_file() -> None:
    lacking = Protocol("mine", "Mine", {"seed": 1, "train_fraction": 0.5}, {"model": "lenet5"}, {"small": {}})
    with pytest.raises(FedbenchError, match=r"missing .* 'clients'"):
        lacking.partition_spec(DIGITS, 10, scheme="iid")
    with pytest.raises(FedbenchError, match=r"missing .* 'rounds'"):
        lacking.setting(lacking.partition_spec(DIGITS, 10, scheme="iid", clients=2), "small")
