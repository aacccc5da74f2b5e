"""What a run stores in addition to its predictions (--keep): its models and its logits.

They are further files of the run's artifact and not part of its id.
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
#: Name in --keep -> file in the run's artifact.
FILES = {MODEL: "models.safetensors", LOGITS: "logits.parquet"}


def parsed(text: str | None) -> frozenset[str]:
    """The names in a value of --keep, such as 'model,logits'. Raises FedbenchError for an unknown name."""
    names = frozenset(text.split(",")) if text else frozenset()
    for name in sorted(names - FILES.keys()):
        raise FedbenchError(f"--keep takes model, logits or model,logits, not '{name}'")
    return names


def of(run: Artifact) -> frozenset[str]:
    """The names (keys of FILES) of what a run stores."""
    return frozenset(name for name, file in FILES.items() if file in run.manifest["files"])


def estimate(setting: Setting, method: Method, keep: Collection[str], store: Store) -> str:
    """A text of what a run will store and its maximal size; "" if nothing. The partition must be in the store."""
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
        views = rounds + (setting.augment == "crop")  # the last round is also evaluated on whole images
        parts.append(
            f"logits ({views} times {images} images of {classes} classes, {size(2 * views * images * classes)})"
        )
    return f"keeps {' and '.join(parts)}" if parts else ""


def line(run: Artifact) -> str:
    """A text of what a run stores, with sizes on disk; "" if nothing."""
    sizes = {name: run.manifest["files"][FILES[name]]["bytes"] for name in sorted(of(run))}
    return f"keeps {', '.join(f'{name} ({size(n)})' for name, n in sizes.items())}" if sizes else ""


def require(run: Artifact, what: Collection[str]) -> None:
    """Raise FedbenchError unless the run stores all of these (keys of FILES)."""
    if missing := sorted(set(what) - of(run)):
        raise FedbenchError(
            f"run {run.id} was made without its {' and its '.join(missing)}",
            f"train it once more, by its own command with --keep {','.join(missing)} --again; its predictions stay as "
            "they are",
        )


def models_of(run: Artifact) -> Models:
    """Read the models that a run stores. Raises FedbenchError if it stores none."""
    require(run, {MODEL})
    from fedbench.core.tables import Models

    return Models.read(run.file(FILES[MODEL]))


def write(checkpoint: Checkpoint, writer: Writer) -> str:
    """Add the checkpoint's models and logits to a run's artifact; return a remark if one is missing, else ""."""
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
