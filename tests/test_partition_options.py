"""The options of a partition, from what a user wrote to a spec, without the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbench import partition_options, protocol
from fedbench.errors import FedbenchError
from fedbench.specs import PartitionSpec
from fedbench.store import Store


def spec(store: Store, dataset: str = "digits", rules: str = "feddrm", **options: Any) -> PartitionSpec:
    return partition_options.spec_of(dataset, options, protocol.load(rules), store)


def test_texts_and_values_make_one_spec(store: Store) -> None:
    texts = {"dir": "0.5", "clients": "5", "shift": "none", "seed": "3", "split": "0.6", "min-size": "2", "iid": False}
    values = {"dir": 0.5, "clients": 5, "shift": "none", "seed": 3, "split": 0.6, "min_size": 2, "spc": None}
    made = spec(store, **texts)
    assert made == spec(store, **values)
    assert (made.clients, made.seed, made.train_fraction, made.shift) == (5, 3, 0.6, "none")
    assert made.options == {"alpha": 0.5, "min_size": 2}
    assert spec(store, seed=str(2**32 - 1)).seed == 2**32 - 1, "more than any other option's whole number"


def test_numpys_scalars_make_the_spec_of_pythons(store: Store) -> None:
    """float32(0.3) is 0.30000001192, which would be a second partition, shown as Dir-0.3 too."""
    values = {"dir": 0.3, "clients": 5, "min_size": 2, "split": 0.7, "seed": 3}
    kinds = {"dir": np.float32, "clients": np.int64, "min_size": np.array, "split": np.float64, "seed": np.uint8}
    assert spec(store, **{name: kinds[name](value) for name, value in values.items()}).id == spec(store, **values).id
    assert spec(store, iid=np.bool_(True)).id == spec(store, iid=True).id


def test_a_flag_and_a_short_form_with_options_of_its_partitioner(store: Store) -> None:
    assert spec(store, iid=True).scheme == "iid"
    assert spec(store, scheme="shards", shards="4") == spec(store, spc="4")
    assert spec(store, unseen="1", unseen_as="all-3").unseen_as[:2] == ("motion_blur-3", "defocus_blur-3")


def test_a_partitioner_of_ones_own_with_its_options(store: Store, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nimport numpy as np\n"
        "from fedbench.options import option\nfrom fedbench.partitions import Scheme\n"
        "@dataclass(frozen=True)\nclass Mine(Scheme):\n"
        "    step: int = option(1, 'how far')\n"
        "    def deal(self, dataset, spec, rng):\n"
        "        return np.array_split(np.arange(len(dataset.labels))[:: self.step], spec.clients)\n"
    )
    made = spec(store, scheme=f"{tmp_path}/mine.py:Mine", step="2")
    assert made.scheme.startswith("Mine@")
    assert made.options == {"step": 2}


def test_class_weights_from_a_file_say_how_many_clients(store: Store, tmp_path: Path) -> None:
    rows = [f"{client},{side},{client},1" for client in (0, 1, 2) for side in ("train", "test")]
    (tmp_path / "counts.csv").write_text("\n".join(["client,split,class,value", *rows]))
    assert spec(store, rules="ftw_erm", counts=str(tmp_path / "counts.csv")).clients == 3


def test_what_was_taken_in_the_users_place_is_told(store: Store) -> None:
    said: list[str] = []
    made = partition_options.spec_of("digits", {}, protocol.load("feddrm"), store, remark=said.append)
    assert made == spec(store, dir=0.3)
    assert len(said) == 1
    assert "--dir 0.3" in said[0]
    partition_options.spec_of("digits", {"spc": 2}, protocol.load("feddrm"), store, remark=said.append)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dir": True}, "--dir of dirichlet takes a number, not True"),
        ({"dir": np.array([0.3])}, "--dir of dirichlet takes a number, not array([0.3])"),
        ({"preset": ["x"]}, "--preset of partition takes a word, not ['x']"),
        ({"iid": "false"}, "--iid of iid must be true, or left out, not False"),
        ({"iid": 3}, "--iid of iid takes true or false, not 3"),
        ({"counts": 3}, "--counts of partition takes a word, not 3"),
        ({"counts": "x" * 999}, "(File name too long); give a shorter one"),
        ({"from": ""}, "--from is empty; give a path"),
        ({"dir": "much"}, "--dir of dirichlet takes a number, not 'much'"),
        ({"dir": "0"}, "--dir of dirichlet must be above 0"),
        ({"clients": "2.5"}, "--clients of partition takes a whole number, not '2.5'"),
        ({"dir": 0.3, "spc": 2}, "--dir and --spc exclude each other"),
        ({"iid": True, "min_size": 4}, "partitioner iid has no min size: only dirichlet can have it"),
        ({"iid": True, "clientz": 4}, "unknown option of partitioner iid 'clientz'; did you mean 'clients'?"),
        ({"scheme": "shrads"}, "unknown partitioner 'shrads'; did you mean 'shards'?"),
    ],
)
def test_bad_options(store: Store, options: dict[str, Any], message: str) -> None:
    with pytest.raises(FedbenchError) as error:
        spec(store, **options)
    assert message in str(error.value)


def test_names_are_all_options_of_the_command(store: Store) -> None:
    names = partition_options.names()
    assert {"dir", "spc", "iid", "by", "equal", "counts", "scheme", "clients", "min_size", "round_robin"} <= names
