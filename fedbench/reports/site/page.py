"""The frame of a page: head, style, script and theme; and texts as HTML."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from functools import cache
from html import escape
from pathlib import Path

from fedbench import __version__
from fedbench.plain import plain


def e(text: object) -> str:
    """A text as HTML shows it literally, in an element or an attribute."""
    return escape(plain(str(text)))


@cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


@cache
def _policy() -> str:
    """What the browser may load and run: the page's own style and script, and nothing else."""
    digest = base64.b64encode(hashlib.sha256(_file("site.js").encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def document(title: str, way: str, body: Iterable[str]) -> str:
    """A whole page.

    Arguments:
        title: a text.
        way: HTML of the line that stands above everything else.
        body: HTML.
    """
    content = "\n".join(body)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{e(title)}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_policy())}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<style>{_file('site.css')}</style>\n<script>{_file('site.js')}</script>\n</head>\n<body>\n"
        f'<header><nav>{way}</nav><button type="button" id="theme">Theme</button></header>\n'
        f"<main>\n{content}\n</main>\n<footer>fedbench {e(__version__)}</footer>\n</body>\n</html>\n"
    )


def card(title: str, content: str, *, wide: bool = False) -> str:
    """A part of a page under a heading."""
    return f"<section{' class=wide' if wide else ''}>\n<h2>{e(title)}</h2>\n{content}\n</section>"


def values(rows: Iterable[tuple[str, str]]) -> str:
    """Names and their values, both texts."""
    return "<dl>" + "".join(f"<dt>{e(name)}</dt><dd>{e(value)}</dd>" for name, value in rows) + "</dl>"


def folded(title: str, texts: Iterable[str]) -> str:
    """Texts behind a line that opens them."""
    items = "".join(f"<li>{e(text)}</li>" for text in texts)
    return f"<details><summary>{e(title)}</summary><ul>{items}</ul></details>" if items else ""
