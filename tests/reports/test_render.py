"""Every format says the same, escapes what users name, and can be read by what it is for."""

from __future__ import annotations

import csv
import dataclasses
import html
import html.parser
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from fedbench.errors import FedbenchError
from fedbench.files import write_whole
from fedbench.reports import table as tables
from fedbench.reports.layout.build import build
from fedbench.reports.layout.grid import Grid, only_done
from fedbench.reports.render import FORMATS, choose, render
from fedbench.reports.render.console import show
from fedbench.reports.render.latex import escape
from fedbench.reports.render.markdown import escape as escape_markdown
from tests.support.latex import compiled, fits

DIR, SPC = "CIFAR-10/Dir-0.3", "CIFAR-10/5-SPC"
NASTY = r"a_b & 50% #1 {x} ~^ \end{tabular} <b>|x|</b> $"


@pytest.fixture
def grids(lab: Any) -> list[Grid]:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm", value=0.6385, deviations=["100 % of a_b"])
    lab.run(lab.setting("feddrm/1", SPC), "feddrm", value=0.5)
    lab.run(lab.setting("feddrm/1", DIR), "fedavgft", value=0.55)
    lab.run(lab.setting("feddrm/1", DIR), "mine", value=0.4, title=NASTY)
    return [
        build(tables.load(n), "small", lab.store, [], compare=True, extra=True)
        for n in ("feddrm/1", "pfedfda/8", "feddrm/4")
    ]


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_holds_the_numbers_and_what_is_said(grids: list[Grid], format: str) -> None:
    text = render(grids, format, full=True)
    for number in ("55.00", "40.00", "6.620") if format not in ("csv", "json") else ("55.0", "40.0", "115776"):
        assert number in text
    if format != "csv":
        for said in ("400 rounds of 10 steps", "FedDRM is best in every column", "holds so far", "FedDRM answers with"):
            assert said in " ".join(text.split())


PRINTED = ("console", "latex", "markdown", "html")


@pytest.mark.parametrize("format", PRINTED)
def test_below_a_table_stands_what_no_number_goes_without(grids: list[Grid], format: str) -> None:
    """Budget, what ± is, seed, how many cells, one command; the rest is asked for, and in HTML folded."""
    brief, full = (" ".join(render(grids[:1], format, full=full).split()) for full in (False, True))
    for said in (
        "Budget small, not the paper's: 400 rounds of 10 steps", "standard deviation (ddof 0)", "seed 2025",
        "3 of 78 cells", "fedbench train --table feddrm/1 --budget small", "Claims: 2 hold so far, 2 not measured",
    ):  # fmt: skip
        assert said in html.unescape(brief)
    for said in ("Colours are shifted once", "100 %", "FedDRM is best", "FedDRM answers with", "budget paper"):
        said = said[0].upper() + said[1:]
        assert said in full.replace("\\%", "%")
        assert (said in brief) == (format == "html")
    if format == "html":
        assert "<details><summary>" in brief
        assert "<details open>" in full
    else:
        assert ("--notes full" in brief.replace("\\-", "-")) == (format != "latex")


@pytest.mark.parametrize("format", PRINTED)
def test_notes_are_of_rows_that_have_a_number(grids: list[Grid], format: str) -> None:
    text = render(grids[:1], format, full=True)
    assert "FedProxFT: " not in text
    assert re.search(r"FedAvgFT: finetune(_|\\_)rounds = 50", text)


def test_marks_and_problems_are_said_by_default(lab: Any) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm", version=99)
    grid = build(tables.load("feddrm/1"), "small", lab.store, [])
    grid = dataclasses.replace(grid, problems=("run 0123 is damaged",))
    for format in PRINTED:
        text = " ".join(render([grid], format).split())
        assert "stale: of another version of the code" in text
        assert "1 stale" in text
        assert "run 0123 is damaged" in text


# -- only what is there ------------------------------------------------------------------------------------------


def test_rows_and_columns_without_a_number_can_be_left_out(grids: list[Grid]) -> None:
    part = only_done(grids[0])
    assert [line.label for line in part.lines] == ["FedAvgFT", "reported", "FedDRM", "reported", NASTY]
    assert [f"{head.group}/{head.label}" for head in part.heads] == [DIR, SPC]
    assert all(len(line.entries) == 2 for line in part.lines)
    assert part.about[-1] == "Left out, as they have no number: 11 of 14 rows and 4 of 6 columns."
    assert part.counts == grids[0].counts  # of the whole table
    assert only_done(grids[1]) == grids[1]  # which is counted, and full
    for format in FORMATS:
        assert "FedBABU" not in render([part], format)


def test_of_an_empty_table_nothing_is_left(lab: Any) -> None:
    part = only_done(build(tables.load("feddrm/1"), "small", lab.store, [], compare=True))
    assert (part.lines, part.heads) == ((), ())


