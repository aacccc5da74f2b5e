"""`results` as a user types it: a pack from one store to another, where tables fill from it, and made again there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench.machine import processor
from fedbench.results.pack import Pack, write
from tests.support.cli_user import DIGITS, bad, fedbench, good

#: One run of FedAvg on the digits, in the smoke budget of the protocol plain.
DIGITS_PACK = Path(__file__).parents[1] / "fixtures/results/digits.parquet"


@pytest.fixture
def pack(both: Path, tmp_path: Path) -> Path:
    """A pack of the store's run of FedAvg."""
    good("results", "export", "method=fedavg", "-o", tmp_path / "ada.parquet", "--by", "Ada")
    return tmp_path / "ada.parquet"


def table(home: Path, *more: str) -> str:
    return good("report", "--table", "1", *DIGITS, *more, "--home", home).out


def test_a_pack_fills_tables_elsewhere_and_is_verified(pack: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert "1 run by Ada, in" in good("results", "import", pack, "--home", other).err
    assert "Ada" in good("results", "list", "--home", other).out
    printed = table(other)
    assert "°" in printed
    assert "° 1 run by Ada" in printed
    assert "°" not in table(other, "--mine")
    listed = json.loads(good("results", "list", "--json", "--home", other).out)
    assert [(one["runs"], one["by"], one["datasets"]) for one in listed] == [(1, ["Ada"], ["digits"])]
    (one,) = json.loads(good("results", "verify", "--sample", "3", "--json", "--home", other).out)
    assert (one["verdict"], one["trained"]) == ("same", True)
    assert one["made_on_processor"] == one["processor_here"] == processor()
    assert "no shipped run took 1e-06 minutes or less; the shortest one took" in bad(
        "results", "verify", "--minutes", "1e-6", "--home", other
    )
    assert "as the store has it" in good("results", "verify", "--home", other).out
    assert "°" not in table(other)  # it is the store's own now


def test_show_walks_from_a_shipped_run_back_to_the_images(pack: Path, tmp_path: Path) -> None:
    other, run = tmp_path / "other", Pack(pack).row(0).id
    good("results", "import", pack, "--home", other)
    said = " ".join(good("show", run[:8], "--home", other).out.replace("│", " ").split())
    for words in (
        f"run {run}: fedavg on digits", "by Ada on ", "momentum 0.9, weight_decay 0.0005", "no hyper-parameters",
        f"without its predictions: 'fedbench results verify {run}' trains it again", "(not in this store, or damaged)",
    ):  # fmt: skip
        assert words in said
    first, *missing = json.loads(good("show", run, "--json", "--home", other).out)
    assert (first["id"], first["shipped"]["by"], len(missing)) == (run, "Ada", 2)
    assert "no dataset or partition or run or metrics 'fff'" in bad("show", "fff", "--home", other)


def test_runs_that_diverged_or_are_of_other_code(ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "training diverged" in bad("train", "-m", "fedavg", "--budget", "smoke", "--lr", "1e30")
    said = good("results", "export", "-o", tmp_path / "ada.parquet", "--by", "Ada").err
    assert "1 run, and 1 run that diverged in" in said
    exported = json.loads(good("results", "export", "method=fedavg", "-o", tmp_path / "b.parquet", "--json").out)
    assert (exported["exported"], exported["diverged"]) == (1, 0)
    good("results", "import", tmp_path / "ada.parquet", "--home", tmp_path / "other")
    (one,) = json.loads(good("results", "list", "--json", "--home", tmp_path / "other").out)
    assert (one["runs"], one["diverged"]) == (1, 1)
    monkeypatch.setattr("fedbench.results.making.other_code", lambda provenance: True)
    pack = tmp_path / "x.parquet"
    assert "1 run of 1 was made by other code than today's" in bad("results", "export", "-o", pack)
    assert not pack.exists()
    good("results", "export", "-o", pack, "--other-code")
    assert pack.exists()


def test_what_packs_hold_need_not_be_trained(pack: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    good("results", "import", pack, "--home", other)
    cell = ("train", "--table", "1", *DIGITS, "--column", "digits/Dir-0.3", "-m", "fedavg", "--home", other)
    assert "nothing to run" in good(*cell, "--unshipped").err
    assert "1 of 1 runs made" in good(*cell).err
    assert "--unshipped goes with --table only" in bad(
        "train", "digits", "-m", "fedavg", "--unshipped", "--home", other
    )


def far(pack: Path, tmp_path: Path) -> None:
    """A store with a run of another processor that has half the accuracy."""
    row = Pack(pack).row(0)
    lower = replace(row.metrics, value=row.metrics.value * 0.5)
    about = {**row.about, "cpu": "another"}
    write(tmp_path / "bad.parquet", [replace(row, predictions="0" * 64, metrics=lower, about=about)])
    good("results", "import", tmp_path / "bad.parquet", "--prefer", "new", "--home", tmp_path / "other")


def test_an_interrupt_while_rounding_is_looked_at(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedbench.core.trainer import Interrupted

    def stopped(*_: Any) -> None:
        raise Interrupted(3)

    monkeypatch.setattr("fedbench.engine.verify.settled", stopped)
    far(pack, tmp_path)
    said = fedbench("results", "verify", "--home", tmp_path / "other")
    assert (said.code, said.err.splitlines()[-1]) == (130, "fedbench: stopped")


def test_an_interrupt_leaves_what_was_verified(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedbench.cli import verifying

    other, train = tmp_path / "other", verifying.train
    good("results", "export", "-o", pack, "--by", "Ada")
    good("results", "import", pack, "--home", other)
    made: list[Any] = []

    def once(jobs: Any, *arguments: Any, **options: Any) -> Any:
        if made:
            raise KeyboardInterrupt
        made.extend(train(jobs, *arguments, **options))
        return made

    monkeypatch.setattr(verifying, "train", once)
    said = fedbench("results", "verify", "--home", other)
    assert (said.code, said.err.splitlines()[-1]) == (130, "fedbench: stopped")
    assert f"✓ run {made[0].id}" in said.out
    assert "1 of 1 come out again" in said.out


def test_other_numbers_are_asked_about_marked_and_verified_against(pack: Path, tmp_path: Path) -> None:
    other, row = tmp_path / "other", Pack(pack).row(0)
    worse = replace(row.metrics, value=row.metrics.value * 0.5)
    write(tmp_path / "bob.parquet", [replace(row, by="Bob", metrics=worse)])
    good("results", "import", pack, "--home", other)
    line = bad("results", "import", tmp_path / "bob.parquet", "--home", other)
    assert "1 run of " in line
    assert f"has other numbers than are there: {row.id} (other/ada)" in line
    said = good("results", "import", tmp_path / "bob.parquet", "--prefer", "old", "--home", other).err
    assert "nothing taken in; 1 run left out that were there with other numbers" in said
    assert "≠" not in table(other)
    (other / "results/bob.parquet").write_bytes((tmp_path / "bob.parquet").read_bytes())  # not by an import
    line = f"≠ 1 run with other numbers in another result pack: {row.id} (shown: other/ada; other: other/bob)"
    assert line in " ".join(table(other).split())
    said = fedbench("results", "verify", "--home", other)
    assert said.code == 1
    assert f"✓ run {row.id} in other/ada" in said.out
    assert f"✗ run {row.id} in other/bob" in said.out
    assert "1 of 2 come out again" in said.out


def test_other_predictions_are_found_out(pack: Path, tmp_path: Path) -> None:
    far(pack, tmp_path)
    said = fedbench("results", "verify", "--home", tmp_path / "other")
    assert said.code == 1
    assert "accuracies beyond the tolerance" in said.out
    good("results", "export", "-o", tmp_path / "here.parquet", "--by", "Ada", "--home", tmp_path / "other")
    write(tmp_path / "bad.parquet", [replace(Pack(tmp_path / "here.parquet").row(0), predictions="0" * 64)])
    good("results", "import", tmp_path / "bad.parquet", "--prefer", "new", "--home", tmp_path / "other")
    said = fedbench("results", "verify", "--home", tmp_path / "other")
    assert (said.code, "other bits on the same kind of machine" in said.out) == (1, True)
    row = Pack(tmp_path / "here.parquet").row(0)
    accuracies = np.array([name.endswith("accuracy") for name in row.metrics.names])[row.metrics.metric]
    better = replace(row.metrics, value=row.metrics.value + 0.02 * accuracies)
    write(tmp_path / "bad.parquet", [replace(row, metrics=better)])
    good("results", "import", tmp_path / "bad.parquet", "--prefer", "new", "--home", tmp_path / "other")
    said = fedbench("results", "verify", "--home", tmp_path / "other")
    assert said.code == 1
    assert "the same predictions, but other numbers than the pack's, largest difference 2.00 points" in said.out


def test_an_export_is_the_same_bytes_and_it_and_an_import_add_to_a_pack(pack: Path, tmp_path: Path) -> None:
    before = pack.read_bytes()
    good("results", "export", "method=fedavg", "-o", pack, "--by", "Ada")
    assert pack.read_bytes() == before
    said = good("results", "export", "method=local", "-o", pack, "--by", "Ada")
    assert "1 run (2 in all)" in said.err
    assert "no such run that feddrm reads" in bad(
        "results", "export", "--table", "feddrm", "-o", tmp_path / "x.parquet"
    )
    other = tmp_path / "other"
    good("results", "import", pack, "--home", other)
    pack.unlink()
    good("results", "export", "method=local", "-o", pack, "--by", "Charles")
    said = good("results", "import", pack, "--home", other).err
    assert "1 run by Charles (2 in all), in" in said
    listed = json.loads(good("results", "list", "--json", "--home", other).out)
    assert [(one["runs"], one["by"]) for one in listed] == [(2, ["Ada", "Charles"])]


def test_claims_of_tables_that_claim_nothing(home: Path) -> None:
    said = good("claims", "scale")
    assert (said.out, said.err) == ("", "no claims are declared of these tables\n")


def test_a_pack_that_cannot_be_read_is_told_wherever_its_runs_could_stand(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    monkeypatch.chdir(tmp_path)  # figures go where one is
    good("results", "import", pack, "--home", other)
    (other / "results/text.parquet").write_text("no pack")
    row = Pack(pack).row(0)
    better = replace(row.metrics, value=row.metrics.value + 7)
    write(other / "results/a.parquet", [replace(row, metrics=better)])
    for command in (
        ("compare", "method=fedavg", "shipped=yes"),
        ("figure", "curves", "method=fedavg", "shipped=yes"),
        ("claims",),
        ("results", "list"),
    ):
        said = good(*command, "--home", other)
        faults = 1 if command == ("claims",) else 2  # of packs that it has no run of only what tells of them is read
        assert " ".join(said.err.split()).count("cannot read the result pack") == faults, command
        assert "Ada" in said.out + said.err or command == ("claims",)
    assert " ".join(table(other).split()).count("cannot read the result pack") == 2


@pytest.mark.slow
def test_a_run_made_long_ago_comes_out_again(home: Path) -> None:
    """At every build: what this machine trains is what was trained when the pack was made."""
    good("results", "import", DIGITS_PACK)
    (one,) = json.loads(good("results", "verify", "dataset=digits", "--json").out)
    assert (one["good"], one["trained"]) == (True, True)
