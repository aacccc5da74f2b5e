"""Packs of schema 1, which people hold: their runs are read under today's ids, with the same numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedbench.errors import FedbenchError
from fedbench.results import pack as layout
from fedbench.results.importing import take_in
from fedbench.results.pack import FORMER, FORMER_ID, GROUP, LONG, Pack, sealed
from fedbench.results.packs import Packs, with_fedbench
from fedbench.specs.upgrade import former_id, upgraded
from fedbench.store import Store

DIGITS = Path(__file__).parents[1] / "fixtures" / "results" / "digits.parquet"


def rewritten(path: Path, table: pa.Table) -> Path:
    """The table as a pack of schema 1."""
    meta = {layout.KEY: str(FORMER), layout.SEAL: layout.BLANK}
    out = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(meta), out, row_group_size=GROUP)
    path.write_bytes(sealed(out.getvalue().to_pybytes()))
    return path


def test_the_fixture_is_of_schema_1() -> None:
    assert json.loads(pq.read_metadata(DIGITS).metadata[layout.KEY]) == FORMER
    assert "budget" in pq.read_schema(DIGITS).names


def test_its_runs_have_todays_ids_and_the_same_numbers() -> None:
    raw, pack = pq.read_table(DIGITS), Pack(DIGITS)
    specs = [json.loads(text)["spec"] for text in raw["spec"].to_pylist()]
    former = raw["id"].to_pylist()
    assert [former_id("run", spec) for spec in specs] == former
    rows = {row.about[FORMER_ID]: row for row in pack.rows()}
    assert sorted(rows) == sorted(former)
    assert pack.heads["id"] == sorted(pack.heads["id"]) == [row.id for row in pack.rows()]
    for k, id in enumerate(former):
        row = rows[id]
        assert row.spec.to_dict() == upgraded("run", specs[k])
        assert row.id != id
        assert (row.predictions, row.started) == (raw["predictions"][k].as_py(), raw["started"][k].as_py())
        assert row.metrics.names == raw["names"][k].as_py()
        for name in (*LONG, "value"):
            assert np.array_equal(getattr(row.metrics, name), np.array(raw[name][k].as_py()))


def test_an_import_writes_it_in_todays_form(store: Store) -> None:
    target, rows, skipped, total = take_in(DIGITS, store, "somebody")
    assert (len(rows), skipped, total) == (len(Pack(DIGITS).heads["id"]), 0, len(rows))
    assert json.loads(pq.read_metadata(target).metadata[layout.KEY]) == layout.VERSION
    assert [row.id for row in Pack(target).rows()] == [row.id for row in Pack(DIGITS).rows()]
    assert Packs([target]).get(rows[0].id) is not None


def test_of_two_budgets_of_one_training_the_last_one_stays(tmp_path: Path) -> None:
    raw = pq.read_table(DIGITS)
    spec = json.loads(raw["spec"][0].as_py())
    spec["spec"]["setting"]["budget"] = "paper"
    other = raw.slice(0, 1)
    for name, value in (
        ("id", former_id("run", spec["spec"])),
        ("spec", json.dumps(spec, sort_keys=True, separators=(",", ":"))),
        ("budget", "paper"),
        ("started", "2031-01-01T00:00:00Z"),
        ("predictions", "f" * 64),
    ):
        other = other.set_column(other.column_names.index(name), name, pa.array([value]))
    pack = Pack(rewritten(tmp_path / "both.parquet", pa.concat_tables([raw, other]).combine_chunks()))
    assert len(pack.rows()) == raw.num_rows
    (row,) = (row for row in pack.rows() if row.predictions == "f" * 64)
    assert row.about[FORMER_ID] == former_id("run", spec["spec"])
    assert row.metrics.value.tolist() == raw["value"][0].as_py(), "its own numbers, by its own row of the file"


def test_a_spec_of_another_id_is_refused(tmp_path: Path) -> None:
    raw = pq.read_table(DIGITS)
    swapped = raw.set_column(raw.column_names.index("id"), "id", pa.array(["0" * 12] * raw.num_rows))
    with pytest.raises(FedbenchError, match="has the spec of"):
        Pack(rewritten(tmp_path / "swapped.parquet", swapped)).rows()


@pytest.mark.shipped
def test_every_shipped_run_of_schema_1_keeps_the_id_that_it_had() -> None:
    """Its spec of today with the budget's name is that of the former id."""
    named = 0
    for pack in map(Pack, with_fedbench()):
        for row, about in enumerate(pack.heads["about"]):
            if (former := json.loads(about).get(FORMER_ID)) is None:
                continue
            raw = pack.spec(row).to_dict()
            budgets = ("paper", "small", "half", "full", "custom")
            settings = ({**raw["setting"], "budget": budget} for budget in budgets)
            assert former in {former_id("run", {**raw, "setting": setting}) for setting in settings}
            named += 1
    assert named > 2000
