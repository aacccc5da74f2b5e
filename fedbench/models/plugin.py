"""Networks that are a user's own files."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from fedbench.imports import Import
from fedbench.plugins.named import Named

if TYPE_CHECKING:
    from fedbench.models.base import FLModel

networks = Named("model", "--model")
named, is_plugin, known = networks.name, networks.is_plugin, networks.known


def statements(name: str) -> tuple[Import, ...]:
    """All import statements of that network's files."""
    return known(name).source.statements


def class_of(name: str) -> Callable[..., FLModel]:
    """What makes that network of the shape of an image and the number of classes, and checks its form.

    Raises FedbenchError for a class that is no network, PluginError for a file that does not load.
    """
    from fedbench.models.base import FLModel
    from fedbench.models.form import check, check_arguments
    from fedbench.plugins.mistakes import reported

    cls, at = networks.load(name, FLModel)
    check_arguments(cls, at.reference)

    @wraps(cls, updated=())
    def make(shape: tuple[int, int, int], classes: int, **options: Any) -> FLModel:
        with reported():
            network = cls(shape, classes, **options)  # type: ignore[arg-type]
            check(network, at.reference, shape, classes)
        return network

    return make
