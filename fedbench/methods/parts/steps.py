"""What methods do with local steps: phases of a round, a model of the client's own, what goes with each parameter."""

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

# -- plain sgd -------------------------------------------------------------------------------------------------


def check_sgd(name: str, setting: Setting) -> None:
    """Raise FedbenchError unless the setting leaves the optimiser at SGD: another would change the run's name alone."""
    if setting.optimizer is not None:
        raise FedbenchError(
            f"{name} takes its steps by a rule of its own, not by {setting.optimizer}", "leave --optimizer out"
        )


def check_pull(method: str, option: str, pull: float, setting: Setting) -> None:
    """Raise FedbenchError for a pull towards a model by which a step of the setting's rate would go past it."""
    most = f"at most 1/lr, {1 / setting.lr:g} at a learning rate of {setting.lr:g}"
    check(setting.lr * pull <= 1, method, option, pull, most)


# -- split steps -----------------------------------------------------------------------------------------------
# Local steps divided between two phases of a round, as FedDRM's comparison does (section 6 of its protocol).


def check_split(method: str, option: str, phase_steps: int, setting: Setting) -> None:
    """Raise FedbenchError unless a phase of so many steps leaves some of the setting's local steps (0: no split)."""
    if phase_steps:
        wanted = "0 where a setting counts local epochs" if setting.steps is None else f"below {setting.steps} steps"
        check(setting.steps is not None and phase_steps < setting.steps, method, option, phase_steps, wanted)


def remaining(setting: Setting, phase_steps: int) -> int | None:
    """The steps of the other phase; None, the setting's whole local work, where nothing is split."""
    return setting.steps - phase_steps if phase_steps and setting.steps is not None else None


def steps_hyperparameter(whose: str, code: int) -> Any:
    """A hyper-parameter of methods whose rounds have two phases: the steps of one of them; FedDRM's code has `code`."""
    return hyperparameter(0, f"of the setting's local steps, those of {whose}", source=f"FedDRM, code: {code}", least=0)


class HeadFirst(Method):
    """A method whose clients train their heads first, for `head_epochs` or `head_steps`, then their bodies."""

    head_epochs: int
    head_steps: int

    def check_setting(self, setting: Setting) -> None:
        check_split(self.name, "head-steps", self.head_steps, setting)

    def relative_compute(self, setting: Setting) -> float:
        return 1.0 if self.head_steps else 1 + self.head_epochs / (setting.epochs or 1)  # steps count as an epoch

    def train_head(self, client: Client) -> Generator[Train, Any, list[Trained]]:
        """Train the client's head, if at all; the answer."""
        if not (self.head_steps or self.head_epochs):
            return []
        epochs = None if self.head_steps else self.head_epochs
        return [(yield Train(cross_entropy, trains=HEAD, epochs=epochs, steps=self.head_steps or None))]


# -- finetuning ------------------------------------------------------------------------------------------------
# Last rounds of a run without communication, in which each client goes on with its own copy (FedDRM, Sec. 3.1).


def finetune_hyperparameter() -> Any:
    """The hyper-parameter `finetune_rounds`, the number of such rounds."""
    return hyperparameter(0, "last rounds without communication", source="FedDRM, Sec. 3.1: 100 of 800", least=0)


class FineTunes(Method):
    """A method with `finetune_rounds`."""

    finetune_rounds: int

    def check_setting(self, setting: Setting) -> None:
        rounds, most = self.finetune_rounds, f"below the number of rounds, {setting.rounds}"
        check(rounds < setting.rounds, self.name, "finetune-rounds", rounds, most)

    def communicates(self, t: int, rounds: int) -> bool:
        return t <= rounds - self.finetune_rounds


# -- before the first round ------------------------------------------------------------------------------------


class AsksFirst(Method):
    """A method whose server asks all clients once, before the first round; `reply` is what they find out."""

    def ask(self, server: Server, t: int, k: int) -> Question | None:
        return Question() if t == k == 0 else None


# -- personal models -------------------------------------------------------------------------------------------


class PersonalModel(Method):
    """A method whose clients answer by a model of their own, "own"."""

    personal_models = ("own",)

    def personalise(self, client: Client) -> ClientUpdate | None:
        if client.kind == MEMBER:  # who has no labels has trained no model of its own
            client.answers_by = Collect(logits, model="own")
        return None


# -- parameters ------------------------------------------------------------------------------------------------
# What a method keeps or moves with each parameter of the network, running statistics left out.


def zeros(model: nn.Module, *names: str) -> State:
    """A tensor of zeros for each parameter of the network, under each of these names: "control/backbone.0.weight"."""
    return {name_in(name, n): torch.zeros_like(p.detach()) for name in names for n, p in model.named_parameters()}


class PerParameter(Method):
    """A method with further tensors for each parameter of the network, zero at first, under each of these names."""

    per_parameter: ClassVar[tuple[str, ...]]

    def variables(self, model: nn.Module, context: Context, generator: torch.Generator) -> State:
        return zeros(model, *self.per_parameter)


def trainable(state: State) -> list[str]:
    """Names of what an optimiser may move: neither counters nor running statistics."""
    return [n for n, t in state.items() if t.is_floating_point() and not n.endswith(STATISTICS)]


def moved(before: State, after: State, share: float, names: Iterable[str]) -> State:
    """The named tensors on that share of their way from one state to another; beyond the end if it is above 1."""
    return {n: torch.lerp(before[n], after[n], share) for n in names}


def vector(state: State, names: Iterable[str]) -> Tensor:
    """The named tensors one after another in one vector [P]."""
    return torch.cat([state[n].reshape(-1) for n in names])


def from_vector(values: Tensor, like: State, names: Sequence[str]) -> State:
    """The named tensors of a vector [P], each in memory of its own: a checkpoint holds no two views of one vector."""
    parts = torch.split(values, [like[n].numel() for n in names])
    return {n: part.view(like[n].shape).clone() for n, part in zip(names, parts, strict=True)}
