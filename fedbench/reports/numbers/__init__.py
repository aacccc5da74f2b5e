"""The number of a cell: measured in runs (`measured`, `pairs`), derived from other cells, or counted without a run."""
