"""Networks that are a user's own files. A setting knows one by its class and its source, such as `Net@0123456789ab`:
the same text is the same network wherever it lies, and a run of it can be told and reported without the file."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from fedbench.errors import FedbenchError
from fedbench.imports import Import
from fedbench.plugins.classes import Place, is_file, place
from fedbench.plugins.source import Plugin, read

if TYPE_CHECKING:
    from fedbench.models.base import FLModel

#: What stands between the class and the digits of its source's digest.
AT = "@"
#: Digits of the digest.
DIGITS = 12


class UserFile(NamedTuple):
    """A network that this process was given."""

    place: Place
    source: Plugin  #: as it was read when it was named


_files_of_users: dict[str, UserFile] = {}


def named(reference: str) -> str:
    """The name under which a setting knows a network: for 'FILE.py:Class' the class and its source, else as given.
    Nothing is run. Raises FedbenchError for a file that is not there, no Python or without the class's name."""
    if not is_file(reference):
        return reference
    at = place(reference, "model")
    if at.name is None or not at.name.isidentifier():
        raise FedbenchError(
            f"{reference} does not say which of its classes is the model", f"such as {at.file.name}:Net"
        )
    source = read(at.file)
    name = f"{at.name}{AT}{source.digest[:DIGITS]}"
    _files_of_users[name] = UserFile(at, source)
    return name


def is_plugin(name: str) -> bool:
    """Whether a setting's name of a network is that of a user's file."""
    return AT in name


def user_file(name: str) -> UserFile:
    """Where that network is. Raises FedbenchError if this process was not given it."""
    if name not in _files_of_users:
        cls, _, digits = name.partition(AT)
        raise FedbenchError(
            f"the model {name} is a user's file that is not at hand", f"give --model FILE.py:{cls} (source {digits})"
        )
    return _files_of_users[name]


def statements(name: str) -> tuple[Import, ...]:
    """All import statements of that network's files."""
    return user_file(name).source.statements


def class_of(name: str) -> Callable[..., FLModel]:
    """What makes that network of the shape of an image and the number of classes, and checks its form.

    Raises FedbenchError for a class that is no network, PluginError for a file that does not load.
    """
    from fedbench.models.base import FLModel
    from fedbench.models.form import check, check_arguments
    from fedbench.plugins.classes import pick
    from fedbench.plugins.load import load
    from fedbench.plugins.mistakes import reported

    at, source = user_file(name)
    module, now = load(at.file)
    if now.digest != source.digest:
        raise FedbenchError(f"{at.reference} was changed while fedbench was at work", "give the command again")
    cls = pick(module, FLModel, at.name, at.reference, "model")
    check_arguments(cls, at.reference)

    @wraps(cls, updated=())
    def make(shape: tuple[int, int, int], classes: int, **options: Any) -> FLModel:
        with reported():
            network = cls(shape, classes, **options)  # type: ignore[arg-type]
            check(network, at.reference, shape, classes)
        return network

    return make