def test_csv_reads_back_exactly(grids: list[Grid]) -> None:
    lines = list(csv.DictReader(io.StringIO(render(grids, "csv"))))
    assert len(lines) == 78 + 1 + 16 + 78 + 2  # table 4 holds the extra run in two columns
    found = next(
        x
        for x in lines
        if (x["table"], x["row"], x["group"], x["column"]) == ("feddrm/1", "FedDRM", "CIFAR-10", "Dir-0.3")
    )
    assert float(found["value"]) == pytest.approx(63.85, abs=1e-9)  # not rounded to what is printed
    assert (float(found["reported"]), found["state"]) == (63.85, "done")
    assert (found["budget"], found["unit"], found["n"], found["within"]) == ("small", "%", "5", "True")
    assert len(found["runs"]) == 12
    assert any(x["row"] == NASTY and x["kind"] == "extra" for x in lines)
    missing = next(x for x in lines if x["row"] == "Ditto")
    assert (missing["value"], missing["state"]) == ("", "not built")


def test_json_reads_back(grids: list[Grid]) -> None:
    read = json.loads(render(grids, "json"))
    assert [t["table"] for t in read] == ["feddrm/1", "pfedfda/8", "feddrm/4"]
    assert read[0]["claims"][0] == {
        "text": "FedDRM is best in every column", "state": "holds so far", "held": 1, "made": 1, "asked": 6,
        "undecided": 0, "detail": "smallest margin 8.85 at FedDRM, CIFAR-10/Dir-0.3 (one seed: noise unknown)",
        "reported": "holds",
    }  # fmt: skip
    assert read[0]["footnotes"] == [{"methods": ["a"], "text": "100 % of a_b"}]
    assert read[0]["deviations"] == {"FedDRM": "a"}
    assert read[0]["command"] == "fedbench train --table feddrm/1 --budget small"
    assert any("50 counted" in note for note in read[0]["notes"])  # all of them, whatever is printed elsewhere


# -- LaTeX -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b", r"a\_b"), ("50 %", r"50 \%"), ("{#&$}", r"\{\#\&\$\}"), ("a\\b", r"a\textbackslash{}b"),
        ("α = 0.3", r"$\alpha$ = 0.3"), ("±", r"$\pm$"), ("° shipped", r"$^{\circ}$ shipped"),
        ("--x", "{-}{-}x"), ("Müller", "Müller"), ("ő", "o"),
        ("日", "?"),
        ("a\nb\x00", "a b "), ("<|>", "$<$$|$$>$"), ("~^", r"\textasciitilde{}\textasciicircum{}"),
        ("`--x a_b` and `", r"\texttt{{-}{-}x a\_b} and \textquoteleft{}"),
    ],
)  # fmt: skip
def test_latex_escapes(text: str, expected: str) -> None:
    assert escape(text) == expected


@given(st.text())
def test_latex_never_lets_a_special_character_through(text: str) -> None:
    text = text.replace("`", "")  # typed, above
    bare = re.sub(r"\\(text(backslash|asciitilde|asciicircum|endash|emdash))\{\}|\\[{}$&#%_]", "", escape(text))
    bare = re.sub(r"\$[^$]+\$|\{[-\[\]*]\}", "", bare)  # our own formulas, and what would begin an option of a command
    assert not set(bare) & set("\\{}$&#%_^\n")
    assert all(c.isprintable() for c in bare)


def test_latex_is_well_built(grids: list[Grid]) -> None:
    text = render(grids, "latex")
    assert text.count("\\begin{") == text.count("\\end{")
    for part in ("\\toprule", "\\bottomrule", "\\begin{table}", "\\caption{", "\\label{tab:"):
        assert text.count(part) == 3
    assert "\\label{tab:feddrm-1}" in text
    assert r"\multicolumn{2}{c}{CIFAR-10} & \multicolumn{2}{c}{CIFAR-20}" in text
    assert r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}\cmidrule(lr){6-7}" in text
    body = re.search(r"\\begin\{tabular\}\{(l(c+))\}(.*?)\\end\{tabular\}", text, re.DOTALL)
    assert body is not None
    rows = [line for line in body[3].splitlines() if line.endswith(r"\\")]
    assert all(len(re.findall(r"(?<!\\)&", row)) == 6 for row in rows[1:])  # the first holds the groups
    assert next(r for r in rows if r.startswith("FedDRM")).split("&")[1].strip().startswith(r"\textbf{63.85}")
    assert body[3].count("\\midrule") == 2  # below the head, and above the method that is not in the paper


