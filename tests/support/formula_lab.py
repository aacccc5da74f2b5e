"""What the tests of methods' formulas are held against: runs once more, client by client, by torch.optim on a module,
and what models answer, computed plainly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.conformance.subject import small
from fedbench.core.federation import Federation
from fedbench.core.images import to_input
from fedbench.core.plan import Plan
from fedbench.core.state import state_of
from fedbench.core.trainer import Trainer
from fedbench.methods.base import Method
from fedbench.specs import Setting
from tests.support.lab import LabRun, finish, trainer

State = dict[str, Tensor]
#: Of the small network with a batch norm.
PARAMETERS = [name for name, _ in small(norm=True).named_parameters()]


def trained(how: Method, data: Federation, s: Setting, where: Path, executor: str = "sequential") -> Trainer:
    """A run of the small network with a batch norm, to its end."""
    return finish(trainer(how, data, where, s, executor=executor, network=lambda: small(norm=True))).trainer


def images(data: Federation, rows: Tensor) -> Tensor:
    """Network input of these rows."""
    return to_input(data.images[rows])


def started() -> State:
    """The network's tensors before the first round."""
    return state_of(small(norm=True))


def zeros() -> State:
    """A zero for every parameter."""
    state = started()
    return {n: torch.zeros_like(state[n]) for n in PARAMETERS}


def of(state: Mapping[str, Tensor], prefix: str = "") -> State:
    """The tensors of one network within a state."""
    return {name: state[prefix + name] for name in small(norm=True).state_dict()}


def network(state: Mapping[str, Tensor]) -> Any:
    """The network with this state, in training mode."""
    model: Any = small(norm=True).train()
    model.load_state_dict(dict(state))
    return model


def close(ours: Mapping[str, Any], expected: Mapping[str, Any], rtol: float = 1e-3, atol: float = 1e-5) -> None:
    """Every tensor that is expected is there, to float rounding."""
    for name, value in expected.items():
        a, b = (torch.as_tensor(t) for t in (ours[name], value))
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, check_dtype=False, msg=lambda m, n=name: f"{n}: {m}")


def averaged(states: Sequence[State], weights: Sequence[float]) -> State:
    """The weighted mean of networks (counters: the first's)."""
    total = sum(weights)
    return {
        name: sum(w / total * state[name].double() for w, state in zip(weights, states, strict=True)).float()
        if first.is_floating_point()
        else first
        for name, first in states[0].items()
    }


def answered(state: State, x: Tensor, model: Any = None) -> Tensor:
    """Class probabilities [n, K] float64 of images in evaluation mode, by the small network or another."""
    model = small(norm=True) if model is None else model
    model.load_state_dict({name: state[name] for name in model.state_dict()})
    with torch.no_grad():
        shares: Tensor = model.eval()(x).double().softmax(1)
    return shares


def class_features(n: int, classes: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Made-up features [n, 64] around a mean for each of ten classes, and their labels, of so many classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    z = rng.normal(size=(n, 64)) + rng.normal(size=(10, 64))[y]
    return torch.from_numpy(z).float(), torch.from_numpy(y)


def right(run: LabRun, column: str = "own") -> float:
    """The share of all images that were answered rightly after the last round."""
    last = run.predictions.to_pandas()
    last = last[last["round"] == last["round"].max()]
    return float((last[column] == last["label"]).mean())


def head(name: str) -> bool:
    """Whether a tensor is of the last layer."""
    return name.startswith("head.")


def joined(body: Mapping[str, Tensor], top: Mapping[str, Tensor]) -> State:
    """The network with the head of another."""
    return {n: (top if head(n) else body)[n] for n in body}


def plain(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


class ByHand:
    """A run of the small network, client by client."""

    def __init__(self, data: Federation, s: Setting) -> None:
        self.data, self.s = data, s
        self.plan = Plan(s, data.n_train, data.shape[:2])

    def batches(
        self, i: int, t: int, request: int = 1, epochs: int | None = None, steps: int | None = None
    ) -> list[Tensor]:
        """The rows of client i's batches for its k-th request of round t, as long as the setting says or so long."""
        length = (epochs, steps) if epochs or steps else (self.s.epochs, self.s.steps)
        return [self.data.train[i][torch.from_numpy(at)] for at in self.plan.batches(i, t, request, *length)]

    def descended(
        self,
        state: Mapping[str, Tensor],
        batches: Sequence[Tensor],
        loss: Callable[[Any, Tensor, Tensor], Tensor] = plain,
        pull: float = 0.0,
        anchor: Mapping[str, Tensor] | None = None,
        linear: Mapping[str, Tensor] | None = None,
        moves: Callable[[str], bool] = lambda name: True,
        **changes: float,
    ) -> State:
        """The network after SGD on these batches (rows), beginning at rest; `changes` are of lr and momentum. The loss
        may have a proximal term, and a linear one: the product of the parameters and `linear`."""
        model, s = network(state), self.s
        moving = [p for name, p in model.named_parameters() if moves(name)]
        lr, momentum = changes.get("lr", s.lr), changes.get("momentum", s.momentum)
        optimiser = torch.optim.SGD(moving, lr, momentum, weight_decay=s.weight_decay)
        for rows in batches:
            total = loss(model, images(self.data, rows), self.data.labels[rows])
            for name, p in model.named_parameters():
                if anchor is not None and name in anchor:
                    total = total + pull / 2 * (p - anchor[name]).square().sum()
                if linear is not None:
                    total = total + (p * linear[name]).sum()
            optimiser.zero_grad()
            total.backward()
            optimiser.step()
        return state_of(model)

    def rounds(
        self,
        client: Callable[[int, int, State], State],
        server: Callable[[State, State, list[int]], State] = lambda before, mean, cohort: mean,
    ) -> State:
        """What is shared after the last round: `client` (i, t, what it received) is averaged, and `server` steps."""
        shared = started()
        for t in range(1, self.s.rounds + 1):
            cohort = self.plan.cohort(t)
            ends = [client(i, t, shared) for i in cohort]
            shared = server(shared, averaged(ends, [self.data.n_train[i] for i in cohort]), cohort)
        return shared

    @property
    def seen(self) -> set[int]:
        """Who takes part in some round."""
        return {i for t in range(1, self.s.rounds + 1) for i in self.plan.cohort(t)}


def sent(run: LabRun | Trainer) -> list[tuple[int, int]]:
    """(bytes up, bytes down) of each round."""
    it = run.trainer if isinstance(run, LabRun) else run
    return [(line["bytes_up"], line["bytes_down"]) for line in it.checkpoint.rounds]


def size(server: Any, chosen: Callable[[str], bool] = lambda name: True) -> int:
    """Bytes of the tensors that every client begins with, of those chosen by name."""
    return sum(t.numel() * t.element_size() for n, t in server.initial.items() if chosen(n))


def column(run: LabRun, name: str, client: int | None = None) -> np.ndarray:
    """A column of a run's predictions; with a client that of its images."""
    values = np.array(run.predictions[name].to_pylist())
    return values if client is None else values[run.predictions["client"].to_numpy() == client]
