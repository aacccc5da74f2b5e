r"""Grids as LaTeX: floats with booktabs for inclusion in a document, or a complete document; their numbers as macros.

What is set is what the reader of a paper needs; everything about the tool that made it stands in comments. All texts of
a grid are escaped where LaTeX is made of them (`tabular.Piece`, `text.harmless`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from itertools import chain

import fedbench
from fedbench.reports.layout import references
from fedbench.reports.layout.grid import Entry, Grid, Line, legend, only_done
from fedbench.reports.render.latex.characters import escape, packages, unset
from fedbench.reports.render.latex.tabular import Form, fitted
from fedbench.reports.render.style import Style
from fedbench.reports.render.text import brief, claims, harmless, tally
from fedbench.words import plain

_PREAMBLE = r"""\documentclass[10pt]{article}
% Needs a TeX that has the packages $NEEDS
\usepackage[a4paper,margin=18mm]{geometry}
$TABLES\pagestyle{empty}
\begin{document}
"""
#: Lines of the preamble that only tables need.
_TABLES = "\\usepackage{$PACKAGES}\n\\usepackage{caption}\n\\captionsetup{font=small,labelfont=bf}\n"

#: Before a table with all notes. The notes span the text width even if the table is narrower.
_WITH_NOTES = "\\begin{threeparttable}\n\\renewcommand{\\TPTminimum}{\\linewidth}"
_NOTES = "\\begin{tablenotes}[flushleft]\\scriptsize"


def document(grids: Sequence[Grid], notes: str, style: Style) -> str:
    r"""Each grid as a float with caption and label, for \input; or a complete document.

    Below each table is what its reader needs, with `notes` "full" all notes in a threeparttable, with "none" nothing.
    """
    body = "\n".join(_float(_with_numbers(grid, style), notes, style) for grid in grids)
    needed = ["booktabs", *(["threeparttable"] if notes == "full" else []), *packages(body)]
    body = "".join(f"% {line}\n" for line in unset(body)) + body
    if not style.standalone:
        return f"% Needs \\usepackage{{{','.join(needed)}}}\n{body}"
    return _whole(needed, body)


def _with_numbers(grid: Grid, style: Style) -> Grid:
    """The grid without rows and columns that have no number, unless all are to stay or none has one."""
    return grid if style.all_cells or not grid.numbers else only_done(grid)


def _whole(packages: Sequence[str], body: str) -> str:
    """A complete document; `packages` are those that its tables need, empty if it has none."""
    preamble = _PREAMBLE.replace("$TABLES", _TABLES.replace("$PACKAGES", ",".join(packages)) if packages else "")
    needs = ", ".join([*packages, *(["caption"] if packages else []), "geometry"])
    return preamble.replace("$NEEDS", needs) + body + "\\end{document}\n"


def appendix(grids: Sequence[Grid], standalone: bool) -> str:
    r"""The sections of the grids' appendices, for \input; sections that are equal in all come once, at the start.

    They \cite what `bibtex` has, which a complete document writes to a file beside it.
    """
    of = [harmless(grid, _with_citations) for grid in grids]
    shared = [section for section in of[0].appendix if len(of) > 1 and all(section in one.appendix for one in of)]
    parts = [("All tables", shared)] if shared else []
    parts += [(f"Table {one.id}: {one.caption}", [s for s in one.appendix if s not in shared]) for one in of]
    out = ["\\begingroup\\small\\sloppy"]
    for title, sections in parts:
        out.append(f"\\subsection*{{{title}}}")
        for heading, lines in sections:
            items = [rf"\item {line}" for line in lines] if len(lines) > 1 else []
            listed = ["\\begin{itemize}\\setlength{\\itemsep}{0pt}", *items, "\\end{itemize}"] if items else lines
            out += [rf"\paragraph{{{heading}}}", *listed]
    body = "\n".join([*out, "\\par\\endgroup", ""])
    entries = bibtex(grids)
    if standalone:
        file = f"\\begin{{filecontents*}}[overwrite]{{\\jobname.bib}}\n{entries}\\end{{filecontents*}}\n"
        return file + _whole([], f"{body}\\bibliographystyle{{plain}}\n\\bibliography{{\\jobname}}\n")
    cited = [
        "% The entries that it cites (-f bibtex writes them to a file):",
        *(f"% {x}" for x in entries.splitlines()),
    ]
    return body + "\n".join([*cited, ""])


def _with_citations(text: str) -> str:
    r"""A text, escaped, with `[@key,key]` as \cite where these are keys of references."""
    known = references.every()
    parts = re.split(r" ?\[@([A-Za-z0-9:._,-]+)\]", text)
    cites = [
        rf"~\cite{{{keys}}}" if {*keys.split(",")} <= known.keys() else escape(f" [@{keys}]") for keys in parts[1::2]
    ]
    texts = [escape(part) for part in parts[::2]]
    return "".join(chain.from_iterable(zip(texts, [*cites, ""], strict=True)))


def bibtex(grids: Sequence[Grid]) -> str:
    """BibTeX: an entry for each method, data set and paper behind the tables, and for fedbench, each once."""
    keys = dict.fromkeys(key for grid in grids for key in grid.references)
    entries = []
    for kind, key, of in references.bibtex(keys):
        fields = "".join(f"  {name} = {{{_field(text)}}},\n" for name, text in of.items())
        entries.append(f"@{kind}{{{key},\n{fields}}}\n")
    return "\n".join(entries)


def _field(text: str) -> str:
    """A field's text, in which braces keep capitals."""
    return "".join(part if part in ("{", "}") else escape(part) for part in re.split("([{}])", text))


