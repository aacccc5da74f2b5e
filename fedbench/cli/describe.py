"""What an artifact is, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedbench.specs import DatasetSpec, MetricsSpec, PartitionSpec, RunSpec, Setting, Spec


def describe(spec: Spec, telling: Mapping[str, Sequence[str]] | None = None) -> str:
    """One line that tells a person what an artifact is; of a run with its method's `telling` hyper-parameters."""
    if isinstance(spec, DatasetSpec):
        return f"{spec.name} ({spec.source})"
    if isinstance(spec, PartitionSpec):
        from fedbench.partitions import schemes

        head = f"{spec.dataset.name} {schemes.label(spec)}, {spec.clients} clients, shift {spec.shift}"
        return ", ".join([head, f"seed {spec.seed}", *schemes.details(spec)])
    if isinstance(spec, RunSpec):
        from fedbench.partitions import schemes

        setting, part = spec.setting, spec.setting.partition
        method = method_words(spec, telling or {})
        return (
            f"{method} on {part.dataset.name} {schemes.label(part)}, {part.clients} clients, "
            f"{setting.budget} budget ({setting.rounds} rounds, {model_words(setting)}), seed {setting.seed}"
        )
    if isinstance(spec, MetricsSpec):
        return f"of run {spec.run.id}: {describe(spec.run, telling)}"
    raise TypeError(spec)


def telling(specs: Iterable[Spec]) -> dict[str, list[str]]:
    """By method, the hyper-parameters in which these runs of it (and those of these metrics) differ."""
    values: dict[str, dict[str, set[str]]] = {}
    for spec in specs:
        spec = spec.run if isinstance(spec, MetricsSpec) else spec
        if isinstance(spec, RunSpec):
            for name, value in spec.params.items():
                values.setdefault(spec.method, {}).setdefault(name, set()).add(repr(value))
    return {method: [k for k, seen in of.items() if len(seen) > 1] for method, of in values.items()}


def model_words(setting: Setting) -> str:
    """A setting's network, and what of its training is not as usual."""
    precision = None if setting.precision == Setting.precision else setting.precision
    return ", ".join(
        filter(None, (setting.model, setting.optimizer, setting.select and f"{setting.select} round", precision))
    )


def method_words(spec: RunSpec, telling: Mapping[str, Sequence[str]]) -> str:
    """A run's method, with its `telling` hyper-parameters."""
    values = ", ".join(f"{k} {spec.params[k]}" for k in telling.get(spec.method, ()) if k in spec.params)
    return f"{spec.method} ({values})" if values else spec.method
