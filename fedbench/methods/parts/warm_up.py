"""FLUX's warm-up: clients' feedback on the averaged model after each round, and the end of the warm-up (Eq. 14)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedbench.core.client import Batch, Client, ClientUpdate, Collect, Context, Train
from fedbench.core.message import Question
from fedbench.core.server import Server
from fedbench.core.state import State
from fedbench.measure import Measure
from fedbench.methods.base import Method, check, cross_entropy, hyperparameter
from fedbench.methods.parts import description
from fedbench.methods.parts.description import FIRST_BOUNDS, Describe, Description, DescriptionMemory, Phase, phase_of
from fedbench.methods.parts.descriptor import MARGIN, Bounds, common_bounds, cube, extent
from fedbench.methods.parts.linkage import MEASURES
from fedbench.specs import Setting

#: Warm-up ends at the latest after this share of all rounds, and not before round EARLIEST (FLUX, Eq. 14).
LATEST, EARLIEST = 0.8, 3


@dataclass(frozen=True)
class Feedback:
    """A client's feedback on a model: its accuracy [] float64 on `images` validation images, and the bounds float32 of
    their latents: the smallest and largest value of each coordinate [z], or for common bounds only the largest
    value."""

    accuracy: Tensor
    images: int
    low: Tensor | None
    high: Tensor


def correctness_and_latents(model: Any, batch: Batch) -> Tensor:
    """[B, 1 + z]: whether the prediction is correct, 0 or 1, and the latents.

    Multi-label images always count as half correct, as in the released code for CheXpert. So the accuracy never rises,
    and warm-up ends after round 3 (Eq. 14; flux/protocol.md#warm-up-with-multi-label-images).
    """
    h = model.latent(batch.x)
    if batch.y.dim() > 1:
        return torch.cat([torch.full_like(h[:, :1], 0.5), h], 1).float()
    right = model.from_latent(h).argmax(1) == batch.y
    return torch.cat([right.float()[:, None], h.float()], 1)


def feedback(client: Client, per_coordinate: bool) -> Generator[Collect, Any, Feedback]:
    """Return the client's feedback on its current model, from its validation images, or its training images if it has
    none. This follows the released code; by the paper, bounds of each coordinate would be those of training images."""
    rows = (yield Collect(correctness_and_latents, split=client.validates_on)).rows
    bounds = extent(rows[:, 1:], f"client {client.index}")
    accuracy = rows[:, 0].double().mean()
    low, high = bounds.low.float(), bounds.high.float()  # latents are float32 too
    return Feedback(accuracy, len(rows), *((low, high) if per_coordinate else (None, high.max())))


def remember(memory: DescriptionMemory, cohort: Sequence[Client]) -> None:
    """Store a round's accuracy (a mean weighted by images) and the bounds of the latents in the server's memory."""
    replies: list[Feedback] = [c.upload for c in cohort]
    accuracy = sum(one.accuracy.cpu() * one.images for one in replies) / sum(one.images for one in replies)
    memory.accuracies = [*memory.accuracies, float(accuracy)]
    extents = [Bounds(one.low, one.high) for one in replies if one.low is not None]
    top = MARGIN * torch.stack([one.high.max() for one in replies]).max().double()
    memory.bounds = common_bounds(extents) if extents else cube(top, len(memory.bounds.low))


def warm_up_ends(
    accuracies: Sequence[float], t: int, rounds: int, threshold: float, first_slope: int = EARLIEST, start: int = 0
) -> bool:
    """Whether warm-up ends after round t, given the accuracies of the rounds that had a cohort (FLUX, Eq. 14).

    It ends from round 3 on, as soon as the accuracy has risen by less than the threshold in some round s, where s
    starts at `first_slope`: A(s) - A(s - 1); or after 80 % of all rounds, counting rounds without a cohort. If the
    round of the clustering is given (`start`), it ends just before that round.
    """
    if start:
        return t >= start - 1
    r = len(accuracies)
    slopes = [accuracies[s - 1] - accuracies[s - 2] for s in range(first_slope, r + 1)]
    return (r >= EARLIEST and min(slopes, default=1.0) < threshold) or t >= LATEST * rounds


@dataclass(frozen=True)
class WarmsUp(Method):
    """A method that trains by FedAvg until FLUX's warm-up ends; in the next round its clients describe themselves."""

    measures: ClassVar[tuple[Measure, ...]] = MEASURES
    personal = (FIRST_BOUNDS,)
    memory: ClassVar[type[DescriptionMemory]] = DescriptionMemory  #: class of the server's memory
    first_slope = EARLIEST  #: first round whose slope counts
    box = "common"  #: "common" for one bound of all latents, "coordinate" for a bound of each coordinate

    threshold: float = hyperparameter(0.06, "slope of the validation accuracy at which warm-up ends", "T", "Eq. 14")
    start_: int = hyperparameter(
        0, "round in which clients are described; 0: when warm-up ends by itself", source="App., Figure 8", least=0
    )
    components: int = hyperparameter(
        10, "axes that latents are projected on", "l", "App. B; code: as many as classes", least=1, most=199
    )  # fewer than the synthetic points
    scale: float = hyperparameter(
        1.0, "factor on the distance at the elbow", "ε", "App. B: 0.95 FMNIST, 0.98 CIFAR-100", above=0
    )

    def check_setting(self, setting: Setting) -> None:
        most = f"at most the number of rounds, {setting.rounds} (after which it would be FedAvg)"
        check(self.start_ <= setting.rounds, self.name, "start", self.start_, most)

    def build(self, model: nn.Module, context: Context) -> nn.Module:
        import kneed  # noqa: F401 - slow, and would else count as the work of the round that groups clients

        return model

    def variables(self, model: nn.Module, context: Context, generator: torch.Generator) -> State:
        bounds = description.first_bounds(model, context)
        return {FIRST_BOUNDS: torch.stack([bounds.low, bounds.high])}

    def start(self, server: Server) -> None:
        phase = Phase.DESCRIPTION if self.start_ == 1 else Phase.WARM_UP
        server.memory = self.memory(phase, Bounds(*server.initial[FIRST_BOUNDS]))

    def ask(self, server: Server, t: int, k: int) -> Question | None:
        return Question() if t and k == 0 and server.memory.phase == Phase.WARM_UP else None

    def reply(self, client: Client) -> ClientUpdate:
        client.upload = yield from feedback(client, self.box == "coordinate")

    def learn(self, server: Server, cohort: Sequence[Client], t: int) -> None:
        remember(server.memory, cohort)
        accuracies, rounds = server.memory.accuracies, server.context.setting.rounds
        if warm_up_ends(accuracies, t, rounds, self.threshold, self.first_slope, self.start_):
            server.memory.phase = Phase.DESCRIPTION

    def broadcast(self, server: Server, client: Client) -> None:
        phase = phase_of(server, client.round)
        if phase == Phase.REGROUPING:
            client.put(server.shared)  # theta*
        if phase in (Phase.DESCRIPTION, Phase.REGROUPING):
            client.inbox = Describe(server.memory.bounds, trains=phase == Phase.DESCRIPTION)

    def local(self, client: Client) -> ClientUpdate:
        if isinstance(client.inbox, Describe):
            client.upload = Description((yield from self.describe(client)))
            if not client.inbox.trains:
                return
        yield Train(cross_entropy)

    def describe(self, client: Client, split: str = "train") -> Generator[Collect, Any, Tensor]:
        """Return the descriptor that the client sends."""
        d, _ = yield from description.describe(client, client.inbox.bounds, self.components, split)
        return d

    def described(self, server: Server) -> tuple[Tensor, Tensor] | None:
        last = server.memory.described
        return last and (last.clients, last.descriptors)
