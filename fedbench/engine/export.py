"""Export a run's stored models: plain state dicts, and a model card that describes them."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench import models, protocol
from fedbench.engine import keep as keeping
from fedbench.errors import FedbenchError, check_known
from fedbench.files import whole_folder, write_whole
from fedbench.groups import by_key
from fedbench.methods import declarations
from fedbench.metrics.definitions import METRICS
from fedbench.metrics.evaluate import evaluate
from fedbench.metrics.read import load
from fedbench.partitions import schemes
from fedbench.specs import PartitionSpec, RunSpec, Setting
from fedbench.specs.base import typed
from fedbench.store import Artifact, Store
from fedbench.words import counted, option_of

if TYPE_CHECKING:
    from fedbench.core.state import State
    from fedbench.core.tables import Models


# -- repeat ----------------------------------------------------------------------------------------------------
# The commands that train a run, from its spec alone.


def commands(spec: RunSpec) -> list[str] | None:
    """The commands that make a run's partition and train the run; None if no options of `train` give its setting, which
    can be the case for a table's run."""
    trained = _train(spec)
    return None if trained is None else [_partition(spec.setting.partition), trained]


def _partition(spec: PartitionSpec) -> str:
    # The shift is always named, because protocols can have another default.
    values = {name: (getattr(spec, f.name), f.default) for name, f in typed(PartitionSpec).items()}
    options = {name: value for name, (value, usual) in values.items() if value != usual or name == "shift"}
    own = dict(spec.options)
    if schemes.at_hand(spec):
        of = schemes.of(spec)
        own = {name: getattr(of, f.name) for name, f in of.options().items() if getattr(of, f.name) != f.default}
    return _command(["partition", spec.dataset.name], {"scheme": spec.scheme, **options, **own})


def _train(spec: RunSpec) -> str | None:
    """The shortest command, over all protocols and budgets."""
    setting = spec.setting
    method = spec.method if spec.source is None else f"FILE.py:{spec.method}"
    candidates = []
    for name in protocol.names():
        rules = protocol.load(name)
        for budget in rules.budgets:
            values = _options(rules, budget, setting)
            if values is not None:
                candidates.append((len(values), name != protocol.DEFAULT, name, budget, values, rules))
    if not candidates:
        return None
    _, _, name, budget, values, rules = min(candidates, key=lambda one: one[:4])
    usual = rules.method_params(spec.method, budget, setting.partition.dataset.name)
    if spec.source is None:  # a user's file gets all values
        usual = {**declarations.of(spec.method).defaults, **usual}
    own = {k: v for k, v in spec.params.items() if v != usual.get(k)}
    options = {"partition": setting.partition.id, "protocol": name, "budget": budget, **values, **own}
    return _command(["train", "--method", method], options)


def _options(rules: protocol.Protocol, budget: str, setting: Setting) -> dict[str, Any] | None:
    """The options that turn a protocol's budget into this setting, or None if that is impossible."""
    try:
        usual = rules.setting(setting.partition, budget, model=setting.model)
        values = {name: getattr(setting, name) for name in typed(Setting)}
        options = {name: value for name, value in values.items() if value is not None and value != getattr(usual, name)}
        if rules.setting(setting.partition, budget, **{**options, "model": setting.model}) != setting:
            return None
    except FedbenchError:
        return None
    with contextlib.suppress(FedbenchError):  # if the protocol has no model for the data set
        if rules.setting(setting.partition, budget, **options) == setting:
            return options
    return {**options, "model": setting.model}


def _command(words: list[str], options: Mapping[str, Any]) -> str:
    for name, value in options.items():
        option = option_of(name)
        if isinstance(value, bool):
            words += [option] if value else []
        else:
            words += [option, ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)]
    return shlex.join(["fedbench", *words])


# -- card ------------------------------------------------------------------------------------------------------
# The card of exported models: their origin, their metrics, and how to load them.


