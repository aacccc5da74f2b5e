"""How wide a table or a figure is in a paper: `--width column`, `page`, or inches. Both mean the same for both."""

from __future__ import annotations

from fedbench.errors import FedbenchError

#: In inches. A column goes into one of LaTeX's article (3.18), ICML and CVPR (3.25), AAAI and ACM (3.3) and IEEE (3.5).
#: A page goes into the text of ICLR and NeurIPS (5.5), and over both columns of all others (6.5 and more).
COLUMN, PAGE = 3.15, 5.5
#: The widest that can be asked for.
MOST = 30


def inches(chosen: str) -> float:
    """The width that "column", "page" or a number of inches means. Raises FedbenchError for anything else."""
    try:
        wide = {"column": COLUMN, "page": PAGE}.get(chosen) or float(chosen)
    except ValueError:
        wide = 0.0
    if not 1 <= wide <= MOST:
        raise FedbenchError(f"{chosen!r} is no width", f"--width column, page, or 1 to {MOST} inches, such as 5.5")
    return wide
