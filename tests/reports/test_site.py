"""The lab notebook: what its pages hold, that texts are harmless and links whole, and how large pages are."""

from __future__ import annotations

import html.parser
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from fedbench.metrics.read import of_table
from fedbench.partitions.artifact import Partition
from fedbench.partitions.tables import write
from fedbench.partitions.transforms import Transform
from fedbench.reports.runs import select
from fedbench.reports.site import pictures, svg
from fedbench.reports.site.pages import pages
from fedbench.reports.site.run import Told
from fedbench.specs import PartitionSpec, Setting
from fedbench.store import Store
from tests.reports.conftest import Lab
from tests.reports.test_render import HOSTILE, acts
from tests.support.browser import PROGRAM, Browser

#: What pages are made of.
TAGS = set(
    """html head meta title link style script body header nav main footer h1 h2 h3 p a b small button input output
    div section table thead tbody tr th td span details summary ul li dl dt dd code
    svg path text rect title line circle polyline""".split()  # noqa: SIM905
)


class _Page(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, Mapping[str, str | None]]] = []
        self.text = ""
        self.depth = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[Mapping[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def twelve(lab: Lab) -> Setting:
    """Twelve clients, the last two of which never train."""
    there = lab.setting("feddrm/1", "CIFAR-10/Dir-0.3")
    part = replace(there.partition, clients=12, unseen=2)
    return replace(there, partition=part, lr=0.1, seed=0, rounds=20, every=1)


@pytest.fixture
def setting(lab: Lab) -> Setting:
    return twelve(lab)


def parted(spec: PartitionSpec, classes: Sequence[str], test: Sequence[bool]) -> Partition:
    """Each client has one sample of each class, which may be for testing."""
    n, k = spec.all_clients, len(classes)
    label = np.tile(np.arange(k, dtype=np.int32), n)
    client = np.repeat(np.arange(n, dtype=np.int32), k)
    return Partition(
        spec, tuple(classes), client, np.arange(n * k, dtype=np.int32), np.tile(test, n), label, (Transform(),) * n,
        [0] * n,
    )  # fmt: skip


def fill(lab: Lab, setting: Setting) -> None:
    """FedAvg of three seeds, Ditto of one; the partition of all, with hostile classes."""
    n = setting.partition.all_clients
    with lab.store.writing(setting.partition) as writer:
        write(writer, parted(setting.partition, ("plane", HOSTILE), [False, True]))
    curve = {"average_accuracy": lambda t: 0.3 + 0.02 * t, "train_loss": lambda t: math.exp(-t)}
    clients = {c: c / 20 for c in range(n)}
    for seed in range(3):
        lab.run(replace(setting, seed=seed), "fedavg", metrics=curve, clients=clients)
    lab.run(setting, "ditto", metrics=curve, clients=clients, deviations=[HOSTILE], title=HOSTILE)


def told(run: Any) -> Told:
    return Told([(f"run {HOSTILE}", [HOSTILE]), ("dataset", [])], [f"fedbench {HOSTILE}"])


class Site(NamedTuple):
    """The pages by their names, and the ids of the runs by method and seed."""

    pages: dict[str, str]
    ids: dict[tuple[str, int], str]

    def of(self, method: str, seed: int) -> str:
        return self.pages[f"run-{self.ids[method, seed]}.html"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    lab = Lab(Store(tmp_path_factory.mktemp("site") / "store"))
    lab.dataset("cifar10")
    fill(lab, twelve(lab))
    runs = select(lab.store)
    return Site(dict(pages(runs, told)), {(run.spec.method, run.spec.setting.seed): run.id for run in runs})


def test_a_row_a_group_and_a_page_a_run_that_shows_all_of_it(site: Site) -> None:
    assert set(site.pages) == {"index.html", *(f"run-{id}.html" for id in site.ids.values())}
    index = _Page(site.pages["index.html"])
    words = [attributes["data-words"] or "" for attributes in index.all("tr") if "data-words" in attributes]
    assert len(words) == 2
    assert all(any(id in of_row for of_row in words) for id in site.ids.values())
    heads = [a["data-first"] for a in index.all("th") if "data-first" in a]
    assert heads[:2] == ["ascending", "descending"]  # method; average accuracy, of which more is better
    assert "70.00" in index.text
    links = {name: {a["href"] for a in _Page(text).all("a")} for name, text in site.pages.items()}
    assert links.pop("index.html") == set(site.pages) - {"index.html"}
    assert all("index.html" in of_page <= set(site.pages) for of_page in links.values())
    page = _Page(site.of("fedavg", 1))
    assert [a["aria-label"] for a in page.all("svg")] == [
        "average accuracy, %, by round", "client accuracy of each client, %", "training loss, by round",
        "samples of each class by client",
    ]  # fmt: skip
    kinds = [a.get("class") for a in page.all("polyline")]
    assert kinds == ["other", "other", "own"] * 2  # the other seeds stand behind
    bars = [a.get("class") for a in page.all("rect")]
    assert bars == ["bar"] * 10 + ["unseen"] * 2
    assert "client 11, never trains: 55.00 %" in page.text
    assert "Unweighted mean (dashed) 22.50" in page.text
    for words in ("70.00 %", "seed 1", "cifar10", "learning", "Where it comes from", "Repeat it"):
        assert words.lower() in page.text.lower()
    assert len([a for a in page.all("a") if (a["href"] or "").startswith("run-")]) == 2


def test_nothing_is_loaded_and_every_text_is_harmless(site: Site) -> None:
    for text in site.pages.values():
        page = _Page(text)
        assert {tag for tag, _ in page.tags} <= TAGS
        assert not acts(text)
        assert len(page.all("script")) == len(page.all("style")) == 1
        assert {a["href"] for a in page.all("link")} == {"data:,"}
        assert not [a for _, a in page.tags if a.keys() & {"src", "srcset", "style", "onclick", "onload"}]
        assert "url(" not in text
        assert "@import" not in text
        (policy,) = (a["content"] for a in page.all("meta") if a.get("http-equiv"))
        assert policy is not None
        assert policy.startswith("default-src 'none';")
    shown = _Page(site.of("ditto", 0)).text  # hostile texts stand as they are
    for where in ("<script>alert(1)</script>", "run =1+1", "fedbench =1+1", "[bold]a[/x]"):
        assert where in shown


def test_a_run_without_metrics_or_partition_says_so(lab: Lab, setting: Setting) -> None:
    run = lab.run(setting, "fedavg", measure=False)
    lab.run(setting, "ditto")
    made = dict(pages(select(lab.store), lambda run: Told([], None)))
    page = made[f"run-{run.id}.html"]
    assert "No metrics" in page
    assert f"Partition {setting.partition.id} is not in this store" in page
    assert "No options of 'fedbench train' give this setting" in page
    assert "!" in _Page(made["index.html"]).text


def test_pages_stay_small(lab: Lab, setting: Setting) -> None:
    part = replace(setting.partition, clients=300, unseen=None)
    fill(lab, replace(setting, partition=part, rounds=2000))
    site = dict(pages(select(lab.store), told))
    assert max(map(len, site.values())) < 50_000  # 5 MB of a hundred runs


def test_a_partition_of_many_cells_is_cut_and_says_so(lab: Lab, setting: Setting) -> None:
    spec = replace(setting.partition, clients=200, unseen=None)
    with lab.store.writing(spec) as writer:
        write(writer, parted(spec, [f"c{k}" for k in range(50)], [k > 25 for k in range(50)]))
    drawn = pictures.partition(spec, lab.store)
    assert "Clients 0 to 59 of 200." in drawn
    assert len(re.findall("M", drawn)) == pictures.CELLS


def test_ticks_are_round_long_lines_keep_their_end_and_numbers_that_are_none_are_left_out() -> None:
    assert svg.ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert svg.ticks(1, 2) == pytest.approx([1, 1.2, 1.4, 1.6, 1.8, 2])
    assert svg.ticks(-1e-3, 1e-3) == pytest.approx([-1e-3, -5e-4, 0, 5e-4, 1e-3])
    assert '<circle class="dot"' in svg.lines("a", [(5, 0.5)], [], "round")
    line = [(float(t), float(t)) for t in range(10_001)]
    (way,) = re.findall(r'points="([^"]*)"', svg.lines("a", line, [], "round"))
    assert len(way.split()) <= svg.POINTS + 1
    first, *_, last = way.split()
    assert first.startswith(f"{svg.LEFT},")
    assert last.startswith(f"{svg.WIDTH - svg.RIGHT},")
    rows = [("average_accuracy", -1, math.nan), ("client_accuracy", 0, math.nan), ("client_accuracy", 1, 0.5)]
    metric, client, value = (list(column) for column in zip(*rows, strict=True))
    columns = {"metric": pa.array(metric).dictionary_encode(), "view": pa.array(["plain"] * 3).dictionary_encode()}
    columns |= {
        "round": pa.array([1] * 3, pa.int32()),
        "client": pa.array(client, pa.int32()),
        "value": pa.array(value),
    }
    metrics = of_table("x", pa.table(columns))
    assert "No average accuracy was measured by round" in pictures.learning(metrics, [])
    drawn = pictures.clients(metrics, 0)
    assert drawn.count("<rect") == 1
    assert "nan" not in drawn


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")
def test_in_a_browser_it_sorts_filters_and_opens_runs(site: Site, tmp_path: Path) -> None:
    for name, text in site.pages.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    first = "document.querySelector('tbody tr').dataset.words"
    ids = {seed: site.ids["fedavg", seed] for seed in range(3)}
    with Browser() as browser:
        for width in (1400, 400):
            browser.look(width, "dark")
            browser.open(tmp_path / "index.html")
            assert browser.do("document.documentElement.scrollWidth <= innerWidth")
            assert browser.do("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 31)"
        pages_head = "document.querySelector('thead th:last-child button').click()"
        seeds = [browser.do(f"{pages_head}, {first}") for _ in range(2)]
        assert seeds[0] != seeds[1]  # either way round
        assert browser.do("document.querySelector('thead th:last-child').ariaSort") == "descending"
        box = "(box => { box.value = %s; box.dispatchEvent(new Event('input', {bubbles: true})) })"
        shown = "[...document.querySelectorAll('tbody tr')].filter(r => r.checkVisibility()).map(r => r.dataset.words)"
        (row,) = browser.do(f"{box % repr(ids[1][:8])}(document.querySelector('#filter')), {shown}")
        assert ids[1] in row
        assert browser.do("document.querySelector('output').textContent") == "1 of 2 rows"
        browser.do("document.querySelector('tbody tr:not([hidden]) td').click()", opens=True)
        assert ids[0] in browser.do("location.pathname")
        before = browser.do("document.querySelector('#theme').click(), document.documentElement.dataset.theme")
        assert before == "light"
        assert browser.do("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        browser.look(400, "light")
        assert browser.do("document.documentElement.scrollWidth <= innerWidth")
        browser.do("document.querySelector('nav a').click()", opens=True)
        theme = "document.documentElement.dataset.theme"
        for _ in range(20):  # a browser writes what pages store when it has time to, and may lose it before
            if browser.do(theme) == "light":
                break
            time.sleep(0.5)
            browser.open(tmp_path / "index.html")
            while browser.do(theme) != "light":
                browser.do("document.querySelector('#theme').click()")
            time.sleep(0.5)
            browser.open(tmp_path / "index.html")
        assert browser.do(theme) == "light"  # kept from page to page
        assert browser.errors == []
