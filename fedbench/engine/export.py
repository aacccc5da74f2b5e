"""A run's kept models as files for others: plain state dicts, and a card that says what they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedbench import models
from fedbench.engine import keep as keeping
from fedbench.engine.card import card
from fedbench.errors import FedbenchError, unknown
from fedbench.files import disk_errors, scratch, write_whole
from fedbench.specs import RunSpec
from fedbench.store import Artifact, Store

if TYPE_CHECKING:
    from fedbench.core.state import State
    from fedbench.core.tables import Models

FORMATS = ("safetensors", "pt")


def export(run: Artifact, folder: Path, store: Store, format: str | None = None) -> list[str]:
    """Write a run's models into a new folder: one file a model, and README.md, their card. Returns the files' names.

    Each file is a state dict of the run's network, under torchvision's own names if it is from there: the server's
    (`model`), a cluster's (`cluster-M`), a client's (`client-I`, `client-I-NAME` of a further model of its own) where
    it is not one of those. What is no network of the run is in `rest`, under the names of core/tables.py.

    Raises FedbenchError if the run keeps no models, or there is something at `folder`.
    """
    import torch
    from safetensors.torch import save_file

    from fedbench.core.state import separate

    format = format or FORMATS[0]
    if format not in FORMATS:
        raise unknown("format of models", format, FORMATS)
    assert isinstance(run.spec, RunSpec)
    them = keeping.models_of(run)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedbenchError(f"{folder} is there already", "choose a new folder")
    shape, classes = image_of(run, store)
    network = models.initial(run.spec.setting, shape, classes)
    files = states(them, list(network.state_dict()))
    named = {name: _spoken(network, state) if name != REST else state for name, state in files.items()}
    part = scratch(folder)
    with disk_errors("exporting models", folder.parent):
        part.mkdir(parents=True)
        for name, state in named.items():
            if format == "pt":
                torch.save(dict(separate(state)), part / f"{name}.pt")
            else:
                save_file(separate(state), part / f"{name}.safetensors")
        text = card(run, store, them, [*named], format, shape, classes)
        write_whole(part / "README.md", text.encode())
        if folder.is_dir():
            folder.rmdir()
        part.replace(folder)
    return sorted(path.name for path in folder.iterdir())


#: The file of what is no network of the run.
REST = "rest"


def states(them: Models, network: list[str]) -> dict[str, State]:
    """File's name -> state dict, under the network's names."""
    from fedbench.core.state import model_in

    out: dict[str, State] = {}
    used: set[str] = set()

    def add(file: str, place: str, state: State, model: str = "") -> bool:
        """Note a whole network; False if it is none."""
        tensors = model_in(state, model) if model else state
        if not all(name in tensors for name in network):
            return False
        out[file] = {name: tensors[name] for name in network}
        used.update(f"{place}/{model}/{name}" if model else f"{place}/{name}" for name in network)
        return True

    server = them.layer("server")
    add("model", "server", server)
    for model in sorted({name.split("/")[0] for name in server if "/" in name}):
        add(f"model-{model}", "server", server, model)
    for m in range(them.clusters):
        add(f"cluster-{m}", f"cluster/{m}", {**server, **them.layer(f"cluster/{m}")})
    for i, how in ((i, how) for i, how in enumerate(them.clients) if not how.alone):
        own, state = them.layer(f"client/{i}"), them.state(i)
        for model in how.models:
            mine = any(name.startswith(f"{model}/") if model else "/" not in name for name in own)
            if (mine or "model" not in out) and not (how.cluster is not None and not mine):
                add(f"client-{i}" + (f"-{model}" if model else ""), f"client/{i}", state, model)
    for place in ("initial", "server"):
        used |= {f"{place}/{name}" for name in network if any(f.startswith("client-") for f in out)}
    rest = {key: t for key, t in them.tensors.items() if key not in used}
    return out | ({REST: rest} if rest else {})


def _spoken(network: object, state: State) -> State:
    """The state under the names that others know: torchvision's, if it is their network."""
    from fedbench.models.standard import Standard

    return network.as_torchvision(state) if isinstance(network, Standard) else state


def image_of(run: Artifact, store: Store) -> tuple[tuple[int, int, int], int]:
    """(height, width, channels) of the run's images, and its classes. Raises FedbenchError if its data are gone."""
    from fedbench import data
    from fedbench.partitions.tables import read

    assert isinstance(run.spec, RunSpec)
    spec = run.spec.setting.partition
    part = store.whole(spec)
    if part is None:
        raise FedbenchError(f"partition {spec.id} of run {run.id} is not in this store", "make it again, and export")
    partition = read(part)
    return partition.image_shape(data.info(spec.dataset, store).shape), len(partition.classes)
