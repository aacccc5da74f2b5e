"""What to do next with a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedbench import protocol as protocols
from fedbench.cli import context

if TYPE_CHECKING:
    from fedbench.specs import RunSpec
    from fedbench.store import Artifact


def next_command(artifact: Artifact, protocol: str) -> str:
    """The command that prints the tables in which the run stands: headline ones, else any others on its data set. For a
    run of no table's setting, and so for all in `plain`, those that set the user's own runs side by side."""
    from fedbench.reports import table as tables
    from fedbench.specs import RunSpec

    assert isinstance(artifact.spec, RunSpec)
    setting = artifact.spec.setting
    there = f"partition={setting.partition.id}"
    own = f"next: fedbench compare {there} (side by side), fedbench figure curves {there} (by round)"
    if protocol == protocols.OWN:
        return own
    headline = {number: name for number, (_, name) in tables.headline().items()}
    commands = _tables_of(artifact.spec, headline, elsewhere=True)
    commands = commands or _tables_of(artifact.spec, {name: name for name in tables.names()}, elsewhere=False)
    if not commands:
        return own
    options, names = next(iter(commands.items()))
    return f"next: fedbench report --table {names[0]}{options}" + (
        f" (or --table {', '.join(names[1:])})" if names[1:] else ""
    )


def _tables_of(run: RunSpec, named: Mapping[str, str], elsewhere: bool) -> dict[str, list[str]]:
    """Of these tables (as the user calls them -> name), those with the run's setting: options of `report` -> tables.

    `elsewhere`: also those about other data sets, taken over to the setting's.
    """
    from fedbench.reports import table as tables
    from fedbench.reports.status.cells import DEFAULT_BUDGET, find
    from fedbench.reports.status.index import Index

    setting, store = run.setting, context.store()
    dataset = setting.partition.dataset.name
    index = Index(store)
    commands: dict[str, list[str]] = {}
    for short, name in named.items():
        table = tables.load(name)
        replaced = dataset not in {c.dataset for c in table.columns}
        if table.counted or (replaced and not elsewhere):
            continue
        if setting.budget not in protocols.load(table.protocol).budgets:
            continue
        table = tables.on_dataset(table, dataset) if replaced else table
        for seeds, words in (((), ""), ((setting.seed,), f" --seed {setting.seed}")):
            cells = find(
                table, setting.budget, store, context.roots(), precision=setting.precision, seeds=seeds, index=index
            )
            if any(s.id == setting.id for column in table.printed for s in cells.settings.get(column.key, ())):
                options = f" --dataset {dataset}" if replaced else ""
                options += f" --budget {setting.budget}" if setting.budget != DEFAULT_BUDGET else ""
                usual = protocols.load(table.protocol).precision(setting.budget)
                options += f" --precision {setting.precision}" if setting.precision != usual else ""
                asked = any(record and record.id == run.id for cell in cells.all for record in cell.records)
                commands.setdefault(options + words + ("" if asked else " --extra"), []).append(short)
                break
    return commands
