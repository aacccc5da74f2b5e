"""What a table is: read from its TOML (`load`, with families: tables that are written once), all its parts typed
(`spec`, with what the paper prints) and checked (`check`).

`claims` is what the paper draws from its numbers, `cost` the formulas of FLUX's Table 7, which a table can ask for.
"""

from __future__ import annotations

from fedbench.planner.table.load import families, headline, load, names, of_names, on_dataset

__all__ = ["families", "headline", "load", "names", "of_names", "on_dataset"]
