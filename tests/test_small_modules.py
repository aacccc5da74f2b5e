"""Modules of the package that are in no room: words, errors, machine, imports, vision, and the reader of what users
write."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal
from unittest.mock import Mock

import pytest
import torch

from fedbench import imports as module
from fedbench import machine, reader, vision
from fedbench.errors import FedbenchError, unknown
from fedbench.files import machine as this_machine
from fedbench.files import whole_folder
from fedbench.imports import Import, closure
from fedbench.reader import Between, Some
from fedbench.words import duration
from tests.support.cli_user import denied
from tests.support.data_makers import written
from tests.support.frames import refused

# -- words -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (89, "89 s"), (90, "2 min"), (700, "12 min"), (12_600, "3.5 h"), (181_440, "2.1 days")],
)
def test_a_duration_is_rough(seconds: float, words: str) -> None:
    assert duration(seconds) == words


# -- errors: the nearest name, or all, never a far one ---------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("fedrdm", "feddrm"),
        ("FedAvg", "fedavg"),
        ("fedavgg", "fedavg"),
        ("scafold", "scaffold"),
        ("ditt", "ditto"),
        ("ifac", "ifca"),
        ("pfedfd", "pfedfda"),
        ("per-fedavg", "perfedavg"),
        ("fog", "fgo"),
        ("rum", "run"),
    ],
)
def test_a_slip_of_the_keyboard_is_offered_the_name(name: str, meant: str) -> None:
    known = ["cfl", "feddrm", "fedavg", "scaffold", "ditto", "ifca", "pfedfda", "perfedavg", "fgo", "run"]
    assert unknown("method", name, known).hint == f"did you mean '{meant}'?"


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("scaffold", ["cfl", "fedavg"]),
        ("apple", ["apfl", "local"]),
        ("fedprox", ["fedrep", "pfedfda"]),
        ("fedper", ["fedrep", "fedpac"]),
        ("moon", ["ditto", "local"]),
        ("resnet18", ["lenet5", "cnn"]),
        ("maximum", ["max", "min"]),
        ("last", ["best"]),
        ("6", ["feddrm/1", "1", "2"]),
        ("", ["a"]),
        ("x", []),
    ],
)
def test_another_name_is_offered_none(name: str, known: list[str]) -> None:
    assert unknown("method", name, known).hint == f"known: {', '.join(sorted(known)) or 'none'}"


def test_too_many_for_a_line_are_told_by_the_command_that_lists_them() -> None:
    assert str(unknown("table", "x", ["a/1"], "fedbench tables")) == "unknown table 'x'; 'fedbench tables' lists them"
    assert unknown("table", "feddrm/2", ["feddrm/1"], "fedbench tables").hint == "did you mean 'feddrm/1'?"
    assert str(unknown("level of mine", "4", (2, 3))) == "unknown level of mine '4'; known: 2, 3"


# -- machine: memory and processor -----------------------------------------------------------------------------


JOB = {"slurm/job_7/step_0/memory.max": b"max\n", "slurm/job_7/memory.max": b"16000\n", "slurm/memory.max": b"64000\n"}
FIRST = {"memory/b/memory.limit_in_bytes": b"1\n", "memory/a/memory.limit_in_bytes": b"2000\n"}


@pytest.mark.parametrize(
    ("groups", "files", "limits"),
    [
        ("0::/slurm/job_7/step_0\n", JOB, [16000, 64000]),  # of a job, and of what it is in
        ("4:cpu,cpuacct:/b\n3:memory:/a\n0::/\n", FIRST, [2000]),  # of the first version
        ("0::/gone\n", {}, []),
        (None, {}, []),
    ],
)
def test_limits_of_memory(tmp_path: Path, groups: str | None, files: dict[str, bytes], limits: list[int]) -> None:
    written(tmp_path, {} if groups is None else {"cgroup": groups.encode()})
    assert sorted(machine.limits(tmp_path / "cgroup", written(tmp_path / "fs", files))) == limits


def test_what_a_killed_process_left_of_a_folder_is_deleted(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    ended, here = (f"part-{this_machine()}-{pid}-999999" for pid in (dead.pid, os.getpid()))
    kept = {f".out.{here}", f".other.{ended}", ".mine"}
    for name in (f".out.{ended}", *kept):
        (tmp_path / name).mkdir()
    with whole_folder(tmp_path / "out", "exporting") as part:
        (part / "file").touch()
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "out"}


def test_a_processor_by_name_and_numbers(tmp_path: Path) -> None:
    text = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207\n"
    text += "model name\t: Intel(R) Xeon(R) Processor\nstepping\t: 2\n\n"
    written(tmp_path, {"cpuinfo": 2 * text.encode(), "arm": b"BogoMIPS\t: 50.00\n"})
    assert machine.processor(tmp_path / "cpuinfo") == "Intel(R) Xeon(R) Processor 6-207-2"
    assert all(machine.processor(tmp_path / name) != "" for name in ("none", "arm"))
    assert 1 << 20 < machine.memory() < 1 << 60


# -- imports: statements, and the files that they lead to ------------------------------------------------------


def test_a_closure_follows_imports_within_the_rooms() -> None:
    plan = closure("core/plan.py")
    assert plan == ["core/plan.py", "rng.py"]
    assert {"core/executors.py", "core/worker.py", "core/state.py"} <= set(closure("core/trainer.py"))
    assert closure("cli/train.py") == [], "no room where numbers are made"


@pytest.mark.parametrize(
    ("statement", "parts"),
    [
        (Import("fedbench.rng", ("stream",)), {"rng.py"}),
        (Import("fedbench", ("rng",)), {"rng.py"}),
        (Import("fedbench.rng"), {"rng.py"}),
        (Import("fedbench.partitions.transforms.corruption", ("blur",)), {"partitions/transforms/corruption.py"}),
        (Import("core", ("rng",)), set()),
        (Import("core", ("rng",), 1), set()),
    ],
)
def test_statements_of_a_file_outside(statement: Import, parts: set[str]) -> None:
    found = set(closure(statements=(statement,)))
    assert parts <= found
    assert found or not parts


def test_what_lists_and_reads_imports_nothing_that_computes() -> None:
    """The closure of imports, the networks' names, and metrics where they are read."""
    code = (
        "import sys, fedbench.models, fedbench.metrics.read, fedbench.metrics.statistics\n"
        "from fedbench.imports import closure\n"
        "fedbench.models.names(), closure('engine/training.py')\n"
        "print({'torch', 'pandas', 'sklearn', 'pyarrow'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_a_package_comes_before_a_module_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for Python; another distribution may have put models.py beside models/."""
    (tmp_path / "models").mkdir()
    for name in ("models.py", "models/__init__.py"):
        (tmp_path / name).touch()
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    assert module._file("models") == "models/__init__.py"


# -- vision: torchvision through the one door ------------------------------------------------------------------


MISSING = "operator torchvision::nms does not exist"


@pytest.mark.slow
def test_mobilenet_v3_small_has_the_counts_of_table_8() -> None:
    """In a process of its own: whatever a plain import does here, the door opens, twice to the same module."""
    code = (
        "from fedbench.vision import torchvision\n"
        "tv = torchvision(); assert torchvision() is tv\n"
        "net = tv.models.mobilenet_v3_small()\n"
        "print(*(sum(p.numel() for p in part.parameters()) for part in (net.features, net.classifier)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["927008", "1615848"], done.stderr


MODULE = ModuleType("torchvision")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Mock]:
    """Has imports answer with these errors in turn, then with a module; what becomes of sys.modules is forgotten."""

    def these(*errors: Exception) -> Mock:
        importer = Mock(side_effect=[*errors, MODULE])
        monkeypatch.setattr(vision.importlib, "import_module", importer)
        return importer

    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return these


def test_a_plain_import_is_left_alone(answers: Callable[..., Mock], monkeypatch: pytest.MonkeyPatch) -> None:
    importer, define = answers(), Mock()
    monkeypatch.setattr(torch.library, "define", define)
    assert vision.torchvision() is MODULE
    importer.assert_called_once_with("torchvision")
    define.assert_not_called()


def test_missing_operators_are_declared_and_the_import_repeated(answers: Callable[..., Mock]) -> None:
    importer = answers(RuntimeError(MISSING))
    sys.modules["torchvision.half"] = ModuleType("torchvision.half")
    assert vision.torchvision() is MODULE
    assert importer.call_count == 2
    assert "torchvision.half" not in sys.modules, "a half-imported submodule was left behind"
    assert hasattr(torch.ops.torchvision, "nms")
    assert hasattr(torch.ops.torchvision, "qnms")


def test_other_failures_are_not_hidden(answers: Callable[..., Mock]) -> None:
    for errors, kind, says in (
        ([RuntimeError("driver too old")], RuntimeError, "driver too old"),
        ([RuntimeError(MISSING)] * 2, RuntimeError, "nms"),
        ([ModuleNotFoundError("no", name="torchvision")], FedbenchError, "torchvision is not installed"),
    ):
        answers(*errors)
        with pytest.raises(kind, match=says):
            vision.torchvision()


# -- reader: strict at every depth, one line that says where ----------------------------------------------------


@dataclass(frozen=True)
class Inner:
    label: str
    band: list[float] = field(default_factory=list)
    shape: tuple[int, int, int] = (1, 1, 1)


@dataclass(frozen=True)
class Outer:
    title: str
    id: str = ""
    rows: list[Inner] = field(default_factory=list)
    one: Inner | None = None
    seeds: tuple[Annotated[int, Between(0, 9)], ...] = ()
    seed: int | Literal["run"] = 0
    best: bool | None = None
    sizes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    any: Any = None
    some: Annotated[Mapping[str, Any], Some(Inner, ("label",), {"more": str})] = field(default_factory=dict)


def read(raw: Any) -> Outer:
    return reader.read(Outer, raw, "m.toml", id="own")


def test_a_right_table() -> None:
    raw = {
        "title": "a",
        "rows": [{"label": "x", "band": [1, 2.5], "shape": [1, 2, 3]}],
        "one": {"label": "y"},
        "seeds": [1, 2],
        "seed": "run",
        "best": True,
        "sizes": {"a": {"b": 1}},
        "any": [{"x": [1]}],
        "some": {"band": [1], "more": "text"},
    }
    assert read(raw) == Outer(
        "a",
        "own",
        [Inner("x", [1.0, 2.5], (1, 2, 3))],
        Inner("y"),
        (1, 2),
        "run",
        True,
        {"a": {"b": 1}},
        [{"x": [1]}],
        {"band": [1], "more": "text"},
    )
    assert repr(read(raw).rows[0].band) == "[1.0, 2.5]", "whole numbers are numbers"
    assert repr(read(raw).some["band"]) == "[1]", "some of a dataclass's fields stay as they are written"


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ([], "m.toml must be a table of keys, not []"),
        ({}, "m.toml lacks 'title'"),
        ({"title": 1}, "m.toml, title must be text, not 1"),
        ({"title": "a", "titel": 1}, "unknown key in m.toml 'titel'; did you mean 'title'?"),
        ({"title": "a", "id": "b"}, "m.toml: unknown key 'id'; the file's place and name say it"),
        ({"title": "a", "rows": {}}, "m.toml, rows must be a list, not {}"),
        ({"title": "a", "rows": [{"label": "x"}, 1]}, "m.toml, row 2 must be a table of keys, not 1"),
        ({"title": "a", "rows": [{"label": "x", "band": [1, "x"]}]}, "m.toml, row 1, band 2 must be a number, not 'x'"),
        ({"title": "a", "rows": [{"label": "x", "band": [True]}]}, "m.toml, row 1, band 1 must be a number, not True"),
        ({"title": "a", "rows": [{"label": "x", "shape": [1, 2]}]}, "m.toml, row 1, shape must have 3 entries, not 2"),
        ({"title": "a", "rows": [{"lable": "x"}]}, "unknown key in m.toml, row 1 'lable'; did you mean 'label'?"),
        ({"title": "a", "one": {"label": "x", "bnad": 1}}, "unknown key in m.toml, one 'bnad'; did you mean 'band'?"),
        ({"title": "a", "one": {"label": None}}, "m.toml, one.label must be text, not None"),
        ({"title": "a", "one": [1]}, "m.toml, one must be a table of keys, not [1]"),
        ({"title": "a", "seeds": [1, 1.0]}, "m.toml, seeds 2 must be a whole number, not 1.0"),
        ({"title": "a", "seeds": [1, 10]}, "m.toml, seeds 2 must lie in 0 to 9, not 10"),
        ({"title": "a", "seed": "walk"}, "m.toml, seed must be a whole number or 'run', not 'walk'"),
        ({"title": "a", "best": 1}, "m.toml, best must be true or false, not 1"),
        ({"title": "a", "sizes": {"a": 1}}, "m.toml, sizes.a must be a table of keys, not 1"),
        ({"title": "a", "sizes": {"a": {"b": "c"}}}, "m.toml, sizes.a.b must be a whole number, not 'c'"),
        ({"title": "a", "some": {"label": "x"}}, "unknown key in m.toml, some 'label'; known: band, more, shape"),
        ({"title": "a", "some": {"band": ["x"]}}, "m.toml, some.band 1 must be a number, not 'x'"),
        ({"title": "a", "any": {"x": [float("nan")]}}, "m.toml, any.x 1 must be a number, not nan"),
        ({"title": "a", "any": 2**63}, "m.toml, any must have 64 bits at most, unlike 9223372036854775808"),
        ({"title": "a", "any": "\x1b[31m"}, r"m.toml, any cannot hold the control character '\x1b'"),
        ({"title": "a", "any": "\ud800"}, r"m.toml, any cannot hold the control character '\ud800'"),
    ],
)
def test_what_is_wrong_and_where(raw: Any, says: str) -> None:
    assert refused("", lambda: read(raw)) == says


