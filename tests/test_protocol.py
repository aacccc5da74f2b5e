"""Protocols: the papers' settings as data, their budgets, and what a chosen value changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbench import methods, resources
from fedbench import protocol as module
from fedbench.engine.job import Job
from fedbench.errors import FedbenchError
from fedbench.protocol import DEFAULT, OWN, Protocol, budgets_of, load, names
from fedbench.specs import DatasetSpec, PartitionSpec, Setting
from tests.support.frames import refused

CIFAR10 = DatasetSpec("cifar10", "png", "0123456789ab")
DIGITS = DatasetSpec("digits", "sklearn", "0123456789ab")
FASHION = DatasetSpec("fashion_mnist", "idx", "0123456789ab")
MNIST = DatasetSpec("mnist", "idx", "0123456789ab")


def partition(protocol: str = "feddrm", dataset: DatasetSpec = CIFAR10, **chosen: Any) -> PartitionSpec:
    return load(protocol).partition_spec(dataset, 10, **{"scheme": "dirichlet", "alpha": 0.3, **chosen})


def setting(budget: str = "small", protocol: str = "feddrm", **chosen: Any) -> Setting:
    return load(protocol).setting(partition(protocol), budget, **chosen)


# -- what the papers say --------------------------------------------------------------------------------------

# What they say of papers' settings: tests/reports/test_paper_tables.py, by columns of the papers' tables.


def test_flux_has_five_seeds_and_rounds_by_data_set() -> None:
    protocol = load("flux")
    assert [protocol.seeds(b) for b in ("paper", "small")] == [(42, 43, 44, 45, 46), (42,)]
    assert load("pfedfda").seeds("paper") == (0,)
    settings = {
        name: protocol.setting(protocol.partition_spec(DatasetSpec(name, "", ""), 10), "paper")
        for name in ("mnist", "cifar100", "chexpert", "office_home")
    }
    assert {name: (s.rounds, s.model) for name, s in settings.items()} == {
        "mnist": (10, "lenet5_flux"),
        "cifar100": (15, "resnet9"),
        "chexpert": (20, "resnet9"),
        "office_home": (40, "resnet9"),
    }
    protocol = load("ftw_erm")
    found = {name: protocol.partition_spec(MNIST, 10, preset=name) for name in protocol.presets}
    assert {name: p.clients for name, p in found.items()} == {
        "five": 5,
        "hundred": 100,
        "two": 2,
        "no_shift": 2,
        "one_shift": 2,
        "one": 1,
        "colored": 2,
        "colored_whole": 2,
    }
    assert {p.scheme for name, p in found.items() if not name.startswith("colored")} == {"mixture"}
    assert len({p.id for p in found.values()}) == len(found)


def test_every_protocol_serves_every_budget_on_digits() -> None:
    """The embedded data set must run everywhere, and every budget must be a valid setting."""
    assert DEFAULT in names()
    for name in set(names()) - {OWN}:
        protocol = load(name)
        most = "full" if name == "arena" else "paper"  # no paper's
        assert {most, "small", "smoke"} <= set(protocol.budgets)
        rounds = []
        for budget in ("smoke", "small", most):
            if name == "feddrm" and budget == "paper":
                continue  # ResNet-18 takes no 8x8 images
            s = protocol.setting(partition(name, DIGITS), budget)
            assert s.model == "digits_cnn"
            assert budget in budgets_of(s).split(" and ")
            rounds.append((s.rounds, len(protocol.seeds(budget, (0, 1, 2, 3, 4)))))
        assert rounds == sorted(rounds), "smoke < small <= the most"
        assert rounds[0] < rounds[1], "smoke < small"
        assert len({work for work, _ in rounds}) > 1


def test_plain_is_neutral() -> None:
    """No paper's: no shift but that of labels, no augmentation, the value after the last round, every client in it."""
    rules = load(OWN)
    p = partition(OWN)
    assert (p.clients, p.shift, p.train_fraction, p.seed) == (10, "none", 0.8, 0)
    for dataset in (CIFAR10, DIGITS, MNIST, DatasetSpec("mine", "", "")):
        for budget in rules.budgets:
            s = rules.setting(partition(OWN, dataset), budget)
            assert (s.augment, s.window, s.participation, s.epochs, s.schedule) == ("none", 1, 1.0, 1, "constant")
            assert (s.descent, s.precision) == ("SGD with momentum 0.9", "fp32")
            assert budget in budgets_of(s)
            assert s.every >= 1, "there is a curve"
    assert budgets_of(rules.setting(partition(OWN, CIFAR10), "small", rounds=7)) == "own"


