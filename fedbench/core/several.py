"""Networks of one form side by side: what all of them put out for the same images, on a CPU in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedbench.core.client import Batch
from fedbench.core.grouped import with_clients_among_channels
from fedbench.core.memory import CPU_BLOCK


class Several(nn.ModuleList):
    """Several of a client's models. A loss or an output may call them one by one, or all at once by `scores`."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        super().__init__(models)
        first = self[0]
        #: Running statistics would have to be written back.
        self.plain = first.state_dict().keys() == dict(first.named_parameters()).keys()
        self._form = (with_clients_among_channels(first),)  # in a tuple, so that it is no submodule

    def scores(self, x: Tensor) -> Tensor:
        """[M, B, ...]: what each of the M models puts out for images x [B, C, H, W].

        On a CPU the models stand among the channels, as clients do in a stack (grouped.py): all read the same images,
        and small layers fill the processor better. A step of five LeNet-5 takes 0.6 to 0.7 of the time of five steps.
        Elsewhere, and within a stack of clients, one model follows another. Both agree to float rounding.
        """
        if not self._at_once(x):
            return torch.stack([model(x) for model in self])
        each = [dict(model.named_parameters()) for model in self]
        return torch.cat([self._side_by_side(each[i : i + CPU_BLOCK], x) for i in range(0, len(each), CPU_BLOCK)])

    def _side_by_side(self, each: Sequence[Mapping[str, Tensor]], x: Tensor) -> Tensor:
        together = {name: torch.stack([one[name] for one in each]) for name in each[0]}

        def of_one(parameters: dict[str, Tensor]) -> Tensor:
            out: Tensor = torch.func.functional_call(self._form[0], parameters, (x,))
            return out

        out: Tensor = torch.func.vmap(of_one, randomness="different")(together)
        return out

    def _at_once(self, x: Tensor) -> bool:
        """A stack of clients lays other tensors than parameters under the models, and has filled the processor."""
        own = isinstance(next(self.parameters()), nn.Parameter)
        return len(self) > 1 and self.plain and own and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def scores(models: nn.Module, x: Tensor) -> Tensor:
    """As `Several.scores`; of a single network [1, B, ...]."""
    out: Tensor = models.scores(x) if isinstance(models, Several) else models(x)[None]
    return out


@dataclass(frozen=True)
class OfEach:
    """The output of a request to several models: rows [B, M, ...], of which `of` makes one model's [B, ...] from its
    scores [B, K] in float32 and the labels."""

    of: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, models: Any, batch: Batch) -> Tensor:
        return torch.stack([self.of(out.float(), batch.y) for out in scores(models, batch.x)], 1)
