"""A table's declaration: `load` reads its TOML (also families: many tables in one file), `spec` has the types and the
paper's numbers, `check` the checks.

`claims` checks the paper's claims about a table, `cost` has the formulas of FLUX's Table 7, which a table may print.
"""

from __future__ import annotations

from fedbench.planner.table.load import families, headline, is_table, load, names, of_names, on_dataset

__all__ = ["families", "headline", "is_table", "load", "names", "of_names", "on_dataset"]
