"""Where an artifact comes from, in words: `show` prints them, `site` writes them on a run's page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedbench.cli.context import describe
from fedbench.reports.layout.shipped import NOBODY
from fedbench.results.shelf import Shipped
from fedbench.specs import DatasetSpec, MetricsSpec, PartitionSpec, RunSpec, Spec
from fedbench.store import Artifact, Store
from fedbench.store.provenance import other_code


def chain(store: Store, artifact: Artifact) -> list[tuple[str, Artifact | None]]:
    """The artifact and all that it was made from; the specs are nested, so this works for what is missing too."""
    specs: list[Spec] = [artifact.spec]
    while not isinstance(specs[-1], DatasetSpec):
        spec = specs[-1]
        if isinstance(spec, MetricsSpec):
            specs.append(spec.run)
        elif isinstance(spec, RunSpec):
            specs.append(spec.setting.partition)
        elif isinstance(spec, PartitionSpec):
            specs.append(spec.dataset)
    whole = (artifact if isinstance(artifact, Shipped) else store.whole(artifact.spec), *map(store.whole, specs[1:]))
    return [(f"{spec.kind} {spec.id}: {describe(spec)}", one) for spec, one in zip(specs, whole, strict=True)]


def document(artifact: Artifact) -> dict[str, Any]:
    """Its manifest; of a shipped run also who made it, and where it and what of its predictions is."""
    if not isinstance(artifact, Shipped):
        return dict(artifact.manifest)
    row = artifact.origin
    shipped = {"by": row.by, "pack": str(artifact.path), "predictions_sha256": row.predictions}
    return {**artifact.manifest, "shipped": shipped}


def details(artifact: Artifact) -> list[str]:
    """What its manifest says, a line each."""
    from fedbench.engine import keep
    from fedbench.metrics.method_metrics import MEASURES, measures_of

    spec, p = artifact.spec, artifact.provenance
    git = p.get("git") or ""
    libraries = ", ".join(f"{k} {v}" for k, v in p.get("libraries", {}).items())
    lines = [
        f"made {p['started']} {_where(artifact)}",
        f"by {libraries}" + (f", revision {git[:12]}{'+' if git.endswith('+') else ''}" if git else ""),
        _files(artifact),
    ]
    if other_code(p):
        lines.append("made by other code than today's: 'fedbench train --again' makes it anew")
    if isinstance(spec, RunSpec):
        setting = {k: v for k, v in spec.setting.to_dict().items() if k != "partition"}
        lines.insert(0, "setting: " + ", ".join(f"{k} {v}" for k, v in setting.items()))
        lines.insert(0, "method: " + (", ".join(f"{k} {v}" for k, v in spec.params.items()) or "no hyper-parameters"))
        lines.append(f"trained {p['train_seconds']:.1f} s on {p.get('device', 'unknown')}, {_executor(p)}")
        if keeps := keep.line(artifact):
            lines.append(keeps)
        lines += [f"measures {one}" for one in measures_of(artifact).values() if MEASURES in p]
    if isinstance(spec, DatasetSpec):
        lines.insert(0, f"content {spec.content}")
    return lines


def _where(artifact: Artifact) -> str:
    p = artifact.provenance
    if isinstance(artifact, Shipped):
        processor = f" ({p['processor']})" if p.get("processor") else ""
        return f"by {artifact.origin.by or NOBODY} on {artifact.origin.machine}{processor}"
    return f"on {p['host']} ({p['platform']})"


def _files(artifact: Artifact) -> str:
    if isinstance(artifact, Shipped):
        again = f"'fedbench results verify {artifact.id}' trains it again"
        return f"shipped in {artifact.path}, without its predictions: {again}"
    return f"files in {artifact.path}: " + ", ".join(artifact.manifest["files"])


def _executor(provenance: Mapping[str, Any]) -> str:
    """Which executor ran."""
    others = f", together with {provenance['together'] - 1} other seeds" if "together" in provenance else ""
    return f"executor {provenance.get('executor', 'unknown')}" + others
