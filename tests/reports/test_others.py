"""Extra rows: one for each method with its source, version and hyper-parameters, and no two of one label."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pyarrow as pa
import pytest

from fedbench.reports import table as tables
from fedbench.reports.layout.build import build
from fedbench.reports.layout.grid import Grid
from fedbench.reports.render import render
from fedbench.specs import RunSpec
from fedbench.store import Artifact

DIR, SPC = "CIFAR-10/Dir-0.3", "CIFAR-10/5-SPC"


def grid(lab: Any, name: str = "feddrm/1") -> Grid:
    return build(tables.load(name), "small", lab.store, [], extra=True)


def extras(lab: Any, name: str = "feddrm/1") -> dict[str, list[str]]:
    """Label -> the values of the columns."""
    return {line.label: [e.text for e in line.entries] for line in grid(lab, name).lines if line.kind == "extra"}


def of_file(lab: Any, source: str, value: float, title: str = "Mine") -> Artifact:
    """A run of a user's file whose class is called as others' are."""
    spec = RunSpec(lab.setting("feddrm/1", DIR), "mine", {}, 1, source)
    with lab.store.writing(spec) as writer:
        writer.table("rounds", pa.table({"round": [1]}))
        writer.provenance = {"overrides": {}, "title": title}
    at = {"system_accuracy": lambda _: value, "average_accuracy": lambda _: value}
    lab.metrics(lab.store.open("run", spec.id), value, at, {}, {}, {}, ("crop", "plain"))
    return lab.store.open("run", spec.id)


def test_two_methods_of_one_title_are_two_rows(lab: Any) -> None:
    setting = lab.setting("feddrm/1", DIR)
    lab.run(setting, "apfl", value=0.25, title="APFL")
    lab.run(setting, "apfl_flux", value=0.75, title="APFL")
    assert {label: values[0] for label, values in extras(lab).items()} == {
        "APFL (apfl)": "25.00",
        "APFL (apfl_flux)": "75.00",
    }


@pytest.mark.parametrize("format", ["json", "csv"])
def test_programs_can_tell_them_apart_too(lab: Any, format: str) -> None:
    setting = lab.setting("feddrm/1", DIR)
    lab.run(setting, "apfl", value=0.25, title="APFL")
    lab.run(setting, "apfl_flux", value=0.75, title="APFL")
    of_file(lab, "ab" * 32, 0.5)
    text = render([grid(lab)], format)
    cells = json.loads(text)[0]["cells"] if format == "json" else list(csv.DictReader(io.StringIO(text)))
    found = [(c["row"], c["method"], c["source"] or "", float(c["value"])) for c in cells if c["kind"] == "extra"]
    assert found == [
        ("APFL (apfl)", "apfl", "", 25.0),
        ("APFL (apfl_flux)", "apfl_flux", "", 75.0),
        ("Mine", "mine", "ab" * 32, 50.0),
    ]


def test_two_users_files_of_one_name_are_told_apart_by_their_checksums(lab: Any) -> None:
    of_file(lab, "ab" * 32, 0.5)
    of_file(lab, "cd" * 32, 0.25)
    assert {label: values[0] for label, values in extras(lab).items()} == {
        "Mine (file abababab)": "50.00",
        "Mine (file cdcdcdcd)": "25.00",
    }


def test_two_versions_are_two_rows(lab: Any) -> None:
    setting = lab.setting("feddrm/1", DIR)
    lab.run(setting, "pfedfda", value=0.5, version=1)
    lab.run(setting, "pfedfda", value=0.25, version=2)
    assert {k: v[0] for k, v in extras(lab).items()} == {"pFedFDA (version 1)": "50.00", "pFedFDA (version 2)": "25.00"}


def test_values_that_are_alike_in_short_are_two_rows(lab: Any) -> None:
    setting = lab.setting("feddrm/1", DIR)
    lab.run(setting, "pfedfda", {"cov_ridge": 0.1}, value=0.5)
    lab.run(setting, "pfedfda", {"cov_ridge": 0.10000001}, value=0.25)
    assert {k: v[0] for k, v in extras(lab).items()} == {
        "pFedFDA (cov_ridge = 0.1)": "50.00",
        "pFedFDA (cov_ridge = 0.10000001)": "25.00",
    }


def test_a_title_of_the_tables_row_is_told_apart_from_it(lab: Any) -> None:
    setting = lab.setting("feddrm/1", DIR)
    lab.run(setting, "feddrm", value=0.75)
    lab.run(setting, "mine", value=0.5, title="FedDRM")
    found = {line.label: line.entries[0].text for line in grid(lab).lines}
    assert (found["FedDRM"], found["FedDRM (mine)"]) == ("75.00", "50.00")


def test_a_title_that_looks_like_a_label_is_told_apart(lab: Any) -> None:
    setting = lab.setting("feddrm/1", DIR)
    lab.run(setting, "apfl", value=0.25, title="APFL")
    lab.run(setting, "apfl_flux", value=0.75, title="APFL")
    sly = lab.run(setting, "sly", value=0.5, title="APFL (apfl)")
    found = extras(lab)
    assert sorted(values[0] for values in found.values()) == ["25.00", "50.00", "75.00"]
    assert found[f"APFL (apfl), run {sly.id}"][0] == "50.00"


def test_they_are_added_where_they_are_asked_for(lab: Any) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "pfedfda", value=0.5)
    plain = build(tables.load("feddrm/1"), "small", lab.store, [])
    assert not [line for line in plain.lines if line.kind == "extra"]
    assert "Left out: 1 row of your other runs in these settings (--extra)." in plain.about
    assert not any("Left out" in line for line in grid(lab).about)


def test_one_of_fewer_seeds_is_not_ranked(lab: Any) -> None:
    """However good it is: the best and the second are of the table's own seeds."""
    lab.dataset("mnist")
    cells = lab.cells("flux/13", "paper")
    first, *rest = next(iter(cells.settings.values()))
    for setting in (first, *rest):
        for method, value in (("fedavg", 0.5), ("local", 0.25)):
            more = {"client_accuracy_mean": lambda _, value=value: value}
            lab.run(setting, method, rules="flux", metrics=more, views=("plain",))

    def ranks() -> dict[str, int]:
        lines = build(tables.load("flux/13"), "paper", lab.store, [], extra=True).lines
        return {line.label: line.entries[0].rank for line in lines if line.entries[0].text}

    for setting, expected in ((first, 0), *((one, 0) for one in rest[:-1]), (rest[-1], 1)):
        lab.run(setting, "mine", rules="flux", metrics={"client_accuracy_mean": lambda _: 0.75}, views=("plain",))
        assert ranks()["mine"] == expected
    assert ranks()["FedAvg"] == 2


def test_one_method_is_one_row_over_all_columns(lab: Any) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "pfedfda", value=0.5)
    lab.run(lab.setting("feddrm/1", SPC), "pfedfda", value=0.25)
    assert {label: values[:2] for label, values in extras(lab).items()} == {"pFedFDA": ["50.00", "25.00"]}


def test_a_value_of_too_few_seeds_is_marked(lab: Any) -> None:
    lab.dataset("mnist")
    cells = lab.cells("flux/13", "paper")
    first, *rest = next(iter(cells.settings.values()))
    table = tables.load("flux/13")
    lab.run(first, "mine", rules="flux", metrics={"client_accuracy_mean": lambda _: 0.5}, views=("plain",))
    (line,) = (x for x in build(table, "paper", lab.store, [], extra=True).lines if x.kind == "extra")
    assert line.entries[0].mark == "‡"
    for setting in rest:
        lab.run(setting, "mine", rules="flux", metrics={"client_accuracy_mean": lambda _: 0.5}, views=("plain",))
    (line,) = (x for x in build(table, "paper", lab.store, [], extra=True).lines if x.kind == "extra")
    assert line.entries[0].mark == ""