#: Methods that send one gradient a round, and one that needs a network with layers that normalise: they say so.
_PARTICULAR = {"fedsgd", "ftw_erm", "fitw_erm", "grayscale", "fedbn"}


@pytest.mark.parametrize("method", sorted(set(methods.names()) - _PARTICULAR))
def test_plain_fits_a_method_with_its_own_hyper_parameters(method: str) -> None:
    of = load(OWN).partition_spec(DIGITS, 10, scheme="equal", validation=0.2)
    for budget in load(OWN).budgets:
        assert budgets_of(Job.of(load(OWN).setting(of, budget), method, {}).spec.setting) == budget


def test_natural_groups_say_how_many_clients() -> None:
    rules, femnist = load(OWN), DatasetSpec("femnist", "", "")
    counted: list[str] = []

    def groups(column: str) -> int:
        counted.append(column)
        return 17

    by_writer = {"scheme": "natural", "by": "writer"}
    assert rules.partition_spec(femnist, 62, groups=groups, **by_writer).clients == 17
    assert counted == ["writer"]
    assert rules.partition_spec(femnist, 62, groups=groups, **by_writer, clients=5).clients == 5
    assert rules.partition_spec(femnist, 62, groups=groups, scheme="iid").clients == 10
    assert counted == ["writer"], "nothing is counted where the user says, or there are no groups"
    of_a_paper = load(DEFAULT).partition_spec(femnist, 62, groups=groups, **by_writer)
    assert of_a_paper.clients == 8, "a paper's is the paper's"
    with pytest.raises(FedbenchError, match="give the number of clients"):
        rules.partition_spec(femnist, 62, **by_writer)


def test_whose_defaults_hold_for_a_data_set(tmp_path: Path) -> None:
    assert {module.default_for(name) for name in ("cifar10", "mnist", "femnist", "office_home")} == {DEFAULT}
    assert {module.default_for(name) for name in ("digits", "gone_from_here")} == {OWN}
    text = (resources.RECIPES / "mnist.toml").read_text()
    (tmp_path / "mnist.toml").write_text(text)
    (tmp_path / "other.toml").write_text(f'protocol = "flux"\n{text}')
    assert module.default_for(f"{tmp_path}/mnist.toml") == OWN, "a recipe of one's own, whatever it is called"
    assert module.default_for(f"{tmp_path}/other.toml") == "flux"


def test_settings_of_one_data_set() -> None:
    """pFedFDA's hundred clients are ten on the 1,797 digits, unless the user says otherwise."""
    assert partition("pfedfda", DIGITS).clients == 10
    assert partition("pfedfda", DIGITS, clients=12).clients == 12
    assert partition("pfedfda", CIFAR10).clients == 100
    domains = {name: partition("pfedfda", DatasetSpec(name, "", ""), within="domain") for name in ("digit5", "digit3")}
    assert {name: p.clients for name, p in domains.items()} == {"digit5": 20, "digit3": 12}, "four a domain"
    by_writer = partition("pfedfda", DatasetSpec("femnist", "", ""), scheme="natural", by="writer", alpha=None)
    assert load("pfedfda").setting(by_writer, "small").model == "emnist_cnn"


# -- partitions -----------------------------------------------------------------------------------------------


def test_chosen_values_win_and_none_does_not() -> None:
    p = partition(clients=20, seed=7, shift="low", train_fraction=0.5, min_size=None)
    assert (p.clients, p.seed, p.shift, p.train_fraction, p.options.get("min_size")) == (20, 7, "low", 0.5, 10)
    assert partition(min_size=3).options["min_size"] == 3
    assert partition(clients=None) == partition()


