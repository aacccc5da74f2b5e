"""Specs: canonical form, identity, validation, and which rounds are evaluated."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from fedbench.errors import FedbenchError
from fedbench.partitions import schemes
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.transforms.corruption import CORRUPTIONS
from fedbench.specs import SPECS, DatasetSpec, MetricsSpec, PartitionSpec, RunSpec, Setting, Spec
from fedbench.specs.upgrade import former_id, is_former, upgraded
from tests.support.frames import few, refused

HERE = ("digits", "sklearn", "0123456789ab")


def test_a_later_field_keeps_older_ids_and_another_kind_has_others() -> None:
    @dataclasses.dataclass(frozen=True)
    class Later(DatasetSpec):
        mirror: str | None = None

    class Other(DatasetSpec):  # or an artifact could be taken for another
        kind = "other"

    assert Later(*HERE).id == DatasetSpec(*HERE).id
    assert Later(*HERE, mirror="x").id != DatasetSpec(*HERE).id != Other(*HERE).id
    assert Later.from_dict(DatasetSpec(*HERE).to_dict()) == Later(*HERE)


def changed(spec: Any, **changes: Any) -> Any:
    """The spec with other values, checked anew. Of a partition by another partitioner, options that it lacks go."""
    if not isinstance(spec, PartitionSpec):
        return dataclasses.replace(spec, **changes)
    name = changes.get("scheme", spec.scheme)
    having = schemes.load(name).options() if name in schemes.names() else {}
    fields = {f.name for f in dataclasses.fields(spec)}
    own = {key: value for key, value in schemes.facts(spec).items() if key in fields or key in having}
    return partition_spec(**{**own, **changes})


DRIFTING = partition_spec(DatasetSpec("mnist", "a", "b"), "equal", 10, 42, shift="px", level=1, phases=3)


DIGITS = DatasetSpec(*HERE)
MIX = partition_spec(DIGITS, "mixture", 4, 1, train_mix=[[1, 2], [2, 1]], test_mix=[[3, 1], [0, 1]], keep=[0.5, 1])
COLORED = partition_spec(
    DIGITS, "colored", 2, 1, blocks=[[0, 5, 20, 30], [5, 20, 30, 40]], flips=[[0.5, 0.2], [0.2, 1]], label_noise=0.25
)
EQUAL = partition_spec(DIGITS, "equal", 10, 42, shift="px", level=5, validation=0.2)
DIR = partition_spec(DIGITS, "dirichlet", 8, 2025, 0.7, "high", alpha=0.3, min_size=10)
LIMITED = partition_spec(DIGITS, "limited", 8, 42, 0.8, alpha=0.5, size=63)
SETTING = Setting(DIR, "digits_cnn", 100, batch_size=128, lr=0.01, seed=2025, steps=10, schedule="cosine", momentum=0.9)
RUN = RunSpec(SETTING, "feddrm", {"lambda": 0.8, "routing": "probability"})
DRIFTS = Setting(DRIFTING, "lenet5", 8, batch_size=64, lr=0.1, seed=1, epochs=1, drifts=(2, 8))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (changed(DIR, alpha=1), changed(DIR, alpha=1.0)),
        (changed(SETTING, lr=1), changed(SETTING, lr=1.0)),
        (changed(SETTING, momentum=-0.0), changed(SETTING, momentum=0.0)),
        (RunSpec(SETTING, "x", {"mu": -0.0}), RunSpec(SETTING, "x", {"mu": 0.0})),
        (changed(SETTING, optimizer="sgd"), SETTING),
        (changed(EQUAL, duplicates=1, copies=1, strict=False, fewer_classes=False, subsample=1), EQUAL),
        # Integers or floats, lists (TOML, JSON) or tuples; and a spec is hashable whatever it was given.
        (changed(MIX, train_mix=((1.0, 2.0), (2.0, 1.0)), test_mix=((3, 1), (-0.0, 1)), keep=(0.5, 1.0)), MIX),
        (changed(COLORED, blocks=((0.0, 5.0, 20.0, 30.0), (5.0, 20.0, 30.0, 40.0))), COLORED),
        (
            changed(SETTING, seed=np.uint8(7), votes=np.bool_(False), augment=np.str_("none"), drifts=None),
            changed(SETTING, seed=7, votes=False, augment="none"),
        ),
    ],
)
def test_one_identity_however_it_is_written(one: Spec, other: Spec) -> None:
    assert one == other
    assert (one.id, one.canonical(), hash(one)) == (other.id, other.canonical(), hash(other))


#: Of each spec, changes of each of its fields; what cannot change alone comes with what it needs.
CHANGES: list[tuple[Spec, list[dict[str, Any]]]] = [
    (
        SETTING,
        [
            {"partition": changed(DIR, seed=1)},
            {"model": "x"},
            {"rounds": 101},
            {"batch_size": 129},
            {"lr": 0.02},
            {"seed": 1},
            {"epochs": 10, "steps": None},
            {"steps": 11},
            {"tail": "drop"},
            {"momentum": 0.0},
            {"schedule": "constant"},
            {"momentum": 0.8},
            {"weight_decay": 0.5},
            {"participation": 0.5},
            {"cohort": 8},
            {"passes": "endless"},
            {"full_last_round": True},
            {"augment": "crop"},
            {"augment": "pad_flip"},
            {"window": 7},
            {"every": 7},
            {"votes": not SETTING.votes},
            {"precision": "tf32"},
            {"executor": "cores"},
            {"init_seed": 1},
            {"momentum_restarts": not SETTING.momentum_restarts},
            {"momentum_lives": True},
            {"init": "torch"},
            {"test_phase": not SETTING.test_phase},
            {"optimizer": "adamw", "momentum": 0.0},
            {"select": "best"},
            {"weighting": "uniform"},
            {"version": SETTING.version + 1},
            {"model_version": 7},
        ],
    ),
    (DRIFTS, [{"drifts": (3, 8)}, {"drifts": (2, 7)}]),
    (
        RUN,
        [
            {"params": {"lambda": 0.8}},
            {"params": {"lambda": 0.8, "routing": "vote"}},
            {"method": "x"},
            {"method_version": 9},
            {"source": "x"},
        ],
    ),
    (
        DIR,
        [
            {"dataset": DatasetSpec("digits", "sklearn", "x")},
            {"clients": 9},
            {"seed": 1},
            {"train_fraction": 0.6},
            {"shift": "low"},
            {"shift": "corrupted"},
            {"subsample": 0.5},
            {"unseen": 2},
            {"validation": 0.2},
            {"unseen": 2, "unseen_as": ("fog-3",)},
            {"unseen": 2, "unseen_as": ("fog-4",)},
            {"duplicates": 2},
            {"version": DIR.version + 1},
            {"alpha": 0.4},
            {"min_size": 11},
            {"min_size": None},
            {"within": "x"},
            {"within": "y"},
            {"within": "x", "cap": 9},
            {"scheme": "iid", "alpha": None, "min_size": None},
        ],
    ),
    (LIMITED, [{"size": 64}, {"alpha": 0.4}]),
    (
        EQUAL,
        [
            {"duplicates": 2},
            {"copies": 2},
            {"data_share": 0.05},
            {"validation": 0.1},
            {"subsample": 0.5},
            {"level": 6},
            {"shift": "px+py"},
            {"shift": "px+py", "fewer_classes": True},
            {"shift": "pxy"},
            {"draws": "anda"},
            {"shift": "pxy", "strict": True},
            {"level": 1},
            {"level": 1, "phases": 2},
            {"level": 1, "phases": 3},
        ],
    ),
    (
        MIX,
        [
            {"train_mix": [[1, 3], [2, 1]]},
            {"train_mix": [[1, 2], [2, 3]]},
            {"test_mix": [[3, 2], [0, 1]]},
            {"test_mix": [[3, 1], [1, 1]]},
            {"keep": [0.5, 0.9]},
            {"keep": None},
            {"disjoint": True},
        ],
    ),
    (
        COLORED,
        [
            {"flips": [[0.4, 0.2], [0.2, 1]]},
            {"flips": [[0.5, 0.2], [0.2, 0.9]]},
            {"label_noise": 0.2},
            {"blocks": [[0, 5, 20, 30], [5, 20, 30, 41]]},
        ],
    ),
]


#: All of them, and what lies around them.
EVERY = [changed(spec, **change) for spec, changes in CHANGES for change in ({}, *changes)]
EVERY += [DIGITS, MetricsSpec(RUN), RunSpec(SETTING, "x", {"b": "é", "a": -1.5e-6, "c": True, "none": None}, 2, "y")]


def test_round_trip() -> None:
    """A spec survives its own JSON: same value, same canonical form, same id, whatever the order of its keys."""
    for spec in (RunSpec(one, "fedavg") if isinstance(one, Setting) else one for one in EVERY):
        body = json.loads(spec.canonical())
        again = SPECS[body["kind"]].from_dict(body["spec"])
        assert again == spec
        assert again.canonical() == spec.canonical()
        body = {"kind": spec.kind, "schema": 2 if spec.kind in ("run", "metrics") else 1, "spec": spec.to_dict()}
        assert spec.canonical() == json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
        assert type(spec).shared(spec.to_dict()) is type(spec).shared(dict(reversed(spec.to_dict().items()))) == spec
        assert (again.id, hash(again)) == (spec.id, hash(spec))
        assert re.fullmatch("[0-9a-f]{12}", spec.id)


@pytest.mark.parametrize("setting", [SETTING, DRIFTS])
def test_versions_change_the_id_and_not_the_stem(setting: Setting) -> None:
    part = setting.partition
    dataset = dataclasses.replace(part.dataset, version=part.dataset.version + 1)
    others = [
        dataclasses.replace(setting, version=setting.version + 1),
        dataclasses.replace(setting, model_version=7),
        dataclasses.replace(setting, partition=dataclasses.replace(part, version=part.version + 1)),
        dataclasses.replace(setting, partition=dataclasses.replace(part, dataset=dataset)),
    ]
    assert len({other.id for other in [setting, *others]}) == 5
    assert {other.stem for other in others} == {setting.stem}
    assert dataclasses.replace(setting, seed=setting.seed ^ 1).stem != setting.stem
    assert dataclasses.replace(setting, model_version=1) == dataclasses.replace(setting, model_version=None)


def test_what_changes_nothing_is_no_identity() -> None:
    """All of the training images, and newcomers who come only as they are; the order of hyper-parameters. Clients are
    those who train, newcomers, and newcomers once more for each corruption."""
    for spec in (one for one in EVERY if isinstance(one, PartitionSpec) and one.train_fraction is not None):
        whole = changed(spec, subsample=None, unseen_as=None)
        assert changed(spec, subsample=1, unseen_as=()) == whole
        assert "subsample" not in whole.to_dict()
        again = len(spec.unseen_as or ()) * (spec.unseen or 0)
        assert (spec.all_clients, spec.outsiders) == (spec.clients + again, (spec.unseen or 0) + again)
    assert dataclasses.replace(RUN, params=dict(reversed(RUN.params.items()))).id == RUN.id
    assert len({RUN.id, MetricsSpec(RUN).id, MetricsSpec(RUN, version=2).id}) == 3, "metrics have an id of their own"


@pytest.mark.parametrize(("spec", "changes"), CHANGES)
def test_any_changed_field_changes_the_id(spec: Any, changes: list[dict[str, Any]]) -> None:
    assert len({spec.id, *(changed(spec, **change).id for change in changes)}) == len(changes) + 1
    # A new field must be added above.
    own = {f.name for f in dataclasses.fields(spec)} - {name for change in changes for name in change}
    left = {SETTING: {"drifts"}, DIR: {"phases", "options"}, RUN: {"setting"}}
    assert spec not in left or own <= left[spec]


@pytest.mark.parametrize(
    ("stages", "drifts"),
    [(3, None), (3, (2,)), (3, (1, 5)), (3, (5, 5)), (3, (5, 3)), (3, (2, 9)), (None, (2,)), (2, (2, 3))],
)
def test_drifts_fit_the_stages_of_the_data(stages: int | None, drifts: tuple[int, ...] | None) -> None:
    says = "drift at the beginning of" if stages else "data do not drift"
    refused(says, dataclasses.replace, DRIFTS, partition=changed(DRIFTING, phases=stages), drifts=drifts)


def test_hyper_parameters_keep_their_types_and_their_values() -> None:
    """Whole numbers stay whole (2 clusters, not 2.0), and the caller's dictionary is not the spec's."""
    given: dict[str, Any] = {"clusters": 2, "mu": 1.0, "psd": True, "rule": "a", "cap": None}
    run = RunSpec(SETTING, "x", given)
    assert [type(v) for v in run.params.values()] == [int, float, bool, str, type(None)]
    given["mu"] = 2.0
    assert run.params["mu"] == 1.0


@pytest.mark.parametrize(
    ("spec", "id"),
    [
        (DIGITS, "ab4532dcb0c5"),
        (DIR, "c66a4c2ad369"),
        (MIX, "3c5cd4e3ebed"),
        (COLORED, "5a9729e4d57c"),
        (RUN, "ff761612f47b"),
        (dataclasses.replace(RUN, setting=dataclasses.replace(SETTING, precision="fp32")), "ff761612f47b"),
        (MetricsSpec(RUN), "6e8446e0f36f"),
    ],
)
def test_pinned_ids(spec: Spec, id: str) -> None:
    """These ids stand in people's stores: if this fails, identity has changed and every artifact is orphaned."""
    assert spec.id == id


