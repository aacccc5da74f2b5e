"""Computes accuracies and times from a run's predictions, without models, images or torch.

`evaluate` makes a run's metrics artifact; `read` reads its values quickly; `statistics` summarises them.
"""

from fedbench.metrics.evaluate import evaluate

__all__ = ["evaluate"]
