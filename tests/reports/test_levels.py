"""Statistic "levels": FLUX's Table 9, counted in what clients draw."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fedbench import data, partitions
from fedbench.errors import FedbenchError
from fedbench.protocol import load
from fedbench.reports import table as tables
from fedbench.reports.layout.build import build
from fedbench.reports.numbers import levels


def test_table_9_is_the_papers(lab: Any) -> None:
    grid = build(tables.load("flux/9"), "paper", lab.store, [], compare=True)
    lines = [line for line in grid.lines if line.kind == "paper"]
    judged = [entry for line in lines for entry in line.entries if entry.reported]
    assert len(judged) == 8 * 5
    assert all(entry.within and not entry.difference for entry in judged)
    alike = {head.label: entry.value for head, entry in zip(grid.heads, lines[0].entries, strict=True)}
    assert (alike["P(Y|X)"].mean, alike["P(Y|X)"].std) == (1.0, 0.0)
    of_100 = [[e.text for e in line.entries[:5]] for line in grid.lines if line.kind == "added"]
    assert of_100[0] == ["2", "1", "100", "30", "10"]
    assert of_100[7] == ["5", "3", "30", "100", "80"]
    assert grid.about == ("Counted in the distributions that clients draw: needs no run, and no budget applies.",)


@pytest.mark.parametrize("shift", ["px", "py", "pyx", "pxy"])
def test_distributions_are_those_of_the_partitions(lab: Any, shift: str) -> None:
    """Of partitions as they are stored."""
    rules, table = load("flux"), tables.load("flux/9")
    digits = data.resolve("digits", lab.store)
    counts = []
    for seed in rules.seeds("paper"):
        spec = rules.partition_spec(digits, 10, shift=shift, level=5, seed=seed)
        made = partitions.build(spec, lab.store, [])
        counts.append(len(set(made.groups)))
    column = next(c for c in table.columns if c.metric == "distributions" and c.partition["shift"] == shift)
    value = levels.number(table, table.rows[4], column)
    assert (value.mean, value.count) == (sum(counts) / 5, 5)


def test_what_has_no_levels_is_told(tmp_path: Path) -> None:
    table = tables.load("flux/9")
    plain = dataclasses.replace(table.columns[0], partition={"shift": "none"})
    with pytest.raises(FedbenchError, match="level 1 of which shift"):
        levels.number(table, table.rows[0], plain)
    other = dataclasses.replace(table.columns[0], partition={"scheme": "iid", "shift": "none"})
    with pytest.raises(FedbenchError):
        levels.number(table, table.rows[0], other)
    text, path = table.path.read_text(), tmp_path / "mine.toml"
    for old, new, line in (
        ('metric = "angles"', 'metric = "angle"', "unknown metric in .* 'angle'; did you mean 'angles'"),
        ("classes = 10\n", "", "Level 1 needs a level and classes"),
        ('partition = { shift = "{shift.id}" }', "", "lacks a shift"),
    ):
        path.write_text(text.replace(old, new))
        with pytest.raises(FedbenchError, match=line):
            tables.load(str(path))
