"""Long lists: plain columns, at once where rich's tables take milliseconds a line."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from fedbench.plain import plain

#: Between two columns.
GAP = "  "


def columns(
    console: Console, rows: Sequence[Mapping[str, str]], right: Collection[str] = (), spare: Sequence[str] = ()
) -> None:
    """Print rows, which map headings to texts, under bold headings; the columns `right` end at the right.

    A column without any text is left out, and on a terminal that is too narrow the columns `spare`, the first one
    first.
    """
    cells = {heading: [heading, *(plain(row[heading]) for row in rows)] for heading in rows[0]}
    cells = {heading: texts for heading, texts in cells.items() if any(texts[1:])}
    widths = {heading: max(map(cell_len, texts)) for heading, texts in cells.items()}
    for heading in spare if console.is_terminal else ():
        if sum(widths.values()) + len(GAP) * (len(widths) - 1) <= console.width:
            break
        widths.pop(heading, None)
    padded = []
    for heading, width in widths.items():
        room = [" " * (width - cell_len(text)) for text in cells[heading]]
        pairs = zip(room, cells[heading], strict=True)
        padded.append([space + text if heading in right else text + space for space, text in pairs])
    head, *lines = (GAP.join(line).rstrip() for line in zip(*padded, strict=True))
    console.print(Text(head, "bold"), soft_wrap=True)
    console.print(Text("\n".join(lines)), soft_wrap=True)
