"""`fedbench metrics`: the metrics of all runs, and those that methods add."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from fedbench.cli import context


def metrics(
    json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """List the metrics that runs have and tables can name: those of every run, and those that methods declare."""
    from fedbench.declared import built_in
    from fedbench.metrics.definitions import all_metrics

    owners: dict[str, list[str]] = {}
    for method in built_in().values():
        for measure in method.measures:
            owners.setdefault(measure.name, []).append(method.name)
    if json:
        lines = [{"metric": k, **asdict(one), "methods": owners.get(k)} for k, one in all_metrics().items()]
        context.print_json(lines)
        return
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("metric", no_wrap=True)  # names are there to be copied
    table.add_column("unit")
    table.add_column("what")
    for name, one in all_metrics().items():
        methods = f" ({', '.join(owners[name])})" if name in owners else ""
        needs = f" (needs --keep {one.needs})" if one.needs else ""
        table.add_row(name, one.unit, one.description + methods + needs)
    console = context.out()
    console.print(table)
    console.print("What names methods at its end is a metric of their runs alone.")
