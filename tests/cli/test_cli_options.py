"""Options that would go wrong in silence, without end or with a traceback: one class of them a test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedbench.store import Store
from tests.support.cli_user import SMOKE, Said, complete, fedbench, good

TRAIN = ("train", "--method", "fedavg", *SMOKE)


def refused(*arguments: str | Path) -> str:
    """The line of a command that must end with 2 and say why in one line."""
    said: Said = fedbench(*arguments)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("fedbench: ")
    assert said.err.count("\n") == 1
    return said.line


def in_a_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """`fedbench ARGUMENTS` under other environment variables; an empty one is left out."""
    env = {k: v for k, v in {**os.environ, **environment}.items() if v}
    return subprocess.run([sys.executable, "-m", "fedbench", *arguments], capture_output=True, env=env, check=False)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ("train --method fedavg --seed 0 --seed 1", "--seed"),
        ("train --method feddrm --lambda 0.5 --lambda=0.6", "--lambda"),
        ("report -t 1 --format csv -f json", "--format"),
        ("list --json --json", "--json"),
        ("list --home a --home b", "--home"),
        ("--data a list --data=b", "--data"),
        ("data show digits --json --json", "--json"),
        ("theory --draws 3 --draws 3", "--draws"),
    ],
)
def test_given_twice(ready: Path, arguments: str, option: str) -> None:
    assert f"{option} is given twice; leave one of the two out" in refused(*arguments.split())


def test_repeatable_options_stay_repeatable(home: Path) -> None:
    good("report", "-t", "ftw_erm/1", "-t", "ftw_erm/3", "--seed", "1", "--seed", "2", "--column", "*", "--column", "*")


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["report", "-t", "1", "-o", "--json"], "--output"),
        (["list", "--home", "--json"], "--home"),
        (["list", "--home="], "--home"),
        (["list", "--data", " "], "--data"),
        (["report", "--column", ""], "--column"),
        (["remove", ""], "id"),
        (["train", "--method", "feddrm", *SMOKE, "--lambda", "--betas"], "--lambda"),
    ],
)
def test_a_value_that_is_none(ready: Path, arguments: list[str], option: str) -> None:
    assert f"{option} needs a value, not" in refused(*arguments)


@pytest.mark.parametrize("word", ["a\nb", "a\0b", "\x1b[31m", "\udcff", "a\u2028b"])
def test_words_that_are_no_text(home: Path, word: str) -> None:
    for arguments in (("show", word), ("list", "--home", word), (*TRAIN, "--protocol", word)):
        assert "the command line holds" in refused(*arguments)


@pytest.mark.parametrize("option", ["--home", "--data"])
def test_names_too_long(ready: Path, option: str) -> None:
    assert "File name too long" in refused("data", "list", option, "x" * 5000)
    assert "unknown protocol" in refused(*TRAIN, "--protocol", "x" * 5000)


@pytest.mark.parametrize("option", ["--home", "--data"])
def test_nobodys_home_folder(home: Path, option: str) -> None:
    assert "no home folder is known for ~nosuchuser" in refused("data", "list", option, "~nosuchuser/x")


def test_a_home_folder_is_found(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert str(tmp_path / "mine") in good("list", "--home=~/mine").out.replace("\n", "")


def test_a_store_with_a_colon_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # written, then read
        good("partition", "digits", "--dir", "0.3", "--protocol", "feddrm", "--home", "s3:mine")
    assert len(complete(tmp_path / "s3:mine")) == 2


def test_a_protocol_is_a_name_and_no_path(ready: Path) -> None:
    assert "unknown protocol '../tables/feddrm'" in refused(*TRAIN, "--protocol", "../tables/feddrm")


@pytest.mark.parametrize("target", ["/dev/zero", "/proc/self/mem", "/proc"])
def test_counts_from_what_is_no_file(home: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "counts.csv").symlink_to(target)
    assert "counts.csv" in refused("partition", "digits", "--counts", tmp_path / "counts.csv")


def test_counts_from_a_pipe_that_nobody_writes(home: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "counts.csv")
    assert "it is no file" in refused("partition", "digits", "--counts", tmp_path / "counts.csv")


def test_output_into_a_device_leaves_the_device(home: Path, tmp_path: Path) -> None:
    link = tmp_path / "out.json"
    link.symlink_to("/dev/null")
    good("report", "-t", "ftw_erm/1", "-o", link)
    assert link.is_symlink()
    assert link.is_char_device()


def test_output_where_none_can_be(home: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.csv").mkdir()
    for place in (tmp_path / "pipe.csv", tmp_path / "folder.csv", tmp_path / "nowhere" / "x.csv"):
        assert "cannot write" in refused("report", "-t", "ftw_erm/1", "-o", place)
    assert "cannot write" in refused("report", "-t", "ftw_erm/1", "--format", "csv", "-o", ".")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("theory --seed -1", "the seed must be in 0..2^32-1, not -1"),
        ("theory --seed 18446744073709551616", "the seed must be in 0..2^32-1"),
        ("theory --draws 1000000000000000000", "at least 1 draw and at most 5,000,000"),
        ("partition digits --protocol flux --shift px --level 1 --clients 1000000000000", "at most 10,000,000"),
        ("partition digits --equal --duplicates 2147483647", "10,000 times at most"),
        (f"partition digits --dir {'9' * 400}", "finite number"),
        ("train --method fedavg --rounds 1000000000000", "rounds must be at most 10,000,000"),
        ("train --method fedavg --steps 1000000000000", "steps must be at most 1,000,000"),
        ("train --method fedavg --epochs 1000000000000", "epochs must be at most 1,000,000"),
        ("train --method fedavg --batch-size 18446744073709551616", "more than 64 bits"),
        ("train --method fedbabu --finetune-epochs 1000000000000", "must be at most 1,000,000"),
        ("train --method ditto --mu 1e400", "must be a finite number, not inf"),
        ("train --method ditto --mu nan", "must be"),
    ],
)
def test_numbers_beyond_all_bounds(ready: Path, arguments: str, says: str) -> None:
    before = complete(ready)
    assert says in refused(*arguments.split())
    assert complete(ready) == before


@pytest.mark.parametrize("method", ["ifca", "fesem", "fedem", "fedrc"])
def test_more_clusters_than_clients(ready: Path, method: str) -> None:
    clients = Store(ready).find(Store(ready).current["partition"]).manifest["spec"]["clients"]
    said = refused("train", "--method", method, *SMOKE, "--clusters", str(clients + 1))
    assert f"--clusters of {method} must be at most the number of clients that train, {clients}" in said


def test_a_million_rounds_are_allowed(ready: Path) -> None:
    from fedbench import protocol
    from fedbench.specs import PartitionSpec

    part = Store(ready).find(Store(ready).current["partition"], ("partition",)).spec
    assert isinstance(part, PartitionSpec)
    assert protocol.load("feddrm").setting(part, "smoke", rounds=1_000_000).rounds == 1_000_000


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"FEDBENCH_HOME": "x" * 5000}, b"File name too long"),
        ({"FEDBENCH_HOME": "\udcff"}, b"FEDBENCH_HOME holds bytes that are not UTF-8"),
        ({"FEDBENCH_HOME": "~nosuchuser"}, b"FEDBENCH_HOME ~nosuchuser: no home folder"),
        ({"FEDBENCH_DATA": "a\nb"}, b"FEDBENCH_DATA holds a control character"),
    ],
)
def test_hostile_environment(environment: dict[str, str], says: bytes) -> None:
    done = in_a_process("list", **environment)
    assert (done.returncode, done.stdout) == (2, b"")
    assert says in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("columns", ["0", "²", "-5", "x", "9" * 30])
def test_hostile_width(tmp_path: Path, columns: str) -> None:
    done = in_a_process("data", "list", COLUMNS=columns, FEDBENCH_HOME=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"cifar10" in done.stdout


def test_without_home(tmp_path: Path) -> None:
    assert in_a_process("list", HOME="", FEDBENCH_HOME=str(tmp_path)).returncode == 0


def test_an_encoding_without_our_signs(tmp_path: Path) -> None:
    done = in_a_process("theory", "--draws", "5", PYTHONIOENCODING="ascii", FEDBENCH_HOME=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u2264" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_output_is_full(tmp_path: Path) -> None:
    command = f"{sys.executable} -m fedbench data list --json --home {tmp_path} > /dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr == b"fedbench: cannot use standard output or a file (No space left on device)\n"


def test_output_is_closed(tmp_path: Path) -> None:
    command = f"{sys.executable} -m fedbench data list --json --home {tmp_path} >&- 2>&-"
    assert subprocess.run(command, shell=True, check=False).returncode == 0
