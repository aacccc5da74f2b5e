"""Specs: canonical form, identity, validation, and which rounds are evaluated."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedbench.errors import FedbenchError
from fedbench.spec import (
    AUGMENTS,
    PRECISIONS,
    SCHEDULES,
    SHIFTS,
    SPECS,
    TAILS,
    DatasetSpec,
    MetricsSpec,
    PartitionSpec,
    RunSpec,
    Setting,
    Spec,
)

names = st.text("abcdefghijklmnopqrstuvwxyz_0123456789", min_size=1, max_size=12)
seeds = st.integers(0, 2**32 - 1)
positive = st.floats(1e-6, 1e6)
counts = st.integers(1, 10_000)
plain = st.one_of(st.text(max_size=8), st.integers(-(10**9), 10**9), positive, st.booleans(), st.none())

datasets = st.builds(DatasetSpec, names, names, names, version=st.integers(1, 9))


@st.composite
def partitions(draw: st.DrawFn) -> PartitionSpec:
    scheme, own = draw(
        st.one_of(
            st.tuples(st.just("dirichlet"), st.fixed_dictionaries({"alpha": positive}, optional={"min_size": counts})),
            st.tuples(st.just("shards"), st.fixed_dictionaries({"shards": counts})),
            st.tuples(st.just("iid"), st.just({})),
            st.tuples(st.just("natural"), st.fixed_dictionaries({"by": names})),
        )
    )
    fraction = draw(st.floats(0.01, 0.99))
    shift = draw(st.sampled_from(SHIFTS))
    return PartitionSpec(draw(datasets), scheme, draw(counts), draw(seeds), fraction, shift, **own)


@st.composite
def settings(draw: st.DrawFn) -> Setting:
    passes = draw(st.sampled_from(("epochs", "steps")))
    return Setting(
        partition=draw(partitions()),
        budget=draw(names),
        model=draw(names),
        rounds=draw(counts),
        batch_size=draw(counts),
        lr=draw(positive),
        seed=draw(seeds),
        **{passes: draw(counts)},
        tail=draw(st.sampled_from(TAILS)),
        schedule=draw(st.sampled_from(SCHEDULES)),
        momentum=draw(st.floats(0, 1)),
        weight_decay=draw(st.floats(0, 1)),
        participation=draw(st.floats(0.01, 1)),
        full_last_round=draw(st.booleans()),
        augment=draw(st.sampled_from(AUGMENTS)),
        window=draw(counts),
        every=draw(st.integers(0, 100)),
        votes=draw(st.booleans()),
        precision=draw(st.sampled_from(PRECISIONS)),
    )


runs = st.builds(
    RunSpec,
    settings(),
    names,
    st.dictionaries(names, plain, max_size=4),
    st.integers(1, 9),
    st.one_of(st.none(), names),
)
specs = st.one_of(datasets, partitions(), runs, st.builds(MetricsSpec, runs))


# -- canonical form and identity ------------------------------------------------------------------------------


@given(specs)
def test_round_trip(spec: Spec) -> None:
    """A spec survives its own JSON: same value, same canonical form, same id."""
    body = json.loads(spec.canonical())
    again = SPECS[body["kind"]].from_dict(body["spec"])
    assert again == spec
    assert again.canonical() == spec.canonical()
    assert again.id == spec.id
    assert hash(again) == hash(spec)
    assert len(spec.id) == 12
    assert set(spec.id) <= set("0123456789abcdef")


@given(specs)
def test_none_is_absent(spec: Spec) -> None:
    """A field that is None leaves no trace, so that a later field with that default changes no older id."""

    def check(spec: Spec) -> None:
        raw = spec.to_dict()
        for f in dataclasses.fields(spec):
            value = getattr(spec, f.name)
            assert (f.name in raw) == (value is not None)
            if isinstance(value, Spec):
                check(value)

    check(spec)


def test_a_later_field_keeps_older_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass(frozen=True)
    class Later(DatasetSpec):
        mirror: str | None = None

    old = DatasetSpec("digits", "sklearn", "abc")
    assert Later("digits", "sklearn", "abc").id == old.id
    assert Later("digits", "sklearn", "abc", mirror="x").id != old.id
    assert Later.from_dict(old.to_dict()) == Later("digits", "sklearn", "abc")


@given(settings(), st.data())
def test_any_changed_field_changes_the_id(setting: Setting, data: st.DataObject) -> None:
    changes: dict[str, Any] = {
        "budget": setting.budget + "x", "model": setting.model + "x", "rounds": setting.rounds + 1,
        "batch_size": setting.batch_size + 1, "lr": setting.lr * 2, "seed": setting.seed ^ 1,
        "tail": TAILS[1 - TAILS.index(setting.tail)], "schedule": SCHEDULES[1 - SCHEDULES.index(setting.schedule)],
        "momentum": setting.momentum + 0.5, "weight_decay": setting.weight_decay + 0.5,
        "participation": setting.participation / 2, "full_last_round": not setting.full_last_round,
        "augment": AUGMENTS[1 - AUGMENTS.index(setting.augment)], "window": setting.window + 1,
        "every": setting.every + 1, "votes": not setting.votes, "version": setting.version + 1,
        "precision": PRECISIONS[PRECISIONS.index(setting.precision) - 1],
        "partition": dataclasses.replace(setting.partition, seed=setting.partition.seed ^ 1),
    }  # fmt: skip
    passes = "epochs" if setting.epochs is not None else "steps"
    changes[passes] = getattr(setting, passes) + 1
    # A new field of Setting must be added above (the other kind of passes has no second value).
    assert {f.name for f in dataclasses.fields(Setting)} - set(changes) == {"epochs", "steps"} - {passes}
    name = data.draw(st.sampled_from(sorted(changes)))
    assert dataclasses.replace(setting, **{name: changes[name]}).id != setting.id


@given(runs)
def test_metrics_have_an_id_of_their_own(run: RunSpec) -> None:
    assert MetricsSpec(run).id != run.id
    assert MetricsSpec(run).id == MetricsSpec(dataclasses.replace(run)).id
    assert MetricsSpec(run, version=2).id != MetricsSpec(run).id


@given(runs, names, st.integers(0, 10**6))
def test_every_hyper_parameter_is_identity(run: RunSpec, name: str, value: int) -> None:
    more = dataclasses.replace(run, params={**run.params, name: value})
    assume(run.params.get(name) != value)
    assert more.id != run.id


@given(runs)
def test_order_of_hyper_parameters_is_not_identity(run: RunSpec) -> None:
    assert dataclasses.replace(run, params=dict(reversed(run.params.items()))).id == run.id


def test_kinds_do_not_share_ids() -> None:
    """Two kinds with the same fields must differ, or an artifact could be taken for another."""

    class Other(DatasetSpec):
        kind = "other"

    assert Other("digits", "sklearn", "abc").id != DatasetSpec("digits", "sklearn", "abc").id


DIGITS = DatasetSpec("digits", "sklearn", "0123456789ab")
DIR = PartitionSpec(DIGITS, "dirichlet", 8, 2025, 0.7, "high", alpha=0.3, min_size=10)
SETTING = Setting(DIR, "small", "digits_cnn", 100, 128, 0.01, 2025, steps=10, schedule="cosine", momentum=0.9)
RUN = RunSpec(SETTING, "feddrm", {"lambda": 0.8, "routing": "probability"})


def test_one_and_one_point_zero_are_one_id() -> None:
    whole = dataclasses.replace(DIR, alpha=1)
    assert whole.id == dataclasses.replace(DIR, alpha=1.0).id
    assert isinstance(whole.alpha, float)
    assert dataclasses.replace(SETTING, lr=1).canonical() == dataclasses.replace(SETTING, lr=1.0).canonical()


def test_both_zeros_are_one_id() -> None:
    assert dataclasses.replace(SETTING, momentum=-0.0).id == dataclasses.replace(SETTING, momentum=0.0).id
    assert RunSpec(SETTING, "x", {"mu": -0.0}).id == RunSpec(SETTING, "x", {"mu": 0.0}).id


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
        (RUN, "e014b38cce95"),
        (dataclasses.replace(RUN, setting=dataclasses.replace(SETTING, precision="fp32")), "e014b38cce95"),
        (MetricsSpec(RUN), "44011779736c"),
    ],
)
def test_pinned_ids(spec: Spec, id: str) -> None:
    """These ids stand in people's stores: if this fails, identity has changed and every artifact is orphaned."""
    assert spec.id == id


