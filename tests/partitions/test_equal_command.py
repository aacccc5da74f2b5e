"""Equal shards on the command line, on the embedded digits: options, the view of true groups, JSON, one-line errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from fedbench.__main__ import main
from fedbench.partitions import Partition, read, view
from fedbench.store import Store


def run(*arguments: str) -> None:
    try:
        main(["partition", "digits", *arguments])
    except SystemExit as end:
        if end.code:
            raise


def current(home: Path) -> Partition:
    store = Store(home)
    return read(store.open("partition", store.current["partition"]))


def groups_told(text: str) -> dict[int, list[str]]:
    """The group table: group -> the cells behind it."""
    below = text[text.index("distribution ") :] if "distribution " in text else ""
    rows = [re.split(r" {2,}", line.strip()) for line in below.splitlines() if re.match(r" +\d+  ", line)]
    return {int(row[0]): row[1:] for row in rows}


def test_every_option_reaches_the_spec(home: Path) -> None:
    run(
        "--equal", "--shift", "pxy+py", "--level", "6", "--clients", "5", "--duplicates", "8", "--validation", "0.25",
        "--data-share", "0.05", "--strict", "--fewer-classes", "--subsample", "0.5", "--seed", "7",
        "--copies", "2",
    )  # fmt: skip
    spec = current(home).spec
    assert (spec.scheme, spec.shift, spec.options.get("level"), spec.clients) == ("equal", "pxy+py", 6, 5)
    assert (spec.duplicates, spec.validation, spec.options.get("data_share"), spec.subsample) == (8, 0.25, 0.05, 0.5)
    assert (spec.options.get("strict"), spec.options.get("fewer_classes"), spec.phases, spec.seed) == (
        True,
        True,
        None,
        7,
    )
    assert spec.options.get("copies") == 2
    run("--equal", "--shift", "px", "--level", "1", "--phases", "2")
    assert current(home).spec.phases == 2
    run("--equal")  # the covariate shift of the default protocol is none of equal shards
    assert (current(home).spec.shift, current(home).spec.options.get("level")) == ("none", None)


def test_the_view_tells_who_shares_a_distribution(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--equal", "--shift", "px", "--level", "5", "--clients", "9", "--validation", "0.2")
    said = capsys.readouterr().out
    p = current(home)
    assert f"P(X) in {len(p.distributions)} groups" in said
    sides = (p.n_train, p.n_validation, p.n_test)
    assert "{:,} training, {:,} validation and {:,} test images".format(*(s.sum() for s in sides)) in said
    rows = [line.split() for line in said.splitlines() if re.match(r" +\d +\d", line) and "," not in line]
    cells = {int(row[0]): row[-4:] for row in rows if len(row) == 15}
    assert cells == {c: [*(str(s[c]) for s in sides), str(p.groups[c])] for c in range(9)}
    told = groups_told(said)
    assert sorted(told) == list(range(len(p.distributions)))
    for g, (who, what) in told.items():
        assert who == ", ".join(str(c) for c in range(9) if p.groups[c] == g)
        assert what.strip() == str(p.distributions[g].rotation)


def test_the_view_of_a_drift(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--equal", "--shift", "py", "--level", "1", "--phases", "3", "--clients", "4")
    said = capsys.readouterr().out
    p = current(home)
    for c in range(4):
        a, b, d = (stage[c] for stage in p.phase_groups)
        assert f"{a}→{b}→{d}, {p.test_groups[c]}\n" in said
    assert "behind the comma of the test data" in said


@pytest.mark.parametrize(("clients", "shift", "level"), [(40, "pxy", 8), (10, "pyx", 8), (3, "none", None)])
@pytest.mark.parametrize("width", [70, 100])
def test_no_line_is_too_wide(home: Path, clients: int, shift: str, level: int | None, width: int) -> None:
    run("--equal", "--shift", shift, "--clients", str(clients), *(["--level", str(level)] if level else []))
    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        view.display(console, current(home))
    told = captured.get()
    assert max(map(len, told.splitlines())) <= width
    more = len(current(home).distributions) - 10
    assert (f"\nand {more} more\n" in told) == (clients == 40)


def test_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--equal", "--shift", "pyx", "--level", "3", "--clients", "4", "--validation", "0.2", "--json")
    said = json.loads(capsys.readouterr().out)
    p = current(home)
    assert said["spec"] == p.spec.to_dict()
    assert said["distributions"] == [one.described(p.classes) for one in p.distributions]
    for c, told in enumerate(said["clients"]):
        assert (told["n_train"], told["n_validation"], told["n_test"]) == (p.n_train[c], p.n_validation[c], p.n_test[c])
        assert sum(told["train_counts"]) == told["n_train"]
        assert sum(told["test_counts"]) == told["n_test"]
        assert sum(told["class_counts"]) == told["n_train"] + told["n_validation"] + told["n_test"]
        assert told["group"] == told["test_group"] == told["phase_groups"][0] == p.groups[c]
        assert told["distribution"] == said["distributions"][told["group"]]
    run("--iid", "--json")
    plain = json.loads(capsys.readouterr().out)
    assert "distributions" not in plain
    assert "n_validation" not in plain["clients"][0]


EQUAL = ("--equal", "--shift", "px", "--level", "5")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--equal", "--iid"), "--iid and --equal exclude each other"),
        (("--equal", "--shift", "px"), "shift px has levels 1 to 8, and none is given"),
        (("--equal", "--shift", "px", "--level", "0"), "levels 1 to 8, not 0"),
        (("--equal", "--shift", "px", "--level", "9"), "levels 1 to 8, not 9"),
        (("--equal", "--level", "3"), "level 3 of which shift?"),
        (("--equal", "--shift", "px+px", "--level", "3"), "unknown shift 'px+px'"),
        (("--equal", "--shift", "pool"), "an equal partition has no shift pool"),
        (("--iid", "--shift", "px"), "an iid partition has no shift px: equal can have it"),
        ((*EQUAL, "--clients", "400"), "355 test images cannot serve 400 clients"),
        ((*EQUAL, "--duplicates", "0"), "at least once, not 0 times"),
        ((*EQUAL, "--validation", "1.5"), "must lie between 0 and 1, not 1.5"),
        ((*EQUAL, "--phases", "2"), "shift px has levels 1 to 3 in drift phases, not 5"),
        ((*EQUAL, "--round-robin"), "partitioner equal has no round robin: only natural can have it"),
        (("--iid", "--data-share", "0.01"), "partitioner iid has no data share: only equal can have it"),
    ],
)
def test_bad_input(home: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(["partition", "digits", *options])
    assert end.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert message in said[-1]
    assert said[-1].startswith("fedbench: ")
    assert "partition" not in Store(home).current
