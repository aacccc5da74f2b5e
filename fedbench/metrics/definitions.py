"""A one-line description of each metric, which reports print. Accuracies are fractions in [0, 1].

`METRICS` are the metrics of every run; methods declare further ones (fedbench/measure.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from fedbench.measure import CLIENT, Measure
from fedbench.methods import declarations

_FEDDRM = "FedDRM (ICLR 2026), section 3"
_PFEDFDA = "pFedFDA (NeurIPS 2024), section 4"
_FLUX = "FLUX (NeurIPS 2025), section 5"

_MOST = sys.float_info.max  # any finite number
#: Unit -> smallest and largest value; values of other units may be any finite number.
RANGES = {
    "fraction": (0.0, 1.0),
    "seconds": (0.0, _MOST),
    "bytes": (0.0, _MOST),
    "count": (0.0, _MOST),
    "nats": (0.0, _MOST),
    "index": (-1.0, 1.0),
}
ANY = (-_MOST, _MOST)

#: Metrics that only methods have which serve clients without labels.
TEST_PHASE = ("test_phase_accuracy_mean", "test_phase_auc_mean")


@dataclass(frozen=True)
class Definition:
    """A metric: its description, unit, and source."""

    description: str
    unit: str
    source: str
    by_view: bool = True  #: one value per view of the test images; else one per run
    clients: str = "no"  #: whether each client has a value: "no", "too" (besides the federation's), "only"
    least: float | None = None  #: lower bound; None: that of its unit (RANGES)
    most: float | None = None  #: upper bound; None: that of its unit

    @property
    def range(self) -> tuple[float, float]:
        """Smallest and largest valid value, up to rounding."""
        least, most = RANGES.get(self.unit, ANY)
        return least if self.least is None else self.least, most if self.most is None else self.most


#: The metrics of every run, by their names in the column `metric` of a metrics artifact.
METRICS: dict[str, Definition] = {
    "system_accuracy": Definition(
        "share of all clients' test images that the federation classifies correctly: by the client "
        "that a routing method selects, otherwise by majority vote",
        "fraction",
        _FEDDRM,
    ),
    "system_accuracy_vote": Definition(
        "system accuracy when all clients' models vote; ties go to the smallest class index", "fraction", _FEDDRM
    ),
    "system_accuracy_probability": Definition(
        "system accuracy when the client with the highest probability predicts", "fraction", _FEDDRM
    ),
    "system_accuracy_density_ratio": Definition(
        "system accuracy when the client with the highest density ratio (probability over training share) predicts",
        "fraction",
        "FedDRM, official code",
    ),
    "system_accuracy_oracle": Definition(
        "system accuracy when each image is predicted by the model of its own client", "fraction", "fedbench"
    ),
    "system_accuracy_random": Definition(
        "expected system accuracy when a random client predicts: the mean over clients of the "
        "accuracy of each model on all test images",
        "fraction",
        "fedbench",
    ),
    "system_accuracy_best_client": Definition(
        "system accuracy when one client's model predicts all images: that of the best client, "
        "which is selected on test images",
        "fraction",
        "fedbench",
    ),
    "average_accuracy": Definition(
        "accuracy of each client's personalised model on its own test images, weighted by training sizes",
        "fraction",
        _FEDDRM,
    ),
    "client_accuracy": Definition(
        "accuracy of one client's personalised model on its own test images", "fraction", _PFEDFDA, clients="only"
    ),
    "client_accuracy_mean": Definition("mean of the client accuracies, unweighted", "fraction", _PFEDFDA),
    "client_accuracy_std": Definition(
        "standard deviation (ddof 1) of the client accuracies across clients", "fraction", _PFEDFDA
    ),
    "client_accuracy_min": Definition("accuracy of the worst client", "fraction", "FTW-ERM (TMLR 2023), Table 2"),
    "client_accuracy_max": Definition("accuracy of the best client", "fraction", "FTW-ERM (TMLR 2023), Table 2"),
    "client_accuracy_weighted": Definition(
        "mean of the client accuracies weighted by test sizes", "fraction", "pFedFDA, official code"
    ),
    "test_images": Definition(
        "number of test images of a client; for the federation of all clients that train",
        "count",
        "fedbench",
        False,
        "too",
    ),
    "test_phase_accuracy": Definition(
        "accuracy on one client's test images of the model that it gets without labels (test phase)",
        "fraction",
        _FLUX,
        clients="only",
    ),
    "test_phase_accuracy_mean": Definition("mean of the clients' test-phase accuracies, unweighted", "fraction", _FLUX),
    "class_accuracy_mean": Definition(
        "unweighted mean over classes of the share of test images that their own client's model classifies correctly",
        "fraction",
        "fedbench",
    ),
    "routing_accuracy": Definition(
        "share of a client's test images routed to it by probability; for the federation weighted by training sizes",
        "fraction",
        _FEDDRM,
        clients="too",
    ),
    "client_auc": Definition(
        "macro ROC AUC of one client's personalised model on its own test images: the mean over the labels that are "
        "not constant there",
        "fraction",
        _FLUX,
        clients="only",
    ),
    "client_auc_mean": Definition("mean of the clients' macro ROC AUC, unweighted", "fraction", _FLUX),
    "test_phase_auc": Definition(
        "macro ROC AUC on one client's test images of the model that it gets without labels (test phase)",
        "fraction",
        _FLUX,
        clients="only",
    ),
    "test_phase_auc_mean": Definition("mean of the clients' test-phase macro ROC AUC, unweighted", "fraction", _FLUX),
    "true_clusters": Definition("distinct true distributions among the clients", "count", _FLUX, False),
    "adjusted_rand_index": Definition(
        "agreement of the final clusters with the clients' true groups, over clients that took part since the "
        "clustering: 1 for the same partition, about 0 for a random one",
        "index",
        "Hubert and Arabie (1985)",
        False,
    ),
    "validation_accuracy": Definition(
        "share of all validation images (`--validation`) that the personalised models of their "
        "clients classify correctly; for selecting hyper-parameters",
        "fraction",
        "fedbench",
        False,
    ),
    "train_loss": Definition(
        "training loss of a round's participants as the method reports it", "nats", "fedbench", False, least=-_MOST
    ),
    "local_training_seconds": Definition(
        "wall seconds of one round's local training; for the run the mean over rounds (without the "
        "first if there are three or more)",
        "seconds",
        "pFedFDA, Table 6",
        False,
    ),
    **{
        f"{part}_share": Definition(
            f"share of what one round's clients took for their work that went into {what}; for the run of all rounds",
            "fraction",
            "pFedFDA, Table 9",
            False,
            most=_MOST,  # two clocks measure part and total
        )
        for part, what in (
            ("network", "passes through the network (what a method asks the trainer for)"),
            ("estimation", "means and covariance of a client's features"),
            ("interpolation", "the search for beta"),
        )
    },
    "server_seconds": Definition(
        "wall seconds of one round's server step; for the run the sum", "seconds", "fedbench", False
    ),
    "evaluation_seconds": Definition(
        "wall seconds of one round's evaluation; for the run the sum", "seconds", "fedbench", False
    ),
    "total_runtime_seconds": Definition(
        "wall seconds of all rounds, evaluation included", "seconds", "pFedFDA, Table 6", False
    ),
    "round_seconds": Definition(
        "wall seconds of one round without its evaluation; for the run the mean over rounds "
        "(without the first if there are three or more)",
        "seconds",
        "fedbench",
        False,
    ),
    "peak_memory": Definition(
        "peak memory since the start of the run: of the whole process with its images, or of the tensors on the GPU",
        "bytes",
        "fedbench",
        False,
    ),
    "bytes_up": Definition("bytes sent by clients in a round; for the run the sum", "bytes", "fedbench", False),
    "bytes_down": Definition("bytes sent to clients in a round; for the run the sum", "bytes", "fedbench", False),
}


def defined(measures: Iterable[Measure]) -> dict[str, Definition]:
    """Name -> definition of the metrics that methods declare as measures."""
    return {
        m.name: Definition(
            m.meaning, m.unit, m.source, by_view=False, clients="too" if m.of == CLIENT else "no", least=m.least
        )
        for m in measures
    }


@cache
def all_metrics() -> dict[str, Definition]:
    """Name -> definition: the metrics of every run, and those that built-in methods declare."""
    return {**METRICS, **defined(declarations.measures().values())}