def test_canonical_form_is_the_documented_one() -> None:
    assert DIGITS.canonical() == (
        '{"kind":"dataset","schema":1,"spec":{"content":"0123456789ab","name":"digits","source":"sklearn","version":1}}'
    )


# -- validation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_not_finite_is_refused(value: float) -> None:
    with pytest.raises(FedbenchError, match="finite"):
        dataclasses.replace(SETTING, lr=value)
    with pytest.raises(FedbenchError, match="hyper-parameter lambda must be a finite number"):
        RunSpec(SETTING, "feddrm", {"lambda": value})


BAD: list[tuple[Spec, dict[str, Any], str]] = [
    (DIGITS, {"name": 3}, "DatasetSpec.name"),
    (DIGITS, {"version": True}, "DatasetSpec.version"),
    (DIR, {"scheme": "dirichlte"}, "scheme 'dirichlte'"),
    (DIR, {"shift": "higher"}, "shift 'higher'"),
    (DIR, {"clients": 0}, "clients"),
    (DIR, {"clients": 2.0}, "PartitionSpec.clients"),
    (DIR, {"seed": -1}, "seed"),
    (DIR, {"seed": 2**32}, "seed"),
    (DIR, {"train_fraction": 0.0}, "training share"),
    (DIR, {"train_fraction": 1}, "training share"),
    (DIR, {"alpha": 0}, "alpha must be above 0"),
    (DIR, {"alpha": -0.3}, "alpha must be above 0"),
    (DIR, {"alpha": None}, "alpha must be above 0"),
    (DIR, {"alpha": "0.3"}, "PartitionSpec.alpha"),
    (DIR, {"min_size": 0}, "minimum size"),
    (DIR, {"scheme": "shards", "shards": 0}, "shards"),
    (DIR, {"scheme": "shards"}, "shards"),
    (DIR, {"scheme": "natural"}, "column"),
    (DIR, {"scheme": "natural", "by": ""}, "column"),
    (DIR, {"dataset": "digits"}, "PartitionSpec.dataset"),
    (SETTING, {"epochs": 5}, "epochs or local steps"),
    (SETTING, {"steps": None}, "epochs or local steps"),
    (SETTING, {"rounds": 0}, "rounds"),
    (SETTING, {"batch_size": 0}, "batch size"),
    (SETTING, {"steps": 0}, "steps"),
    (SETTING, {"window": 0}, "window"),
    (SETTING, {"every": -1}, "every"),
    (SETTING, {"lr": 0}, "learning rate"),
    (SETTING, {"momentum": -0.1}, "momentum"),
    (SETTING, {"weight_decay": -0.1}, "weight decay"),
    (SETTING, {"participation": 0}, "participation"),
    (SETTING, {"participation": 1.01}, "participation"),
    (SETTING, {"tail": "wrap"}, "tail 'wrap'"),
    (SETTING, {"schedule": "step"}, "schedule 'step'"),
    (SETTING, {"augment": "flip"}, "augment 'flip'"),
    (SETTING, {"precision": "fp8"}, "precision 'fp8'"),
    (SETTING, {"votes": 1}, "Setting.votes"),
    (RUN, {"params": ["lambda"]}, "RunSpec.params"),
    (RUN, {"params": {"lambda": [1]}}, "lambda"),
    (RUN, {"params": {1: 2}}, "params"),
]


