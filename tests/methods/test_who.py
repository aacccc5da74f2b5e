"""Whom a method serves: declared, and checked where clients without labels would get what nobody has trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from fedbench import methods
from fedbench.core.client import Client, ClientUpdate
from fedbench.core.server import Server
from fedbench.core.who import MEMBER, UNLABELLED, UNSEEN
from fedbench.errors import FedbenchError
from fedbench.methods.base import HEAD, Method
from tests.support.lab import federation, method, setting, train, trainer

DATA = federation((60, 40, 50))
TEST_PHASE = setting(votes=False, test_phase=True)


@pytest.mark.parametrize("name", methods.names())
def test_it_declares_kinds_that_there_are(name: str) -> None:
    serves = methods.load(name)[0].serves
    assert MEMBER in serves
    assert set(serves) <= {MEMBER, UNSEEN, UNLABELLED}
    assert len(set(serves)) == len(serves)


@pytest.mark.parametrize("name", methods.names())
def test_only_who_serves_them_answers_clients_without_labels(name: str, tmp_path: Path) -> None:
    how = method(name)
    try:
        how.check_setting(TEST_PHASE)
        s = TEST_PHASE
    except FedbenchError:  # one gradient a client
        s = setting(votes=False, test_phase=True, steps=1, passes="endless", momentum=0.0)
    columns = train(how, DATA, tmp_path, s).predictions.column_names
    assert ("test_phase" in columns) == (UNLABELLED in how.serves)


@dataclass(frozen=True)
class OwnHead(Method):
    """A head of each client's own, and no word about who has none."""

    name = "own_head"
    personal = HEAD


def test_untrained_parts_are_served_to_nobody_in_silence(tmp_path: Path) -> None:
    with pytest.raises(FedbenchError, match=r"own_head keeps head\.weight with each client.*leave 'unlabelled' out"):
        trainer(OwnHead(), DATA, tmp_path, TEST_PHASE)
    trainer(OwnHead(), DATA, tmp_path, setting(votes=False))


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
