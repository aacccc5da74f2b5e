"""`fedbench sweep`: train a grid of methods, options and seeds, and print means over seeds."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbench.cli import context, hyperparameters, options, parser, printing
from fedbench.cli.making import WHERE, How, make
from fedbench.cli.parser import OPEN, App
from fedbench.errors import FedbenchError
from fedbench.words import counted

if TYPE_CHECKING:
    from fedbench.engine.grid import GridPoint, SweepGrid
    from fedbench.planner.rounds import Rounds

app = App()


@app.command("sweep", context_settings=OPEN)
@options.grouped(place=WHERE)
def sweep(
    ctx: typer.Context,
    dataset: Annotated[str, options.argument("The data set, or a recipe's path.")],
    method: Annotated[list[str], "Method, or FILE.py:Class (repeatable).", "-m", "NAME"],
    seeds: Annotated[str | None, "Seeds of the runs, such as 0-2 or 0,1,2."] = None,
    partition_seeds: Annotated[
        str | None, "Seeds of the partition, one for each of --seeds; same: the same seeds."
    ] = None,
    test: Annotated[
        bool, "Also test the difference of every two rows on the same data, over seeds or clients."
    ] = False,
    protocol: options.ProtocolName = None,
    budget: options.Budget = "small",
    dry_run: options.DryRun = False,
    round: options.Rounds = "last",
    save: Annotated[Path | None, "Write the sweep as a table for 'report --table'.", "FILE.toml"] = None,
    *,
    place: dict[str, Any],
    again: Annotated[bool, "Also train runs again that were made by other code."] = False,
    as_json: options.Json = False,
) -> None:
    """Train methods with all combinations of values and seeds, and print means over seeds.

    Every option of 'partition' and 'train' and every hyper-parameter takes
    values with commas, such as --dir 0.1,0.3 --lr 0.01,0.1 --mu 0.1,1 (for one method only: --ditto.mu 1).
    Existing runs are not trained again. The best values are named only with validation images (--validation 0.1),
    because test images must not select values. A run that fails or diverges is listed and the others continue;
    the exit code is then 1.
    """
    from fedbench import protocol as protocols
    from fedbench.engine import grid as grids
    from fedbench.engine.engines import Where
    from fedbench.files import write_whole
    from fedbench.planner.cells import DEFAULT_BUDGET
    from fedbench.planner.rounds import Rounds

    rule = Rounds.of(round)
    store, roots = context.store(), context.roots()
    options = _options(ctx.args)
    rules = protocols.load(protocol or protocols.default_for(dataset))
    if save and dry_run:
        raise FedbenchError("--save does not go with --dry-run, which writes nothing", "leave one of the two out")
    if save and save.suffix != ".toml":
        raise FedbenchError(f"--save takes a file that ends in .toml, not {save}", "such as sweep.toml")
    if save and not save.absolute().parent.is_dir():
        raise FedbenchError(f"there is no folder {save.parent} to save {save.name} in", "make it first")
    where = Where(**place)
    engine = where.engine_for(store, roots, options.get("precision", [rules.precision(budget)])[0])
    numbers = grids.seeds(seeds) if seeds else []
    draws = grids.partition_seeds(partition_seeds, numbers) if partition_seeds else []
    grid = grids.SweepGrid.of(dataset, method, options, numbers, draws)
    with engine:
        points = grid.points(rules, budget, store, roots)
        for point in points:
            rule.check(point.runs[0].spec.setting, f"{point.method} in this sweep")
        for remark in dict.fromkeys(remark for point in points for remark in point.remarks):
            context.err().print(remark, style="dim", soft_wrap=True, markup=False)
        if test:
            _say_if_seeds_are_few(points)
        if dry_run:
            _print_cost(points, again, where.kind, as_json)
            return
        runs = grids.missing(points, store, again=again)
        nothing = "all runs are there" + (", made by today's code" if again else "")
        whole = make(runs, f"budget {budget}", nothing, engine, How(where, again))
    if save:
        data = grids.text(grid, points, rules, save.absolute().parent, rule).encode()
        write_whole(save, data, "choose another --save FILE")
        path = shlex.quote(f"./{save}" if not save.is_absolute() else str(save))
        other = "" if budget == DEFAULT_BUDGET else f" --budget {budget}"
        context.err().print(f"saved: fedbench report --table {path}{other}")
    _print(points, grid, rule, test, as_json)
    if not whole:
        sys.exit(1)


def _say_if_seeds_are_few(points: Sequence[GridPoint]) -> None:
    """Say before training that no test over the seeds can reach its level."""
    from math import comb

    from fedbench.groups import by_key
    from fedbench.reports.compare.pairs import enough, too_few

    places = by_key((repr(sorted(point.partition.items())), point) for point in points)
    pairs = sum(comb(len(there), 2) for there in places.values())
    if not pairs:
        raise FedbenchError("no two rows of the sweep are on the same data to test", "leave --test out")
    if said := too_few(len(points[0].runs), pairs, "seeds"):
        context.err().print(f"{said}; {enough(pairs)} seeds can.", soft_wrap=True)


def _options(words: Sequence[str]) -> dict[str, list[str]]:
    """Option -> its values, for the options that the command does not declare; an option may be repeated."""
    from fedbench.engine.grid import values

    options: dict[str, list[str]] = {}
    for option, text in hyperparameters.options_among(words):
        name = option.removeprefix("--").replace("-", "_")
        more = values(name, parser.parsed_value(f"--{name}", text or ""))
        options[name] = list(dict.fromkeys([*options.get(name, []), *more]))
    return options


def _print_cost(points: Sequence[GridPoint], again: bool, device: str, as_json: bool) -> None:
    """Print the runs of each point, and about how long they take on this machine; or each missing run as JSON."""
    from fedbench.cli.costs import about, costs_of, show_costs, show_json
    from fedbench.engine.grid import missing, unique

    lacking = missing(points, context.store(), again=again)
    if as_json:
        show_json(lacking, device)
        return
    costs = costs_of(lacking, device)
    lines = []
    for point in points:
        values = ", ".join(f"{k} {v}" for k, v in {**point.partition, **point.setting, **point.params}.items())
        lines.append(((point.method, values, str(len(point.runs))), [run for run in point.runs if run in lacking]))
    show_costs(("method", "values", "runs", "to make", "time here"), lines, costs)
    context.out().print(f"{len(lacking)} of {counted(len(unique(points)), 'run')} to make{about(costs.values())}")


def _print(points: Sequence[GridPoint], grid: SweepGrid, rule: Rounds, test: bool, as_json: bool) -> None:
    """Print the comparison of the complete runs, what they reach on groups that they left out, and the best values by
    validation accuracy."""
    from fedbench.engine import grid as best
    from fedbench.reports.compare.layout import side_by_side
    from fedbench.reports.compare.left_out import left_out

    there = best.runs(points, context.store())
    if not there:
        if as_json:
            printing.print_json([])
        return
    by_group = left_out(there, rule) if grid.leaves_out else []
    methods = list(dict.fromkeys(run.values["method"] for run in there))
    side = side_by_side(there, test=test, round=str(rule), named={"method": methods})
    printing.put([*side, *by_group], "json" if as_json else "console", None)
    console = context.err()
    if not set(grid.varied) - {"unseen"}:
        return
    scores = best.best(points, context.store(), rule)
    for one in scores:
        values = {**one.point.partition, **one.point.setting, **one.point.params}
        chosen = ", ".join(f"{k} {values[k]}" for k in grid.varied if k in values) or "as it is"
        over = f" ± {100 * one.std:.2f} over {one.seeds} seeds" if one.std is not None else ""
        console.print(f"best by validation accuracy: {one.point.method}, {chosen} ({100 * one.mean:.2f} %{over})")
    if not scores:
        console.print(
            "No values are selected, because test images must not select. --validation 0.1 gives validation images."
        )
