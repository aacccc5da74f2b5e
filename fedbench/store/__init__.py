"""Artifacts on disk: written once, atomic, verified, listed, and claimed by one worker at a time.

Layout of a store (its home is --home, else FEDBENCH_HOME, else ~/.fedbench):

    store.json                 schema version
    current.json               which partition and run the next command means
    dataset/ID/                an artifact: artifact.json (manifest) and Parquet files (a run's models: safetensors)
    partition/ID/  run/ID/  metrics/ID/
    work/ID/                   a run under way: claim, checkpoint, log; gone when the run is complete
    failed/ID.json             why a run failed last time
    downloads/                 a data folder that `data fetch` fills

An artifact is built in a hidden folder beside its final place and renamed: existence means complete. The
manifest is sealed (it holds a checksum of itself), its spec must hash to the artifact's id, and it holds the SHA-256
of every file, checked when the file is first read: whatever was altered or truncated is one clear error. What may
differ between two makings of the same artifact (times, machine) stands only in the manifest; the Parquet files of one
spec are the same bytes wherever and however often they are made.
"""

from __future__ import annotations

from fedbench.store.artifact import MANIFEST, Artifact, DamagedError
from fedbench.store.folder import CHECKPOINT, KINDS, Contents, Store, artifact_of, default_home
from fedbench.store.writing import Writer

__all__ = [
    "CHECKPOINT",
    "KINDS",
    "MANIFEST",
    "Artifact",
    "Contents",
    "DamagedError",
    "Store",
    "Writer",
    "artifact_of",
    "default_home",
]
