"""Any runs side by side: their numbers over seeds (`comparison`), laid out (`layout`), tested in pairs (`pairs`), and
ranked over several data sets and partitions (`ranks`).

Which numbers there are is said in `numbers`, which runs are about the same data in `places`; `significance` knows
nothing of runs.
"""

from __future__ import annotations
