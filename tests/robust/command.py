"""`fedbench ARGUMENTS` in this process, under the promise that it never ends in a traceback; and trainings that take
no time."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import Phase

from tests.support import cli_user
from tests.support.cli_user import SMOKE, Said

#: Of tests whose example is one odd file or edit: made smaller, it would say no more.
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
PARTITION = ("partition", "digits", "--dir", "0.3", "--protocol", "feddrm")
TABLE = ("--table", "1", "--dataset", "digits", *SMOKE)


def fedbench(*arguments: str | Path, codes: tuple[int, ...] = (0, 1, 2)) -> Said:
    """Run a command. Fails on another exit code, or where an error is not one last line that says what is wrong.

    What a traceback would be is raised as it is.
    """
    said, words = cli_user.fedbench(*arguments), " ".join(map(str, arguments))
    assert said.code in codes, f"fedbench {words}: exit code {said.code}\n{said.err}"
    if "--debug" in arguments:  # which shows the traceback
        return said
    assert "Traceback" not in said.err, f"fedbench {words}:\n{said.err}"
    assert said.code == 0 or said.err, f"fedbench {words}: exit code {said.code} without a word"
    own = [line for line in said.err.splitlines() if line.startswith("fedbench: ")]
    assert own in ([], [said.line]), f"fedbench {words}: more than one line of error\n{said.err}"
    return said


def copy(home: Path, to: Path) -> Path:
    """A fresh copy of a store, or of none, at `to`, in place of whatever a former case left there."""
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(home, to)) if home.exists() else to


def numbers(home: Path) -> dict[str, float]:
    """The numbers of the table; none where it is refused."""
    said = fedbench("--home", home, "report", *TABLE, "--format", "json")
    (table,) = json.loads(said.out) if said.code != 2 else [{"cells": []}]
    return {f"{cell['row']}, {cell['column']}": cell["value"] for cell in table["cells"] if cell["value"] is not None}


def nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a tree of JSON or TOML but its root: (container, key or index)."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from nodes(inner)


def quickly(replace: Callable[[Any, str, Any], Any]) -> None:
    """Budget smoke at three rounds of two small steps, a checkpoint after each."""
    from fedbench import protocol
    from fedbench.core import trainer

    load = protocol.load

    def briefly(name: str) -> protocol.Protocol:
        rules = load(name)
        less = {"rounds": 3, "steps": 2, "batch_size": 16}
        return dataclasses.replace(rules, budgets={**rules.budgets, "smoke": {**rules.budgets["smoke"], **less}})

    replace(protocol, "load", briefly)
    replace(trainer, "CHECKPOINT_SECONDS", 0.0)
    replace(trainer, "CHECKPOINT_SHARE", 1e9)
