"""Clients that are natural groups have names: whence they come, where they stand; groups are left out by name."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import fedbench as fb
from fedbench import data, partitions
from fedbench.files import SEAL, sealed
from fedbench.partitions import names
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.specs import DatasetSpec
from fedbench.store import MANIFEST, Store
from tests.support.cli_user import bad, good
from tests.support.frames import refused
from tests.support.partitions_lab import noise

CLINICS = ("Bern", "Graz", "Köln", "Zürich")


def hospitals(folder: Path, groups: Sequence[str] = CLINICS, each: int = 12, more: Sequence[str] = ()) -> str:
    """A table as a spreadsheet of a German user writes it: two classes that `bp` tells apart, a hospital a row."""
    rng = np.random.default_rng(0)
    rows = [
        f"{60 + 30 * (i % 2) + rng.normal():.2f}".replace(".", ",") + f";{('healthy', 'ill')[i % 2]};{group}"
        for group in groups
        for i in range(each)
    ]
    file = folder / "heart.csv"
    file.write_text("\n".join(["bp;state;clinic", *rows, *more, ""]), "utf-8")
    return f"{file},label=state,group=clinic"


def test_a_client_has_its_groups_name_wherever_it_is_printed(tmp_path: Path, home: Path) -> None:
    table = hospitals(tmp_path)
    said = good("partition", table, "--by", "clinic")
    assert re.findall(r"^ +\d (\w+) +6 +6 ", said.out, re.MULTILINE) == list(CLINICS)
    document = json.loads(good("partition", table, "--by", "clinic", "--json").out)
    assert [client["name"] for client in document["clients"]] == list(CLINICS)
    assert "clients: 0 Bern, 1 Graz, 2 Köln, 3 Zürich" in good("show", document["id"]).out

    part = fb.partition(table, by="clinic")
    assert part.id == document["id"]
    assert part.counts.index.tolist() == list(CLINICS)
    assert part.counts.loc["Köln", "healthy"] == 6
    one = fb.train(part, "fedavg", rounds=1, steps=2, progress=False, executor="sequential")
    assert one.accuracies.index.tolist() == one.clients["name"].tolist() == list(CLINICS)
    worst = one.accuracies.idxmin()
    assert f"The worst client: {worst} (FedAvg)." in fb.compare(one).text(notes="full").replace("\n  ", " ")
    drawn = fb.figure("clients", one, metric="client_accuracy")
    assert {label.get_text() for label in drawn.axes[0].get_xticklabels()} == set(CLINICS)
    assert [label.get_text() for label in fb.figure("partition", part).axes[0].get_xticklabels()] == list(CLINICS)
    rows = json.loads(good("figure", "clients", one.id, "--json").out)["panels"][0]["rows"]
    assert [row["client_name"] for row in rows] == list(CLINICS)
    assert fb.partition(table, dir=1.0, clients=2).counts.index.tolist() == [0, 1], "nobody is a hospital here"


def test_names_are_of_no_id_and_no_table_and_older_partitions_have_them_too(tmp_path: Path, store: Store) -> None:
    spec = fb.partition(hospitals(tmp_path), by="clinic", store=store).spec
    artifact = store.open("partition", spec.id)
    assert artifact.provenance[names.NAMES] == list(CLINICS)
    assert {*artifact.manifest["files"]} == {"clients.parquet", "samples.parquet"}
    assert not any("Bern" in str(artifact.table(name).to_pydict()) for name in ("clients", "samples"))
    manifest = json.loads((artifact.path / MANIFEST).read_text())
    del manifest["provenance"][names.NAMES], manifest[SEAL]
    (artifact.path / MANIFEST).write_text(json.dumps(sealed(manifest)))
    assert names.of(spec, store) == partitions.build(spec, store).names == CLINICS, "as the data set has them"


@pytest.mark.parametrize(
    ("column", "name", "expected"),
    [
        (np.array([7, 7, 7, 3, 3, 3]), "writer", ("writer 3", "writer 7")),
        (np.array([0, 0, 0, 1, 1, 1]), "client", ()),  # their numbers say it already
        (np.array(["b", "b", "b", "a", "a", "a"]), "site", ("a", "b")),
    ],
)
def test_a_number_is_named_with_its_column(column: np.ndarray, name: str, expected: tuple[str, ...]) -> None:
    images = noise(np.zeros(6, int), columns={name: column})
    made = partitions.make(partition_spec(images.spec, "natural", 2, 0, 0.5, by=name), images)
    assert made.names == expected


def test_a_group_that_several_clients_share_and_corrupted_copies_have_names_of_their_own() -> None:
    images = noise(np.zeros(16, int), columns={"domain": np.repeat(["Art", "Clip"], 8)})
    shared = partition_spec(images.spec, "natural", 3, 0, 0.5, by="domain", round_robin=True)
    assert sorted(name.split()[0] for name in partitions.make(shared, images).names) == ["Art", "Art", "Clip"]
    assert len(set(partitions.make(shared, images).names)) == 3
    copied = partition_spec(images.spec, "natural", 2, 0, 0.5, by="domain", unseen=1, unseen_as=["fog-3"])
    assert partitions.make(copied, images).names == ("Art", "Clip", "Clip, fog 3")


def test_a_unions_domain_is_named_by_its_part() -> None:
    digit5 = data.recipe("digit5")
    spec = DatasetSpec("digit5", digit5.sources[0].name, "")
    assert data.group_names(spec, "domain", [0, 4]) == [digit5.sources[0].parts[0], digit5.sources[0].parts[4]]


def test_groups_are_left_out_by_name(tmp_path: Path, home: Path) -> None:
    table = hospitals(tmp_path)
    said = good("partition", table, "--by", "clinic", "--unseen", "Graz, Zürich")
    assert "by clinic (Graz, Zürich unseen)" in said.out
    assert [line.split()[1] for line in said.out.splitlines() if "* " in line] == ["Graz", "Zürich"]
    part = fb.partition(table, by="clinic", unseen=["Graz", "Zürich"])
    assert (part.spec.unseen, part.spec.clients, part.data.names) == (2, 4, ("Bern", "Köln", "Graz", "Zürich"))
    assert good("partition", table, "--by", "clinic", "--unseen", "2").out != said.out, "a number takes the last ones"
    for options, line in (
        (("--by", "clinic", "--unseen", "Gratz"), "unknown clinic in --unseen 'Gratz'; did you mean 'Graz'?"),
        (("--by", "clinic", "--unseen", "Graz,Graz"), "--unseen Graz,Graz has a name twice"),
        (("--by", "clinic", "--unseen", "Graz", "--clients", "3"), "--clients draws some of them by chance"),
        (("--dir", "0.3", "--unseen", "Graz"), "--unseen Graz names groups, and Dir-0.3 has none"),
        (("--by", "clinic", "--unseen", "Bern,Graz,Köln,Zürich"), "4 of 4 clients cannot be unseen in training"),
    ):
        assert line in bad("partition", table, *options)


def test_presplit_groups_are_left_out_by_name(tmp_path: Path, store: Store) -> None:
    images = noise(np.zeros(12, int), np.tile([0, 1], 6), columns={"site": np.repeat(["a", "b", "c"], 4)})
    spec = partition_spec(images.spec, "presplit", 3, 0, by="site", order=["a", "c", "b"], unseen=1)
    assert partitions.make(spec, images).names == ("a", "c", "b")
    plain = partition_spec(images.spec, "presplit", 3, 0, by="site")
    assert "order" not in plain.to_dict(), "so partitions from before have their ids"
    wrong = dataclasses.replace(spec, options={"by": "site", "order": ("a", "c", "d")})
    refused("unknown site with training and test images 'd'", partitions.make, wrong, images)


def test_rows_of_no_group_are_left_out_and_counted(tmp_path: Path, home: Path) -> None:
    table = hospitals(tmp_path, more=("70,5;ill;", "80,5;healthy;"))
    said = good("partition", table, "--by", "clinic")
    assert "2 vectors of no clinic left out" in said.err
    made = fb.partition(table, by="clinic").data
    assert made.names == CLINICS
    assert len(made.sample) == 48
    assert "left out" not in good("partition", table, "--iid", "--clients", "2").err, (
        "there the two are dealt like all others"
    )
    one = hospitals(tmp_path, more=("70,5;ill;",))
    assert "1 vector of no clinic left out" in good("partition", one, "--by", "clinic").err


def test_numbers_stay_numbers_beside_a_row_of_no_group(tmp_path: Path, home: Path) -> None:
    table = hospitals(tmp_path, ("1", "02"), more=("70,5;ill;",))
    assert fb.partition(table, by="clinic").data.names == ("1", "2")


def test_each_group_is_left_out_in_turn(tmp_path: Path, home: Path) -> None:
    options = {"by": "clinic", "unseen": "each", "rounds": 1, "steps": 2}
    grid = fb.sweep(hospitals(tmp_path), ["fedavg"], seeds=[0, 1], progress=False, **options)
    assert len(grid.runs) == 8
    table = grid.table.frame
    rows = table[table["table"] == "left out"].set_index("row")["value"]
    assert rows.index.tolist() == ["mean", *CLINICS]
    own = {clinic: [] for clinic in CLINICS}
    for run in grid.runs:
        (clinic,) = run.client_names[run.spec.setting.partition.trainees :]
        own[clinic].append(100 * run.accuracies[clinic])
    assert rows.drop("mean").to_dict() == pytest.approx({clinic: np.mean(values) for clinic, values in own.items()})
    assert rows["mean"] == pytest.approx(np.mean(list(own.values())))
    stds = table[table["table"] == "left out"].set_index("row")["std"]
    assert stds["mean"] == pytest.approx(np.std(np.mean(list(own.values()), axis=0), ddof=1), abs=1e-6)
    refused(
        "--unseen each leaves out one group after the other, and Dir-0.3 has none",
        fb.sweep,
        "digits",
        "fedavg",
        dir=0.3,
        unseen="each",
    )