BAD: list[tuple[Spec, dict[str, Any], str]] = [
    (DIGITS, {"name": 3}, "DatasetSpec.name"),
    (DIGITS, {"version": True}, "DatasetSpec.version"),
    (DIR, {"scheme": "dirichlte"}, "unknown partitioner 'dirichlte'"),
    (DIR, {"shift": "higher"}, "shift 'higher'"),
    (DIR, {"clients": 0}, "clients"),
    (DIR, {"clients": 2.0}, "PartitionSpec.clients"),
    (DIR, {"seed": -1}, "seed"),
    (DIR, {"seed": 2**32}, "seed"),
    (DIR, {"train_fraction": 0.0}, "training share"),
    (DIR, {"train_fraction": 1}, "training share"),
    (DIR, {"alpha": 0}, "--alpha of dirichlet must be above 0, not 0.0"),
    (DIR, {"alpha": None}, "a dirichlet partition needs alpha: Dirichlet concentration: small is uneven"),
    (DIR, {"alpha": "0.3"}, "alpha of dirichlet cannot be '0.3'"),
    (DIR, {"min_size": 0}, "--min-size of dirichlet must be at least 1, not 0"),
    (DIR, {"scheme": "shards", "shards": 0}, "shards"),
    (DIR, {"scheme": "natural"}, "column"),
    (LIMITED, {"size": 1}, "--size of limited must be at least 2, not 1"),
    (DIR, {"cap": 5}, "a cap needs the column whose groups it limits"),
    (DIR, {"within": "domain", "cap": 1}, "--cap of dirichlet must be at least 2, not 1"),
    (DIR, {"subsample": 0}, "share of training samples to keep must be in (0, 1], not 0.0"),
    (DIR, {"subsample": 1.5}, "share of training samples to keep must be in (0, 1], not 1.5"),
    (DIR, {"unseen": 0}, "0 of 8 clients cannot be unseen in training"),
    (DIR, {"unseen": 8}, "8 of 8 clients cannot be unseen in training"),
    (DIR, {"unseen_as": ["fog-3"]}, "but there are none"),
    (DIR, {"unseen": 2, "unseen_as": "fog-3"}, "PartitionSpec.unseen_as cannot be 'fog-3'"),
    (DIR, {"unseen": 2, "unseen_as": ["fgo-3"]}, "unknown corruption 'fgo'; did you mean 'fog'?"),
    (DIR, {"unseen": 2, "unseen_as": ["fog"]}, "corruption 'fog' has no severity; for example fog-3"),
    (DIR, {"unseen": 2, "unseen_as": ["fog-6"]}, "1 to 5, not '6' (in 'fog-6')"),
    (DIR, {"unseen": 2, "unseen_as": ["fog-3.5"]}, "not '3.5'"),
    (DIR, {"unseen": 2, "unseen_as": ["fog-3", "jpeg-1", "fog-3"]}, "names fog-3 twice"),
    (MIX, {"subsample": 0.5}, "a mixture partition has no subsample"),
    (MIX, {"unseen": 1}, "a mixture partition has no unseen clients"),
    (COLORED, {"unseen": 1}, "a colored partition has no unseen clients"),
    (DIR, {"train_fraction": None}, "a dirichlet partition needs a training share"),
    (MIX, {"train_fraction": 0.7}, "a mixture partition has no training share"),
    (EQUAL, {"unseen": 1}, "an equal partition has no unseen clients"),
    (EQUAL, {"train_fraction": 0.7}, "an equal partition has no training share"),
    (EQUAL, {"shift": "low"}, "an equal partition has no shift low"),
    (EQUAL, {"level": 0}, "shift px has levels 1 to 8, not 0"),
    (EQUAL, {"level": 9}, "shift px has levels 1 to 8, not 9"),
    (EQUAL, {"level": None}, "shift px has levels 1 to 8, and none is given"),
    (EQUAL, {"level": 4, "phases": 3}, "shift px has levels 1 to 3 in drift phases, not 4"),
    (EQUAL, {"shift": "none"}, "level 5 of which shift?"),
    (EQUAL, {"shift": "px+px"}, "unknown shift 'px+px'"),
    (EQUAL, {"duplicates": 0}, "copies of a training sample must be at least 1, not 0"),
    (EQUAL, {"copies": 0}, "--copies of equal must be in [1, 10000], not 0"),
    (EQUAL, {"validation": 1.5}, "for validation must be in (0, 1), not 1.5"),
    (EQUAL, {"validation": 0}, "for validation must be in (0, 1), not 0.0"),
    (EQUAL, {"data_share": 0.2}, "10 clients cannot hold 0.2 of all training samples each"),
    (EQUAL, {"data_share": -0.1}, "10 clients cannot hold -0.1 of all"),
    (EQUAL, {"phases": 1, "level": 1}, "the number of phases of drifting data must be in [2, 100], not 1"),
    (EQUAL, {"phases": 2, "level": 1, "shift": "px+py"}, "2 drift phases need one of the shifts px, py, pyx and pxy"),
    (EQUAL, {"phases": 2, "level": 1, "shift": "pxy", "strict": True}, "drift phases have a P(X|Y) of their own"),
    (EQUAL, {"strict": True}, "strict is of P(X|Y) only"),
    (EQUAL, {"fewer_classes": True}, "fewer_classes is of mixed shifts only"),
    (DIR, {"shift": "px", "level": 1}, "partitioner dirichlet has no level: only equal can have it"),
    (MIX, {"shift": "low"}, "a mixture partition has no shift low"),
    (MIX, {"train_mix": None}, "a mixture partition needs train mix: class probabilities up to a factor, one row"),
    (MIX, {"test_mix": []}, "needs test_mix"),
    (MIX, {"train_mix": [1, 2]}, "train_mix of mixture cannot be 1"),
    (MIX, {"train_mix": [[1, float("nan")], [1, 1]]}, "train_mix of mixture must be a finite number, not nan"),
    (MIX, {"train_mix": [[1, -1], [1, 1]]}, "train_mix, row 0: class probabilities cannot be negative"),
    (MIX, {"test_mix": [[1, 1], [0, 0]]}, "test_mix, row 1: class probabilities cannot be negative, nor all zero"),
    (MIX, {"test_mix": [[1e308, 1e308], [1, 1]]}, "nor huge"),
    (MIX, {"test_mix": [[1, 1], [1, 1, 1]]}, "rows of different lengths: [2, 3] classes"),
    (MIX, {"test_mix": [[1, 1]]}, "train_mix has 2 rows and test_mix 1"),
    (MIX, {"clients": 5}, "5 clients cannot be 2 groups of the same size"),
    (MIX, {"keep": [1]}, "keep needs a share in (0, 1] for each of the 2 groups"),
    (MIX, {"keep": [0, 1]}, "keep needs a share in (0, 1]"),
    (COLORED, {"clients": 3}, "for each of its 3 clients"),
    (COLORED, {"blocks": [[0, 5, 20], [5, 20, 30]]}, "needs blocks: 4 numbers"),
    (COLORED, {"flips": [[0.5, 0.2]]}, "needs flips: 2 numbers"),
    (COLORED, {"blocks": [[0, 5, 20, 30], [20, 5, 30, 40]]}, "blocks, row 1: needs two ranges"),
    (COLORED, {"blocks": [[0, 5.5, 20, 30], [5, 20, 30, 40]]}, "blocks, row 0: needs two ranges"),
    (COLORED, {"blocks": [[-1, 5, 20, 30], [5, 20, 30, 40]]}, "not [-1.0, 5.0, 20.0, 30.0]"),
    (COLORED, {"blocks": [[0, 5, 20, 30], [5, 21, 30, 40]]}, "client 1 trains on test images of client 0"),
    (COLORED, {"label_noise": -0.1}, "probabilities in [0, 1]"),
    (COLORED, {"flips": [[0.5, 0.2], [0.2, 1.1]]}, "probabilities in [0, 1]"),
    (COLORED, {"train_fraction": 0.5}, "a colored partition has no training share"),
    (SETTING, {"epochs": 5}, "epochs or local steps"),
    (SETTING, {"steps": None}, "epochs or local steps"),
    (SETTING, {"rounds": 0}, "rounds"),
    (SETTING, {"batch_size": 0}, "batch size"),
    (SETTING, {"steps": 0}, "steps"),
    (SETTING, {"window": 0}, "window"),
    (SETTING, {"every": -1}, "every"),
    (SETTING, {"lr": 0}, "learning rate"),
    (SETTING, {"lr": float("nan")}, "lr must be a finite number, not nan"),
    (SETTING, {"momentum": -0.1}, "momentum"),
    (SETTING, {"momentum": 1}, "momentum must be in [0, 1), not 1.0"),
    (SETTING, {"weight_decay": -0.1}, "weight decay"),
    (SETTING, {"weight_decay": float("inf")}, "weight_decay must be a finite number"),
    (SETTING, {"optimizer": "adam", "momentum": 0}, "unknown optimizer 'adam'; did you mean 'adamw'"),
    (SETTING, {"optimizer": "adamw"}, "momentum is SGD's: adamw has betas of its own"),
    (SETTING, {"participation": 0}, "participation"),
    (SETTING, {"participation": 1.01}, "participation"),
    (SETTING, {"tail": "wrap"}, "tail 'wrap'"),
    (SETTING, {"schedule": "step"}, "schedule 'step'"),
    (SETTING, {"augment": "flip"}, "augment 'flip'"),
    (SETTING, {"precision": "fp8"}, "precision 'fp8'"),
    (SETTING, {"executor": "stakced"}, "executor 'stakced'; did you mean 'stacked'"),
    (SETTING, {"partition": changed(DIR, unseen=3), "cohort": 6}, "a cohort must be 1 to 5 clients"),
    (SETTING, {"votes": 1}, "Setting.votes"),
    (RUN, {"params": ["lambda"]}, "RunSpec.params"),
    (RUN, {"params": {"lambda": [1]}}, "lambda"),
    (RUN, {"params": {"lambda": float("-inf")}}, "hyper-parameter lambda must be a finite number"),
    (RUN, {"params": {1: 2}}, "params"),
]