def test_minimum_size_is_the_number_of_classes_of_dirichlet() -> None:
    """It must not enter the identity of a partition that does not use it."""
    assert load("feddrm").partition_spec(CIFAR10, 100, scheme="dirichlet", alpha=0.3).options["min_size"] == 100
    for own in ({"scheme": "iid"}, {"scheme": "shards", "shards": 5}):
        assert not {"min_size", "alpha"} & set(load("feddrm").partition_spec(CIFAR10, 10, **own).options)


LAYERED = Protocol(
    "mine",
    "Mine",
    {
        "preset": "two",
        "seed": "run",
        "train_fraction": 0.5,
        "clients": 4,
        "shift": "low",
        "min_size": "classes",
        "datasets": {"digits": {"clients": 3, "shift": "mid"}},
    },
    {
        "batch_size": 8,
        "epochs": 1,
        "lr": 0.1,
        "seed": 7,
        "every": 1,
        "datasets": {"digits": {"steps": 2, "lr": 0.2, "momentum": 0.5}},
    },
    {
        "small": {
            "rounds": 2,
            "every": 2,
            "model": "any",
            "models": {"mixture": "of_mixtures", "digits": "of_digits"},
            "datasets": {"digits": {"rounds": 9, "lr": 0.3}},
        },
    },
    presets={
        "two": {"scheme": "mixture", "clients": 2, "train_mix": [[1, 2], [2, 1]], "test_mix": [[1, 1], [1, 1]]},
        "even": {"scheme": "iid", "clients": 6},
    },
)


def test_a_layout_lies_between_defaults_and_chosen_values() -> None:
    p = LAYERED.partition_spec(CIFAR10, 10)
    assert (p.scheme, p.clients, p.train_fraction, p.shift) == ("mixture", 2, None, "none")
    assert p.options.get("min_size") is None
    assert LAYERED.partition_spec(CIFAR10, 10, preset="two") == p
    assert LAYERED.partition_spec(CIFAR10, 10, scheme="mixture", preset="two") == p
    assert LAYERED.partition_spec(DIGITS, 10).clients == 2, "a preset over the data set's defaults"
    more = LAYERED.partition_spec(CIFAR10, 10, clients=6, keep=[1, 0.5])
    assert (more.clients, more.options["keep"]) == (6, (1.0, 0.5))
    even = LAYERED.partition_spec(CIFAR10, 10, preset="even", train_fraction=0.9)
    assert (even.scheme, even.clients, even.train_fraction, even.shift) == ("iid", 6, 0.9, "low")
    assert "train_mix" not in even.options


def test_a_chosen_scheme_sets_the_default_layout_aside() -> None:
    p = LAYERED.partition_spec(CIFAR10, 10, scheme="dirichlet", alpha=0.5)
    assert (p.scheme, p.clients, p.train_fraction, p.shift) == ("dirichlet", 4, 0.5, "low")
    assert (p.options["min_size"], "train_mix" in p.options) == (10, False)
    on_digits = LAYERED.partition_spec(DIGITS, 10, scheme="iid")
    assert (on_digits.clients, on_digits.shift) == (3, "mid")


def test_an_error_about_a_value_that_nobody_gave_says_whose_it_is() -> None:
    ten = setting(rounds=10)
    for attempt, line in (
        (
            lambda: Job.under(load("feddrm"), "small", ten, "fedprox", {"finetune_rounds": 50}),
            "--finetune-rounds of fedprox must be below the number of rounds, 10, not 50",
        ),
        (
            lambda: Job.under(load("flux"), "small", setting(lr=1), "pfedme", {}),
            "--lambda of pfedme must be at most 1/lr, 1 at a learning rate of 1, not 5.0 (pfedme's default);"
            " give --lambda",
        ),
        (
            lambda: setting(protocol="ftw_erm", model="digits_cnn", epochs=2),
            "endless passes go with local steps, not local epochs (passes endless is protocol ftw_erm's, budget small);"
            " give other values, or another --protocol",
        ),
        (lambda: setting(lr=-1), "the learning rate must be above 0, not -1.0"),
    ):
        assert refused("", attempt) == line


