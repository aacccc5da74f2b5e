"""What every model answers for every test image: the predictions that all accuracies are computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.core.client import Box, Client
from fedbench.core.executors import Executor
from fedbench.core.plan import CropStream, Plan
from fedbench.core.worker import CHUNK, Cancelled, Worker
from fedbench.errors import FedbenchError
from fedbench.models.base import FLModel

#: The router of a method: (model, trunk features [B, d], log training shares [M]) -> client chosen [B] by rule.
Router = Callable[[nn.Module, Tensor, Tensor], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Answers:
    """Answers for all test rows in federation order; column names are those of the run's `predictions` table."""

    rows: np.ndarray  #: [T] row of the federation
    own: np.ndarray  #: [T] uint16: the owner's model
    votes: np.ndarray | None  #: [T, M] uint16: every client's model
    routes: Mapping[str, np.ndarray]  #: rule -> [T] int32 client chosen


def answer(
    clients: Sequence[Client],
    executor: Executor,
    plan: Plan,
    t: int,
    view: str,
    router: Router | None,
) -> Answers:
    """Ask every client's model (`client.state`) for its answer to every client's test images.

    view: "crop" draws a random crop for each image (one draw, the same for every model), "plain" takes it whole.
    Models that share their body run it once an image; only the heads run once a client. The work is cut in
    pieces of fixed size, so the number of workers changes nothing.
    """
    if _share_body(clients, executor.model):
        return _answers_of_shared_body(clients, executor, plan, t, view, router)
    if router is not None:
        raise FedbenchError("a method that routes must give all clients the same body", "route compares its features")
    return _answers_of_all(clients, executor, plan, t, view)


def own_answers(
    clients: Sequence[Client],
    executor: Executor,
    plan: Plan,
    t: int,
    views: Iterable[str],
    personalise: Callable[[Client], Box | None],
) -> dict[str, Answers]:
    """Personalise each client and ask its model for its own test images: view -> answers.

    Client by client, so that no more personal models are alive than workers.
    """

    def job(worker: Worker, client: Client) -> list[np.ndarray]:
        worker.serve(client, personalise)
        answers = [_own(worker, client, plan, t, view) for view in views]
        client.state = {}
        return answers

    parts = executor.map(job, clients)
    rows = _test_rows(executor, clients)
    return {view: Answers(rows, np.concatenate([p[k] for p in parts]), None, {}) for k, view in enumerate(views)}


def _share_body(clients: Sequence[Client], model: nn.Module) -> bool:
    """Whether the clients' models differ in nothing but the linear head on common features.

    They must hold the very same tensors outside the head (the same objects, not equal values), and the network must
    answer with that head alone. A method's own variables, such as a client's beta, do not answer and do not count.
    """
    if type(model).forward is not FLModel.forward:
        return False
    first = clients[0].state
    body = [n for n in model.state_dict() if not n.startswith("head.")]
    return all(c.state[n] is first[n] for c in clients[1:] for n in body)


def _crops(plan: Plan, t: int, client: int, view: str) -> CropStream | None:
    return plan.crops("test", t, client, 0) if view == "crop" else None


def _test_rows(executor: Executor, clients: Sequence[Client]) -> np.ndarray:
    federation = executor.federation
    return np.concatenate([federation.test[c.index].cpu().numpy() for c in clients])


@torch.no_grad()
def _own(worker: Worker, client: Client, plan: Plan, t: int, view: str) -> np.ndarray:
    model = worker.load(client.state).eval()
    crops = _crops(plan, t, client.index, view)
    out = [_predict(worker, model, chunk, crops) for chunk in torch.split(worker.federation.test[client.index], CHUNK)]
    return np.concatenate(out)


def _predict(worker: Worker, model: nn.Module, rows: Tensor, crops: CropStream | None) -> np.ndarray:
    if worker.cancel.is_set():
        raise Cancelled
    labels: np.ndarray = model(worker.batch(rows, crops)).argmax(1).cpu().numpy().astype(np.uint16)
    return labels


def _answers_of_all(clients: Sequence[Client], executor: Executor, plan: Plan, t: int, view: str) -> Answers:
    """Every client's model on every client's test images."""

    @torch.no_grad()
    def job(worker: Worker, client: Client) -> np.ndarray:
        model = worker.load(client.state).eval()
        out = []
        for owner in clients:
            crops = _crops(plan, t, owner.index, view)  # the same windows for every voter
            for chunk in torch.split(worker.federation.test[owner.index], CHUNK):
                out.append(_predict(worker, model, chunk, crops))
        return np.concatenate(out)

    votes = np.stack(executor.map(job, clients), axis=1)
    return Answers(_test_rows(executor, clients), _owners(executor, clients, votes), votes, {})


def _owners(executor: Executor, clients: Sequence[Client], votes: np.ndarray) -> np.ndarray:
    owner = np.repeat(np.arange(len(clients)), [len(executor.federation.test[c.index]) for c in clients])
    own: np.ndarray = votes[np.arange(len(votes)), owner]
    return own


def _answers_of_shared_body(
    clients: Sequence[Client], executor: Executor, plan: Plan, t: int, view: str, router: Router | None
) -> Answers:
    """One pass of the body over each client's test images, all heads on its features."""
    weight = torch.stack([c.state["head.weight"] for c in clients])  # [M, K, d]
    bias = torch.stack([c.state["head.bias"] for c in clients])  # [M, K]
    n = torch.tensor([c.n_train for c in clients], dtype=torch.float32, device=weight.device)
    log_shares = (n / n.sum()).log()

    @torch.no_grad()
    def job(worker: Worker, client: Client) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        model = worker.load(clients[0].state).eval()
        crops = _crops(plan, t, client.index, view)
        labels, routes = [], []
        for chunk in torch.split(worker.federation.test[client.index], CHUNK):
            if worker.cancel.is_set():
                raise Cancelled
            h = model.trunk(worker.batch(chunk, crops))  # type: ignore[operator]
            z = model.neck(h)  # type: ignore[operator]
            labels.append((torch.einsum("bd,mkd->bmk", z, weight) + bias).argmax(2))
            if router is not None:
                routes.append(router(model, h, log_shares))
        return (
            torch.cat(labels).cpu().numpy().astype(np.uint16),
            {
                rule: torch.cat([r[rule] for r in routes]).cpu().numpy().astype(np.int32)
                for rule in (routes[0] if routes else ())
            },
        )

    parts = executor.map(job, clients)
    answers = np.concatenate([labels for labels, _ in parts])
    routes = {rule: np.concatenate([r[rule] for _, r in parts]) for rule in parts[0][1]}
    own = _owners(executor, clients, answers)
    return Answers(_test_rows(executor, clients), own, answers, routes)
