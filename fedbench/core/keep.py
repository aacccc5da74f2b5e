"""What is kept of a trained run where it is asked for: the models that answer, as one flat file of tensors.

    server/NAME      what the server holds and sends around, the method's own variables included
    cluster/M/NAME   what the clients of cluster M share
    initial/NAME     what nobody has trained and some client answers with all the same
    client/I/NAME    what client I answers with beyond these, personalised as it was asked last
    extra/I/NAME     what else its answers are computed from

A client's model is the first three laid over one another (initial, server, its cluster), its own part on top. Names
are those of its state: 'head.weight', or 'own/head.weight' of a further model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedbench.core.client import Client, Collect, logits
from fedbench.core.server import Server
from fedbench.core.state import State, compact, name_in, separate
from fedbench.errors import FedbenchError

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


@dataclass(frozen=True)
class Noted:
    """What was noted of one client."""

    how: How
    own: State  #: under the file's names, on the host
    initial: frozenset[str]  #: names of what it answers with as it began


class Keeper:
    """Notes what each client answers with, as the clients are personalised, and puts it together at the end."""

    def __init__(self, server: Server, network: Iterable[str], method: object) -> None:
        self.server, self.network, self.method = server, tuple(network), method
        common = {"server": server.shared, **{f"cluster/{m}": state for m, state in enumerate(server.models)}}
        #: The file's name of each tensor that is not one client's alone.
        self.places = {id(t): f"{place}/{name}" for place, state in common.items() for name, t in state.items()}

    def note(self, client: Client) -> Noted:
        """How a personalised client answers, and with which tensors of its own."""
        by = client.answers_by or Collect(logits)
        models = (by.model,) if isinstance(by.model, str) else tuple(by.model)
        names = [name_in(model, name) for model in models for name in self.network]
        state = {n: client.state[n] for n in names} if client.answer is None else client.state
        cluster = self._cluster(client.index, state)
        common = {**self.server.shared, **(self.server.models[cluster] if cluster is not None else {})}
        rest = {n: t for n, t in state.items() if t is not common.get(n)}
        initial = frozenset(n for n, t in rest.items() if n not in common and t is self.server.initial.get(n))
        extras = {n: self.places.get(id(t), f"extra/{client.index}/{n}") for n, t in by.extras.items()}
        own = {f"client/{client.index}/{n}": t for n, t in rest.items() if n not in initial}
        if client.answer is not None:  # nobody says what of its state it answers with
            initial = frozenset()
        own |= {place: by.extras[n] for n, place in extras.items() if place.startswith("extra/")}
        output, alone = self._output(by), ""
        if client.answer is not None:
            alone = "several models answer together, or by all of the images that they are asked"
        elif not output:
            alone = f"what answers ({getattr(by.output, '__qualname__', by.output)}) stands in no module by that name"
        how = How(cluster, models, output, extras, alone)
        return Noted(how, {name: compact(t.detach().cpu()) for name, t in own.items()}, initial)

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

    def models(self, noted: Sequence[Noted]) -> Models:
        """All of them together; `noted` are the clients 0..M-1."""
        out = {f"server/{name}": t for name, t in self.server.shared.items()}
        for m, state in enumerate(self.server.models):
            out |= {f"cluster/{m}/{name}": t for name, t in state.items()}
        for name in sorted({name for one in noted for name in one.initial}):
            out[f"initial/{name}"] = self.server.initial[name]
        for one in noted:
            out |= one.own
        return Models(out, self.network, tuple(one.how for one in noted))


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
