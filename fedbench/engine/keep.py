"""What a run stores in addition to its predictions (`--keep model`): its models.

They are a further file of the run's artifact and not part of its id.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from fedbench.errors import FedbenchError
from fedbench.store import Artifact
from fedbench.words import size

if TYPE_CHECKING:
    from fedbench.core.checkpoint import Checkpoint
    from fedbench.core.kept import Models
    from fedbench.methods.base import Method
    from fedbench.specs import Setting
    from fedbench.store import Store, Writer

#: The value of --keep.
MODEL = "model"
#: The file of the models in the run's artifact.
FILE = "models.safetensors"


def parsed(text: str | None) -> frozenset[str]:
    """What --keep asks for: {MODEL}, or nothing. Raises FedbenchError for another value."""
    if text and text != MODEL:
        raise FedbenchError(f"--keep takes {MODEL}, not '{text}'")
    return frozenset({MODEL} if text else ())


def of(run: Artifact) -> frozenset[str]:
    """What a run stores: {MODEL}, or nothing."""
    return frozenset({MODEL} if FILE in run.manifest["files"] else ())


def estimate(setting: Setting, method: Method, keep: Collection[str], store: Store) -> str:
    """A text of what a run will store and its maximal size; "" if nothing. The partition must be in the store."""
    if MODEL not in keep:
        return ""
    from fedbench import data, models, partitions
    from fedbench.core.state import size_in_bytes

    part = partitions.build(setting.partition, store)
    shape = part.image_shape(data.info(setting.partition.dataset, store).shape)
    one = size_in_bytes(dict(models.initial(setting, shape, len(part.classes)).state_dict()))
    most = one * (1 + part.clients * (1 + len(method.personal_models)))
    return f"keeps its models (the server's, and of clients what is their own: {size(one)} to {size(most)})"


def line(run: Artifact) -> str:
    """A text of what a run stores, with its size on disk; "" if nothing."""
    return f"keeps {MODEL} ({size(run.manifest['files'][FILE]['bytes'])})" if of(run) else ""


def require(run: Artifact) -> None:
    """Raise FedbenchError unless the run stores its models."""
    if not of(run):
        raise FedbenchError(
            f"run {run.id} was made without its {MODEL}",
            f"train it once more, by its own command with --keep {MODEL} --again; its predictions stay as they are",
        )


def models_of(run: Artifact) -> Models:
    """Read the models that a run stores. Raises FedbenchError if it stores none."""
    require(run)
    from fedbench.core.kept import Models

    return Models.read(run.file(FILE))


def write(checkpoint: Checkpoint, writer: Writer) -> str:
    """Add the checkpoint's models to a run's artifact; return a remark if they were asked for and are not there."""
    models = checkpoint.models()
    if models is not None:
        writer.file(FILE, models)
    missing = models is None and MODEL in checkpoint.keep
    return f"the run has no {MODEL}: it was over when this was asked for" if missing else ""