def test_a_value_of_the_protocol_that_the_setting_does_not_allow_is_set_aside_and_said() -> None:
    job = Job.under(load("feddrm"), "small", setting(rounds=10), "fedprox", {"mu": 0.1})
    assert (job.spec.params["finetune_rounds"], job.spec.params["mu"]) == (0, 0.1)
    assert job.set_aside == (
        "protocol feddrm's value is set aside: --finetune-rounds of fedprox must be below the number of rounds, 10, "
        "not 50; the method's default holds",
    )
    usual = Job.under(load("feddrm"), "small", setting(rounds=100), "fedprox", {})
    assert (usual.spec.params["finetune_rounds"], usual.set_aside) == (50, ())


def test_a_protocol_whose_runs_draw_their_partition_anew() -> None:
    assert LAYERED.redraws
    assert all(load(name).redraws for name in ("ftw_erm", "flux"))
    assert not any(load(name).redraws for name in ("feddrm", "pfedfda"))
    assert LAYERED.partition_spec(CIFAR10, 10).seed == 7, "the seed of training"
    assert LAYERED.partition_spec(CIFAR10, 10, seed=3).seed == 3
    assert LAYERED.partition_spec(CIFAR10, 10, scheme="iid").seed == 7


def test_values_of_a_data_set_in_train_and_budget() -> None:
    """From the widest to the closest: train, train of the data set, budget, budget of the data set."""
    mine = {d.name: LAYERED.setting(LAYERED.partition_spec(d, 10, scheme="iid"), "small") for d in (CIFAR10, DIGITS)}
    far, near = mine["cifar10"], mine["digits"]
    assert (far.epochs, far.steps, far.lr, far.momentum, far.rounds, far.every) == (1, None, 0.1, 0.0, 2, 2)
    assert (near.epochs, near.steps, near.lr, near.momentum, near.rounds, near.every) == (None, 2, 0.3, 0.5, 9, 2)
    assert LAYERED.asks_for(near, "small")
    assert not LAYERED.asks_for(replace(near, rounds=8), "small")
    again = LAYERED.setting(LAYERED.partition_spec(DIGITS, 10, scheme="iid"), "small", lr=0.3, rounds=9)
    assert again == near, "saying aloud what holds for the data set changes nothing"


def test_a_model_of_the_scheme_comes_before_that_of_the_data_set() -> None:
    models = {
        (d.name, scheme): LAYERED.setting(LAYERED.partition_spec(d, 10, scheme=scheme), "small").model
        for d in (CIFAR10, DIGITS)
        for scheme in ("iid", None)
    }
    assert models == {
        ("cifar10", "iid"): "any",
        ("cifar10", None): "of_mixtures",
        ("digits", "iid"): "of_digits",
        ("digits", None): "of_mixtures",
    }


# -- budgets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "aloud"),
    [
        ("feddrm", {"rounds": 400, "lr": 0.01}),
        ("feddrm", {"rounds": None, "lr": None}),
        ("feddrm", {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 5e-4, "every": 100}),
        ("pfedfda", {"optimizer": "sgd", "momentum": 0.5, "every": 0}),
        ("ftw_erm", {"momentum": 0.0, "participation": 1.0}),  # which it leaves unsaid
    ],
)
def test_saying_what_holds_keeps_the_budget(protocol: str, aloud: dict[str, Any]) -> None:
    assert setting(protocol=protocol, **aloud) == setting(protocol=protocol)
    assert "small" in budgets_of(setting(protocol=protocol, **aloud))


