"""MLflow: a run each, in the experiment `fedbench` or that of MLFLOW_EXPERIMENT_NAME."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import mlflow

from fedbench.observers.observer import Observer, Training

if TYPE_CHECKING:
    from fedbench.core.trainer import Progress


class MLflow(Observer):
    """Parameters, `loss` and `accuracy` by round, the results as metrics; fedbench's ids as the tag `fedbench.runs`."""

    def __init__(self, address: str = "") -> None:
        self.client = mlflow.MlflowClient(address or None)
        self.run, self.rounds = "", 0

    def on_start(self, training: Training) -> None:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedbench")
        there = self.client.get_experiment_by_name(name)
        experiment = there.experiment_id if there else self.client.create_experiment(name)
        tags = {"fedbench.runs": " ".join(training.ids)}
        self.rounds = training.rounds
        self.run = self.client.create_run(experiment, tags=tags, run_name=training.title).info.run_id
        for key, value in training.values.items():
            self.client.log_param(self.run, key, value)

    def on_round(self, now: Progress) -> None:
        if now.doing:
            return
        self.client.log_metric(self.run, "loss", now.loss, step=now.round)
        if now.accuracy is not None:
            self.client.log_metric(self.run, "accuracy", now.accuracy, step=now.round)

    def on_end(self, results: Mapping[str, float] | None) -> None:
        for name, value in (results or {}).items():
            self.client.log_metric(self.run, name, value, step=self.rounds)
        self.client.set_terminated(self.run, "FAILED" if results is None else "FINISHED")


def observer(where: str) -> MLflow:
    """The observer of `--observe mlflow[:ADDRESS]`, such as mlflow:http://localhost:5000 (else MLFLOW_TRACKING_URI)."""
    return MLflow(where)
