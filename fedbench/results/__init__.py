"""The runs that there are: in a store, and in result packs, which are finished runs as rows of a Parquet file, without
their predictions.

`frame` is all of them as one table; `pack` is the format of a pack, `packs` all packs at hand; `making` fills one.
"""
