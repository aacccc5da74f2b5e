"""Widths of texts in points, in the wider of LaTeX's usual fonts (Computer Modern and Times)."""

from __future__ import annotations

from collections.abc import Iterator

#: Font size -> width of its letters relative to those of 10 points, of which small ones are wider for their size.
SIZES = {
    r"\normalsize": 1.0,
    r"\small": 0.926,
    r"\footnotesize": 0.85,
    r"\scriptsize": 0.8,
    r"\tiny": 0.69,
}

#: Of the characters from space to ~, in thousandths of 10 points: upright, and bold.
_UPRIGHT = (
    *(333, 333, 500, 833, 500, 833, 778, 333, 389, 389, 500, 778, 278, 333, 278, 500, 500, 500, 500, 500, 500, 500),
    *(500, 500, 500, 500, 278, 278, 778, 778, 778, 472, 921, 750, 708, 722, 764, 681, 653, 785, 750, 361, 514, 778),
    *(625, 917, 750, 778, 681, 778, 736, 556, 722, 750, 750, 1028, 750, 750, 611, 333, 500, 333, 500, 500, 333, 500),
    *(556, 444, 556, 444, 333, 500, 556, 278, 306, 528, 278, 833, 556, 500, 556, 528, 392, 394, 389, 556, 528, 722),
    *(528, 528, 444, 500, 280, 500, 500),
)
_BOLD = (
    *(383, 350, 575, 958, 575, 1000, 894, 333, 447, 447, 575, 894, 319, 383, 319, 575, 575, 575, 575, 575, 575, 575),
    *(575, 575, 575, 575, 333, 333, 895, 894, 895, 543, 930, 869, 818, 831, 882, 756, 724, 904, 900, 436, 594, 901),
    *(692, 1092, 900, 864, 786, 864, 862, 639, 800, 885, 869, 1189, 869, 869, 703, 333, 575, 333, 575, 575, 333, 559),
    *(639, 511, 639, 527, 351, 575, 639, 319, 351, 607, 319, 958, 639, 575, 639, 607, 474, 454, 447, 639, 607, 831),
    *(607, 607, 511, 575, 322, 575, 575),
)
#: Of a character that is set as its code, and of any other one that is not ASCII, as wide as any of mathematics.
_CODE, _OTHER = 4300, 1000


def width(text: str, *, bold: bool = False) -> float:
    """The width of a text, not yet escaped, in points at a font size of 10 points; at least what LaTeX needs."""
    widths = _BOLD if bold else _UPRIGHT
    every = (widths[ord(c) - 32] if " " <= c <= "~" else _CODE if ord(c) > 0x2FFF else _OTHER for c in text)
    return sum(every) / 100


def broken(text: str, most: float) -> list[str]:
    """The text on as few lines as its words allow, none wider than `most` points unless a word is."""
    return list(_lines(text.split(), most)) or [""]


def _lines(words: list[str], most: float) -> Iterator[str]:
    line = ""
    for word in words:
        if line and width(f"{line} {word}") > most:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    if line:
        yield line
