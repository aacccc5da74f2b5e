"""From runs of a store to rows of a pack."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from fedbench.errors import FedbenchError
from fedbench.metrics.evaluate import evaluate
from fedbench.metrics.read import load
from fedbench.models.plugin import is_plugin
from fedbench.results import checksum
from fedbench.results.failure import Failure
from fedbench.results.pack import ABOUT, Row
from fedbench.specs import RunSpec
from fedbench.store import Artifact, Store
from fedbench.store.provenance import other_code
from fedbench.store.unfinished import unfinished
from fedbench.words import counted


def row_of(run: Artifact, store: Store, by: str = "") -> Row:
    """A run as a row of a pack; its metrics are computed if need be.

    Raises FedbenchError for a run of code that does not come with fedbench: nobody else could make it again.
    """
    spec = run.spec
    assert isinstance(spec, RunSpec)
    if own := own_code(spec):
        raise FedbenchError(
            f"run {run.id} is of a {own} of your own, which others cannot make again, so no pack takes it",
            f"leave it out, for example with method!={spec.method.partition('@')[0]}",
        )
    told = run.provenance
    return Row(
        spec, checksum.predictions(run), by, str(told["started"]), float(told["train_seconds"]), machine(told),
        {name: told[name] for name in ABOUT if told.get(name) is not None}, load(evaluate(run, store)),
    )  # fmt: skip


def refuse_other_code(runs: Collection[Artifact]) -> None:
    """Raise FedbenchError if there are runs that other code than today's has made."""
    if changed := [run.id for run in runs if other_code(run.provenance)]:
        raise FedbenchError(
            f"{counted(len(changed), 'run')} of {len(runs):,} {'was' if len(changed) == 1 else 'were'} made by other "
            f"code than today's: {', '.join([*changed[:3], *(['...'] if len(changed) > 3 else [])])}",
            "make them anew (train --again), or export them as they are: --other-code",
        )


def diverged(store: Store, ids: Collection[str] | None = None) -> list[Failure]:
    """A store's runs that diverged, those of these ids or all; none of the user's own code."""
    return [
        Failure(run.spec, run.reason)
        for run in unfinished(store)
        if run.diverged and (ids is None or run.id in ids) and not own_code(run.spec)
    ]


def own_code(spec: RunSpec) -> str:
    """Which part of a run is a file of the user's: "method", "network", "partitioner", or "" if none is."""
    setting = spec.setting
    if spec.source is not None or "@" in spec.method:
        return "method"
    if is_plugin(setting.model):
        return "network"
    return "partitioner" if "@" in setting.partition.scheme else ""


def machine(provenance: Mapping[str, Any]) -> str:
    """The kind of machine on which the bits of a run depend, such as 'Linux x86_64 AVX512': no name, no owner."""
    if provenance.get("device", "cpu") != "cpu":
        return str(provenance["device"])
    platform = str(provenance.get("platform", ""))
    kind = re.search(r"x86_64|AMD64|aarch64|arm64", platform)
    words = (platform.partition("-")[0], kind[0] if kind else "", str(provenance.get("cpu", "")))
    return " ".join(word for word in words if word) or "unknown"
