"""The benchmark at a glance: what its pages show of papers, methods and the arena is what the reports say; and how full
each table is."""

from __future__ import annotations

import csv
import html
import re
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import rankdata

from fedbench.methods import declarations
from fedbench.planner import counts
from fedbench.reports import figures
from fedbench.reports.layout import references
from fedbench.reports.layout.tables import grids_of
from fedbench.reports.render.data import records
from fedbench.reports.site import benchmark
from fedbench.reports.site.methods import address
from fedbench.reports.site.page import shared
from fedbench.results.frame import Frame
from fedbench.results.packs import Packs, with_fedbench
from fedbench.store import Store
from tests.reports.conftest import DIR, Lab
from tests.reports.test_render import PAGE_TAGS, Page, acts
from tests.support.browser import PROGRAM, Browser

pytestmark = pytest.mark.shipped

#: What pages have beside those of a notebook.
TAGS = {"select", "option", "label", "figure", "figcaption", "br", "sup", "em"}
#: A table at two budgets, one with a figure, one of many rows without a reported number.
TABLES = ["feddrm/1", "feddrm/figure4", "arena/mnist"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("site") / "store")


@pytest.fixture(scope="module")
def site(store: Store) -> dict[str, str]:
    made = benchmark.pages(Frame(store, Packs(with_fedbench())), [], names=TABLES)
    return {name: content.decode() for name, content in made}


def rows_of(page: str, table: str) -> dict[str, list[str]]:
    """First cell of each row of the table with this class or before this text -> the texts of its others."""
    body = re.findall(table + r".*?<tbody>(.*?)</tbody>", page, re.DOTALL)[0]
    rows = [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL)
    ]
    texts = [[html.unescape(re.sub(r"<[^>]*>", "", cell)) for cell in row] for row in rows]
    return {first: rest for first, *rest in texts if first != "reported"}


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site: dict[str, str]) -> None:
    assert {
        "index.html",
        "feddrm.html",
        "arena.html",
        "feddrm-4.svg",
        *map(address, declarations.built_in()),
    } == {*site}
    for name, text in site.items():
        if name.endswith(".svg"):
            continue
        page = Page(text)
        assert {tag for tag, _ in page.tags} <= PAGE_TAGS | TAGS
        assert not page.open
        assert not acts(text)
        places = [a.get("href") or a.get("src") or "" for _, a in page.tags if a.keys() & {"href", "src"}]
        for place in places:
            file, _, anchor = place.partition("#")
            if place.startswith(("https://arxiv.org/abs/", "https://github.com/")):
                continue  # a link that a reader may follow: nothing is loaded from there
            assert file in {*site, *shared(), "data:,", ""}, place
            if anchor:
                assert f'id="{anchor}"' in site[file or name], place


def test_a_paper_at_a_glance(site: dict[str, str]) -> None:
    rows = rows_of(site["index.html"], 'class="listing papers"')
    (title,) = (first for first in rows if first.startswith("FedDRM"))
    assert "Beyond Aggregation: Guiding Clients in Heterogeneous Federated Learning, ICLR 2026" in title
    # At the fullest budget, at the paper's, and the claims of both tables.
    own = "1 of 66; 1 over all seeds; 100% within 2 points"
    assert rows[title] == ["66 of 66; 66 over all seeds; 38% within 2 points", own, "✗ 3 ? 2"]


def test_a_table_stands_beside_what_is_reported_at_each_budget_that_has_a_number(
    site: dict[str, str], store: Store
) -> None:
    page = site["feddrm.html"]
    assert re.findall(r'data-table="feddrm/1" data-budget="(\w+)"', page) == ["small", "paper"]  # the fullest first
    (grid,) = grids_of(["feddrm/1"], store, [], budget="paper", compare=True)
    (cell,) = [one for one in records(grid) if one["value"] is not None]
    (_, paper) = re.findall(r"<section.*?</section>", page[: page.index('id="figure4"')], re.DOTALL)
    assert "<summary>Budget paper: " in page
    row = re.findall(
        r'<tr class="paper" data-method="feddrm">(.*?)</tr>\s*<tr class="reported">(.*?)</tr>', paper, re.DOTALL
    )
    texts = [re.sub(r"<[^>]*>", "", part) for part in row[0]]
    assert f"{cell['value']:.2f}" in texts[0]
    assert f"{cell['reported']:.2f}" in texts[1]
    assert f"+{cell['difference']:.2f}" in texts[1]
    assert "on NVIDIA H200" in paper
    assert 'data-column="CIFAR-10/Dir-0.3"' in paper
    assert "FedDRM is best in every column" in paper
    assert "Colours are shifted once on the whole image" in paper  # what departs from the paper


