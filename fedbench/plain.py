"""Text of users, plug-ins and artifacts as it may stand on a screen or in a document: one line, nothing that acts."""

from __future__ import annotations

#: Joiners, which show nothing but shape letters and emoji.
_JOINERS = "\u200c\u200d"


def plain(text: str, keep: str = "") -> str:
    """The text without control characters (a terminal would obey them) or marks that turn the direction of writing.

    Line breaks and tabs become spaces, but for those of `keep`; everything else that cannot be printed is spelt out
    as Python would, such as \\x1b.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _JOINERS or c in keep else _spelt(c) for c in text)


def _spelt(c: str) -> str:
    if c == "\u00a0":
        return c
    return " " if c.isspace() else c.encode("unicode_escape").decode()
