"""What a table is: read from its TOML (`load`), with all its parts typed (`spec`) and checked (`check`).

`family` has tables that are written once, `reported` what the paper prints, `claims` what it draws from that, `cost`
the formulas of FLUX's Table 7, which a table can ask for.
"""

from __future__ import annotations

from fedbench.planner.table.load import families, headline, load, names, on_dataset

__all__ = ["families", "headline", "load", "names", "on_dataset"]
