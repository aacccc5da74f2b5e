"""Import torchvision; all modules import it through this one.

Some combinations of wheels (torch for CPU, torchvision's default) cannot load torchvision's compiled operators, and the
import fails, although the Python models and transforms would work. It is enough to declare the two operators that the
import needs. They have no kernel, so calling them is still an error.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from fedbench.errors import FedbenchError

_MISSING = "operator torchvision::nms does not exist"
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def torchvision() -> ModuleType:
    """Import torchvision and return the module. Raises FedbenchError if it is not installed."""
    try:
        return importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
        raise FedbenchError("torchvision is not installed", "pip install torchvision") from error
    except RuntimeError as error:
        if _MISSING not in str(error):
            raise
    for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    import torch

    for operator in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, operator):
            torch.library.define(f"torchvision::{operator}", _SIGNATURE)
    return importlib.import_module("torchvision")