def test_a_page_begins_with_its_fullest_table_which_says_how_many_seeds_it_has(site: dict[str, str]) -> None:
    page = site["feddrm.html"]
    summaries = re.findall(r'<details class="table" id="(\w+)"( open)?><summary>(.*?)</summary>', page)
    assert [(id, opened) for id, opened, _ in summaries] == [("1", " open"), ("figure4", "")]
    assert page.index('id="1"') < page.index('<div class="figures">') < page.index('id="figure4"')
    assert "<small>small, 1 seed</small>" in summaries[0][2]


def test_seeds_that_are_missing_are_said_and_tables_without_a_number_are_one_line(store: Store) -> None:
    names = ["flux/10", "flux/30", "flux/31"]
    page = dict(benchmark.pages(Frame(store, Packs(with_fedbench())), [], names=names))["flux.html"].decode()
    (summary,) = re.findall(r'<details class="table".*?<summary>(.*?)</summary>', page)
    assert "<small>paper, 1 of 5 seeds</small>" in summary
    assert "84 of 84; 0 over all seeds" in summary
    assert "<summary>2 tables not measured yet</summary>" in page
    assert "<code>fedbench train --table flux/30</code>" in page


def test_the_first_page_has_one_table_that_is_measured_as_a_whole(site: dict[str, str], store: Store) -> None:
    made = dict(benchmark.pages(Frame(store, Packs(with_fedbench())), [], names=["feddrm/1", "ftw_erm/1", "ftw_erm/3"]))
    front = made["index.html"].decode()
    (grid,) = grids_of(["ftw_erm/1"], store, [], budget="paper", compare=True)
    shown = rows_of(front, "Measured beside reported")
    papers = [line for line in grid.lines if line.kind == "paper"]
    assert list(shown) == [line.label for line in papers] != []
    for line in papers:
        assert [cell.split("\xa0")[0].split()[0] for cell in shown[line.label]] == [one.text for one in line.entries]
    assert front.count('data-table="') == 1
    assert "Measured beside reported" not in site["index.html"].partition("</h1>")[2]


def test_papers_and_methods_lead_to_their_papers_and_previews_say_what_a_page_is(site: dict[str, str]) -> None:
    assert "https://arxiv.org/abs/2509.23049" in site["index.html"]
    assert "https://github.com/zijianwang0510/FedDRM" in site["feddrm.html"]
    assert "https://arxiv.org/abs/1812.06127" in site["method-fedprox.html"]
    assert "From Yang, Huang and Ye, FedAS:" in site["method-fedas.html"], "which arXiv does not have"
    for one in references.every().values():
        if one.arxiv:
            assert all(f"https://arxiv.org/abs/{one.arxiv}" in site[address(name)] for name in one.methods)
    for name, text in site.items():
        if name.endswith(".html"):
            (about,) = [a["content"] for a in Page(text).all("meta") if a.get("property") == "og:description"]
            assert about
            assert "](" not in about


def test_texts_have_contrast_in_both_themes() -> None:
    """WCAG 2.1, 1.4.3: at least 4.5 between a text and what it stands on."""
    css = shared()["site.css"]
    colours = dict(re.findall(r"--(\w+): light-dark\(([^)]*)\)", css))

    def luminance(name: str, theme: int) -> float:
        value = colours[name].split(", ")[theme].removeprefix("#")
        value = value if len(value) == 6 else "".join(c + c for c in value)
        parts = [int(value[k : k + 2], 16) / 255 for k in (0, 2, 4)]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    for theme in (0, 1):
        for text in ("ink", "soft", "accent", "best", "off"):
            for ground in ("page", "shade"):
                low, high = sorted((luminance(text, theme), luminance(ground, theme)))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground, theme)


