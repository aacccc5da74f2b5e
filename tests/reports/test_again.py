"""The commands that a run's page prints make that run: the same id."""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedbench.cli import app
from fedbench.planner import table as tables
from fedbench.planner.again import commands
from fedbench.planner.cells import find
from fedbench.results.frame import Frame
from fedbench.results.packs import Packs, Shipped, with_fedbench
from fedbench.store import Store

pytestmark = pytest.mark.shipped


def of_pack(name: str, count: int) -> Iterator[Shipped]:
    runs = [run for run in Packs(with_fedbench()).runs() if run.path.stem == name]
    yield from random.Random(0).sample(runs, count)


def test_the_two_commands_give_the_run_its_id(tmp_path: Path) -> None:
    for run in of_pack("plain", 1):
        partition, train = commands(run.spec)
        for line in (partition, f"{train} --dry-run"):
            done = CliRunner().invoke(app, shlex.split(line)[1:], env={"FEDBENCH_HOME": str(tmp_path)})
            assert done.exit_code == 0, done.output
        assert re.search(rf"run {run.id}", done.output)


@pytest.mark.parametrize("pack", ["arena", "pfedfda", "flux"])
def test_every_run_has_commands_and_where_they_are_a_tables_it_asks_for_the_run(pack: str, tmp_path: Path) -> None:
    frame = Frame(Store(tmp_path / "store"), Packs(with_fedbench()))
    for run in of_pack(pack, 3):
        lines = commands(run.spec)
        assert lines
        if len(lines) == 1:
            words = shlex.split(lines[0])
            named = dict(zip(words[2::2], words[3::2], strict=True))
            seed, table = int(named["--seed"]), tables.load(named["--table"])
            cells = find(table, named["--budget"], frame, [], seeds=(seed,))
            asked = (
                record.id
                for cell in cells.all
                if cell.column.key == named["--column"] and cell.row.method == named["--method"]
                for record in (*cell.records, *cell.trials)
                if record
            )
            assert run.id in asked


def test_a_mixture_whose_weights_are_no_options_is_made_by_its_table() -> None:
    (run,) = [run for run in of_pack("ftw_erm", 137) if run.spec.setting.partition.scheme == "mixture"][:1]
    (line,) = commands(run.spec)
    assert line.startswith("fedbench train --table ftw_erm/")