@pytest.mark.parametrize(("spec", "change", "says"), BAD, ids=[says for _, _, says in BAD])
def test_bad_values_give_one_line(spec: Spec, change: dict[str, Any], says: str) -> None:
    with pytest.raises(FedbenchError) as caught:
        dataclasses.replace(spec, **change)
    line = str(caught.value)
    assert says in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({**DIR.to_dict(), "alhpa": 1}, "no field 'alhpa'"),
        ({k: v for k, v in DIR.to_dict().items() if k != "clients"}, "clients"),
        ({**DIR.to_dict(), "dataset": {"name": "digits"}}, "source"),
        ({**DIR.to_dict(), "dataset": 3}, "PartitionSpec.dataset"),
    ],
)
def test_from_dict_refuses(raw: dict[str, Any], says: str) -> None:
    with pytest.raises(FedbenchError) as caught:
        PartitionSpec.from_dict(raw)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels() -> None:
    assert DIR.label == "Dir-0.3"
    assert dataclasses.replace(DIR, alpha=1).label == "Dir-1"
    assert dataclasses.replace(DIR, scheme="shards", alpha=None, shards=5).label == "5-SPC"
    assert dataclasses.replace(DIR, scheme="iid", alpha=None).label == "IID"
    assert dataclasses.replace(DIR, scheme="natural", alpha=None, by="writer").label == "by writer"


# -- evaluated rounds -----------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(1, 80), st.integers(0, 80))
def test_evaluated_rounds(rounds: int, window: int, every: int) -> None:
    """Against the sentence itself: one of the last `window` rounds, or a multiple of `every`."""
    found = dataclasses.replace(SETTING, rounds=rounds, window=window, every=every).evaluated_rounds()
    expected = [t for t in range(1, rounds + 1) if t > rounds - window or (every and t % every == 0)]
    assert found == expected
    assert found[-1] == rounds
