"""What `--keep model` stores of a run: the evaluated models, as one flat file of tensors.

    server/NAME      shared tensors of the server, including the method's variables
    cluster/M/NAME   shared tensors of cluster M
    initial/NAME     initial tensors that were not trained and that some client uses
    client/I/NAME    tensors of client I that differ from these, as personalised for the last evaluation
    extra/I/NAME     extra tensors of client I's output function

A client's model is initial, overridden by server, by its cluster, and by client. Names are those of a client's state:
'head.weight', or 'own/head.weight' for a further model 'own'.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fedbench.core.client import Client, Collect, logits
from fedbench.core.server import Server
from fedbench.core.state import State, compact, name_in, separate
from fedbench.errors import FedbenchError

#: The value of `--keep`.
MODEL = "model"
#: `Predicts.output` of a client that predicts with its network's logits.
PLAIN = "logits"
#: Key in the file's metadata of everything but tensors, as JSON.
ABOUT = "fedbench"


@dataclass(frozen=True)
class Predicts:
    """How one client predicts: with which of its models, and with which output function."""

    cluster: int | None  #: whose model overrides the server's
    models: tuple[str, ...] = ("",)  #: names of the client's models; "" is its network
    output: str = PLAIN  #: function of models and images: PLAIN, 'method:NAME' or 'MODULE:NAME'
    extras: Mapping[str, str] = field(default_factory=dict)  #: name -> the tensor's name in the file
    alone: str = ""  #: why `models` and `output` do not say how the client predicts; "" if they do


@dataclass(frozen=True)
class Models:
    """The models at the end of a run: tensors under the file's names, the names of the network's tensors, and how each
    client predicts [M]."""

    tensors: State
    network: tuple[str, ...]
    clients: tuple[Predicts, ...]

    def state(self, client: int) -> State:
        """A client's tensors, under the names of its state."""
        cluster = self.clients[client].cluster
        layers = ["initial", "server", *([f"cluster/{cluster}"] if cluster is not None else []), f"client/{client}"]
        return {name: t for layer in layers for name, t in self.layer(layer).items()}

    def layer(self, place: str) -> State:
        """The tensors under a prefix, such as 'server' or 'cluster/0', without the prefix."""
        return {key.removeprefix(f"{place}/"): t for key, t in self.tensors.items() if key.startswith(f"{place}/")}

    @property
    def clusters(self) -> int:
        return len({key.split("/")[1] for key in self.tensors if key.startswith("cluster/")})

    def write(self, path: Path) -> None:
        """Write one safetensors file."""
        from safetensors.torch import save_file

        about = {"network": self.network, "clients": [asdict(one) for one in self.clients]}
        save_file(separate(self.tensors), path, metadata={ABOUT: json.dumps(about, sort_keys=True)})

    @classmethod
    def read(cls, path: Path) -> Models:
        """Inverse of `write`. Raises FedbenchError for other files."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt") as file:
                about = json.loads((file.metadata() or {})[ABOUT])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        except (SafetensorError, OSError, KeyError) as error:
            raise FedbenchError(f"cannot read the models {path} ({error})") from error
        clients = tuple(Predicts(**{**one, "models": tuple(one["models"])}) for one in about["clients"])
        return cls(tensors, tuple(about["network"]), clients)


class Keeper:
    """Records how each client predicts, after it was personalised, and builds Models at the end."""

    def __init__(self, server: Server, network: Iterable[str], method: object) -> None:
        self.server, self.network, self.method = server, tuple(network), method
        common = {"server": server.shared, **{f"cluster/{m}": state for m, state in enumerate(server.models)}}
        self.clients: list[Predicts] = []
        self.own: State = {}  #: tensors of single clients, under the file's names, on the host
        self.initial: set[str] = set()  #: names of initial tensors that some client uses
        #: id of a shared tensor -> its name in the file.
        self.places = {id(t): f"{place}/{name}" for place, state in common.items() for name, t in state.items()}

    def note(self, client: Client) -> None:
        """Record how the next client predicts, with the tensors that it does not share."""
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
        if client.answer is None:  # else it is unknown which tensors of the state it used
            self.initial |= initial
        own |= {place: by.extras[n] for n, place in extras.items() if place.startswith("extra/")}
        alone = ""
        if client.answer is not None:
            alone = "several models answer together, or by all of the images that they are asked"
        self.clients.append(Predicts(cluster, models, self._output(by), extras, alone))
        self.own |= {name: compact(t.detach().cpu()) for name, t in own.items()}

    def _cluster(self, client: int, state: State) -> int | None:
        """The cluster that shares some of these tensors; if several do, the client's, else the first."""
        mine = {id(t) for t in state.values()}
        having = [m for m, model in enumerate(self.server.models) if any(id(t) in mine for t in model.values())]
        assigned = self.server.assigned.get(client)
        return assigned if assigned in having else having[0] if having else None

    def _output(self, by: Collect) -> str:
        """The name of the client's output function."""
        if by.output is logits:
            return PLAIN
        if getattr(by.output, "__self__", None) is self.method:
            return f"method:{by.output.__name__}"
        named = by.output if hasattr(by.output, "__qualname__") else type(by.output)
        return f"{named.__module__}:{named.__qualname__}"

    def models(self) -> Models:
        out = {f"server/{name}": t for name, t in self.server.shared.items()}
        for m, state in enumerate(self.server.models):
            out |= {f"cluster/{m}/{name}": t for name, t in state.items()}
        out |= {f"initial/{name}": self.server.initial[name] for name in sorted(self.initial)}
        return Models(out | self.own, self.network, tuple(self.clients))
