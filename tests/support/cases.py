"""The methods that tests go through: found by the registry, so a new method's file is covered as it is."""

from __future__ import annotations

from typing import Any

import pytest

from fedbench import methods

#: Every method that trains with its defaults; and the hyper-parameters that switch on what the defaults leave out.
CASES: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in methods.names() if methods.load(name)[0].trains]
CASES += [
    ("fedavgft", {"finetune_rounds": 2, "finetune_epochs": 1}),
    ("pfedfda", {"betas": 2, "feature_store": "extra_pass"}),
    ("pfedfda", {"betas": 0, "feature_store": "last_epoch"}),
    ("ftw_erm", {"ratios": "hdrm", "n_te": 1, "clusters": 2, "restarts": 1, "matching_epochs": 1}),
    ("fedbn", {"affine": "frozen"}),
    ("fedrod", {"score": "after_aggregate"}),
    ("fedpac", {"score": "after_aggregate"}),
    ("apfl", {"score": "after_local"}),
    ("pfedme", {"beta": 0.5}),
    ("fedopt", {"server": "avgm"}),
    ("fednova", {"mu": 0.5}),
    ("fedsam", {"beta": 0.3}),
    ("fedsam", {"finetune_rounds": 2}),
    ("fedprox", {"finetune_rounds": 2}),
    ("fedala", {"top": 4, "score": "after_local"}),
    ("confree", {"rule": "pairs"}),
    ("fedas", {"weigh_by": "size", "score": "after_aggregate"}),
    ("perfedavg", {"variant": "hf"}),
    ("fedproto", {"answers": "head"}),
    ("apfl_flux", {"adaptive": True}),
    ("flux", {"clustering": "prior"}),
    ("flux", {"start": 2, "average": "running"}),
    ("flux_soft", {"start": 2}),
]
#: Methods whose requests are unlike one another's: of several models, with rules, kept features, centres that follow,
#: gradients, looks at other splits of the data. The others ask for nothing that these do not.
UNLIKE = (
    "fedavg",
    "pfedfda",
    "apfl",
    "pfedme",
    "scaffold",
    "fedsam",
    "moon",
    "fedem",
    "ftw_erm",
    "atp",
    "fedpac",
    "flux",
)


#: Every method, as parameters of a test; in the usual suite those of UNLIKE.
ALL = [pytest.param(*case, marks=() if case[0] in UNLIKE and not case[1] else pytest.mark.slow) for case in CASES]


def label(value: Any) -> str:
    """The case, or a part of it, in a test's name."""
    if isinstance(value, tuple):
        return "-".join(label(part) for part in value if part)
    return value if isinstance(value, str) else "-".join(value)
