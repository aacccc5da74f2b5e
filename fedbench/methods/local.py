"""Local: each client trains alone."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.client import MEMBER
from fedbench.methods.base import Method


@dataclass(frozen=True)
class Local(Method):
    """Each client trains on its own data from the common start and sends nothing.

    As in pFedFDA's code, a client trains only in the rounds whose cohort includes it, so that all methods of a table do
    the same amount of local work (pFedFDA protocol, section 4).
    """

    name = "local"
    title = "Local"
    personalised = True
    serves = (MEMBER,)
    personal = ("",)
