"""Small artifacts behind the papers' figures, as if their runs had been trained; and a figure's rows of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fedbench import data as datasets
from fedbench import partitions
from fedbench.groups import by_key
from fedbench.methods import declarations
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.planner import table as tables
from fedbench.planner.cells import find
from fedbench.planner.table.spec import Table
from fedbench.reports import figures
from fedbench.reports.layout.build import grid_of
from fedbench.reports.layout.grid import Grid
from fedbench.results.frame import Frame
from fedbench.specs import DatasetSpec, PartitionSpec, RunSpec, Setting
from fedbench.store import Store

SHIFTS = ("px", "py", "pyx", "pxy")  #: of FLUX's tables


def build(
    table: Table,
    budget: str,
    store: Store,
    *,
    seeds: Sequence[int] = (),
    frame: Frame | None = None,
    precision: str | None = None,
    **form: Any,
) -> Grid:
    """A table's printed form, its cells looked up in a store."""
    cells = find(table, budget, frame or Frame(store), [], precision=precision, seeds=seeds)
    return grid_of(cells, seeds=seeds, **form)


def rows_of(figure: figures.FigureSpec, store: Store, **asked: Any) -> tuple[list[figures.Row], list[str]]:
    """A figure's rows and the remarks on it."""
    remarks: list[str] = []
    request = figures.Request(Frame.of(store), notify=remarks.append, **asked)
    return figures.kind_of(figure).rows(request), remarks


def drawn(figure: figures.FigureSpec, rows: list[figures.Row]) -> Any:
    """A figure's picture."""
    return figures.draw(figures.kind_of(figure), rows)


def picture_of(name: str, store: Store, **asked: Any) -> Any:
    """The picture of a figure's rows."""
    figure = figures.load(name)
    return drawn(figure, rows_of(figure, store, **asked)[0])


def panels_of(rows: list[figures.Row]) -> dict[str, dict[str, list[figures.Row]]]:
    """Title of a panel -> name of a line -> its points."""
    panels = by_key((row["panel"], row) for row in rows)
    return {title: by_key((str(row.get("line", row.get("row"))), row) for row in of) for title, of in panels.items()}


# -- pFedFDA -----------------------------------------------------------------------------------------------------


def corrupted_digits(store: Store, shift: str = "corrupted", clients: int = 24) -> PartitionSpec:
    """A partition of the embedded digits: the first half of the clients see corruptions."""
    spec = partition_spec(datasets.resolve("digits", store), "iid", clients, 0, 0.7, shift=shift)
    partitions.build(spec, store)
    return spec


def run_of_clients(store: Store, part: PartitionSpec, notes: Mapping[str, Any], lr: float = 0.1) -> str:
    """The id of a run with these columns of its table of clients."""
    spec = RunSpec(Setting(part, "digits_cnn", 2, batch_size=8, lr=lr, seed=0, epochs=1), "pfedfda")
    with store.writing(spec) as writer:
        writer.table("clients", pa.table(dict(notes)))
    return spec.id


def betas(clients: int = 24) -> list[float]:
    """Different for every client; clean ones (the second half) have less, and no two groups one mean."""
    return [0.9 - 0.02 * c - 0.0001 * c * c for c in range(clients)]


def by_epochs(method: str, epochs: int) -> dict[int, float]:
    """Accuracies of three clients, their mean rising with the epochs."""
    base = (0.3 if method == "pfedfda" else 0.2) + 0.01 * epochs
    return {0: base - 0.1, 1: base, 2: base + 0.1}


def fill_epochs(lab: Any, leave_out: Sequence[tuple[str, str]] = ()) -> dict[tuple[str, str], str]:
    """Runs of all cells of Figure 4's table, but some: (method, column key) -> id."""
    lab.dataset("cifar100")
    made = {}
    for method in ("fedavgft", "pfedfda"):
        for column in tables.load("pfedfda/figure4").columns:
            if (method, column.key) not in leave_out:
                setting = lab.setting("pfedfda/figure4", column.key)
                clients = by_epochs(method, setting.epochs)
                run = lab.run(setting, method, rules="pfedfda", clients=clients, views=("plain",))
                made[method, column.key] = run.id
    return made


# -- FLUX --------------------------------------------------------------------------------------------------------


def known(setting: Setting) -> float:
    """A made-up accuracy, different for every cell and seed."""
    p = setting.partition
    return 0.5 + 0.03 * SHIFTS.index(p.shift) + 0.01 * (p.options.get("level") or 0) + 0.002 * (setting.seed - 42) ** 2


def fill_series(
    lab: Any,
    table: str,
    wanted: Callable[[Setting], bool],
    methods: Iterable[tuple[str, Mapping[str, Any]]],
    budget: str = "small",
) -> None:
    """Runs of these methods in the wanted settings of a table, which are its row's for a method that has one; half as
    good in the test phase."""
    cells = find(tables.load(table), budget, Frame(lab.store), [])
    columns = [s for group in cells.settings.values() for s in group]
    for method, params in methods:
        same = [cell for cell in cells.all if (cell.row.method, dict(cell.row.params)) == (method, dict(params))]
        rows = [spec.setting for cell in same for spec in cell.specs]
        for s in {s.id: s for s in rows or columns}.values():
            if wanted(s):
                v = known(s) + 0.001 * float(params.get("start", 0)) + 0.01 * float(params.get("threshold", 0))
                both = {"client_accuracy_mean": lambda t, v=v: v, "test_phase_accuracy_mean": lambda t, v=v: v / 2}
                time = {"total_runtime_seconds": 4.0 * s.partition.clients}
                lab.run(s, method, params, rules="flux", metrics=both, whole=time, views=("plain",))


def level(*numbers: int) -> Callable[[Setting], bool]:
    """Whether a setting is of one of these levels."""
    return lambda setting: setting.partition.options.get("level") in numbers


GROUPS, FOUND = [0, 0, 1, 1, 2, 2], [7, 7, 3, 3, 3, None]  #: of six clients, true and found


def described(seed: int = 0, clients: int = 6, length: int = 12) -> np.ndarray:
    """Rows whose first two principal axes carry most of the variance."""
    rng = np.random.default_rng(seed)
    centres = 3 * rng.normal(size=(3, length))
    return (centres[np.array(GROUPS[:clients])] + 0.1 * rng.normal(size=(clients, length))).astype(np.float32)


def descriptors_of(rows: np.ndarray, clients: Iterable[int] | None = None) -> pa.Table:
    """The table `descriptors`."""
    flat = pa.array(rows.ravel(), pa.float32())
    named = list(range(len(rows))) if clients is None else list(clients)
    return pa.table(
        {"client": pa.array(named, pa.int32()), "descriptor": pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])}
    )


def described_run(
    store: Store, table: pa.Table | None = None, setting: Setting | None = None, kept: bool = True
) -> str:
    """The id of a run of six clients that kept these descriptors."""
    if setting is None:
        part = partition_spec(DatasetSpec("made_up", "generated", "0"), "iid", 6, 0, 0.5)
        setting = Setting(part, "lenet5", 1, batch_size=8, lr=0.1, seed=0, epochs=1)
    spec = declarations.of("flux").run(setting, {})
    with store.writing(spec) as writer:
        held = {"client": pa.array(range(6), pa.int32()), "group": GROUPS, "cluster": pa.array(FOUND, pa.int32())}
        writer.table("clients", pa.table(held))
        writer.table("rounds", pa.table({"round": [1]}))
        if kept:
            writer.table("descriptors", descriptors_of(described()) if table is None else table)
        writer.provenance = {"title": "FLUX"}
    return spec.id