def test_the_arena_ranks_by_the_mean_over_partitions_and_sets_methods_of_one_gradient_apart(
    site: dict[str, str], store: Store
) -> None:
    (grid,) = grids_of(["arena/mnist"], store, [])
    cells: dict[str, dict[str, Any]] = {}
    for one in records(grid):
        if one["group"] == "Average accuracy":
            cells.setdefault(one["row"], {})[one["column"]] = one["value"]
    methods = {line.label: line.method for line in grid.lines}
    known = declarations.built_in()
    whole = {row: list(of.values()) for row, of in cells.items() if None not in of.values()}
    usual = [row for row in whole if not known[methods[row]].one_step]
    ranks = sum(rankdata([-whole[row][k] for row in usual]) for k in range(6)) / 6
    shown = rows_of(site["arena.html"], 'class="heat"')
    names = list(shown)
    at = names.index("methods that send a gradient after every step")
    assert {*names[at + 1 :]} == {row for row in whole if row not in usual} != set()
    means = {row: f"{mean:.1f}" for row, mean in zip(usual, ranks, strict=True)}
    assert {row: shown[row][1] for row in names[:at]} == means
    assert [shown[row][1] for row in names[:at]] == sorted(means.values(), key=float)
    front = rows_of(site["index.html"], "The best 10 of 40 methods")
    assert [front[str(n)][:3] for n in range(1, 11)] == [[row, *shown[row][:2]] for row in names[:10]]
    families = {row: references.family(known[methods[row]]) for row in whole}
    assert {row: of[0] for row, of in shown.items() if of} == families
    assert set(re.findall(r"<option>(.*?)</option>", site["arena.html"])) == {*families.values()}


def test_forty_methods_on_six_partitions_have_no_critical_difference(store: Store) -> None:
    figure = figures.load("arena/mnist")
    kind, request = figures.kind_of(figure), figures.Request(Frame.of(store))
    rows = kind.rows(request)
    assert len({row["place"] for row in rows}) < len({row["line"] for row in rows})
    assert "none differ by Wilcoxon's test" in " ".join(request.said)
    assert not [text for text in figures.draw(kind, rows).axes[0].texts if "CD" in text.get_text()]


def test_a_method_says_what_it_is_and_where_it_stands(site: dict[str, str], store: Store) -> None:
    page = site["method-feddrm.html"]
    (grid,) = grids_of(["feddrm/1"], store, [], compare=True)
    rows = [line for line in grid.lines if line.in_table]
    (own,) = [line for line in rows if line.method == "feddrm"]
    ranks = [
        1 + sum(line.entries[k].value.mean > own.entries[k].value.mean for line in rows)  # type: ignore[union-attr]
        for k in range(6)
    ]
    stands = rows_of(page, "Where it stands")
    assert stands["feddrm/1" + grid.title] == [f"{sum(ranks) / 6:.1f}", "1.0", "13", "FedDRM", "small"]
    assert not [row for row in stands if row.startswith("feddrm/figure4")]  # all of whose rows are its own
    assert list(rows_of(page, "Hyper-parameters").values()) == [["0.8", "λ", "Eq. 9, Sec. 3.2"]]
    assert "lambda is 0.8, as in the paper" in page


