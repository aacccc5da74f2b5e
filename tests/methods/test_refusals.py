"""What methods cannot work with is refused in one line: hyper-parameters out of range, and settings."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from fedbench.errors import FedbenchError
from tests.support.lab import method, setting

#: Of each method what is wrong, by what its line says of it.
WRONG: dict[str, list[tuple[dict[str, Any], str]]] = {
    "apfl": [({"alpha": -0.1}, "--alpha"), ({"alpha": 1.1}, "--alpha")],
    "apfl_flux": [({"alpha": a}, "--alpha of apfl_flux must be in [0, 1]") for a in (-0.1, 1.1)],
    "atp": [({"eta": -1}, "--eta of atp"), ({"rate_rounds": -1}, "--rate-rounds of atp")],
    "cfl": [({name: -1.0}, f"--{name} of cfl must be at least 0") for name in ("eps1", "eps2")],
    "confree": [
        ({"rule": "best"}, "--rule"),
        ({"alpha": -0.1}, "--alpha of confree must be at least 0"),
        ({"head_epochs": -1}, "--head-epochs of confree must be at least 0"),
        ({"head_steps": -1}, "--head-steps of confree must be at least 0"),
    ],
    "ditto": [({"mu": -1}, "--mu"), ({"personal_epochs": -1}, "--personal-epochs")],
    "fedala": [
        ({"top": 0}, "--top of fedala must be at least 1"),
        ({"rate": -1.0}, "--rate of fedala must be at least 0"),
        ({"share": 0.0}, "--share of fedala must be above 0 and at most 1"),
        ({"share": 1.5}, "--share of fedala must be above 0 and at most 1"),
        ({"weight_steps": -1}, "--weight-steps of fedala must be at least 0"),
        ({"score": "before"}, "--score"),
    ],
    "fedas": [
        ({"align_epochs": -1}, "--align-epochs of fedas must be at least 0"),
        ({"align_lr": 0.0}, "--align-lr of fedas must be above 0"),
        ({"align_steps": -1}, "--align-steps of fedas must be at least 0"),
        ({"weigh_by": "loss"}, "--weigh-by"),
    ],
    "fedbabu": [
        ({"finetune_epochs": -1}, "--finetune-epochs of fedbabu must be at least 0, not -1"),
        ({"newcomers": "body"}, "--newcomers"),
    ],
    "feddc": [({"alpha": -1}, "alpha of feddc must be")],
    "feddrift": [({"delta": -0.1}, "--delta of feddrift must be at least 0")],
    "feddrm": [
        ({"lambda": share}, "--lambda of feddrm must be in (0, 1], not") for share in (0.0, -0.1, 1.01, math.nan)
    ],
    "feddyn": [({"alpha": 0}, "--alpha of feddyn must be above 0")],
    "fednova": [({"mu": -1}, "--mu of fednova must be at least 0")],
    "fedopt": [
        ({"server_lr": 0.0}, "--server-lr of fedopt must be above 0"),
        ({"beta1": 1.0}, "--beta1 of fedopt must be in [0, 1)"),
        ({"beta2": -0.1}, "--beta2 of fedopt must be in [0, 1)"),
        ({"tau": 0.0}, "--tau of fedopt must be above 0"),
        ({"server": "sgd"}, "avgm"),
    ],
    "fedpac": [
        *(
            ({name: value}, f"--{name.replace('_', '-')} of fedpac must be")
            for name, value in (("lambda", -0.1), ("head_epochs", -1), ("head_lr", 0.0), ("newcomer_epochs", -1))
        ),
        *(({name: "heads"}, f"--{name}") for name in ("newcomers", "score")),
    ],
    "fedprox": [
        ({"mu": -1}, "--mu of fedprox must be at least 0, not -1"),
        ({"finetune_rounds": -1}, "--finetune-rounds of fedprox must be at least 0, not -1"),
    ],
    "fedproto": [
        ({"lambda": -1}, "--lambda of fedproto must be at least 0, not -1"),
        ({"answers": "heads"}, "unknown value of --answers 'heads'"),
    ],
    "fedrep": [
        ({"head_epochs": -1}, "--head-epochs of fedrep must be at least 0, not -1"),
        ({"score": "body"}, "--score"),
    ],
    "fedrod": [({"score": "before"}, "--score")],
    "fedsam": [
        ({"rho": -0.1}, "--rho of fedsam must be at least 0"),
        ({"beta": 0.0}, "--beta of fedsam must be above 0 and at most 1"),
        ({"beta": 1.1}, "--beta of fedsam must be above 0 and at most 1"),
        ({"finetune_rounds": -1}, "--finetune-rounds of fedsam must be at least 0"),
    ],
    "flux": [
        ({name: value}, f"--{name} of flux")
        for name, value in (("start", -1), ("scale", 0.0), ("components", 0), ("epsilon", -1.0), ("reach", -1.0))
    ],
    "ftw_erm": [({"case": "cs_both", "ratios": "hdrm"}, "--case of ftw_erm must be all with --ratios hdrm")],
    "haccs": [
        ({"bins": 0}, "--bins of haccs must be in [1, 256]"),
        ({"min_samples": 1}, "--min-samples of haccs must be at least 2"),
    ],
    "lg_fedavg": [({"score": "body"}, "--score")],
    "moon": [
        ({"mu": -1}, "--mu of moon must be at least 0, not -1"),
        ({"temperature": 0}, "--temperature of moon must be above 0, not 0"),
    ],
    "mr_mtl": [({"pull": -0.1}, "--pull of mr_mtl must be at least 0")],
    "perfedavg": [
        ({"alpha": -1}, "--alpha of perfedavg must be at least 0"),
        ({"delta": 0}, "--delta of perfedavg must be above 0"),
        ({"adapt_steps": -1}, "--adapt-steps of perfedavg must be at least 0"),
    ],
    "pfedfda": [
        ({name: value}, f"--{name.replace('_', '-')} of pfedfda must be")
        for name, value in (
            ("betas", 3), ("betas", -1), ("cov_ridge", 0.0), ("cov_ridge", -1.0), ("cov_offset", -1e-9),
        )
    ],
    "pfedme": [({name: 0}, f"--{name.replace('_', '-')}") for name in ("lambda", "inner_steps", "inner_lr", "beta")],
    "qfedavg": [({"q": -1.0}, "--q of qfedavg must be at least 0")],
    "scaffold": [({"server_lr": 0}, "--server-lr of scaffold must be above 0")],
}  # fmt: skip
for _name in ("ifca", "fesem", "fedem", "fedrc"):
    WRONG[_name] = [({"clusters": -1}, f"--clusters of {_name} must be at least 0")]
for _name in ("ftw_erm", "fitw_erm"):
    WRONG.setdefault(_name, []).extend(
        ({option: 0}, f"--{option.replace('_', '-')} of {_name} must be at least 1")
        for option in ("n_te", "clusters", "restarts", "matching_epochs")
    )


@pytest.mark.parametrize(
    ("name", "chosen", "line"), [(name, *case) for name, cases in WRONG.items() for case in cases], ids=str
)
def test_hyper_parameters_out_of_range(name: str, chosen: dict[str, Any], line: str) -> None:
    with pytest.raises(FedbenchError, match=re.escape(line)) as caught:
        method(name, **chosen)
    assert "\n" not in str(caught.value)


ADAMW = {"optimizer": "adamw", "momentum": 0.0}
ONE = {"steps": 1, "passes": "endless", "momentum": 0.0}


@pytest.mark.parametrize(
    ("name", "chosen", "changes", "line"),
    [
        ("fedprox", {"finetune_rounds": 3}, {}, "--finetune-rounds of fedprox must be below the number of rounds, 3"),
        ("fedsam", {"finetune_rounds": 3}, {}, "--finetune-rounds of fedsam must be below the number of rounds, 3"),
        ("fedbabu", {"finetune_rounds": 3}, {}, "--finetune-rounds of fedbabu must be below the number of rounds, 3"),
        *(
            (name, {}, ADAMW, f"{name} takes its steps by a rule of its own, not by adamw")
            for name in ("scaffold", "feddc", "fednova", "perfedavg")
        ),
        ("fedsam", {"beta": 0.1}, ADAMW, "fedsam takes its steps by a rule of its own, not by adamw"),
        ("fednova", {"mu": 21}, {}, "--mu of fednova must be at most 1/lr, 20 at a learning rate"),
        ("pfedme", {"lambda": 20.5}, {}, "--lambda of pfedme must be at most 1/lr, 20 at "),
        ("perfedavg", {"variant": "hf"}, {"precision": "bf16"}, "takes differences of gradients, which bf16"),
        *(("confree", {"head_steps": 5}, c, "--head-steps of confree") for c in ({}, {"steps": 5})),
        *(("fedala", {"weight_steps": 5}, c, "--weight-steps of fedala") for c in ({}, {"steps": 5})),
        *(("fedas", {"align_steps": 2}, c, "--align-steps of fedas") for c in ({}, {"steps": 2})),
        *(("fedrep", {"head_steps": 3}, c, "--head-steps of fedrep must be") for c in ({"epochs": 2}, {"steps": 3})),
        ("ditto", {"personal_steps": 2}, {"steps": 2}, "--personal-steps of ditto must be below 2 steps, not 2"),
        ("ftw_erm", {}, {**ONE, "momentum": 0.9}, "takes no momentum"),
        *(
            (name, {}, changes, "one local step")
            for name in ("fedsgd", "ftw_erm", "fitw_erm", "fedbn", "grayscale")
            for changes in ({**ONE, "steps": 2}, {"momentum": 0.0})
        ),
    ],
    ids=str,
)
def test_settings_that_do_not_go_with_it(name: str, chosen: dict[str, Any], changes: dict[str, Any], line: str) -> None:
    with pytest.raises(FedbenchError, match=re.escape(line)):
        method(name, **chosen).check_setting(setting(**changes))


@pytest.mark.parametrize(
    ("name", "chosen", "changes"),
    [
        ("fedsam", {}, ADAMW), ("perfedavg", {}, {"precision": "bf16"}), ("pfedme", {"lambda": 20.0}, {}),
        ("fedsgd", {}, ONE), ("ftw_erm", {}, ONE), ("fitw_erm", {}, ONE), ("fedbn", {}, ONE), ("grayscale", {}, ONE),
    ],
)  # fmt: skip
def test_what_is_near_that_is_taken(name: str, chosen: dict[str, Any], changes: dict[str, Any]) -> None:
    method(name, **chosen).check_setting(setting(**changes))


def test_an_unknown_round_to_select_by() -> None:
    assert "select" not in setting().to_dict(), "a setting without it keeps its id"
    with pytest.raises(FedbenchError, match="select"):
        replace(setting(), select="worst")
