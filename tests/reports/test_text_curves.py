"""Curves in a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedbench.reports.figures.text import Points, text_curves

RISING = [(float(t), 10.0 * t) for t in range(1, 11)]
FALLING = [(float(t), 100 - 5.0 * t) for t in range(1, 11)]


def printed(lines: dict[str, Points], width: int = 60, encoding: str = "utf-8", height: int = 7) -> list[str]:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=out, width=width).print(text_curves(lines, "round", "accuracy (%)", height))
    out.seek(0)
    return out.read().splitlines()


def test_a_line_begins_and_ends_where_its_points_are() -> None:
    title, *rows, axis, rising, falling = printed({"up": RISING, "down": FALLING})
    assert title == "accuracy (%)"
    assert len(rows) == 7
    assert rows[0].startswith("100 │")
    assert rows[0].endswith("⠁ 1") or rows[0].endswith("⠉ 1")
    assert rows[-1].startswith(" 10 │⣀") or rows[-1].startswith(" 10 │⡠")
    (end,) = (i for i, row in enumerate(rows) if row.endswith(" 2"))  # 50 of 10 to 100
    assert end == 3
    assert axis.split() == ["1", "round", "10"]
    assert (rising, falling) == ("1 up  100 at the end", "2 down  50 at the end")


def test_one_point_is_a_number() -> None:
    _, *rows, _, _ = printed({"once": [(20.0, 70.0)]})
    assert [row for row in rows if row.strip().startswith("70")] == [rows[3]]
    assert rows[3].split("│")[1].strip() == "1"
    assert not any(letter in "".join(rows) for letter in "⠁⣀⠤")


def test_a_terminal_without_braille_gets_stars() -> None:
    rows = printed({"up": RISING}, encoding="ascii")
    assert "*" in rows[1]
    assert all(row.isascii() for row in rows)


@pytest.mark.parametrize("width", [20, 60, 200])
def test_it_is_as_wide_as_the_terminal_up_to_a_limit(width: int) -> None:
    assert max(map(len, printed({"up": RISING}, width))) <= min(width, 90)


def test_a_chart_needs_a_point() -> None:
    with pytest.raises(ValueError, match="needs a point"):
        text_curves({"nothing": []}, "round", "accuracy")
