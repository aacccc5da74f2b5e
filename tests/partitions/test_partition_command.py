"""`fedbench partition` as a user meets it, on the embedded digits."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.main import get_command

from fedbench import data
from fedbench.__main__ import main
from fedbench.cli import app
from fedbench.cli.partition import _short_forms
from fedbench.partitions import Partition, build, read, schemes, view
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.transforms import of_clients
from fedbench.store import Store


def run(*arguments: str) -> None:
    """The command line up to its exit; a clean end may or may not exit explicitly."""
    try:
        main(["partition", *arguments])
    except SystemExit as end:
        if end.code:
            raise


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on standard error of a command that must end with exit code 2."""
    with pytest.raises(SystemExit) as end:
        main(["partition", *arguments])
    assert end.value.code == 2
    return capsys.readouterr().err


def current(home: Path) -> Partition:
    store = Store(home)
    return read(store.open("partition", store.current["partition"]))


def table(p: Partition, width: int, **options: object) -> str:
    console = Console(width=width, **options)  # type: ignore[arg-type]
    with console.capture() as captured:
        view.display(console, p)
    return captured.get()


def test_defaults_are_the_main_setting(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("digits", "--protocol", "feddrm")
    said = capsys.readouterr()
    assert "taking --dir 0.3" in said.err
    made = current(home)
    spec = made.spec
    assert (schemes.label(spec), spec.clients, spec.shift, spec.train_fraction) == ("Dir-0.3", 8, "high", 0.7)
    assert (spec.seed, spec.options.get("min_size")) == (2025, 10)
    assert Store(home).current["protocol"] == "feddrm"
    assert made.id in said.out
    assert f"{made.n_train.sum():,} training and {made.n_test.sum():,} test images" in said.out


def test_plain_text_is_aligned_and_complete(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("digits", "--dir", "0.3", "--protocol", "feddrm")
    said = capsys.readouterr()
    assert "taking" not in said.err
    assert "\x1b" not in said.out
    made = current(home)
    rows = [line.split() for line in said.out.splitlines() if re.match(r" +\d ", line)]
    assert [row[0] for row in rows] == [str(c) for c in range(8)]
    for c, row in enumerate(rows):
        assert [0 if cell == "·" else int(cell) for cell in row[1:11]] == made.class_counts()[c].tolist()
        assert row[11:] == [str(made.n_train[c]), str(made.n_test[c]), f"{made.transforms[c].gamma:g}"]
    lengths = {len(line) for line in said.out.splitlines() if re.match(r" +\d ", line)}
    assert len(lengths) == 1
    assert max(lengths) <= view.WIDTH


def test_every_option_reaches_the_spec(home: Path) -> None:
    run(
        "digits", "--dir", "5", "--clients", "3", "--shift", "pool", "--split", "0.5", "--seed", "4", "--min-size", "90"
    )
    spec = current(home).spec
    assert (spec.options.get("alpha"), spec.clients, spec.shift, spec.train_fraction) == (5.0, 3, "pool", 0.5)
    assert (spec.seed, spec.options.get("min_size")) == (4, 90)
    run("digits", "--spc", "2")
    assert (current(home).spec.scheme, current(home).spec.options.get("shards")) == ("shards", 2)
    run("digits", "--iid", "--protocol", "pfedfda")
    assert (current(home).spec.scheme, current(home).clients, current(home).spec.seed) == ("iid", 10, 42)
    assert Store(home).current["protocol"] == "pfedfda"


def test_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("digits", "--iid", "--json", "--protocol", "feddrm")
    said = json.loads(capsys.readouterr().out)
    made = current(home)
    assert said["id"] == made.id
    assert said["made"] is True
    assert Path(said["path"]) == home / "partition" / made.id
    assert said["spec"] == made.spec.to_dict()
    assert [c["class_counts"] for c in said["clients"]] == made.class_counts().tolist()
    assert [c["group"] for c in said["clients"]] == [0, 1] * 4
    nothing = dict.fromkeys(("hue", "saturation", "posterize", "corruption", "severity", "mean", "std"))
    assert said["clients"][1]["shift"] == {"gamma": 1.4, **nothing}
    assert [c["unseen"] for c in said["clients"]] == [False] * 8
    run("digits", "--iid", "--json", "--protocol", "feddrm")
    assert json.loads(capsys.readouterr().out)["made"] is False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("digits", "--dir", "0.3", "--iid"), "--dir and --iid exclude each other"),
        (("digits", "--scheme", "iid", "--dir", "0.3"), "--dir and --scheme exclude each other"),
        (
            ("digits", "--scheme", "natural", "--by", "writer", "--iid"),
            "--iid and --by and --scheme exclude each other",
        ),
        (("digits", "--spc", "0"), "--spc of shards must be at least 1, not 0"),
        (("digits", "--dir", "0"), "--dir of dirichlet must be above 0"),
        (("digits", "--dir", "-2"), "--dir of dirichlet must be above 0"),
        (("digits", "--scheme", "dirichlet", "--alpha", "-2"), "--alpha of dirichlet must be above 0"),
        (("digits", "--iid", "--min-size", "4"), "partitioner iid has no min size: only dirichlet can have it"),
        (("digits", "--scheme", "mixture"), "one row a group; for example --counts FILE.csv"),
        (("digits", "--by", "writer"), "unknown column of digits 'writer'"),
        (("digits", "--iid", "--clients", "1000"), "1797 samples cannot serve 1000 clients"),
        (("digits", "--iid", "--clients", "60", "--shift", "pool"), "the pool has 54 shifts"),
        (("digits", "--protocol", "feddrn"), "did you mean 'feddrm'"),
        (("digit",), "did you mean 'digits'"),
        (
            ("digits", "--iid", "--as-json", "1"),
            "unknown option of partition by iid '--as-json'; did you mean '--json'?",
        ),
        (("digits", "--iid", "--datasets", "digits"), "known: --by, --clients, --counts, --dir, --duplicates"),
    ],
)
def test_bad_input(home: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str) -> None:
    said = failure(capsys, *options).splitlines()
    assert message in said[-1]
    assert said[-1].startswith("fedbench: ")
    assert "Traceback" not in "".join(said)
    assert "partition" not in Store(home).current