def _float(grid: Grid, notes: str, style: Style) -> str:
    form = Form(style.spread or grid.spread, exchanged=grid.exchanged)
    table = fitted(grid, style.width, form, _citation if style.cite else None)
    body = table.latex
    if notes == "full":
        body = _annotated(grid, body)
    elif notes == "brief" and (said := " ".join(map(escape, map(plain, _for_reader(grid, form))))):
        body += f"\n\\par\\smallskip\n\\parbox{{\\linewidth}}{{\\footnotesize\\raggedright {said}}}"
    star = "*" if table.wide else ""
    caption = dataclasses.replace(grid, title=grid.topic or grid.title).caption
    label = re.sub("[^0-9A-Za-z]+", "-", plain(grid.name or grid.id)).strip("-")
    lines = [
        f"\\begin{{table{star}}}[{'t' if table.wide else 'htb'}]",
        r"\centering",
        rf"\caption{{{escape(plain(caption))}.}}",
        rf"\label{{tab:{label}}}",
        table.size,
        body,
        rf"\end{{table{star}}}",
        *(f"% {plain(text)}" for text in _comments(grid, table.steps, notes)),
    ]
    return "\n".join(lines) + "\n"


def _citation(line: Line) -> str:
    return ",".join(line.cites)


def _annotated(grid: Grid, body: str) -> str:
    """The tabular with all notes below it."""
    safe = harmless(grid, escape)
    about = [*([safe.basis] if safe.basis else []), *brief(safe, escape), *safe.notes]
    items = [*(("", text) for text in about), *safe.footnotes]
    items += [("", rf"\textit{{{text}}}: {verdict}.") for text, verdict in claims(safe)]
    notes = [rf"\item[{letters}] {text}" for letters, text in items]
    # Inside another tabular, threeparttable can measure what is continued below itself, too.
    whole = f"\\begin{{tabular}}{{@{{}}c@{{}}}}\n{body}\n\\end{{tabular}}" if r"\par" in body else body
    return "\n".join([_WITH_NOTES, whole, _NOTES, *notes, r"\end{tablenotes}", r"\end{threeparttable}"])


def _for_reader(grid: Grid, form: Form) -> list[str]:
    """What the reader of a paper needs below a table: the meaning of its marks, and what its numbers are."""
    ranked = [entry for entry in grid.numbers if entry.rank]
    best = "Bold: best" + (", and all within two standard errors of it" if any(map(_noisy, ranked)) else "")
    marks = [best + ("; underlined: second." if any(e.rank == 2 for e in ranked) else ".")] if ranked else []
    compared = any(line.kind == "reported" for line in grid.lines)
    signs = [
        f"{sign} {meaning}."
        for sign, meaning in legend(grid)
        if (compared and sign == "*") or any(sign in grid.mark(e) for e in grid.numbers)
    ]
    beside = compared and any(entry.offset for entry in grid.numbers)
    differences = ["In parentheses beside a reported number: ours less the paper's."] if beside else []
    return [*marks, *differences, *signs, *(_of_spread(text, form.spread) for text in grid.reader)]


def _of_spread(text: str, spread: str) -> str:
    """A sentence in whose words a ± is as it is printed: in parentheses, or not at all."""
    if spread == "none":
        text = "; ".join(part for part in text.split("; ") if not part.startswith("±"))
    elif spread == "paren":
        text = text.replace("± is the", "in parentheses is the")
    return text[:1].upper() + text[1:]


def _noisy(entry: Entry) -> bool:
    return bool(entry.value and entry.value.noise)


def _comments(grid: Grid, said: Sequence[str], notes: str) -> list[str]:
    """What an author wants to know of a table, and its reader does not."""
    name = f"fedbench {fedbench.__version__}, {grid.id}" + (f", {grid.scope}" if grid.scope else "")
    more = [] if notes == "full" else [*([grid.basis] if grid.basis else []), *grid.about, *tally(grid)]
    return [
        f"Made by {name}.",
        *([f"To fit the width: {'; '.join(said)}."] if said else []),
        *more,
        *(f"No number: {text}." for text in grid.absent),
        *([f"To fill them: {grid.command}"] if grid.command else []),
        *(f"Problem: {text}" for text in grid.problems),
        *grid.makers,
        *([f"Mind: {'; '.join(grid.cautions)}."] if grid.cautions else []),
    ]
