"""Command lines as no manual has them: every command, every option it takes, values of every wrong kind.

Commands, options and their kinds come from the application itself, hyper-parameters from the methods, so that what is
added later is tried too.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import typer
from hypothesis import strategies as st

from fedbench import methods
from fedbench.cli import app

#: Whole numbers at and beyond the edges of what is sensible, of 32 and of 64 bits. None is large and sensible: those
#: would be work.
WHOLE = [
    *("0", "1", "2", "3", "-1", "-7", str(2**31 - 1), str(2**31), str(2**32 - 1), str(2**32), str(2**63 - 1)),
    *(str(2**63), str(2**64), str(-(2**63) - 1), str(10**12), str(10**18), str(10**400), "1" * 5000),
]
NUMBERS = [
    *("0", "-0.0", "1", "0.5", "-0.5", "1e-320", "1e300", "-1e300", "1e400", "-1e400", "nan", "-nan", "inf", "-inf"),
    *("1e-400", "0.1.2", "1,5", "0x10", "1_0", "١", "1e", "Infinity", "5e-324", "1.7976931348623157e308"),
]
TEXTS = [
    "", " ", ".", "..", "../..", "~", "~nosuchuser", "~nosuchuser/x", "-", "--json", "-1", "*", "[", "[/red]", ":", ",",
    "x" * 5000, "a/" * 3000, "x\0y", "x\ny", "x\ry", "\x1b[31m", "\udcff", "ö", "\u202e", "😀", "None", "true", ".lock",
    "%s%n", "{0}", "${HOME}", "$(true)", "1", "feddrm/1", "feddrm", "../feddrm", "nowhere.toml", "nowhere.py:X", "x.py",
]  # fmt: skip
#: Nothing here may be written to: a test may run as root. `{tmp}` has links to devices.
PLACES = [
    *("/proc/self/mem", "/dev/stdin", "/proc", "{tmp}", "{tmp}/fifo", "{tmp}/fifo.csv", "{tmp}/full.tex", "{tmp}/loop"),
    *("{tmp}/nowhere/file.csv", "{tmp}/folder.csv", "{tmp}/empty.toml", "{tmp}/binary.toml", "{tmp}/mem.toml"),
    *("{tmp}/zero.csv", "{tmp}/mem.csv", "{tmp}/mem.py", "{tmp}/mem.py:X", "{tmp}/null.json", "{tmp}/file.txt/x.tex"),
    *("{tmp}/empty.py", "{tmp}/empty.py:X", "{tmp}/binary.py", "{tmp}/binary.csv", "/proc/self/mem:X"),
]
ANY = [*WHOLE, *NUMBERS, *TEXTS, *PLACES]

#: Options of the application, which every command takes.
EVERYWHERE = {"--home": "Path", "--data": "Path", "--debug": "flag"}

#: What a command needs to come as far as the value under test; `{run}`, `{partition}` are ids, `{tmp}` a folder.
ENOUGH: dict[str, list[str]] = {
    "partition": ["digits"],
    "train": ["--method", "fedavg", "--budget", "smoke"],
    "show": ["{run}"],
    "remove": ["{run}"],
    "figure": ["ftw_erm/2"],
    "data show": ["digits"],
    "data fetch": ["digits"],
    "data check": ["digits"],
    "theory": ["--draws", "50"],
    "report": ["--table", "feddrm/1"],
    "tables": ["feddrm/1"],
    "demo": ["--budget", "none"],
    "new": ["method", "mine"],
}


@cache
def commands() -> dict[str, Any]:
    """Every command by its words, such as 'data fetch'."""

    def walk(group: Any, before: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from walk(command, (*before, name))
            else:
                yield " ".join((*before, name)), command

    return dict(walk(typer.main.get_command(app), ()))


@cache
def hyperparameters() -> dict[str, dict[str, type]]:
    """Every method's hyper-parameters: option -> its kind."""
    return {
        name: {f"--{k.replace('_', '-')}": type(f.default) for k, f in methods.load(name)[0].hyperparameters().items()}
        for name in methods.names()
    }


def kind_of(command: Any, parameter: str) -> str:
    """The first of int, float and Path that the annotation of a command's parameter names, else str."""
    known = {
        name: one.annotation
        for of in (commands()["partition"], command)  # whose options others have, too
        for name, one in inspect.signature(of.callback, eval_str=False).parameters.items()
    }
    hint = str(known[parameter])
    return next((kind for kind in ("int", "float", "Path") if re.search(rf"\b{kind}\b", hint.split("typer")[0])), "str")


def values(kind: str) -> st.SearchStrategy[str]:
    """Values for an option of that kind: mostly of its kind, sometimes anything."""
    own = {"int": WHOLE, "float": NUMBERS, "Path": PLACES + TEXTS}.get(kind, TEXTS + PLACES)
    return st.one_of(st.sampled_from(own), st.sampled_from(own), st.sampled_from(ANY), st.text(max_size=8))


#: Commands that without an argument go through all tables: work, and nothing of an option's value in it.
THOROUGH = ("report", "tables", "demo")


@st.composite
def command_lines(draw: st.DrawFn, names: Sequence[str]) -> list[str]:
    """One of these commands with up to three options whose values are hostile; now and then one of them twice."""
    name = draw(st.sampled_from(names))
    command = commands()[name]
    options = {max(p.opts, key=len): p for p in command.params if p.param_type_name == "option" and not p.is_eager}
    words = [*name.split(), *draw(st.sampled_from([ENOUGH.get(name, [])] * 2 + [[]] * (name not in THOROUGH)))]
    positional = [p for p in command.params if p.param_type_name == "argument"]
    if positional and draw(st.integers(0, 2)) == 0:
        words = [*name.split(), draw(values("text")), *words[len(name.split()) + 1 :]]
    kinds = {option: "flag" if p.is_flag else kind_of(command, p.name) for option, p in options.items()}
    if name == "train":
        method = draw(st.sampled_from(sorted(hyperparameters())))
        words = [method if word == "fedavg" else word for word in words]
        kinds |= {option: kind.__name__ for option, kind in hyperparameters()[method].items()}
    chosen = draw(st.lists(st.sampled_from(sorted(kinds)), max_size=3, unique=True)) if kinds else []
    if draw(st.integers(0, 9)) == 0:
        kinds |= EVERYWHERE
        chosen.append(draw(st.sampled_from(sorted(EVERYWHERE))))
    if chosen and draw(st.integers(0, 9)) == 0:
        chosen.append(chosen[0])
    for option in chosen:
        if kinds[option] == "flag":
            words.append(option)
        else:
            value = draw(values(kinds[option]))
            words += draw(st.sampled_from([[option, value], [f"{option}={value}"]]))
    return words
