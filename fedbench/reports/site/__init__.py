"""A site of HTML pages that load nothing from other hosts: the benchmark (`benchmark.pages`: papers, methods and
leaderboards) and the notebook of any runs (`pages.pages`: an index, and one page per run). Both use `page`, which has
their style and script, and `page.e`, which escapes every text; pictures are those of `reports.figures`.
"""

from __future__ import annotations
