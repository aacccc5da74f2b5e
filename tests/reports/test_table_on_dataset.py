"""`--dataset`: a table's own columns of one data set, or its template on another."""

from __future__ import annotations

from fedbench.reports import table as tables


def test_an_own_dataset_keeps_what_is_reported_and_claimed_of_its_columns() -> None:
    whole, part = tables.load("feddrm/1"), tables.load("feddrm/1").for_dataset("cifar100")
    assert [c.key for c in part.columns] == ["CIFAR-100/Dir-0.3", "CIFAR-100/25-SPC"]
    assert part.reported == {place: v for place, v in whole.reported.items() if place[1].startswith("CIFAR-100/")}
    assert len(part.reported) == 22
    assert part.title == whole.title
    assert part.claim
    assert all(set(c.columns) <= {"CIFAR-100/Dir-0.3", "CIFAR-100/25-SPC"} for c in part.claim)
    assert part.replaced, "the command that fills it needs --dataset"


def test_a_table_of_one_dataset_stays_as_it_is() -> None:
    whole = tables.load("feddrm/4")
    part = whole.for_dataset("cifar10")
    assert part.columns == whole.columns
    assert part.claim == whole.claim
    assert not part.replaced


def test_another_dataset_takes_the_template_and_reports_nothing() -> None:
    part = tables.load("feddrm/1").for_dataset("digits")
    assert [(c.dataset, c.label) for c in part.columns] == [("digits", "Dir-0.3"), ("digits", "5-SPC")]
    assert part.reported == {}
    assert part.claim == []
