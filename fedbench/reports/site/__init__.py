"""The lab notebook: an index of all runs, and a page a run; self-contained HTML, nothing loaded from anywhere.

`pages.pages` yields the files; `index` and `run` write the two sorts of pages in the frame of `page`; `pictures` makes
of a run's numbers what `svg` draws. Every text goes through `page.e`.
"""

from __future__ import annotations
