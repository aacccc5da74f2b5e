"""Building blocks for local steps: phases of a round, personal models, tensors for each parameter."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedbench.core.client import MEMBER, Client, ClientUpdate, Collect, Context, Train, Trained, logits
from fedbench.core.message import Question
from fedbench.core.server import Server
from fedbench.core.state import STATISTICS, State, name_in
from fedbench.errors import FedbenchError
from fedbench.methods.base import HEAD, Method, check, cross_entropy, hyperparameter
from fedbench.specs import Setting


def check_sgd(name: str, setting: Setting) -> None:
    """Raise FedbenchError unless the optimiser is SGD: another one would change nothing but the run's id."""
    if setting.optimizer is not None:
        raise FedbenchError(
            f"{name} has its own update rule and does not use {setting.optimizer}", "leave --optimizer out"
        )


def check_pull(method: str, option: str, pull: float, setting: Setting) -> None:
    """Raise FedbenchError if a step towards a model with weight `pull` overshoots at the setting's learning rate."""
    most = f"at most 1/lr, {1 / setting.lr:g} at a learning rate of {setting.lr:g}"
    check(setting.lr * pull <= 1, method, option, pull, most)


def check_split(method: str, option: str, phase_steps: int, setting: Setting) -> None:
    """Raise FedbenchError unless `phase_steps` leaves some of the setting's local steps for the other phase of a round
    (0: no split), as in FedDRM's comparison (section 6 of its protocol)."""
    if phase_steps:
        wanted = "0 where a setting counts local epochs" if setting.steps is None else f"below {setting.steps} steps"
        check(setting.steps is not None and phase_steps < setting.steps, method, option, phase_steps, wanted)


def remaining(setting: Setting, phase_steps: int) -> int | None:
    """Return the steps of the other phase; None, which is the setting's whole local work, without a split."""
    return setting.steps - phase_steps if phase_steps and setting.steps is not None else None


def steps_hyperparameter(whose: str, code: int) -> Any:
    """Return a hyper-parameter for the steps of one of a round's two phases; FedDRM's code has the value `code`."""
    return hyperparameter(0, f"of the setting's local steps, those of {whose}", source=f"FedDRM, code: {code}", least=0)


class HeadFirst(Method):
    """A method whose clients first train their heads, for `head_epochs` or `head_steps`, then their bodies."""

    head_epochs: int
    head_steps: int

    def check_setting(self, setting: Setting) -> None:
        check_split(self.name, "head-steps", self.head_steps, setting)

    def relative_compute(self, setting: Setting) -> float:
        return 1.0 if self.head_steps else 1 + self.head_epochs / (setting.epochs or 1)  # steps count as an epoch

    def train_head(self, client: Client) -> Generator[Train, Any, list[Trained]]:
        """Train the client's head, if it has steps or epochs, and return the results."""
        if not (self.head_steps or self.head_epochs):
            return []
        epochs = None if self.head_steps else self.head_epochs
        return [(yield Train(cross_entropy, trains=HEAD, epochs=epochs, steps=self.head_steps or None))]


def finetune_hyperparameter() -> Any:
    """Return the hyper-parameter `finetune_rounds`, the number of such rounds."""
    return hyperparameter(0, "last rounds without communication", source="FedDRM, Sec. 3.1: 100 of 800", least=0)


class FineTunes(Method):
    """A method with `finetune_rounds` final rounds without communication, in which each client trains its local copy
    (FedDRM, Sec. 3.1)."""

    finetune_rounds: int

    def check_setting(self, setting: Setting) -> None:
        rounds, most = self.finetune_rounds, f"below the number of rounds, {setting.rounds}"
        check(rounds < setting.rounds, self.name, "finetune-rounds", rounds, most)

    def communicates(self, t: int, rounds: int) -> bool:
        return t <= rounds - self.finetune_rounds


class AsksFirst(Method):
    """A method whose server asks all clients once, before the first round; `reply` handles the question."""

    def ask(self, server: Server, t: int, k: int) -> Question | None:
        return Question() if t == k == 0 else None


class PersonalModel(Method):
    """A method whose clients predict with a personal model, "own"."""

    personal_models = ("own",)

    def personalise(self, client: Client) -> ClientUpdate | None:
        if client.kind == MEMBER:  # a client without labels has not trained a personal model
            client.answers_by = Collect(logits, model="own")
        return None


def zeros(model: nn.Module, *names: str) -> State:
    """Return a tensor of zeros for each parameter of the network and each name, as in "control/backbone.0.weight"."""
    return {name_in(name, n): torch.zeros_like(p.detach()) for name in names for n, p in model.named_parameters()}


class PerParameter(Method):
    """A method with additional tensors, initially zero, for each parameter of the network and each of these names."""

    per_parameter: ClassVar[tuple[str, ...]]

    def variables(self, model: nn.Module, context: Context, generator: torch.Generator) -> State:
        return zeros(model, *self.per_parameter)


def trainable(state: State) -> list[str]:
    """Return the names of tensors that an optimiser may change: neither counters nor running statistics."""
    return [n for n, t in state.items() if t.is_floating_point() and not n.endswith(STATISTICS)]


def moved(before: State, after: State, share: float, names: Iterable[str]) -> State:
    """Interpolate the named tensors between two states by `share`; extrapolate if it is above 1."""
    return {n: torch.lerp(before[n], after[n], share) for n in names}


def vector(state: State, names: Iterable[str]) -> Tensor:
    """Concatenate the named tensors to one vector [P]."""
    return torch.cat([state[n].reshape(-1) for n in names])


def from_vector(values: Tensor, like: State, names: Sequence[str]) -> State:
    """Split a vector [P] into the named tensors, as copies, so that a checkpoint stores no views of one vector."""
    parts = torch.split(values, [like[n].numel() for n in names])
    return {n: part.view(like[n].shape).clone() for n, part in zip(names, parts, strict=True)}
