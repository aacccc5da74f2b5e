"""A LaTeX document through pdflatex, where this machine's TeX can."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

#: Two columns of 3.5 and of 3.18 inches; one of 5.5 inches, in both of LaTeX's usual fonts.
CLASSES = {
    "IEEE": r"\documentclass[conference]{IEEEtran}",
    "article": r"\documentclass[twocolumn]{article}",
    "ICLR": r"\documentclass{article}\usepackage{times}\usepackage[textwidth=5.5in,textheight=9in]{geometry}",
    "plain": r"\documentclass{article}\usepackage[textwidth=5.5in,textheight=9in]{geometry}",
}


def compiled(folder: Path, text: str, name: str = "t") -> str:
    """What pdflatex says of a document, which is to be the file `name`.tex of the folder; its PDF then lies beside it.
    Skips the test where there is no pdflatex, or one without a package that the document needs."""
    (folder / f"{name}.tex").write_text(text, encoding="utf-8")
    if (program := shutil.which("pdflatex")) is None:
        pytest.skip("needs pdflatex (TeX Live with booktabs, caption and threeparttable)")
    command = [program, "-interaction=nonstopmode", "-halt-on-error", f"{name}.tex"]
    run = subprocess.run(command, cwd=folder, capture_output=True)
    said = run.stdout.decode(errors="replace")
    if missing := re.search(r"! LaTeX Error: File `([^']+)' not found", said):
        pytest.skip(f"needs {missing[1]}, which this machine's TeX does not have")
    assert run.returncode == 0, said[-2000:]
    return said


def fits(said: str) -> bool:
    """Whether nothing sticks out of a page by 10 pt or more."""
    return re.search(r"Overfull \\hbox \((?!\d\.)", said) is None
