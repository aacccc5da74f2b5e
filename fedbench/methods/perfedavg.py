"""Per-FedAvg: a shared model that adapts to each client in one gradient step."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from fedbench.core.client import UNLABELLED, Batch, Client, ClientUpdate, Gradient, Loss, Request
from fedbench.core.state import State, model_in
from fedbench.errors import FedbenchError
from fedbench.methods.base import Method, cross_entropy, hyperparameter
from fedbench.methods.parts.steps import check_sgd
from fedbench.specs import Setting

#: Names of the two models around w whose gradients' difference approximates H v in HF.
SIDES = ("plus", "minus")


@dataclass(frozen=True)
class PerFedAvg(Method):
    """Per-FedAvg (Fallah, Mokhtari and Ozdaglar, NeurIPS 2020, Algorithm 1), in its variants FO and HF (Sec. 5).

    Clients minimise their loss after a step of gradient descent, f(w - alpha grad f(w)). A local step (lines 7-9)
    draws independent batches D, D' and D'' of their training images:

        w~ = w - alpha grad f(w, D),   v = grad f(w~, D'),   w <- w - beta (v - alpha H v)

    with beta the round's learning rate and H the Hessian of f at w, on D''. The variant fo omits H; hf approximates H v
    by (grad f(w + delta v, D'') - grad f(w - delta v, D'')) / (2 delta). If a network has kinks (ReLU, pooling), their
    jumps dominate this for small delta. A round has the setting's local steps, or one for each batch of its epochs,
    without momentum and weight decay. With alpha = 0 a step is one of SGD on D'. The logged loss is f(w~, D'). A client
    with labels takes `adapt_steps` steps of size alpha before it predicts, each on a new batch.

    deviates: models are averaged by training sizes, as in FedAvg; line 13 weighs clients alike.

    deviates: running statistics of batch norms have seen D at w and D' at w~, not D''; they are averaged with w.
    """

    name = "perfedavg"
    title = "Per-FedAvg"
    personalised = True

    variant: str = hyperparameter("fo", "without the Hessian, or with its product by differences", choices=("fo", "hf"))
    alpha: float = hyperparameter(0.01, "size of the steps that adapt the model", "α", "Alg. 1; paper, Sec. 5", least=0)
    delta: float = hyperparameter(
        1e-2, "half the width of hf's differences, in lengths of v", "δ", "not given by the paper", above=0
    )
    adapt_steps: int = hyperparameter(1, "steps before answering", source="paper, Sec. 5", least=0)

    def check_setting(self, setting: Setting) -> None:
        check_sgd(self.name, setting)
        if self.variant == "hf" and setting.precision != "fp32":
            wrong = f"--variant hf of {self.name} takes differences of gradients, which {setting.precision} rounds away"
            raise FedbenchError(wrong, "use --precision fp32, or --variant fo")

    def relative_compute(self, setting: Setting) -> float:
        return 4.0 if self.variant == "hf" else 2.0

    def local(self, client: Client) -> ClientUpdate:
        setting, losses = client.setting, []  # losses at w~
        for _ in range(setting.steps or (setting.epochs or 0) * client.batches_a_pass):
            w = client.model()
            inner = yield Gradient(cross_entropy)
            client.put(stepped(w, inner.gradient, self.alpha))
            outer = yield Gradient(cross_entropy)
            losses.append(outer.loss)
            direction = outer.gradient  # v
            if self.variant == "hf":
                product = yield from self.hessian_product(client, w, direction)
                direction = stepped(direction, product, self.alpha)
            client.put(stepped(w, direction, client.lr))
        client.logged = sum(losses) / max(len(losses), 1)

    def hessian_product(self, client: Client, w: State, v: State) -> Generator[Request, Any, State]:
        """Return H v by differences, in one request, so that both gradients use the same batch."""
        for side, by in zip(SIDES, (-self.delta, self.delta), strict=True):
            client.put({**client.model(), **stepped(w, v, by)}, side)
        ends = yield Gradient(sum_of_losses, model=SIDES)
        client.state = client.model()
        plus, minus = (model_in(ends.gradient, side) for side in SIDES)
        return {name: (plus[name] - minus[name]) / (2 * self.delta) for name in v}

    def personalising(self, setting: Setting, kind: str, final: bool, n_train: int, n_test: int) -> float:
        return float(self.adapt_steps * min(setting.batch_size, n_train)) if kind != UNLABELLED else 0.0

    def personalise(self, client: Client) -> ClientUpdate:
        for _ in range(0 if client.kind == UNLABELLED else self.adapt_steps):
            own = yield Gradient(cross_entropy)
            client.put(stepped(client.model(), own.gradient, self.alpha))


def stepped(weights: State, direction: State, by: float) -> State:
    """Return weights - by * direction, for the tensors of `direction`."""
    return {name: weights[name] - by * d for name, d in direction.items()}


def sum_of_losses(models: Any, batch: Batch) -> Loss:
    """Return the sum of two models' losses; they share no parameter, so its gradient contains both gradients."""
    plus, minus = (cross_entropy(model, batch).total for model in models)
    return Loss(plus + minus)
