"""Artifacts on disk: written once, atomic, verified, listed, and claimed by one worker at a time.

Layout of a store (its home is --home, else FEDBENCH_HOME, else ~/.fedbench):

    store.json                 schema version
    current.json               which partition and run the next command means
    dataset/ID/                an artifact: artifact.json (manifest) and Parquet files (models: safetensors)
    partition/ID/  run/ID/  metrics/ID/
    work/ID/                   a run in progress: claim, checkpoint, log; deleted when the run is complete
    failed/ID.json             why the last attempt at a run failed
    failed/ID.pt               with --debug, the step at which one of its clients failed
    downloads/                 a data folder that `data fetch` fills
    results/                   result packs of others
    compiled/                  code that torch has compiled on a GPU; no part of a copy
    verified/                  a store of the runs that `results verify` has trained, which nothing else reads

An artifact is built in a hidden folder and then renamed: if it exists, it is complete. The manifest holds a checksum of
itself and the SHA-256 of every file, checked when the file is first read; its spec must hash to the artifact's id. An
altered or truncated file gives one clear error. Only the manifest holds what may differ between two builds of the same
artifact (times, machine); the Parquet files of one spec have the same bytes on every build.
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