@pytest.mark.parametrize(
    ("named", "short"),
    [
        (("--scheme", "dirichlet", "--dir", "0.5"), ("--dir", "0.5")),
        (("--scheme", "dirichlet", "--alpha", "0.5"), ("--dir", "0.5")),
        (("--scheme", "shards", "--spc", "5"), ("--spc", "5")),
        (("--scheme", "iid", "--iid"), ("--iid",)),
    ],
)
def test_a_partitioner_takes_its_own_short_form(home: Path, named: tuple[str, ...], short: tuple[str, ...]) -> None:
    """What an error offers to one who has named the partitioner ("for example --dir 0.5") is no second one."""
    run("digits", *named)
    made = Store(home).current["partition"]
    run("digits", *short)
    assert Store(home).current["partition"] == made


def test_an_unknown_partitioner_has_no_help(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["partition", "digits", "--scheme", "nonsense", "--help"])
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (2, "")
    assert "unknown partitioner 'nonsense'" in said.err


def digits(home: Path, **fields: object) -> Partition:
    store = Store(home)
    values = {"scheme": "iid", "clients": 8, "seed": 1, "train_fraction": 0.7, "shift": "high", **fields}
    return build(partition_spec(dataset=data.resolve("digits", store), **values), store)  # type: ignore[arg-type]


def test_colours_on_a_terminal(home: Path) -> None:
    made = digits(home, scheme="shards", shards=1)
    painted = table(made, 100, force_terminal=True, color_system="truecolor")
    assert "48;2;" in painted  # shaded cells
    plain = re.sub(r"\x1b\[[0-9;]*m", "", painted)
    assert plain == table(made, 100)


@pytest.mark.parametrize(("width", "form"), [(66, "compact"), (82, "two tables"), (100, "one table")])
def test_narrow_terminals(home: Path, width: int, form: str) -> None:
    names = ("airplane", "automobile", "bird", "cat", "deer", "frog", "horse", "ship", "[large]", "truck")
    made = dataclasses.replace(digits(home), classes=names, transforms=tuple(of_clients("high", 8)))
    told = table(made, width, force_terminal=True, color_system=None)
    assert max(map(len, told.splitlines())) <= width
    assert ("largest classes" in told) == (form == "compact")
    assert ("client 3: gamma 1.4, hue +0.1, saturation 0.5" in told) == (form == "two tables")
    assert ("[larg" in told) == (form != "compact")
    rows = re.findall(r"^ +(\d) .*", told, re.MULTILINE)
    assert rows == [str(c) for c in range(8)]
    # Sizes and shifts are never cut short: only the column of the largest classes gives way.
    for c, row in enumerate(line for line in told.splitlines() if re.match(r" +\d ", line)):
        shift = [f"{made.transforms[c].gamma:g}", f"{made.transforms[c].hue:+g}", f"{made.transforms[c].saturation:g}"]
        sizes = [str(made.n_train[c]), str(made.n_test[c])]
        assert row.split()[-5:] == sizes + shift if form != "two tables" else row.split()[-2:] == sizes


def test_many_clients_are_summed_up(home: Path) -> None:
    made = digits(home, clients=40)
    told = table(made, 100)
    assert "The first 10 clients" in told
    assert len(re.findall(r"^ +\d+ ", told, re.MULTILINE)) == 10
    summary = next(line for line in told.splitlines() if line.startswith("training images")).split()
    assert (int(summary[2]), int(summary[-1])) == (made.n_train.min(), made.n_train.max())


def test_start_up_imports_nothing_heavy() -> None:
    code = (
        "import sys, fedbench.cli.partition\n"
        "print([m for m in ('numpy', 'pyarrow', 'torch', 'PIL', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_short_forms_are_those_of_the_partitioners() -> None:
    command = get_command(app).commands["partition"]  # type: ignore[attr-defined]
    assert set(_short_forms(command)) == {short for name in schemes.names() for short in schemes.load(name).short}
