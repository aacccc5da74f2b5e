"""Result packs: finished runs as rows of a Parquet file that travels without their predictions.

`pack` is the format, `seal` shows that nobody has edited it, `shipped` is a run out of one, `shelf` all packs at hand;
`making` puts runs into one, and `checksum` tells whether two trainings gave the same predictions.
"""
