"""`fedbench claims`: every claim, how it stands at each budget, and the numbers that decide."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbench.errors import FedbenchError
from fedbench.reports import table as tables
from fedbench.reports.claims import Claims, claims
from fedbench.reports.claims_in_words import summary
from fedbench.reports.status.index import Index
from fedbench.store import Store
from tests.support.cli_user import fedbench, good

DIR, SPC = "CIFAR-10/Dir-0.3", "CIFAR-10/5-SPC"


def page(store: Store, *names: str, budget: str | None = None) -> list[Claims]:
    return list(claims(names, store, [], Index(store), budget))


def test_the_numbers_that_decide_are_told(lab: Any) -> None:
    for column, values in {DIR: (0.5, 0.25), SPC: (0.25, 0.5)}.items():
        setting = lab.setting("feddrm/1", column)
        lab.run(setting, "feddrm", value=values[0])
        lab.run(setting, "fedavgft", value=values[1])
        lab.run(setting, "fedavg", value=0.9)  # a row that the paper does not have
    (one,) = page(lab.store, "feddrm/1")
    assert (one.budget, one.scope, one.shipped) == ("small", "budget small", False)
    best, easier, *rest = one.stands
    assert (best.verdict.claim.text, best.verdict.state) == ("FedDRM is best in every column", "fails")
    assert best.numbers == {"FedDRM": "25.00", "FedAvgFT": "50.00"}
    assert (easier.verdict.state, easier.numbers) == (
        "fails", {f"FedAvgFT at {DIR}": "25.00", f"FedAvgFT at {SPC}": "50.00"},
    )  # fmt: skip
    assert {stand.verdict.state for stand in rest} == {"not measured"}
    assert best.reported.state == "holds"


def test_each_budget_with_a_number_stands_by_itself(lab: Any) -> None:
    for budget in ("small", "paper"):
        lab.run(lab.setting("feddrm/1", DIR, budget), "feddrm")
    assert [one.budget for one in page(lab.store, "feddrm/1")] == ["paper", "small"]
    assert [one.budget for one in page(lab.store, "feddrm/1", budget="paper")] == ["paper"]
    (one,) = page(lab.store, "feddrm/2", budget="smoke")
    assert (one.budget, {stand.verdict.state for stand in one.stands}) == ("", {"not measured"})


@pytest.mark.parametrize(("others", "state"), [((), "fails"), ((0.70, 0.60), "undecided"), ((0.651, 0.649), "fails")])
def test_seeds_that_are_elsewhere_say_what_one_seed_is_worth(lab: Any, others: tuple[float, ...], state: str) -> None:
    """Here of another row of its column, in runs that no cell of the table reads."""
    setting = lab.setting("feddrm/4", "System accuracy/α = 0.3")
    lab.run(setting, "feddrm", value=0.64)
    lab.run(setting, "fedavgft", value=0.65)
    for n, value in enumerate(others):
        lab.run(replace(setting, seed=setting.seed + 1 + n), "fedavgft", value=value)
    (one,) = page(lab.store, "feddrm/4")
    best = next(stand for stand in one.stands if stand.verdict.claim.kind == "best")
    assert best.verdict.state == state
    assert ("noise unknown" in best.verdict.detail) == (not others)
    assert best.numbers == {"FedDRM": "64.00", "FedAvgFT": "65.00"}


def test_totals_count_a_claim_once_and_leave_smoke_out(lab: Any) -> None:
    """The levels of MNIST are declared as a whole and in halves."""
    lab.run(lab.setting("feddrm/1", DIR, "smoke"), "feddrm")
    assert [one.budget for one in page(lab.store, "feddrm/1")] == [""]
    assert [one.budget for one in page(lab.store, "feddrm/1", budget="smoke")] == ["smoke"]
    for budget in ("small", "paper"):
        lab.run(lab.setting("feddrm/1", DIR, budget), "feddrm")
        lab.run(lab.setting("feddrm/1", DIR, budget), "fedavgft", value=0.25)
    assert [line.partition(";")[0] for line in summary(page(lab.store, "feddrm/1"))] == [
        "feddrm: 4 claims.",
        "feddrm, budget paper: 1 holds so far, 3 not measured",
        "feddrm, budget small: 1 holds so far, 3 not measured",
    ]
    (line,) = summary(page(lab.store, "flux/10", "flux/11", "flux/levels_mnist"))
    assert line == "flux: 2 claims; none is measured."


def test_every_declared_claim_is_there(lab: Any) -> None:
    declared = [c.text for name in tables.names() if name.startswith("feddrm/") for c in tables.load(name).claim]
    assert [stand.verdict.claim.text for one in page(lab.store, "feddrm") for stand in one.stands] == declared
    with pytest.raises(FedbenchError, match="did you mean 'feddrm'"):
        page(lab.store, "fedrm")
    with pytest.raises(FedbenchError, match="budget"):
        page(lab.store, "feddrm", budget="smal")


def test_the_command(tmp_path: Path) -> None:
    said = good("claims", "pfedfda/6", "feddrm/1", "--home", tmp_path)
    assert "feddrm: 4 claims; none is measured." in said.out
    (first, _) = json.loads(good("claims", "pfedfda/6", "feddrm/1", "--json", "--home", tmp_path).out)
    assert (first["table"], first["budget"], bool(first["claims"])) == ("pfedfda/6", None, True)
    good("claims", "feddrm/1", "-o", tmp_path / "claims.md", "--home", tmp_path)
    assert "- · FedDRM is best in every column: not measured" in (tmp_path / "claims.md").read_text()
    for name in ("claims.docx", "claims.csv"):
        said = fedbench("claims", "feddrm/1", "-o", tmp_path / name, "--home", tmp_path)
        assert (said.code, "does not end so; -o NAME.md" in said.line) == (2, True)
        assert not (tmp_path / name).exists()
