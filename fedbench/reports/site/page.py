"""Parts that all pages of a site share: the document with its style and script, cards, tables and escaping."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path

from fedbench import __version__
from fedbench.words import plain

#: File of the index of the user's runs in the same folder, and the link (HTML) at its top.
NOTEBOOK = ("runs.html", '<a href="index.html">All papers</a>')


def e(text: object) -> str:
    """A text escaped for an HTML element or attribute."""
    return escape(plain(str(text)))


#: The browser may load and run only the site's files, from a disk or a server.
_POLICY = "default-src 'none'; img-src 'self' file: data:; style-src 'self' file:; script-src 'self' file:"


@cache
def shared() -> dict[str, str]:
    """Name -> content of the files that all pages load."""
    here = Path(__file__).parent
    return {name: (here / name).read_text(encoding="utf-8") for name in ("site.css", "site.js")}


def document(title: str, way: str, body: Iterable[str], about: str = "") -> str:
    """A complete page: `title` and `about` (the description that previews of links show) are text; `way`, the
    navigation at the top, and `body` are HTML."""
    content = "\n".join(body)
    preview = {"og:title": title, "og:type": "website", "og:description": about}
    told = f'<meta name="description" content="{e(about)}">\n' if about else ""
    told += "".join(f'<meta property="{key}" content="{e(text)}">\n' for key, text in preview.items() if about)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{e(title)}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n{told}<link rel="icon" href="data:,">\n'
        '<link rel="stylesheet" href="site.css">\n<script src="site.js"></script>\n</head>\n<body>\n'
        f'<header><nav>{way}</nav><button type="button" id="theme">Theme</button></header>\n'
        f"<main>\n{content}\n</main>\n<footer>fedbench {e(__version__)}</footer>\n</body>\n</html>\n"
    )


def card(title: str, content: str, *, wide: bool = False) -> str:
    """A section of a page: a heading (text) and its content (HTML)."""
    return f"<section{' class=wide' if wide else ''}>\n<h2>{e(title)}</h2>\n{content}\n</section>"


def listing(heads: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1, look: str = "") -> str:
    """A table with headings (text) and cells (HTML); its first `texts` columns are for texts, the others for numbers.
    `look`: a CSS class."""
    key = [' class="key"' if k < texts else "" for k in range(len(heads))]
    head = "".join(f'<th scope="col"{kind}>{e(text)}</th>' for kind, text in zip(key, heads, strict=True))
    lines = [
        f'<tr><th scope="row" class="key">{first}</th>'
        + "".join(
            f'<td{kind} data-head="{e(head)}">{cell}</td>'
            for kind, head, cell in zip(key[1:], heads[1:], rest, strict=True)
        )
        + "</tr>"
        for first, *rest in rows
    ]
    table = f"<thead><tr>{head}</tr></thead>\n<tbody>{''.join(lines)}</tbody>"
    return scrolled(f'<table class="listing {look}">{table}</table>')


def scrolled(table: str, kind: str = "") -> str:
    """A table that scrolls where it is wider than the page, also by keyboard; the page's script adds a button that
    saves it as CSV. `kind`: a CSS class."""
    return f'<div class="{f"scroll {kind}".strip()}" tabindex="0">{table}</div>'


def sort_head(label: str, kind: str = "", group: str = "", first: str = "ascending", off: bool = False) -> str:
    """The heading of a sortable column. `first`: the order after the first click; `off`: whether hidden at first."""
    look = (f' class="{kind}"' if kind else "") + " data-off" * off
    before = f"<small>{e(group)}</small>" if group else ""
    button = f'<button type="button">{before}{e(label)}</button>'
    return f'<th scope="col" aria-sort="none" data-first="{first}"{look}>{button}</th>'


@dataclass(frozen=True)
class Picture:
    """An SVG picture as a file, and what it shows in words; without content the words say what is missing."""

    file: str
    title: str
    content: str = ""
    words: str = ""

    @property
    def image(self) -> str:
        """The picture on a page, with its size, so that the page keeps a place for it until it is loaded."""
        points = _SIZE.search(self.content)
        wide, high = (round(float(one) * 4 / 3) for one in points.groups()) if points else (0, 0)
        size = f' width="{wide}" height="{high}"' if points else ""
        return f'<img src="{e(self.file)}" alt="{e(self.title)}"{size} loading="lazy">'


#: The size of an SVG picture in points.
_SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')


def figure(picture: Picture) -> str:
    """A figure with its title, which scrolls where it is wider than the page, and leads to the picture alone."""
    return (
        f'<figure><div class="scroll" tabindex="0"><a href="{e(picture.file)}">{picture.image}</a></div>'
        f"<figcaption>{e(picture.title)}</figcaption></figure>"
    )


def prose(markdown: str) -> str:
    """A sentence of Markdown as HTML: its links to https addresses stay links, other marks go."""
    text = re.sub(r"[*`]", "", e(markdown))
    return re.sub(r"\[([^]]*)\]\(([^)\s]*)\)", _link, text)


def _link(found: re.Match[str]) -> str:
    text, place = found.groups()
    return f'<a href="{place}">{text}</a>' if place.startswith("https://") else str(text)


def coded(text: str) -> str:
    """A text as HTML, in which names in backticks are code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", e(text))


def command(line: str) -> str:
    """A command with a button that copies it."""
    return f'<div class="command"><code>{e(line)}</code><button type="button">Copy</button></div>'


def values(rows: Iterable[tuple[str, str]]) -> str:
    """A list of names and their values, both text."""
    return "<dl>" + "".join(f"<dt>{e(name)}</dt><dd>{e(value)}</dd>" for name, value in rows) + "</dl>"


def folded(title: str, texts: Iterable[str]) -> str:
    """A folded list of texts; "" if there are none."""
    items = "".join(f"<li>{coded(text)}</li>" for text in texts)
    return f"<details><summary>{e(title)}</summary><ul>{items}</ul></details>" if items else ""
