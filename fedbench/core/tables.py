"""The tables that a run writes, and what else it keeps where that is asked for: logits and models."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from fedbench.core.answers import Answers
from fedbench.core.client import Client, Collect, logits
from fedbench.core.federation import Federation
from fedbench.core.server import Server
from fedbench.core.state import State, compact, name_in, separate
from fedbench.data.part import as_column
from fedbench.errors import FedbenchError
from fedbench.store.writing import BYTES

if TYPE_CHECKING:
    import pyarrow as pa


# -- keep ------------------------------------------------------------------------------------------------------
# What is kept of a trained run where it is asked for: the models that answer, as one flat file of tensors.
#
#     server/NAME      what the server holds and sends around, the method's own variables included
#     cluster/M/NAME   what the clients of cluster M share
#     initial/NAME     what nobody has trained and some client answers with all the same
#     client/I/NAME    what client I answers with beyond these, personalised as it was asked last
#     extra/I/NAME     what else its answers are computed from
#
# A client's model is the first three laid over one another (initial, server, its cluster), its own part on top. Names
# are those of its state: 'head.weight', or 'own/head.weight' of a further model.


#: What may be kept: the models that answer, and what they put out for every test image.
MODEL, LOGITS = "model", "logits"
#: What a client answers by that says nothing else: its network's own outputs.
PLAIN = "logits"
#: Under which key of the file's metadata the rest stands, as JSON.
ABOUT = "fedbench"


@dataclass(frozen=True)
class How:
    """How one client answers: by which of its models, and by what that makes of them."""

    cluster: int | None  #: whose model lies over the server's
    models: tuple[str, ...] = ("",)  #: of the client's; "" is its network
    output: str = PLAIN  #: where the function of models and images is found: PLAIN, 'method:NAME' or 'MODULE:NAME'
    extras: Mapping[str, str] = field(default_factory=dict)  #: name -> the file's name of the tensor
    #: Why nobody else's images can be answered so; "" where they can.
    alone: str = ""


@dataclass(frozen=True)
class Models:
    """The models that answer at the end of a run: all tensors under the file's names, the names of the network's
    tensors, and how each client answers [M]."""

    tensors: State
    network: tuple[str, ...]
    clients: tuple[How, ...]

    def state(self, client: int) -> State:
        """What a client answers with, under the names of its state."""
        cluster = self.clients[client].cluster
        layers = ["initial", "server", *([f"cluster/{cluster}"] if cluster is not None else []), f"client/{client}"]
        return {name: t for layer in layers for name, t in self.layer(layer).items()}

    def layer(self, place: str) -> State:
        """The tensors of one place, such as 'server' or 'cluster/0', under the names of a state."""
        return {key.removeprefix(f"{place}/"): t for key, t in self.tensors.items() if key.startswith(f"{place}/")}

    def extras(self, client: int) -> State:
        """What else a client's answers are computed from."""
        return {name: self.tensors[key] for name, key in self.clients[client].extras.items()}

    @property
    def clusters(self) -> int:
        """How many there are."""
        return len({key.split("/")[1] for key in self.tensors if key.startswith("cluster/")})

    def write(self, path: Path) -> None:
        """Write them as one file of safetensors."""
        from safetensors.torch import save_file

        about = {"network": self.network, "clients": [asdict(one) for one in self.clients]}
        save_file(separate(self.tensors), path, metadata={ABOUT: json.dumps(about, sort_keys=True)})

    @classmethod
    def read(cls, path: Path) -> Models:
        """Inverse of `write`. Raises FedbenchError for another file."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt") as file:
                about = json.loads((file.metadata() or {})[ABOUT])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        except (SafetensorError, OSError, KeyError) as error:
            raise FedbenchError(f"cannot read the models {path} ({error})") from error
        clients = tuple(How(**{**one, "models": tuple(one["models"])}) for one in about["clients"])
        return cls(tensors, tuple(about["network"]), clients)


class Keeper:
    """Notes what each client answers with, as the clients are personalised, and puts it together at the end."""

    def __init__(self, server: Server, network: Iterable[str], method: object) -> None:
        self.server, self.network, self.method = server, tuple(network), method
        common = {"server": server.shared, **{f"cluster/{m}": state for m, state in enumerate(server.models)}}
        self.clients: list[How] = []
        self.own: State = {}  #: of clients, under the file's names, on the host
        self.initial: set[str] = set()  #: names of what some client answers with as it began
        #: The file's name of each tensor that is not one client's alone.
        self.places = {id(t): f"{place}/{name}" for place, state in common.items() for name, t in state.items()}

    def note(self, client: Client) -> None:
        """Keep how the next client, personalised, answers, and with which tensors of its own."""
        by = client.answers_by or Collect(logits)
        models = (by.model,) if isinstance(by.model, str) else tuple(by.model)
        names = [name_in(model, name) for model in models for name in self.network]
        state = {n: client.state[n] for n in names} if client.answer is None else client.state
        cluster = self._cluster(client.index, state)
        common = {**self.server.shared, **(self.server.models[cluster] if cluster is not None else {})}
        rest = {n: t for n, t in state.items() if t is not common.get(n)}
        initial = {n for n, t in rest.items() if n not in common and t is self.server.initial.get(n)}
        extras = {n: self.places.get(id(t), f"extra/{client.index}/{n}") for n, t in by.extras.items()}
        own = {f"client/{client.index}/{n}": t for n, t in rest.items() if n not in initial}
        if client.answer is None:  # else nobody says what of its state it answers with
            self.initial |= initial
        own |= {place: by.extras[n] for n, place in extras.items() if place.startswith("extra/")}
        output, alone = self._output(by), ""
        if client.answer is not None:
            alone = "several models answer together, or by all of the images that they are asked"
        elif not output:
            alone = f"what answers ({getattr(by.output, '__qualname__', by.output)}) stands in no module by that name"
        self.clients.append(How(cluster, models, output, extras, alone))
        self.own |= {name: compact(t.detach().cpu()) for name, t in own.items()}

    def _cluster(self, client: int, state: State) -> int | None:
        """The cluster whose tensors these are; the client's, if they are several clusters'."""
        mine = {id(t) for t in state.values()}
        having = [m for m, model in enumerate(self.server.models) if any(id(t) in mine for t in model.values())]
        assigned = self.server.assigned.get(client)
        return assigned if assigned in having else having[0] if having else None

    def _output(self, by: Collect) -> str:
        """Where the function that a client answers by can be found again; "" if nowhere."""
        if by.output is logits:
            return PLAIN
        name = getattr(by.output, "__name__", "")
        if getattr(by.output, "__self__", None) is self.method:
            return f"method:{name}"
        module = getattr(by.output, "__module__", "")
        return f"{module}:{name}" if getattr(sys.modules.get(module), name, None) is by.output else ""

    def models(self) -> Models:
        """All of them together."""
        out = {f"server/{name}": t for name, t in self.server.shared.items()}
        for m, state in enumerate(self.server.models):
            out |= {f"cluster/{m}/{name}": t for name, t in state.items()}
        out |= {f"initial/{name}": self.server.initial[name] for name in sorted(self.initial)}
        return Models(out | self.own, self.network, tuple(self.clients))


def output_of(how: How, method: Callable[[], object]) -> Callable[..., Tensor]:
    """The function that a client answers by. Raises FedbenchError if it cannot be found here."""
    if how.output == PLAIN:
        return logits
    place, _, name = how.output.partition(":")
    owner = method()  # first: its module is imported then
    function: Any = getattr(owner if place == "method" else sys.modules.get(place), name, None)
    if function is None:
        raise FedbenchError(f"the run's clients answer by {name} of {place}, which is not there any more")
    return function  # type: ignore[no-any-return]


# -- tables ----------------------------------------------------------------------------------------------------


def predictions(t: int, answers: Mapping[str, Answers], federation: Federation) -> Iterator[pa.Table]:
    """The predictions of round t, views one after another; of a view with many votes, part by part.

    With multi-label images, `label` is a list of 0 and 1 a row, and instead of the classes `own` and `test_phase`
    there are the scores of all labels, `own_scores` and `test_phase_scores`.
    """
    import pyarrow as pa

    many = federation.multi_label
    own, test_phase = ("own_scores", "test_phase_scores") if many else ("own", "test_phase")
    labels = federation.labels.cpu().numpy().astype(np.uint8 if many else np.uint16)
    having = [as_column(a.test_phase[:0]) for a in answers.values() if a.test_phase is not None]
    kind = pa.table([having[0]], [test_phase]).schema.field(0).type if having else None
    for view, a in answers.items():
        for part in _parts(a):
            rows = a.rows[part]
            columns = _which(t, view, rows, federation)
            columns["sample"] = federation.sample[rows].astype(np.int32)
            columns |= {"label": as_column(labels[rows]), own: as_column(a.own[part])}
            if a.votes is not None:
                columns["votes"] = as_column(a.votes[part])
            columns.update({f"route_{rule}": chosen[part] for rule, chosen in a.routes.items()})
            if a.test_phase is not None:
                columns[test_phase] = as_column(a.test_phase[part])
            elif kind is not None:
                columns[test_phase] = pa.nulls(len(rows), kind)
            yield pa.table(columns)


def _which(t: int, view: str, rows: np.ndarray, federation: Federation) -> dict[str, Any]:
    """The first columns of answers to these rows."""
    import pyarrow as pa

    return {
        "round": np.full(len(rows), t, np.int32),
        "view": pa.array([view] * len(rows), pa.string()),
        "client": federation.client[rows].astype(np.int32),
    }


def _parts(answers: Answers) -> list[slice]:
    """All rows, in parts whose votes take no more than is written together."""
    rows = max(len(answers.rows), 1)
    size = rows if answers.votes is None else max(1, BYTES // (2 * answers.votes.shape[1]))
    return [slice(at, at + size) for at in range(0, rows, size)]


def kept_logits(t: int, answers: Mapping[str, Answers], federation: Federation) -> pa.Table | None:
    """What of round t's answers is kept of their probabilities, in the order of `predictions`; None if nothing is."""
    import pyarrow as pa

    parts = [
        pa.table({**_which(t, view, a.rows, federation), "logits": as_column(a.logits)})
        for view, a in answers.items()
        if a.logits is not None
    ]
    return pa.concat_tables(parts) if parts else None


