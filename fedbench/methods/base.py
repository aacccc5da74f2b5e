"""What a method's file imports: base class, losses and hyper-parameters. See `fedbench.core.method`."""

from fedbench.core.method import (
    AFTER_AGGREGATE,
    AFTER_LOCAL,
    BODY,
    FORWARD,
    HEAD,
    Method,
    Scored,
    cross_entropy,
    features,
    score_hyperparameter,
)
from fedbench.options import check
from fedbench.options import option as hyperparameter

__all__ = [
    "AFTER_AGGREGATE",
    "AFTER_LOCAL",
    "BODY",
    "FORWARD",
    "HEAD",
    "Method",
    "Scored",
    "check",
    "cross_entropy",
    "features",
    "hyperparameter",
    "score_hyperparameter",
]