#: The metrics on a card, if the run has them.
CARD_METRICS = (
    "average_accuracy", "client_accuracy_mean", "client_accuracy_std", "client_accuracy_min", "client_accuracy_max",
    "system_accuracy", "client_auc_mean",
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
    """The Markdown text of the card of these files; `shape`: (height, width, channels) of images."""
    spec, p = run.spec, run.provenance
    assert isinstance(spec, RunSpec)
    part, setting = spec.setting.partition, spec.setting
    seen = f"vectors of {shape[2]} values" if part.dataset.vectors else f"images of {'x'.join(map(str, shape))}"
    length = counted(setting.steps, "step") if setting.steps is not None else counted(setting.epochs or 1, "epoch")
    facts = {
        "method": f"{p.get('title', spec.method)} ({spec.method}, version {spec.method_version})",
        "hyper-parameters": ", ".join(f"{k} {v}" for k, v in spec.params.items()) or "none",
        "network": f"{setting.model}, for {seen} and {classes} classes",
        "data set": f"{part.dataset.name} ({part.dataset.source}), content {part.dataset.content}",
        "partition": f"{part.id}: {schemes.label(part)}, {part.clients} clients, shift {part.shift}, seed {part.seed}",
        "training": f"{setting.rounds} rounds of {length} of {setting.batch_size} {part.dataset.samples}, "
        f"learning rate {setting.lr:g}, {setting.descent}, seed {setting.seed}",
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
    members = by_key((how.cluster, i) for i, how in enumerate(them.clients) if how.cluster is not None)
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
    for name in CARD_METRICS:
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
    if spec.setting.partition.dataset.vectors:
        rows = f"the rows that partition {spec.setting.partition.id} trains on (Partition.moments)"
        inputs = f"x [B, {channels}, 1, 1]: each value less its mean, by its standard deviation, over {rows}"
    code += [f"network.load_state_dict({state})", "network.eval()", f"logits = network(x)  # {inputs}"]
    return ["```python", first, *code, "```"]


def _data(name: str) -> list[str]:
    from fedbench import data

    try:
        recipe = data.recipe(name)
    except FedbenchError:
        return [f"{name} is no data set of fedbench: its licence is not on record here."]
    return [f"{recipe.title}. Licence: {recipe.licence}. Cite: {recipe.citation}"]


# -- export ----------------------------------------------------------------------------------------------------


FORMATS = ("safetensors", "pt")


def export(run: Artifact, folder: Path, store: Store, format: str | None = None) -> list[str]:
    """Write a run's models into a new folder, one file per model, with their card README.md. Returns the file names.

    Each file is a state dict of the run's network, with torchvision's names if the network is from torchvision: the
    server's (`model`), a cluster's (`cluster-M`), or a client's if it differs from those (`client-I`; `client-I-NAME`
    for a further personal model). All other tensors are in `rest`, under the names of core/tables.py.

    Raises FedbenchError if the run has no stored models, or if `folder` is not empty.
    """
    import torch
    from safetensors.torch import save_file

    from fedbench.core.state import separate
    from fedbench.models.standard import Standard

    format = format or FORMATS[0]
    check_known("format of models", format, FORMATS)
    assert isinstance(run.spec, RunSpec)
    them = keeping.models_of(run)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedbenchError(f"{folder} is there already", "choose a new folder")
    shape, classes = image_of(run, store)
    network = models.initial(run.spec.setting, shape, classes)
    files = states(them, list(network.state_dict()))
    if isinstance(network, Standard):  # with torchvision's names
        files |= {name: network.as_torchvision(state) for name, state in files.items() if name != REST}
    with whole_folder(folder, "exporting models", "--output") as part:
        for name, state in files.items():
            if format == "pt":
                torch.save(dict(separate(state)), part / f"{name}.pt")
            else:
                save_file(separate(state), part / f"{name}.safetensors")
        text = card(run, store, them, [*files], format, shape, classes)
        write_whole(part / "README.md", text.encode())
    return sorted(path.name for path in folder.iterdir())


#: The file of all tensors that are not in a file of their network.
REST = "rest"


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


def image_of(run: Artifact, store: Store) -> tuple[tuple[int, int, int], int]:
    """(height, width, channels) of the run's images, and its classes. Raises FedbenchError if the data are missing."""
    from fedbench import data
    from fedbench.partitions.tables import read

    assert isinstance(run.spec, RunSpec)
    spec = run.spec.setting.partition
    part = store.whole(spec)
    if part is None:
        raise FedbenchError(f"partition {spec.id} of run {run.id} is not in this store", "make it again, and export")
    partition = read(part)
    return partition.image_shape(data.info(spec.dataset, store).shape), len(partition.classes)