@pytest.mark.parametrize(("spec", "change", "says"), BAD, ids=[says for _, _, says in BAD])
def test_bad_values_give_one_line(spec: Spec, change: dict[str, Any], says: str) -> None:
    refused(re.escape(says), changed, spec, **change)


def test_from_dict_refuses() -> None:
    for raw, says in (
        ({k: v for k, v in DIR.to_dict().items() if k != "clients"}, "clients"),
        ({**DIR.to_dict(), "dataset": {"name": "digits"}}, "source"),
        ({**DIR.to_dict(), "dataset": 3}, "PartitionSpec.dataset"),
    ):
        refused(says, PartitionSpec.from_dict, raw)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (np.float32(0.3), 0.3),
        (np.float16(0.1), 0.1),
        (np.array(0.3), 0.3),
        (np.float64(0.3), 0.3),
        (np.array(np.float32(0.3)), 0.3),
        (np.longdouble(0.3), None),
        (np.array([0.3]), None),
        (np.complex64(1), None),
        (np.float32("nan"), None),
        (np.datetime64("2020"), None),
    ],
)
def test_numpys_numbers_are_pythons_or_refused(given: Any, plain: float | None) -> None:
    """The shortest decimal of a short float: float32(0.3) itself is 0.30000001192."""

    def made(value: Any) -> list[str]:
        specs = (changed(SETTING, lr=value), changed(DIR, alpha=value), changed(RUN, params={"a": value}))
        return [one.canonical() for one in specs]

    if plain is not None:
        assert made(given) == made(plain)
        return
    for spec, change in ((SETTING, {"lr": given}), (DIR, {"alpha": given}), (RUN, {"params": {"a": given}})):
        with pytest.raises(FedbenchError):
            changed(spec, **change)


