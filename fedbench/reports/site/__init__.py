"""The lab notebook: an index of all runs, and a page a run; self-contained HTML, nothing loaded from anywhere.

`pages.pages` yields the files, of two sorts, in the frame of `page`; `pictures` draws a run's numbers as SVG. Every
text goes through `page.e`.
"""

from __future__ import annotations
