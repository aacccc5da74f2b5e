"""Whom a method serves: declared, and checked where clients would get what nobody has trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from fedbench import methods
from fedbench.core.client import MEMBER, UNLABELLED, UNSEEN, Client, ClientUpdate
from fedbench.core.server import Server
from fedbench.errors import FedbenchError
from fedbench.methods.base import HEAD, Method
from tests.support.lab import federation, method, setting, train, trainer

DATA = federation((60, 40, 50))
TEST_PHASE = setting(rounds=1, window=1, votes=False, test_phase=True)
#: The methods that do not serve everybody.
SERVES = {
    **dict.fromkeys(
        ("apfl", "confree", "fedas", "fedbn", "feddrm", "fedper", "fedproto", "fedrep", "fedrod", "lg_fedavg", "local",
         "mr_mtl"),
        frozenset({MEMBER}),
    ),
    **dict.fromkeys(
        ("apfl_flux", "cfl", "ditto", "fedala", "feddrift", "fitw_erm", "ftw_erm", "haccs", "kmeans_bound", "pfedme"),
        frozenset({MEMBER, UNLABELLED}),
    ),
    **dict.fromkeys(("fedpac", "pfedfda"), frozenset({MEMBER, UNSEEN})),
}  # fmt: skip


@pytest.mark.parametrize("name", methods.names())
def test_only_who_serves_them_answers_clients_without_labels(name: str, tmp_path: Path) -> None:
    how = method(name)
    assert len(set(how.serves)) == len(how.serves)
    assert set(how.serves) == SERVES.get(name, {MEMBER, UNSEEN, UNLABELLED})
    try:
        how.check_setting(TEST_PHASE)
        s = TEST_PHASE
    except FedbenchError:  # one gradient a client
        s = setting(rounds=1, window=1, votes=False, test_phase=True, steps=1, passes="endless", momentum=0.0)
    columns = train(how, DATA, tmp_path, s).predictions.column_names
    assert ("test_phase" in columns) == (UNLABELLED in how.serves)


@dataclass(frozen=True)
class OwnHead(Method):
    """A head of each client's own, and no word about who has none."""

    name = "own_head"
    personal = HEAD

    def serve(self, server: Server, client: Client) -> None:
        return  # a hook that is there says nothing of what it does


@dataclass(frozen=True)
class ServedHead(OwnHead):
    """... and one for them that is declared."""

    name = "served_head"
    unlabelled_has = HEAD


@dataclass(frozen=True)
class MembersOnly(OwnHead):
    """... and a model for nobody else."""

    name = "members_only"
    serves = (MEMBER,)


def test_untrained_parts_are_served_to_nobody_in_silence(tmp_path: Path) -> None:
    line = r"own_head keeps head\.weight with each client.*name it in `unlabelled_has`.*leave 'unlabelled' out"
    with pytest.raises(FedbenchError, match=line):
        trainer(OwnHead(), DATA, tmp_path, TEST_PHASE)
    trainer(OwnHead(), DATA, tmp_path, setting(votes=False))
    for how in (ServedHead(), MembersOnly()):
        trainer(how, DATA, tmp_path, TEST_PHASE)


@dataclass(frozen=True)
class Asking(Method):
    """Remembers who was served, and as whom clients personalise."""

    name = "asking"
    served = []  # noqa: RUF012
    kinds = []  # noqa: RUF012

    def serve(self, server: Server, client: Client) -> None:
        self.served.append((client.index, client.kind))

    def personalise(self, client: Client) -> ClientUpdate | None:
        self.kinds.append((client.index, client.kind))
        return None


def test_everybody_comes_once_more_without_labels_after_the_last_round(tmp_path: Path) -> None:
    Asking.served.clear()
    Asking.kinds.clear()
    train(Asking(), DATA, tmp_path, setting(rounds=2, window=1, votes=False, test_phase=True))
    expected = [(i, kind) for kind in (MEMBER, UNLABELLED) for i in range(3)]
    assert Asking.served == Asking.kinds == expected