@pytest.mark.parametrize(
    ("spec", "label"),
    [
        (DIR, "Dir-0.3"),
        (changed(DIR, alpha=1), "Dir-1"),
        (changed(DIR, scheme="shards", alpha=None, shards=5), "5-SPC"),
        (changed(DIR, scheme="iid", alpha=None), "IID"),
        (changed(DIR, scheme="natural", alpha=None, by="writer"), "by writer"),
        (changed(DIR, scheme="natural", alpha=None, by="domain", round_robin=True), "by domain, in turn"),
        (LIMITED, "Dir-0.5 (63 samples each)"),
        (MIX, "target shift"),
        (COLORED, "coloured"),
        (EQUAL, "P(X) level 5"),
        (changed(EQUAL, shift="none", level=None), "equal shards"),
        (DRIFTING, "P(X) level 1"),
    ],
)
def test_labels(spec: PartitionSpec, label: str) -> None:
    assert schemes.label(spec) == label


@few(st.integers(1, 60), st.integers(1, 80), st.integers(0, 80), examples=40)
def test_evaluated_rounds(rounds: int, window: int, every: int) -> None:
    """Against the sentence itself: one of the last `window` rounds, or a multiple of `every`."""
    found = dataclasses.replace(SETTING, rounds=rounds, window=window, every=every).evaluated_rounds()
    expected = [t for t in range(1, rounds + 1) if t > rounds - window or (every and t % every == 0)]
    assert found == expected
    assert found[-1] == rounds


