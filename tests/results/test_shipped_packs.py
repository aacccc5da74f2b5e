"""The packs that come with fedbench: small, whole, without anybody's names, and readable by the tables they are for."""

from __future__ import annotations

import json
import re

import pyarrow.parquet as pq
import pytest

from fedbench.engine.sweep import plan
from fedbench.errors import FedbenchError
from fedbench.reports import table as tables
from fedbench.reports.layout.build import build
from fedbench.reports.render.latex import escape
from fedbench.reports.render.text import brief
from fedbench.reports.status.index import Index, State
from fedbench.results.pack import KEY, VERSION, Pack
from fedbench.results.shelf import Shelf, with_fedbench
from fedbench.store import Store

pytestmark = pytest.mark.shipped


def test_they_are_small() -> None:
    assert with_fedbench()
    assert sum(path.stat().st_size for path in with_fedbench()) < 10e6


@pytest.mark.parametrize("path", with_fedbench(), ids=lambda path: path.stem)
def test_every_run_is_whole_and_names_nobody(path) -> None:  # type: ignore[no-untyped-def]
    pack = Pack(path)
    assert json.loads(pq.read_metadata(path).metadata[KEY]) == VERSION, "sealed"
    for k in range(len(pack.heads["id"])):
        row = pack.row(k)
        assert re.fullmatch("[0-9a-f]{64}", row.predictions)
        assert row.by
        assert {"host", "process"}.isdisjoint(row.about)
        assert not re.search(r"/(home|root|tmp|work|Users)/", pack.heads["about"][k] + row.machine)


@pytest.mark.parametrize("name", tables.headline())
def test_headline_tables_are_whole_without_data(store: Store, name: str) -> None:
    """And LaTeX has every sign that they print."""
    printed = build(tables.load(name), "small", store, [], index=Index(store, Shelf.of(store)), compare=True)
    assert printed.counts.keys() <= {State.DONE.value, State.STALE.value}
    assert printed.problems == ()
    entries = [e for line in printed.lines if line.asked for e in line.entries if e.state is not State.UNDEFINED]
    assert all(entry.text and entry.shipped for entry in entries)
    said = [*brief(printed, str), *printed.notes, *(text for _, text in printed.footnotes)]
    signs = {sign for text in (*said, *(entry.text for entry in entries)) for sign in text} - {"?"}
    assert {sign for sign in signs if "?" in escape(sign)} == set()


def test_of_what_is_shipped_nothing_is_lacking_without_images(store: Store) -> None:
    table, packs = tables.load("1").only(["CIFAR-10/*"]), Shelf.of(store)
    lacking = plan(table, store, [], packs=packs)
    assert (list(lacking.runs), lacking.remarks, lacking.complete) == ([], [], True)
    assert list(plan(table, store, [], only=["fedavg"], packs=packs).runs) == []
    for other in ({"only": ["fedavg"], "params": {"anything": 1}}, {"budget": "paper"}, {"packs": None}):
        with pytest.raises(FedbenchError, match="nothing can be run: the images of cifar10 are not at hand"):
            plan(table, store, [], **{"packs": packs, **other})  # type: ignore[arg-type]