def clients(federation: Federation, notes: Mapping[str, Mapping[str, float]], assigned: Mapping[int, int]) -> pa.Table:
    """A line a client: sizes, its true group, its cluster if there are any, and the metrics noted of it (client, as
    text -> metric -> value)."""
    import pyarrow as pa

    columns: dict[str, Any] = {
        "client": np.arange(federation.clients, dtype=np.int32),
        "n_train": np.array(federation.n_train, np.int64),
        "n_test": np.array(federation.n_test, np.int64),
        "group": np.array(federation.groups, np.int32),
    }
    if assigned:
        own = [int(assigned[i]) if i in assigned else None for i in range(federation.clients)]
        columns["cluster"] = pa.array(own, pa.int32())
    for key in sorted({k for metrics in notes.values() for k in metrics}):
        columns[key] = [notes.get(str(i), {}).get(key) for i in range(federation.clients)]
    return pa.table(columns)


def descriptors(clients: Tensor, values: Tensor) -> pa.Table:
    """A line a client that was described: its descriptor [L]."""
    import pyarrow as pa

    flat = pa.array(values.cpu().float().numpy().reshape(-1))
    columns = {"client": pa.array(clients.cpu().numpy(), pa.int32())}
    return pa.table({**columns, "descriptor": pa.FixedSizeListArray.from_arrays(flat, values.shape[1])})