def test_counts_that_are_kept_are_those_of_the_packs_and_own_runs_are_counted_beside_them(tmp_path: Path) -> None:
    again = "'python -m fedbench.planner.counts' writes it anew"
    assert counts.FILE.read_text(encoding="utf-8") == counts.written(), again
    names = ["feddrm/1", "feddrm/4", "pfedfda/8", "flux/50"]
    lab = Lab(Store(tmp_path / "store"))
    lab.dataset("cifar10")

    def done(exact: bool) -> dict[str, dict[str, tuple[int, int]]]:
        frame = Frame(lab.store, Packs.of(lab.store))
        every = counts.count(names, frame, [], exact=exact)
        return {one.table: {b: (of.done, of.shipped) for b, of in one.budgets.items()} for one in every}

    before = done(exact=False)
    assert before == done(exact=True)
    lab.run(lab.setting("feddrm/1", DIR, "smoke"), "feddrm")
    after = done(exact=False)
    assert after == done(exact=True)
    assert {t for t in names if after[t] != before[t]} == {"feddrm/1", "feddrm/4"}
    assert after["feddrm/1"]["smoke"] == (1, 0)


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")
def test_in_a_browser(site: dict[str, str], tmp_path: Path) -> None:
    for name, text in {**shared(), **site}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with Browser() as browser:
        for width, theme in ((1400, "light"), (400, "dark")):
            browser.look(width, theme)
            for name in ("index", "feddrm", "arena", "method-feddrm"):
                browser.open(tmp_path / f"{name}.html")
                assert browser.do("document.documentElement.scrollWidth <= innerWidth"), (name, width)
        browser.open(tmp_path / "feddrm.html")
        row = "document.querySelector('[data-budget=small] tr[data-method=fedrep]')"
        browser.do(f"{row}.cells[2].firstChild.focus()")
        for kind in ("keyDown", "keyUp"):  # by keyboard
            browser.send("Input.dispatchKeyEvent", type=kind, key="Enter", text="\r", windowsVirtualKeyCode=13)
        line = browser.do(f"{row}.nextSibling.querySelector('code').textContent")  # where the number is
        place = "--table feddrm/1 --budget small --column CIFAR-10/5-SPC"
        assert line == f"fedbench train {place} -m fedrep --include-shipped"
        kept = "blob.text().then((text) => { window.saved = text; })"
        browser.do(f"made = URL.createObjectURL, URL.createObjectURL = (blob) => ({kept}, made.call(URL, blob))")
        browser.do("document.querySelector('[data-budget=small] .csv').click()")
        saved = next(text for _ in range(1000) if (text := browser.do("window.saved ?? ''")))
        head, *lines = csv.reader(saved.splitlines())
        assert head[:3] == ["Method", "CIFAR-10/Dir-0.3", "CIFAR-10/5-SPC"]
        assert {len(line) for line in lines} == {7}
        shown = browser.do(f"{row}.cells[2].innerText").replace("\u00a0", " ")
        assert next(line for line in lines if line[0] == "FedRep")[2] == shown, "without the letter of its footnote"
        browser.do("location.hash = 'figure4'")
        until = (browser.do("document.getElementById('figure4').open") for _ in range(1000))
        assert any(until), "a link to a table opens it"
        browser.open(tmp_path / "arena.html")
        browser.do(f"made = URL.createObjectURL, URL.createObjectURL = (blob) => ({kept}, made.call(URL, blob))")
        browser.do("document.querySelector('.csv').click()")
        saved = next(text for _ in range(1000) if (text := browser.do("window.saved ?? ''")))
        head, *lines = csv.reader(saved.splitlines())
        assert {len(line) for line in lines} == {len(head)}, "also of the row that only names a class"
        assert all(float(line[head.index("mean rank") + 1]) for line in lines if line[1]), "no rank at the number"
        rows = "[...document.querySelectorAll('.heat tbody tr:not(.class)')].filter(r => r.checkVisibility()).length"
        every = browser.do(rows)
        pick = "(s => { s.value = '%s'; s.dispatchEvent(new Event('change', {bubbles: true})) })"
        clustered = browser.do(f"{pick % 'clustered'}(document.querySelector('[data-filter=family]')), {rows}")
        assert 0 < clustered < every
        browser.do(f"{pick % ''}(document.querySelector('[data-filter=family]'))")
        cheap = browser.do(f"{pick % '1.01'}(document.querySelector('[data-filter=cost]')), {rows}")
        assert clustered < cheap < every
        assert browser.errors == []