@pytest.mark.parametrize(
    ("protocol", "chosen", "others"),
    [
        ("feddrm", {"rounds": 401}, {}),
        ("feddrm", {"model": "lenet5"}, {}),
        *((protocol, {"weight_decay": 0.25}, {}) for protocol in ("feddrm", "pfedfda", "ftw_erm")),
        ("feddrm", {"epochs": 2}, {"steps": None}),
        ("pfedfda", {"steps": 20}, {"epochs": None}),
        ("feddrm", {"optimizer": "adamw"}, {"momentum": 0.0}),
    ],
)
def test_a_chosen_value_makes_the_budget_ones_own(
    protocol: str, chosen: dict[str, Any], others: dict[str, Any]
) -> None:
    """What it takes the place of is gone, and the rest of the protocol stays."""
    expected = replace(setting(protocol=protocol), **{**chosen, **others})
    assert setting(protocol=protocol, **chosen) == expected
    assert budgets_of(expected) == "own"


@pytest.mark.parametrize(
    "chosen", [{"seed": 3}, {"precision": "bf16"}, {"every": 7}, {"window": 2}, {"votes": False}, {"test_phase": True}]
)
def test_another_seed_precision_or_evaluation_is_the_same_budget(chosen: dict[str, Any]) -> None:
    one = setting(**chosen)
    assert one.id != setting().id
    assert budgets_of(one) == budgets_of(setting()) == "small"


def test_budgets_that_ask_for_one_training_share_it() -> None:
    """FLUX with LeNet-5: small is the paper's training with one of its seeds."""
    flux = load("flux")
    part = flux.partition_spec(MNIST, 10)
    small, paper = (flux.setting(part, budget) for budget in ("small", "paper"))
    assert small == paper
    assert budgets_of(small) == "paper and small"
    assert set(flux.seeds("small")) < set(flux.seeds("paper"))


def test_a_budget_has_all_or_the_first_seeds_of_a_table() -> None:
    ftw = load("ftw_erm")
    assert [ftw.seeds(budget, (4, 5, 6)) for budget in ("paper", "small")] == [(4, 5, 6), (4,)]


def test_an_optimizer_of_a_table_is_no_choice_of_the_user() -> None:
    declared = load("feddrm").setting(partition(), "small", {"optimizer": "adamw", "lr": 0.001})
    assert (declared.optimizer, declared.momentum, declared.lr) == ("adamw", 0.0, 0.001)
    back = load("feddrm").setting(partition(), "small", {"optimizer": "sgd", "lr": 0.001})
    assert (back.optimizer, back.momentum) == (None, 0.9)


def test_fewer_rounds_shorten_the_window() -> None:
    assert [setting(rounds=rounds).window for rounds in (1, 4, 5, 6, 200)] == [1, 4, 5, 5, 5]


def test_an_interval_leaves_the_rounds_that_count() -> None:
    """A protocol's numbers are means over the last rounds; another interval changes what is evaluated before them."""
    assert setting().evaluated_rounds() == [100, 200, 300, *range(396, 401)]
    assert setting(every=150).evaluated_rounds() == [150, 300, *range(396, 401)]
    assert setting(every=40, rounds=50).evaluated_rounds() == [40, *range(46, 51)]
    assert setting(protocol="pfedfda", every=30).evaluated_rounds() == [30, 60, 90, 100]


def test_an_optimizer_is_told_where_it_is_not_the_protocols() -> None:
    for budget in ("small", "paper"):
        told = [
            load("feddrm").own_descent(setting(budget, **changes), budget)
            for changes in ({}, {"lr": 0.5, "rounds": 3}, {"momentum": 0.0}, {"optimizer": "adamw"})
        ]
        assert told == ["", "", "SGD with weight decay 0.0005", "AdamW with weight decay 0.0005"]


def test_method_params() -> None:
    assert load("feddrm").method_params("pfedfda", "paper") == {}
    load("feddrm").method_params("fedavgft", "small")["finetune_rounds"] = 99
    assert load("feddrm").method_params("fedavgft", "small") == {"finetune_rounds": 50}, "the caller's copy is its own"


# -- bad names and files --------------------------------------------------------------------------------------

MISSPELT = Protocol("mine", "Mine", {"clients": 2, "seed": 1, "train_fraction": 0.5}, {"bath_size": 8}, {"small": {}})
LACKING = Protocol("mine", "Mine", {"seed": 1, "train_fraction": 0.5}, {"model": "lenet5"}, {"small": {}})
IID = LACKING.partition_spec(DIGITS, 10, scheme="iid", clients=2)


