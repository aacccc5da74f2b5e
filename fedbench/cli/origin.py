"""The origin of an artifact, in words: `show` prints it, and `site` writes it on a run's page."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from fedbench.cli.describe import describe
from fedbench.partitions.names import NAMES
from fedbench.reports.layout.shipped import NOBODY
from fedbench.results.making import machine
from fedbench.results.packs import Shipped
from fedbench.specs import DatasetSpec, RunSpec
from fedbench.store import Artifact, Store
from fedbench.store.provenance import other_code

#: At most so many clients that are natural groups are named in a line.
NAMED = 40
#: Kind of a spec -> its field with the spec of the artifact that it is made from.
_FROM = {"metrics": "run", "run": "setting.partition", "partition": "dataset"}


def chain(store: Store, artifact: Artifact) -> list[tuple[str, Artifact | None]]:
    """Pairs (description, artifact or None if missing) of the artifact and of all that it was made from."""
    specs = [artifact.spec]
    while (above := specs[-1]).kind in _FROM:
        specs.append(attrgetter(_FROM[above.kind])(above))
    whole = (artifact if isinstance(artifact, Shipped) else store.whole(artifact.spec), *map(store.whole, specs[1:]))
    return [(f"{spec.kind} {spec.id}: {describe(spec)}", one) for spec, one in zip(specs, whole, strict=True)]


def document(artifact: Artifact) -> dict[str, Any]:
    """The artifact's manifest; for a shipped run also who made it, its pack, and the checksum of its predictions."""
    if not isinstance(artifact, Shipped):
        return dict(artifact.manifest)
    row = artifact.origin
    shipped = {"by": row.by, "pack": str(artifact.path), "predictions_sha256": row.predictions}
    return {**artifact.manifest, "shipped": shipped}


def details(artifact: Artifact, to_share: bool = False) -> list[str]:
    """The content of the artifact's manifest as lines of text; `to_share`: without names of machines and folders."""
    from fedbench.engine import keep
    from fedbench.metrics.evaluate import MEASURES, measures_of

    spec, p = artifact.spec, artifact.provenance
    git = p.get("git") or ""
    libraries = ", ".join(f"{k} {v}" for k, v in p.get("libraries", {}).items())
    if isinstance(artifact, Shipped):
        processor = f" ({p['processor']})" if p.get("processor") else ""
        where = f"by {artifact.origin.by or NOBODY} on {artifact.origin.machine}{processor}"
        again = f"'fedbench results verify {artifact.id}' trains it again"
        files = f"shipped in {artifact.path}, without its predictions: {again}"
    elif to_share:
        where, files = f"on {machine(p)}", "files: " + ", ".join(artifact.manifest["files"])
    else:
        where = f"on {p['host']} ({p['platform']})"
        files = f"files in {artifact.path}: " + ", ".join(artifact.manifest["files"])
    revision = f", revision {git[:12]}{'+' if git.endswith('+') else ''}" if git else ""
    lines = [f"made {p['started']} {where}", f"by {libraries}{revision}", files]
    if other_code(p):
        lines.append("made by other code than today's: 'fedbench train --again' makes it again")
    if isinstance(spec, RunSpec):
        setting = {k: v for k, v in spec.setting.to_dict().items() if k != "partition"}
        lines.insert(0, "setting: " + ", ".join(f"{k} {v}" for k, v in setting.items()))
        lines.insert(0, "method: " + (", ".join(f"{k} {v}" for k, v in spec.params.items()) or "no hyper-parameters"))
        seeds = f", together with {p['together'] - 1} other seeds" if "together" in p else ""
        executor = f"executor {p.get('executor', 'unknown')}{seeds}"
        lines.append(f"trained {p['train_seconds']:.1f} s on {p.get('device', 'unknown')}, {executor}")
        if keeps := keep.line(artifact):
            lines.append(keeps)
        lines += [f"measures {one}" for one in measures_of(artifact).values() if MEASURES in p]
    if groups := p.get(NAMES):
        named = [f"{client} {name}" for client, name in enumerate(groups[:NAMED])]
        more = [f"{len(groups) - NAMED:,} more"] * (len(groups) > NAMED)
        lines.insert(0, "clients: " + ", ".join([*named, *more]))
    if isinstance(spec, DatasetSpec):
        lines.insert(0, f"content {spec.content}")
    return lines
