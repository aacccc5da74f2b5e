"""Where an artifact comes from, in words: `show` prints them, `site` writes them on a run's page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedbench.cli.describe import describe
from fedbench.specs import DatasetSpec, MetricsSpec, PartitionSpec, RunSpec, Spec
from fedbench.store import Artifact, Store


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
    return [(f"{spec.kind} {spec.id}: {describe(spec)}", store.whole(spec)) for spec in specs]


def details(artifact: Artifact) -> list[str]:
    """What its manifest says, a line each."""
    from fedbench.engine import keep
    from fedbench.metrics.method_metrics import MEASURES, measures_of

    spec, p = artifact.spec, artifact.provenance
    libraries = ", ".join(f"{k} {v}" for k, v in p["libraries"].items())
    lines = [
        f"made {p['started']} on {p['host']} ({p['platform']})",
        f"by {libraries}" + (f", revision {p['git'][:12]}{'+' if p['git'].endswith('+') else ''}" if p["git"] else ""),
        f"files in {artifact.path}: " + ", ".join(artifact.manifest["files"]),
    ]
    if isinstance(spec, RunSpec):
        setting = {k: v for k, v in spec.setting.to_dict().items() if k != "partition"}
        lines.insert(0, "setting: " + ", ".join(f"{k} {v}" for k, v in setting.items()))
        lines.insert(0, "method: " + (", ".join(f"{k} {v}" for k, v in spec.params.items()) or "no hyper-parameters"))
        lines.append(f"trained {p['train_seconds']:.1f} s on {p['device']}, {_executor(p)}")
        if keeps := keep.line(artifact):
            lines.append(keeps)
        lines += [f"measures {one}" for one in measures_of(artifact).values() if MEASURES in p]
    if isinstance(spec, DatasetSpec):
        lines.insert(0, f"content {spec.content}")
    return lines


def _executor(provenance: Mapping[str, Any]) -> str:
    """Which executor ran, and why: what was measured of each, in client-steps a second; or on which workers."""
    rates = provenance.get("executor_choice", {}).get("steps_per_second", {})
    measured = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
    others = f", together with {provenance['together'] - 1} other seeds" if "together" in provenance else ""
    how = f"{measured} client-steps/s" if measured else provenance.get("workers", "")
    return f"executor {provenance['executor']}" + (f" ({how})" if how else "") + others