def test_details_say_what_the_label_does_not() -> None:
    assert schemes.details(DIR) == schemes.details(LIMITED) == []
    domains = changed(DIR, within="domain", cap=9298, subsample=0.25, unseen=2)
    assert schemes.details(domains) == [
        "within domain, at most 9,298 samples of each",
        "training images subsampled to 25 %",
        "2 unseen clients",
    ]
    some = changed(DIR, unseen=2, unseen_as=["fog-3", "motion_blur-1"])
    assert schemes.details(some) == ["2 unseen clients, again under fog 3, motion blur 1"]
    every = changed(DIR, unseen=2, unseen_as=[f"{c}-3" for c in reversed(CORRUPTIONS)])
    assert schemes.details(every) == ["2 unseen clients, again under each corruption at severity 3"]


def test_details_of_equal_shards() -> None:
    assert schemes.details(EQUAL) == ["level 5", "20 % of the training images for validation"]
    full = partition_spec(
        DIGITS,
        "equal",
        10,
        42,
        shift="pxy+py",
        level=6,
        strict=True,
        fewer_classes=True,
        duplicates=8,
        data_share=0.01,
        subsample=0.5,
    )
    assert schemes.details(full) == [
        "level 6",
        "one angle for all classes of a client",
        "5 classes a client",
        "training shares drawn around 1 %",
        "every training image 8 times",
        "training images subsampled to 50 %",
    ]
    assert "3 phases" in schemes.details(changed(EQUAL, level=1, phases=3))


def test_specs_of_schema_1_are_those_of_today_without_the_budget() -> None:
    """The ids of schema 1 stand in people's packs: these are the ones that RUN and its metrics had."""
    former: dict[str, Any] = RUN.to_dict()
    former["setting"] = {**former["setting"], "budget": "small"}
    metrics = {"run": former, "version": 1}
    for kind, raw, spec, id in (
        ("run", former, RUN, "e014b38cce95"),
        ("metrics", metrics, MetricsSpec(RUN), "44011779736c"),
    ):
        assert is_former(kind, raw)
        assert former_id(kind, raw) == id
        assert SPECS[kind].from_dict(upgraded(kind, raw)) == spec
        assert not is_former(kind, upgraded(kind, raw))
        assert upgraded(kind, spec.to_dict()) == spec.to_dict()
    assert not is_former("partition", DIR.to_dict())