def test_a_long_value_is_shortened() -> None:
    assert len(refused("", lambda: read({"title": list("x" * 10**5)}))) < 200


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a = ", "is not valid TOML: Invalid value (at end of document)"),
        (b"a = '\xff'", "is not UTF-8 text (at byte 5); save it as UTF-8"),
        (b"a = 1979-05-27", ', a cannot be a date or a time; for a text put it in quotes: "1979-05-27"'),
        (b"a = " + b"[" * 10**4 + b"]" * 10**4, "is nested more than 20 deep"),
        (b"a = " + b"[" * 30 + b"]" * 30, "is nested more than 20 deep"),
        (b".".join([b"a"] * 50) + b" = 1", "is nested more than 20 deep"),
        (b".".join([b"a"] * 500000) + b" = 1", "is nested more than 20 deep"),
        (b"a = 1" + b"0" * 5000, "is not valid TOML: Exceeds the limit"),
        (b"#" * (2**20 + 1), "has more than 1 MiB, too much for a recipe"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    line = refused("", lambda: reader.toml(path, "recipe"))
    assert str(path) in line
    assert says in line
    assert len(line) < 400


def test_what_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, says in (
        (tmp_path, f"{tmp_path} is a folder, where a recipe should be; look there"),
        (tmp_path / "pipe", f"{tmp_path}/pipe is no regular file, where a recipe should be; look there"),
        (tmp_path / "none", f"there is no recipe {tmp_path}/none; look there"),
        (tmp_path / ("x" * 5000), "(File name too long); look there"),
        (Path("/proc/self/mem"), "cannot read /proc/self/mem (Input/output error); look there"),
    ):
        assert refused("", partial(reader.toml, path, "recipe", "look there")).endswith(says)
    (tmp_path / "mine.toml").touch()
    monkeypatch.setattr(Path, "open", denied)
    line = refused("", lambda: reader.toml(tmp_path / "mine.toml"))
    assert f"cannot read {tmp_path}/mine.toml (Permission denied)" in line


def test_the_mark_that_windows_editors_put_first_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("a = 1", encoding="utf-8-sig")
    assert reader.toml(tmp_path / "mine.toml") == {"a": 1}


def test_errors_are_one_line_whatever_they_quote() -> None:
    error = FedbenchError("no file 'a\n  b\r\nc\u2028d\x85e\x1b[31m\u202e'", "try\nthis\x00")
    assert str(error) == r"no file 'a b c d e\x1b[31m\u202e'; try this\x00"
    assert str(FedbenchError("5 % of Müller’s\u00a0data")) == "5 % of Müller’s\u00a0data"
