"""The commands that make a run: of its spec, whatever table or person made it first."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

from fedbench import declared, protocol
from fedbench.errors import FedbenchError
from fedbench.partitions import schemes
from fedbench.specs import MODIFIERS, PartitionSpec, RunSpec, Setting

#: Fields of a setting that `train` has an option for.
_OPTIONS = (
    "model", "rounds", "epochs", "steps", "batch_size", "lr", "optimizer", "momentum", "momentum_lives", "weight_decay",
    "select", "every", "participation", "drifts", "seed", "precision",
)  # fmt: skip
#: Names of a partition's fields on the command line, where they are others.
_SPOKEN = {"train_fraction": "split"}


def commands(spec: RunSpec) -> list[str] | None:
    """The commands that make a run's partition and the run, or None where no options of `train` give its setting, such
    as a table's own."""
    trained = _train(spec)
    return None if trained is None else [_partition(spec.setting.partition), trained]


def _partition(spec: PartitionSpec) -> str:
    # The shift is said in any case, as protocols have one by default.
    fields = {name: getattr(spec, name) for name in ("scheme", "clients", "seed", *MODIFIERS)}
    usual = {f.name: f.default for f in dataclasses.fields(PartitionSpec)}
    options = {n: v for n, v in fields.items() if v is not None and (n not in usual or v != usual[n])}
    options["shift"] = spec.shift
    own = dict(spec.options)
    if schemes.at_hand(spec):
        of = schemes.of(spec)
        own = {name: getattr(of, f.name) for name, f in of.options().items() if getattr(of, f.name) != f.default}
    return _command(["partition", spec.dataset.name], {**{_SPOKEN.get(n, n): v for n, v in options.items()}, **own})


def _train(spec: RunSpec) -> str | None:
    """The shortest command by any protocol and budget."""
    setting = spec.setting
    method = spec.method if spec.source is None else f"FILE.py:{spec.method}"
    candidates = []
    for name in protocol.names():
        rules = protocol.load(name)
        for budget in rules.budgets:
            values = _options(rules, budget, setting)
            if values is not None:
                candidates.append((len(values), name != protocol.DEFAULT, name, budget, values, rules))
    if not candidates:
        return None
    _, _, name, budget, values, rules = min(candidates, key=lambda one: one[:4])
    usual = rules.method_params(spec.method, budget, setting.partition.dataset.name)
    own = {k: v for k, v in spec.params.items() if v != usual.get(k, _default(spec, k))}
    options = {"partition": setting.partition.id, "protocol": name, "budget": budget, **values, **own}
    return _command(["train", "--method", method], options)


def _default(spec: RunSpec, option: str) -> Any:
    if spec.source is not None:
        return None
    return declared.of(spec.method).hyper_parameters[option].default


def _options(rules: protocol.Protocol, budget: str, setting: Setting) -> dict[str, Any] | None:
    """The options that make a protocol's budget this setting, or None if none do."""
    try:
        usual = rules.setting(setting.partition, budget, model=setting.model)
        values = {name: getattr(setting, name) for name in _OPTIONS}
        options = {name: value for name, value in values.items() if value is not None and value != getattr(usual, name)}
        if rules.setting(setting.partition, budget, **{**options, "model": setting.model}) != setting:
            return None
    except FedbenchError:
        return None
    with contextlib.suppress(FedbenchError):  # of a protocol that names no model for the data set
        if rules.setting(setting.partition, budget, **options) == setting:
            return options
    return {**options, "model": setting.model}


def _command(words: list[str], options: Mapping[str, Any]) -> str:
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words += [option] if value else []
        else:
            words += [option, ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)]
    return shlex.join(["fedbench", *words])