@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (lambda: load("fedrdm"), "unknown protocol 'fedrdm'; did you mean 'feddrm'"),
        (lambda: load("xyz"), "known: arena, feddrm, flux, ftw_erm, pfedfda"),
        (
            lambda: load("ftw_erm").partition_spec(FASHION, 10, preset="fife"),
            "unknown preset of protocol ftw_erm 'fife'; did you mean 'five'",
        ),
        (lambda: partition(preset="five"), "protocol feddrm has no preset 'five'; --protocol ftw_erm has it"),
        (lambda: partition(preset="x"), "unknown preset of protocol feddrm 'x'; known: retina"),
        (lambda: partition(clents=3), "'clents'; did you mean 'clients'"),
        (lambda: setting("papr"), "unknown budget 'papr'; did you mean 'paper'"),
        (lambda: load("feddrm").method_params("fedavgft", "big"), "unknown budget 'big'; known: paper, small, smoke"),
        (lambda: setting(round=3), "'round'; did you mean 'rounds'"),
        (lambda: setting(epochs=2, steps=3), "epochs or local steps"),
        (lambda: setting(optimizer="adamw", momentum=0.9), "momentum is SGD's"),
        # The protocol's own are left out; the user's are not dropped in silence.
        (lambda: LAYERED.partition_spec(CIFAR10, 10, train_fraction=0.5), "a mixture partition has no training share"),
        (lambda: LAYERED.partition_spec(CIFAR10, 10, shift="low"), "a mixture partition has no shift low"),
        (
            lambda: LAYERED.partition_spec(CIFAR10, 10, preset="two", scheme="dirichlet", alpha=1.0),
            "preset two is a mixture partition, not a dirichlet one; choose one",
        ),
        (
            lambda: MISSPELT.setting(IID, "small", model="lenet5"),
            "protocol mine, budget small 'bath_size'; did you mean 'batch_size'",
        ),
        (lambda: LACKING.partition_spec(DIGITS, 10, scheme="iid"), "mine has no value for a partition's clients"),
        (lambda: LACKING.setting(IID, "small"), "Setting lacks rounds, batch_size, lr"),
    ],
)
def test_what_is_refused(attempt: Any, says: str) -> None:
    assert says in refused("", attempt)


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of protocols in place of fedbench's own."""
    monkeypatch.setattr(resources, "TABLES", tmp_path)
    module._read.cache_clear()
    (tmp_path / "mine").mkdir()
    yield tmp_path
    module._read.cache_clear()


#: A protocol's file as far as it goes; tables may follow.
RIGHT = b"title = ''\npartition.clients = 4\ntrain.seed = 1\nbudget.paper = {}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'title = "Mine"', "lacks 'partition'"),
        (b"title = ''\npartition = {}\ntrain = {}\nbudget.small = 1", "budget.small must be a table of keys, not 1"),
        (RIGHT + b"presets.x = {}", "'presets'; did you mean 'preset'?"),
        (RIGHT + b"train.bath_size = 1", "train 'bath_size'; did you mean 'batch_size'?"),
        (RIGHT + b"train.model_version = 2", "unknown key in"),
        (RIGHT + b"partition.version = 2", "unknown key in"),
        (RIGHT + b"train.phases.2 = [1]", "train.phases.2 must be a table of keys, not [1]"),
        (RIGHT + b"train.datasets.digits.lr = 'x'", "train.datasets.digits.lr must be a number, not 'x'"),
        (RIGHT + b"[budget.small]\nseeds = []", "budget.small.seeds must not be empty"),
        (RIGHT + b"partition.seed = 'walk'", "partition.seed must be a whole number or 'run', not 'walk'"),
        (RIGHT + b"partition.min_size = 'clases'", "min_size must be a whole number or 'classes', not 'clases'"),
    ],
)
def test_broken_files(tables: Path, text: bytes, says: str) -> None:
    file = tables / "mine" / "protocol.toml"
    file.write_bytes(text)
    line = refused("", lambda: load("mine"))
    assert says in line
    assert str(file) in line


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
