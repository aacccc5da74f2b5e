"""From predictions to accuracies and times: no model, no image, no torch.

`evaluate` makes a run's metrics artifact; `read` gives quick access to its values; `statistics` sums them up.
"""

from fedbench.metrics.evaluate import evaluate

__all__ = ["evaluate"]