def number(what: str, value: Any) -> float:
    """The value as a plain number that can be stored: a tensor's or a NumPy scalar's own. Raises FedbenchError for
    what is none; `what` is its name."""
    single = isinstance(value, np.generic) or (isinstance(value, Tensor) and value.numel() == 1)
    plain = value.item() if single else value
    if not isinstance(plain, int | float):
        raise FedbenchError(f"{what} is {value!r}, not a number")
    return plain


def rounds(lines: Sequence[Mapping[str, Any]]) -> pa.Table:
    """A line a round; a part of the work that no client of a round had took no time, a metric that there was not yet
    is null."""
    import pyarrow as pa

    names = {name: None if _is_measure(name) else 0.0 for line in lines for name in line}
    return pa.Table.from_pylist([{**names, **line} for line in lines])


def _is_measure(name: str) -> bool:
    return name.startswith("figure_") or name == "validation_accuracy"


def average_accuracy(answers: Mapping[str, Answers], federation: Federation, trainees: int) -> float:
    """Average accuracy of the first view over the clients that train, weighted by training sizes, for the display.

    A multi-label image is right by the share of them that its scores are on the right side of 1/2 of.
    """
    a = next(iter(answers.values()))
    labels = federation.labels.cpu().numpy()[a.rows]
    if federation.multi_label:
        right = ((a.own > 0.5) == (labels > 0.5)).mean(axis=1)
    else:
        right = (labels == a.own).astype(np.float64)
    client = federation.client[a.rows]
    accuracy = np.bincount(client, right, federation.clients) / np.bincount(client, minlength=federation.clients)
    weights = np.array(federation.n_train[:trainees], np.float64)
    return float((accuracy[:trainees] * weights).sum() / weights.sum())
