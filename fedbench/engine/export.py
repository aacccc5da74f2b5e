"""Export the models that a run has stored: state dicts, and one JSON file that says how to load them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench import models
from fedbench.engine import keep as keeping
from fedbench.errors import FedbenchError
from fedbench.files import whole_folder
from fedbench.partitions.transforms import Transform
from fedbench.specs import RunSpec
from fedbench.store import Artifact, Store

if TYPE_CHECKING:
    from fedbench.core.kept import Models, Predicts
    from fedbench.core.state import State
    from fedbench.models.base import FLModel
    from fedbench.partitions import Partition

#: The ending of a file of tensors, and the file that describes all of them.
ENDING, ABOUT = ".safetensors", "models.json"
#: The file of all tensors that are not in a file of their network.
REST = "rest"
_INPUT = {
    "images": "[B, C, H, W]: (pixels / 255 - mean) / std, channel by channel",
    "vectors": "[B, D, 1, 1]: (values - mean) / std, component by component, in float64 and then float32",
}


def export(run: Artifact, folder: Path, store: Store, roots: Sequence[Path] = ()) -> list[str]:
    """Write a run's models into a new folder, one file per model, and `models.json`. Returns the file names.

    Each file is a state dict of the run's network, with torchvision's names if the network is from torchvision: the
    server's (`model`), a cluster's (`cluster-M`), or a client's if it differs from those (`client-I`; `client-I-NAME`
    for a further personal model). All other tensors are in `rest`, under the names of core/kept.py.

    Raises FedbenchError if the run has no stored models, if `folder` is not empty, or if the run's partition (of
    vectors also the data, by whose moments they are normalised) is missing.
    """
    from safetensors.torch import save_file

    from fedbench.core.state import separate
    from fedbench.models.standard import Standard

    assert isinstance(run.spec, RunSpec)
    them = keeping.models_of(run)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedbenchError(f"{folder} exists already", "choose a new folder")
    partition, shape = _seen(run, store)
    network = models.initial(run.spec.setting, shape, len(partition.classes))
    files = states(them, list(network.state_dict()))
    about = {
        "run": run.id,
        "method": run.spec.method,
        "network": run.spec.setting.model,
        "build": build(run.spec.setting.model, shape, len(partition.classes)),
        "shape": shape,
        "classes": partition.classes,
        "multi_label": partition.multi_label,
        "input": _INPUT[partition.spec.dataset.samples],
        **(_moments(partition, store, roots) if partition.spec.dataset.vectors else normalisation(network, shape[2])),
        "files": {f"{name}{ENDING}": _title(name) for name in files},
        "clients": [
            answers(how, i, files) | (normalisation(network, shape[2], seen) if seen.mean is not None else {})
            for i, (how, seen) in enumerate(zip(them.clients, partition.transforms, strict=True))
        ],
        "spec": run.spec.to_dict(),
    }
    if isinstance(network, Standard):  # with torchvision's names
        files |= {name: network.as_torchvision(state) for name, state in files.items() if name != REST}
    with whole_folder(folder, "exporting models", "--output") as part:
        for name, state in files.items():
            save_file(separate(state), part / f"{name}{ENDING}")
        (part / ABOUT).write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return sorted(path.name for path in folder.iterdir())


def _seen(run: Artifact, store: Store) -> tuple[Partition, tuple[int, int, int]]:
    """The run's partition, and (height, width, channels) of an image as its clients see it."""
    from fedbench import data
    from fedbench.partitions.tables import read

    assert isinstance(run.spec, RunSpec)
    spec = run.spec.setting.partition
    part = store.whole(spec)
    if part is None:
        raise FedbenchError(f"partition {spec.id} of run {run.id} is not in this store", "make it again, and export")
    partition = read(part)
    return partition, partition.image_shape(data.info(spec.dataset, store).shape)


def build(model: str, shape: tuple[int, int, int], classes: int) -> str:
    """The Python expression that builds the network whose state dict the files are; of a user's network the class."""
    if model.startswith("torchvision:"):
        return f'torchvision.models.get_model("{model.split(":")[1]}", num_classes={classes})'
    if "@" in model:
        return f"{model.split('@')[0]}({shape}, {classes})"
    return f'fedbench.models.build("{model}", shape={shape}, classes={classes}, seed=0)'


def normalisation(network: FLModel, channels: int, seen: Transform | None = None) -> dict[str, list[float]]:
    """`mean` and `std` of each channel, for pixels in [0, 1], by which images become inputs of the exported network;
    `seen`: how a client with a normalisation of its own sees them, else the trainer's 0.5 and 0.5.

    torchvision's own network lacks the first layer of `Standard`, so what that layer does is part of these numbers; for
    grey images they are three channels, because it takes the grey one three times.
    """
    import numpy as np

    from fedbench.models.standard import MEAN, STD, Standard

    seen = seen or Transform(mean=(0.5,) * channels, std=(0.5,) * channels)
    mean, std = np.array(seen.mean), np.array(seen.std)
    if isinstance(network, Standard):
        mean, std = mean + std * (2 * np.array(MEAN) - 1), 2 * std * np.array(STD)
    return {"mean": mean.round(9).tolist(), "std": std.round(9).tolist()}


def _moments(partition: Partition, store: Store, roots: Sequence[Path]) -> dict[str, list[float]]:
    from fedbench import data

    dataset = data.load(partition.spec.dataset, store, roots)
    mean, std = partition.moments(dataset)
    return {"mean": (mean.astype(float) + (dataset.offset or 0.0)).tolist(), "std": std.tolist()}


def _title(file: str) -> str:
    kind, _, rest = file.partition("-")
    number, _, model = rest.partition("-")
    titles = {
        "model": f"the server's model {rest}".rstrip(),
        "cluster": f"the model of cluster {number}",
        "client": f"what client {number} answers with",
        REST: "what is no network of its own: the method's variables and what it has beside the network",
    }
    return titles[kind] + (f", its model '{model}'" if model else "")


def answers(how: Predicts, client: int, files: Mapping[str, State]) -> dict[str, Any]:
    """The files by which a client (from 0) answers, and how."""
    if how.alone:
        return {"files": [], "answers": how.alone}
    found = []
    for model in how.models:
        ending = f"-{model}" if model else ""
        shared = f"cluster-{how.cluster}" if how.cluster is not None else f"model{ending}"
        found += [f"{name}{ENDING}" for name in (f"client-{client}{ending}", shared) if name in files][:1]
    return {"files": found, "answers": how.output}


def states(them: Models, network: list[str]) -> dict[str, State]:
    """File name -> state dict. `network`: the names in the network's state dict."""
    from fedbench.core.state import model_in

    out: dict[str, State] = {}
    used: set[str] = set()

    def add(file: str, place: str, state: State, model: str = "") -> bool:
        """Add a file if the state has all tensors of the network; returns whether it has."""
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
