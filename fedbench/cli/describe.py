"""Descriptions of artifacts in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedbench.protocol import budgets_of
from fedbench.specs import DatasetSpec, MetricsSpec, PartitionSpec, RunSpec, Setting, Spec


def describe(spec: Spec, differing: Mapping[str, Sequence[str]] | None = None) -> str:
    """One line that describes an artifact; for a run it includes the `differing` hyper-parameters of its method."""
    if isinstance(spec, DatasetSpec):
        return f"{spec.name} ({spec.source})"
    if isinstance(spec, PartitionSpec):
        from fedbench.partitions import schemes

        head = f"{spec.dataset.name} {schemes.label(spec)}, {spec.clients} clients, shift {spec.shift}"
        return ", ".join([head, f"seed {spec.seed}", *schemes.details(spec)])
    if isinstance(spec, RunSpec):
        from fedbench.partitions import schemes

        setting, part = spec.setting, spec.setting.partition
        method = method_words(spec, differing or {})
        return (
            f"{method} on {part.dataset.name} {schemes.label(part)}, {part.clients} clients, "
            f"budget {budgets_of(setting)} ({setting.rounds} rounds, {model_words(setting)}), seed {setting.seed}"
        )
    if isinstance(spec, MetricsSpec):
        return f"of run {spec.run.id}: {describe(spec.run, differing)}"
    raise TypeError(spec)


def differing_params(specs: Iterable[Spec]) -> dict[str, list[str]]:
    """Method -> the hyper-parameters in which its runs (also those of the metrics) among the specs differ."""
    values: dict[str, dict[str, set[str]]] = {}
    for spec in specs:
        spec = spec.run if isinstance(spec, MetricsSpec) else spec
        if isinstance(spec, RunSpec):
            for name, value in spec.params.items():
                values.setdefault(spec.method, {}).setdefault(name, set()).add(repr(value))
    return {method: [k for k, seen in of.items() if len(seen) > 1] for method, of in values.items()}


def model_words(setting: Setting) -> str:
    """A setting's network and, if they are not the defaults, its optimiser, model selection and precision."""
    precision = None if setting.precision == Setting.precision else setting.precision
    return ", ".join(
        filter(None, (setting.model, setting.optimizer, setting.select and f"{setting.select} round", precision))
    )


def method_words(spec: RunSpec, differing: Mapping[str, Sequence[str]]) -> str:
    """A run's method with those hyper-parameters that `differing` names."""
    values = ", ".join(f"{k} {spec.params[k]}" for k in differing.get(spec.method, ()) if k in spec.params)
    return f"{spec.method} ({values})" if values else spec.method