def test_a_document_is_asked_for(grids: list[Grid]) -> None:
    assert render(grids, "latex").startswith("% Needs \\usepackage{booktabs,graphicx}\n\\begin{table}")
    whole = render(grids, "latex", standalone=True)
    assert whole.startswith("\\documentclass")
    assert "\n% Needs a TeX that has the packages booktabs, graphicx, caption, geometry\n" in whole
    used = ",".join(re.findall(r"usepackage(?:\[.*\])?\{(.*?)\}", whole)).split(",")
    assert sorted(used) == ["booktabs", "caption", "geometry", "graphicx", "inputenc"], "the last is any TeX's"
    with pytest.raises(FedbenchError, match="goes with --format latex"):
        render(grids, "html", standalone=True)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("standalone", [False, True])
def test_latex_compiles(grids: list[Grid], tmp_path: Path, standalone: bool, full: bool) -> None:
    text = render(grids, "latex", standalone=standalone, full=full)
    name = "t" if standalone else "m"
    if not standalone:
        (tmp_path / "t.tex").write_text(text)
        needs = re.findall(r"usepackage\{(booktabs.*?)\}", text)[0]
        text = f"\\documentclass{{article}}\\usepackage{{{needs}}}\\begin{{document}}\\input{{t}}\\ref{{tab:feddrm-1}}"
        text += "\\end{document}\n"
    compiled(tmp_path, text, name)
    said = compiled(tmp_path, text, name)
    assert (tmp_path / f"{name}.pdf").stat().st_size > 1000
    assert "undefined" not in said
    assert not standalone or fits(said)


# -- the others ------------------------------------------------------------------------------------------------


class _Cells(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []
        self.stack: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in ("meta", "br"):
            self.stack.append(tag)
        if tag == "tr":
            self.rows.append(0)
        if tag in ("td", "th"):
            self.rows[-1] += int(dict(attrs).get("colspan") or 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


def test_html_is_balanced_and_rectangular_and_escapes(grids: list[Grid]) -> None:
    parser = _Cells()
    parser.feed(render(grids[:1], "html"))
    assert parser.stack == []
    assert set(parser.rows) == {7}
    assert "b" not in parser.tags  # of the method's name
    assert "prefers-color-scheme: dark" in render(grids, "html")


def test_markdown_tables_are_rectangular_and_escape(grids: list[Grid]) -> None:
    lines = [line for line in render(grids[:1], "markdown").splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {8}
    assert any(line.startswith(f"| {escape_markdown(NASTY)} |") for line in lines)
    assert escape_markdown("a_b|<c>") == r"a\_b\|&lt;c&gt;"


def test_console_lines_are_aligned(grids: list[Grid]) -> None:
    text = render(grids[:1], "console")
    lines = text.splitlines()
    first, last = (i for i, line in enumerate(lines) if line.startswith("━"))
    assert {cell_len(line) for line in lines[first : last + 1]} == {cell_len(lines[first])}
    assert "\x1b" not in text


def test_a_narrow_terminal_drops_the_spread_and_says_so(lab: Any) -> None:
    lab.run(lab.setting("feddrm/1", DIR), "feddrm", value=0.6385)
    for name in ("cifar20", "cifar100"):
        lab.dataset(name)
    for column in tables.load("feddrm/1").columns[1:]:
        lab.run(lab.setting("feddrm/1", column.key), "feddrm")
    grid = build(tables.load("feddrm/1"), "small", lab.store, [])
    out = io.StringIO()
    show([grid], Console(file=out, width=85, force_terminal=True, color_system=None, highlight=False))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert "63.85" in plain
    assert "63.85 ± 0.00" not in plain
    assert "too narrow" in plain
    assert max(map(cell_len, plain.splitlines()[:30])) <= 85
    assert "characters wide" not in plain
    out = io.StringIO()
    show([grid], Console(file=out, width=40, force_terminal=True, color_system=None, highlight=False))
    assert "characters wide, so that" in re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())


def test_formats_follow_the_option_or_the_suffix() -> None:
    assert choose(None, None) == "console"
    assert choose(None, Path("x/t.tex")) == "latex"
    assert choose("csv", Path("t.tex")) == "csv"
    with pytest.raises(FedbenchError, match="unknown format 'latx'; did you mean 'latex'"):
        choose("latx", None)
    with pytest.raises(FedbenchError, match=r"cannot tell the format from the name t\.docx"):
        choose(None, Path("t.docx"))


def test_writing_is_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "t.tex"
    write_whole(path, b"one")
    write_whole(path, b"two")
    assert path.read_text() == "two"
    with pytest.raises(FedbenchError, match="cannot write"):
        write_whole(tmp_path / "nowhere" / "t.tex", b"three")
    with pytest.raises(TypeError):
        write_whole(path, "no bytes")  # type: ignore[arg-type]
    assert path.read_text() == "two"
    assert [p.name for p in tmp_path.iterdir()] == ["t.tex"]
