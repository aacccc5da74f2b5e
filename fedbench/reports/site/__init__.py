"""A site of HTML pages that load nothing from elsewhere: the benchmark (`benchmark.pages`: papers, methods, the arena)
and the notebook of any runs (`pages.pages`: an index and a page a run), in the frame of `page`, which has their one
style and script. `pictures` draws a run's numbers as SVG. Every text goes through `page.e`.
"""

from __future__ import annotations
