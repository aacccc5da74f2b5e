"""All runs: those of a store, and those of result packs. A pack is a Parquet file of finished runs without predictions.

`frame` is one table of all runs; `pack` is a pack's format, `packs` reads all packs; `making` writes and imports them.
"""
