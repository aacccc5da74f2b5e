"""`fedbench site` at the command line."""

from __future__ import annotations

import html
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli_user import SMOKE, fedbench, good


def test_an_index_and_a_page_a_run(ready: Path, tmp_path: Path) -> None:
    good("train", "--method", "local", *SMOKE)
    out = tmp_path / "deep" / "site"
    said = good("site", out)
    assert said.err.splitlines()[-1].startswith("2 runs, 0.")
    assert said.err.endswith(f"open {out / 'index.html'}\n")
    files = sorted(path.name for path in out.iterdir())
    assert files[0] == "index.html"
    assert len(files) == 3
    good("site", tmp_path / "few", "method=local")
    (page,) = (tmp_path / "few").glob("run-*.html")
    text = page.read_text()
    assert page.name in files
    shown = good("show", page.stem.removeprefix("run-")).out
    for words in ("samples of each class by client", "client accuracy", "fedbench train --method local"):
        assert words in text
    for line in ("dataset 7fb771814abf", "trained "):
        assert line in shown
        assert line in html.unescape(text)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["method=locl"], "no run is method=locl"),
        (["metod=local"], "unknown key of runs 'metod'; did you mean 'method'"),
    ],
)
def test_bad_filters_are_one_line_and_write_nothing(ready: Path, tmp_path: Path, words: list[str], text: str) -> None:
    said = fedbench("site", tmp_path / "out", *words)
    assert said.code == 2
    assert text in said.line
    assert not (tmp_path / "out").exists()


def test_a_file_is_no_folder(ready: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    said = fedbench("site", tmp_path / "out")
    assert said.code == 2
    assert "cannot make the folder" in said.line
    assert (tmp_path / "out").read_text() == "mine"


def test_neither_torch_nor_pandas_nor_matplotlib_are_imported(ready: Path, tmp_path: Path) -> None:
    script = (
        "import sys\nfrom fedbench.__main__ import main\n"
        f"try: main(['site', {str(tmp_path / 'out')!r}])\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'pandas', 'scipy', 'matplotlib'} & set(sys.modules)), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stderr.splitlines()[-1] == "[]"
    assert (tmp_path / "out" / "index.html").exists()
