"""Grids as LaTeX: floats with booktabs for inclusion in a document, or a complete document.

All texts of a grid are escaped first (`text.harmless`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fedbench.reports.layout.appendix import CITATION
from fedbench.reports.layout.grid import Entry, Grid, Line
from fedbench.reports.render.latex.characters import escape, packages, unset
from fedbench.reports.render.text import brief, claims, harmless, shown
from fedbench.words import plain

_PREAMBLE = r"""\documentclass[10pt]{article}
% Needs a TeX that has the packages $NEEDS
\usepackage[utf8]{inputenc}
\usepackage[a4paper,margin=18mm]{geometry}
$TABLES\pagestyle{empty}
\begin{document}
"""
#: Lines of the preamble that only tables need.
_TABLES = "\\usepackage{$PACKAGES}\n\\usepackage{caption}\n\\captionsetup{font=small,labelfont=bf}\n"

#: Before a table that is too wide in every font size.
_SHRUNK = r"\resizebox{\linewidth}{!}"

#: Before a table with all notes. The notes span the text width even if the table is narrower.
_WITH_NOTES = "\\begin{threeparttable}\n\\renewcommand{\\TPTminimum}{\\linewidth}"
_NOTES = "\\begin{tablenotes}[flushleft]\\scriptsize"
#: Before brief notes.
_BELOW = "\\par\\medskip\n\\begin{minipage}{\\linewidth}\n\\scriptsize\\raggedright\\setlength{\\parskip}{1pt}"

#: Marks after values.
_MARKS = {"†": r"\dagger", "‡": r"\ddagger", "°": r"\circ", "≠": r"\neq"}


def document(grids: Sequence[Grid], full: bool, standalone: bool) -> str:
    r"""Each grid as a float with caption and label, for \input; `standalone`: a complete document.

    Below each table are the brief notes, or with `full` all notes in a threeparttable.
    """
    # `_Unescaped` reads the texts before they are escaped.
    body = "\n".join(_float(harmless(grid, escape), _Unescaped.of(grid), full) for grid in grids)
    needed = ["booktabs", *(["threeparttable"] if full else []), *(["graphicx"] if _SHRUNK in body else [])]
    needed += packages(body)
    body = "".join(f"% {line}\n" for line in unset(body)) + body
    if not standalone:
        return f"% Needs \\usepackage{{{','.join(needed)}}}\n{body}"
    return _whole(needed, body)


def _whole(packages: Sequence[str], body: str) -> str:
    """A complete document; `packages` are those that its tables need, empty if it has none."""
    preamble = _PREAMBLE.replace("$TABLES", _TABLES.replace("$PACKAGES", ",".join(packages)) if packages else "")
    needs = ", ".join([*packages, *(["caption"] if packages else []), "geometry"])
    return preamble.replace("$NEEDS", needs) + body + "\\end{document}\n"


def appendix(grids: Sequence[Grid], standalone: bool) -> str:
    r"""The sections of the grids' appendices, for \input; sections that are equal in all come once, at the start."""
    of = [harmless(grid, escape) for grid in grids]
    shared = [section for section in of[0].appendix if len(of) > 1 and all(section in one.appendix for one in of)]
    parts = [("All tables", shared)] if shared else []
    parts += [(f"Table {one.id}: {one.caption}", [s for s in one.appendix if s not in shared]) for one in of]
    out = ["\\begingroup\\small\\sloppy"]
    for title, sections in parts:
        out.append(f"\\subsection*{{{title}}}")
        for heading, lines in sections:
            items = [rf"\item {line}" for line in lines] if len(lines) > 1 else []
            listed = ["\\begin{itemize}\\setlength{\\itemsep}{0pt}", *items, "\\end{itemize}"] if items else lines
            out += [rf"\paragraph{{{heading}.}}", *listed]
    cited = ["% BibTeX:", *(f"% {line}" for line in CITATION)]
    body = "\n".join([*out, "\\par\\endgroup", *cited, ""])
    return _whole([], body) if standalone else body


@dataclass(frozen=True)
class _Unescaped:
    """Properties of a grid that depend on its texts before these are escaped."""

    label: str
    command: str
    size: str  #: the largest font size that fits the page (85 characters a line at \\small, 118 at \\scriptsize)
    wide: bool  #: whether the table is too wide for every font size

    @classmethod
    def of(cls, grid: Grid) -> _Unescaped:
        label = re.sub("[^0-9A-Za-z]+", "-", plain(grid.id))
        return cls(f"tab:{label}", plain(grid.command), *_size(grid))


