"""Data sets of real images, each built once a session: in one store, which the session's processes share."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fedbench.data import Dataset, from_artifact, obtain, resolve
from fedbench.files import alone
from fedbench.store import Artifact, Store


class RealImages:
    """The store in this folder; `root` holds the files of the data sets."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.store, self.root = folder, Store(folder / "store"), root

    def artifact(self, name: str) -> Artifact:
        """The data set's artifact, built by whoever asks first while the others wait."""
        with alone(self.folder):
            return obtain(resolve(name, self.store, [self.root]), self.store, [self.root])

    def load(self, name: str) -> Dataset:
        """The data set itself."""
        return from_artifact(self.artifact(name))

    def lend(self, home: Path, *names: str) -> None:
        """Put the data sets into a test's own store; their files are the same ones, under a second name."""
        Store(home).prepare()
        for name in names:
            built = self.artifact(name).path
            shutil.copytree(built, home / "dataset" / built.name, copy_function=os.link)
