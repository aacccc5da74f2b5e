"""Who watches runs while they are trained, a file each; on the command line NAME or NAME:WHERE (README.md)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from fedbench.errors import FedbenchError, unknown
from fedbench.observers.observer import Observer as Observer
from fedbench.observers.observer import Training as Training

#: Name -> what follows its colon.
WHERE = {"jsonl": "FILE", "tensorboard": "DIR", "mlflow": "ADDRESS", "wandb": "PROJECT"}
#: What writes files, and where it might.
_FILES = {"jsonl": "log.jsonl", "tensorboard": "board"}


def of(text: str) -> Observer:
    """The observer that 'NAME' or 'NAME:WHERE' means, such as 'tensorboard:logs'.

    Raises FedbenchError for an unknown name, and where the library that it needs is not installed.
    """
    name, colon, where = text.partition(":")
    if name not in WHERE:
        raise unknown("observer", name, WHERE)
    if not where and (colon or name in _FILES):
        such = f"such as {name}:{_FILES.get(name, WHERE[name])}"
        raise FedbenchError(f"--observe {text} names no {WHERE[name]}", such)
    try:
        kind = import_module(f"fedbench.observers.{name}")
    except ImportError as error:
        raise FedbenchError(
            f"the observer {name} needs a library that is not installed ({error})", f"pip install 'fedbench-fl[{name}]'"
        ) from error
    made: Observer = kind.observer(where)
    return made


def log(path: Path) -> Observer:
    """The observer that appends to a file of JSON lines."""
    from fedbench.observers.jsonl import JsonLines

    return JsonLines(path)