def _float(grid: Grid, unescaped: _Unescaped, full: bool) -> str:
    body = _tabular(grid, r"\tiny" if "script" in unescaped.size else r"\scriptsize")
    if unescaped.wide:  # inside another tabular, whose width threeparttable can measure
        body = f"\\begin{{tabular}}{{@{{}}c@{{}}}}\n{_SHRUNK}{{{body}}}\n\\end{{tabular}}\n"
    said = [*brief(grid, escape), *(rf"\textbf{{Problem:}} {text}" for text in grid.problems)]
    if full:
        items = [*(("", text) for text in (*said, *grid.notes)), *grid.footnotes]
        items += [("", rf"\textit{{{text}}}: {verdict}.") for text, verdict in claims(grid)]
        notes = [rf"\item[{letters}] {text}" for letters, text in items]
        body = "\n".join([_WITH_NOTES, body + _NOTES, *notes, r"\end{tablenotes}", r"\end{threeparttable}", ""])
    else:
        body += "\n".join([_BELOW, *(rf"\par {text}" for text in said), r"\end{minipage}", ""])
    named = grid.id + (f", {grid.scope}" if grid.scope else "")
    lines = [
        "\\begin{table}[!htb]",
        "\\centering",
        f"\\caption{{{grid.caption} ({named}).}}",
        f"\\label{{{unescaped.label}}}",
        unescaped.size,
        body + "\\end{table}",
        *([f"% To fill it: {unescaped.command}"] if unescaped.command else []),
        "",
    ]
    return "\n".join(lines)


def _tabular(grid: Grid, small: str = r"\scriptsize") -> str:
    """The tabular without its float; needs the package booktabs. `small`: the font size of texts after a value."""
    stubs = grid.keys or (grid.stub,)
    out = [f"\\begin{{tabular}}{{{'l' * len(stubs)}{'c' * len(grid.heads)}}}", "\\toprule"]
    if grid.groups:
        names, rules, start = [], [], len(stubs) + 1
        for group, span in grid.groups:
            names.append(rf"\multicolumn{{{span}}}{{c}}{{{group}}}")
            if group:
                rules.append(rf"\cmidrule(lr){{{start}-{start + span - 1}}}")
            start += span
        out += [f"{' &' * len(stubs)} {' & '.join(names)} \\\\", "".join(rules)]
    out += [f"{' & '.join([*stubs, *(grid.heading(h) for h in grid.heads)])} \\\\", "\\midrule"]
    before = False
    for line in grid.lines:
        if line.ours and not before:
            out.append("\\midrule")
        before = line.ours
        cells = [*(line.keys or [_label(line)]), *(_cell(line, e, small) for e in line.entries)]
        out.append(f"{' & '.join(cells)} \\\\")
    return "\n".join([*out, "\\bottomrule", "\\end{tabular}", ""])


def _label(line: Line) -> str:
    if line.kind == "reported":
        return rf"\quad{{\itshape {line.label}}}"
    return line.label + (rf"\tnote{{{line.mark}}}" if line.mark else "")


def _cell(line: Line, entry: Entry, small: str) -> str:
    if not entry.text:
        return escape(shown(line, entry))
    text = entry.text
    if entry.rank:
        text = rf"\textbf{{{text}}}" if entry.rank == 1 else rf"\underline{{{text}}}"
    text += rf"\,({escape(entry.times)})" if entry.times else ""
    text += rf"{{{small}$\,\pm\,${entry.spread}}}" if entry.spread else ""
    if line.kind == "reported":
        off = rf" {{{small}({escape(entry.delta)})}}" if entry.delta else ""
        return rf"{{\itshape {text}{off}}}"
    return text + (rf"$^{{{''.join(map(_MARKS.__getitem__, entry.mark))}}}$" if entry.mark else "")


def _size(grid: Grid) -> tuple[str, bool]:
    """(`_Unescaped.size`, `_Unescaped.wide`) of a grid."""
    columns = zip(*(line.entries for line in grid.lines), strict=True)
    widths = [
        max([len(grid.heading(h)), *(len(e.text + e.times + e.delta + e.spread) + 3 for e in column)])
        for h, column in zip(grid.heads, columns, strict=True)
    ]
    width = max(len("   ".join(line.keys) or line.label) for line in grid.lines) + sum(widths)
    gap = rf"\setlength{{\tabcolsep}}{{{2.5 if len(widths) > 7 else 3.5}pt}}" if width > 75 else ""
    size = r"\small" if width <= 85 else r"\footnotesize" if width <= 92 else r"\scriptsize"
    return size + gap, width > 118
