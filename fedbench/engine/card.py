"""The card of exported models: where they come from, what they are worth, and how they are loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fedbench.engine.repeat import commands
from fedbench.errors import FedbenchError
from fedbench.metrics.definitions import METRICS
from fedbench.metrics.evaluate import evaluate
from fedbench.metrics.read import load
from fedbench.partitions import schemes
from fedbench.specs import RunSpec
from fedbench.store import Artifact, Store
from fedbench.words import counted

if TYPE_CHECKING:
    from fedbench.core.tables import Models

#: The metrics that a card tells, if the run has them.
_TOLD = (
    "average_accuracy", "client_accuracy_mean", "client_accuracy_std", "client_accuracy_min", "client_accuracy_max",
    "system_accuracy", "client_auc_mean", "test_loss", "calibration_error", "brier_score", "top5_accuracy",
)  # fmt: skip
_STANDARD = "torchvision:"


def card(
    run: Artifact,
    store: Store,
    them: Models,
    files: Sequence[str],
    format: str,
    shape: tuple[int, int, int],
    classes: int,
) -> str:
    """The Markdown of the card of these files, for images of (height, width, channels)."""
    spec, p = run.spec, run.provenance
    assert isinstance(spec, RunSpec)
    part, setting = spec.setting.partition, spec.setting
    sizes = "x".join(map(str, shape))
    length = counted(setting.steps, "step") if setting.steps is not None else counted(setting.epochs or 1, "epoch")
    facts = {
        "method": f"{p.get('title', spec.method)} ({spec.method}, version {spec.method_version})",
        "hyper-parameters": ", ".join(f"{k} {v}" for k, v in spec.params.items()) or "none",
        "network": f"{setting.model}, for images of {sizes} and {classes} classes",
        "data set": f"{part.dataset.name} ({part.dataset.source}), content {part.dataset.content}",
        "partition": f"{part.id}: {schemes.label(part)}, {part.clients} clients, shift {part.shift}, seed {part.seed}",
        "training": f"{setting.rounds} rounds of {length} of {setting.batch_size} images, learning rate "
        f"{setting.lr:g}, {setting.descent}, seed {setting.seed}",
        "run": f"{run.id}, made {p['started']} with {', '.join(f'{k} {v}' for k, v in p['libraries'].items())}",
    }
    lines = [f"# {p.get('title', spec.method)} on {part.dataset.name}", ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in facts.items()), ""]
    lines += ["## Files", "", *_files(them, files, format), ""]
    lines += ["## What they are worth", "", *_worth(run, store), ""]
    lines += ["## How to load one", "", *_loading(spec, f"{files[0]}.{format}", shape, classes), ""]
    lines += ["## How to make them again", ""]
    again = commands(spec)
    if again is None:
        lines += [f"The run's setting is a table's own: `fedbench show {run.id}` tells it in full, in its store.", ""]
    else:
        lines += ["```", *again[:1], f"{again[1]} --keep model", "```", ""]
    lines += ["## The data", "", *_data(part.dataset.name), ""]
    return "\n".join(lines)


def _files(them: Models, files: Iterable[str], format: str) -> list[str]:
    lines = []
    what = {
        "model": "the server's model", "cluster": "the model of cluster {}", "client": "what client {} answers with",
        "rest": "what is no network of its own: the method's variables and what it has beside the network",
    }  # fmt: skip
    for name in files:
        kind, _, rest = name.partition("-")
        number, _, further = rest.partition("-")
        text = what[kind].format(number) if kind != "model" or not rest else f"the server's model {rest}"
        lines.append(f"- `{name}.{format}`: {text}" + (f", its model '{further}'" if further else ""))
    lines.append("")
    members: dict[int, list[int]] = {}
    for i, how in enumerate(them.clients):
        if how.cluster is not None:
            members.setdefault(how.cluster, []).append(i)
    lines += [f"- cluster {m}: clients {', '.join(map(str, who))}" for m, who in sorted(members.items())]
    outputs = {
        how.alone or f"answers by `{how.output}` of its models {', '.join(repr(m) for m in how.models)}"
        for how in them.clients
        if how.alone or how.output != "logits"
    }
    lines += [f"- a client: {text}" for text in sorted(outputs)]
    lines.append("Clients count from 0. One without a file answers with its cluster's model, or else the server's.")
    return lines


def _worth(run: Artifact, store: Store) -> list[str]:
    values, rows = load(evaluate(run, store)), []
    assert isinstance(run.spec, RunSpec)
    for name in _TOLD:
        last = values.series(name, "plain").get(run.spec.setting.rounds)
        if last is not None:
            number = f"{100 * last:.2f} %" if METRICS[name].unit == "fraction" else f"{last:.4f}"
            rows.append(f"| {name} | {number} | {METRICS[name].description} |")
    return ["After the last round, on whole test images:", "", "| metric | value | what |", "|---|---|---|", *rows]


def _loading(spec: RunSpec, file: str, shape: tuple[int, int, int], classes: int) -> list[str]:
    height, width, channels = shape
    name = spec.setting.model
    pt = file.endswith(".pt")
    first = "import torch" if pt else "from safetensors.torch import load_file"
    state = f'torch.load("{file}", weights_only=True)' if pt else f'load_file("{file}")'
    if name.startswith(_STANDARD):
        from fedbench.models.standard import MEAN, STD

        network = name.split(":")[1]
        code = ["import torchvision", "", f'network = torchvision.models.get_model("{network}", num_classes={classes})']
        inputs = f"x [B, 3, {height}, {width}]: (pixels / 255 - {MEAN}) / {STD}" + (
            ", the one channel three times" if channels == 1 else ""
        )
    elif "@" in name:
        cls = name.split("@")[0]
        code = [f"from FILE import {cls}  # your file of the network", "", f"network = {cls}({shape}, {classes})"]
        inputs = f"x [B, {channels}, {height}, {width}]: pixels / 127.5 - 1"
    else:
        code = ["from fedbench import models", ""]
        code += [f'network = models.build("{name}", shape={shape}, classes={classes}, seed=0)']
        inputs = f"x [B, {channels}, {height}, {width}]: pixels / 127.5 - 1"
    code += [f"network.load_state_dict({state})", "network.eval()", f"logits = network(x)  # {inputs}"]
    return ["```python", first, *code, "```"]


def _data(name: str) -> list[str]:
    from fedbench import data

    try:
        recipe = data.recipe(name)
    except FedbenchError:
        return [f"{name} is no data set of fedbench: its licence is not on record here."]
    return [f"{recipe.title}. Licence: {recipe.licence}. Cite: {recipe.citation}"]
