"""What a run keeps in addition to its predictions (--keep): its models and its logits.

They are further files of its artifact and no part of its id; here they are parsed, found and described.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from fedbench.errors import FedbenchError
from fedbench.store import Artifact
from fedbench.words import size

if TYPE_CHECKING:
    from fedbench.core.checkpoint import Checkpoint
    from fedbench.core.tables import Models
    from fedbench.methods.base import Method
    from fedbench.specs import Setting
    from fedbench.store import Store, Writer

MODEL, LOGITS = "model", "logits"
#: What may be kept -> the file of the run's artifact.
FILES = {MODEL: "models.safetensors", LOGITS: "logits.parquet"}


def parsed(text: str | None) -> frozenset[str]:
    """What --keep asks for, such as 'model,logits'. Raises FedbenchError for anything else."""
    names = frozenset(text.split(",")) if text else frozenset()
    for name in sorted(names - FILES.keys()):
        raise FedbenchError(f"--keep takes model, logits or model,logits, not '{name}'")
    return names


def of(run: Artifact) -> frozenset[str]:
    """What a run keeps."""
    return frozenset(name for name, file in FILES.items() if file in run.manifest["files"])


def estimate(setting: Setting, method: Method, keep: Collection[str], store: Store) -> str:
    """What a run to be made will keep, and how many bytes that takes at most; "" of nothing. Its partition is there."""
    from fedbench import data, models, partitions
    from fedbench.core.state import size_in_bytes

    parts = []
    part = partitions.build(setting.partition, store)
    classes = len(part.classes)
    if MODEL in keep:
        shape = part.image_shape(data.info(setting.partition.dataset, store).shape)
        one = size_in_bytes(dict(models.initial(setting, shape, classes).state_dict()))
        parts.append(f"its models (the server's, and of clients what is their own: {size(one)} to "
                     f"{size(one * (1 + part.clients * (1 + len(method.personal_models))))})")  # fmt: skip
    if LOGITS in keep:
        rounds, images = len(setting.evaluated_rounds()), int(part.n_test.sum())
        views = rounds + (setting.augment == "crop")  # after the last round on whole images too
        parts.append(
            f"logits ({views} times {images} images of {classes} classes, {size(2 * views * images * classes)})"
        )
    return f"keeps {' and '.join(parts)}" if parts else ""


def line(run: Artifact) -> str:
    """What a run keeps, with its size on disk; "" of nothing."""
    sizes = {name: run.manifest["files"][FILES[name]]["bytes"] for name in sorted(of(run))}
    return f"keeps {', '.join(f'{name} ({size(n)})' for name, n in sizes.items())}" if sizes else ""


def require(run: Artifact, what: Collection[str]) -> None:
    """Raise FedbenchError unless the run keeps all of this."""
    if missing := sorted(set(what) - of(run)):
        raise FedbenchError(
            f"run {run.id} was made without its {' and its '.join(missing)}",
            f"train it once more, by its own command with --keep {','.join(missing)} --again; its predictions stay as "
            "they are",
        )


def models_of(run: Artifact) -> Models:
    """The models that a run keeps. Raises FedbenchError if it keeps none."""
    require(run, {MODEL})
    from fedbench.core.tables import Models

    return Models.read(run.file(FILES[MODEL]))


def write(checkpoint: Checkpoint, writer: Writer) -> str:
    """Add to a run's artifact what its checkpoint has kept; returns a remark about what it should have and has not."""
    models, has_logits = checkpoint.models(), bool(checkpoint.files("logits"))
    if models is not None:
        writer.file(FILES[MODEL], models)
    if has_logits:
        writer.table("logits", checkpoint.parts("logits"))
    there = {MODEL: models is not None, LOGITS: has_logits}
    missing = [name for name in sorted(checkpoint.keep) if not there[name]]
    if LOGITS in missing:
        return "the run has no logits: a client of its method answers by classes alone"
    return f"the run has no {missing[0]}: it was over when this was asked for" if missing else ""
