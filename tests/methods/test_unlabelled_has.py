"""A method declares which of its personal parts a client without labels has; the others nobody has trained for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from fedbench.core.client import Client
from fedbench.core.server import Server
from fedbench.core.who import MEMBER
from fedbench.errors import FedbenchError
from fedbench.methods.base import HEAD, Method
from tests.support.lab import federation, setting, trainer

DATA = federation((60, 40, 50))
TEST_PHASE = setting(votes=False, test_phase=True)


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


def test_a_part_that_is_not_declared_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(FedbenchError, match=r"own_head keeps head\.weight .*name it in `unlabelled_has`"):
        trainer(OwnHead(), DATA, tmp_path, TEST_PHASE)
    trainer(OwnHead(), DATA, tmp_path, setting(votes=False))


@pytest.mark.parametrize("how", [ServedHead(), MembersOnly()], ids=lambda how: how.name)
def test_one_that_is_declared_or_that_nobody_asks_for_is_not(how: Method, tmp_path: Path) -> None:
    trainer(how, DATA, tmp_path, TEST_PHASE)
