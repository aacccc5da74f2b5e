"""Learning curves of any runs: a panel a partition, a line a group of runs, a band over its seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedbench.errors import FedbenchError
from fedbench.planner.table.spec import UNITS
from fedbench.reports import curves as numbers
from fedbench.reports.curves import Curve, CurvePanel
from fedbench.reports.figures.kind import Ask, Content, FigureSpec, Kind, Panel
from fedbench.reports.figures.style import handle, look, shape, subplots, titled
from fedbench.reports.figures.text import text_curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from rich.console import RenderableType

#: More panels are not seen, and more lines not told apart, in one picture.
PANELS, LINES = 24, 24
#: Axis -> its label, and what one unit of it is in a terminal.
_AXES = {
    "round": ("round", 1.0, "round"),
    "bytes": ("bytes sent and received by all clients", 1e-6, "MB sent and received by all clients"),
    "seconds": ("seconds of training, without evaluation", 1.0, "seconds of training, without evaluation"),
}
#: So many remarks on single runs are made.
_REMARKS = 5


class Learning(Kind[CurvePanel]):
    """A metric against rounds, bytes or seconds."""

    options = ("filters", "metric", "against", "by", "view")
    columns = ("panel", "metric", "unit", "test_images", "line", "axis", "x", "round", "mean", "std", "runs", "ids")

    def gather(self, figure: FigureSpec, ask: Ask) -> Content[CurvePanel]:
        """The curves of the runs that the filters name (all without one), with remarks on what is not as it seems.

        Raises FedbenchError as `runs.select` and `curves.curves` do.
        """
        axis = ask.against or "round"
        made = numbers.curves(ask.runs(), ask.metric, axis, ask.by or (), ask.view)
        for problem in made.problems[:_REMARKS]:
            ask.remark(problem)
        if len(made.problems) > _REMARKS:
            ask.remark(f"and {len(made.problems) - _REMARKS} more runs without")
        for panel in made.panels:
            _explain(panel, ask)
        factor, unit = UNITS["percent"] if made.unit == "fraction" else (1.0, made.unit)
        about = {"metric": made.metric, "unit": unit, "test_images": made.view, "axis": axis}
        return Content([Panel(panel.title, {}, _scaled(panel, factor)) for panel in made.panels], about)

    def rows(self, marks: CurvePanel) -> Iterator[Mapping[str, Any]]:
        """One line a point."""
        for name, curve in marks.curves.items():
            about = {"line": name, "runs": len(curve.runs), "ids": " ".join(run.id for run in curve.runs)}
            values = _values(curve)
            std = values["std"] or [None] * len(values["round"])
            for t, x, mean, spread in zip(values["round"], values["x"], values["mean"], std, strict=True):
                yield {**about, "round": t, "x": x, "mean": mean, "std": spread}

    def values(self, marks: CurvePanel, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Lists, line by line; `std` is over the line's runs (ddof 1), null where it has one only."""
        return {"lines": [{"line": name, **_values(curve)} for name, curve in marks.curves.items()]}

    def words(self, figure: FigureSpec, content: Content[CurvePanel]) -> Iterable[str]:
        what = _quantity(content)
        for panel in content.panels:
            yield f"{panel.title}: {what} at the end"
            for name, curve in panel.marks.curves.items():
                spread = "" if curve.std is None else f" ± {curve.std[-1]:.2g}"
                yield f"  {name}: {curve.mean[-1]:.4g}{spread} ({_count(curve)}, round {curve.rounds[-1]})"

    def details(self, figure: FigureSpec, content: Content[CurvePanel]) -> Iterable[RenderableType]:
        """The curves themselves."""
        _, unit, label = _AXES[content.about["axis"]]
        for panel in content.panels:
            curves = panel.marks.curves.items()
            lines = {name: list(zip((c.x * unit).tolist(), c.mean.tolist(), strict=True)) for name, c in curves}
            title = f"{panel.title}: " if len(content.panels) > 1 else ""
            yield text_curves(lines, label, title + _quantity(content))

    def paint(self, figure: FigureSpec, content: Content[CurvePanel]) -> Figure:
        """Small multiples over one legend. Raises FedbenchError for more than can be told apart."""
        from matplotlib.ticker import EngFormatter, MaxNLocator

        names = list(dict.fromkeys(name for panel in content.panels for name in panel.marks.curves))
        for count, most, what in ((len(content.panels), PANELS, "panels"), (len(names), LINES, "lines")):
            if count > most:
                hint = "choose runs by filters such as dataset=mnist, group them by --by KEY, or take --csv"
                raise FedbenchError(f"{count} {what} are too many for one picture (up to {most})", hint)
        rows, columns = shape(len(content.panels))
        looks = {name: look(i) for i, name in enumerate(names)}
        picture, grid = subplots((max(4.5, 0.5 + 3.2 * columns), 0.9 + 2.4 * rows), rows, columns)
        for i, (axes, panel) in enumerate(titled(grid, content.panels)):
            _paint(axes, panel.marks, looks)
            if i + columns >= len(content.panels):
                axes.set_xlabel(_AXES[content.about["axis"]][0])
            if content.about["axis"] == "bytes":
                axes.xaxis.set_major_formatter(EngFormatter("B"))
            else:
                axes.xaxis.set_major_locator(
                    MaxNLocator(6, steps=[1, 2, 5, 10], integer=content.about["axis"] == "round")
                )
        for row in grid:
            row[0].set_ylabel(_quantity(content))
        counts = {_count(curve) for panel in content.panels for curve in panel.marks.curves.values()}
        several = any(curve.std is not None for panel in content.panels for curve in panel.marks.curves.values())
        over = counts.pop() if len(counts) == 1 else "seeds"
        if several:
            picture.suptitle(f"mean over {over}, band: ± standard deviation", fontsize=8)
        handles = [handle(name if over != "seeds" else _counted(name, content), **looks[name]) for name in names]
        picture.legend(handles=handles, loc="outside lower center", ncols=_columns(handles, picture.get_figwidth()))
        return picture


def _paint(axes: Axes, panel: CurvePanel, looks: Mapping[str, dict[str, Any]]) -> None:
    """Lines with some markers, and their bands; one point is a marker with an error bar."""
    shade = max(0.05, min(0.18, 0.6 / len(panel.curves)))  # many bands lie over one another
    for i, (name, curve) in enumerate(panel.curves.items()):
        step = max(1, len(curve.x) // 6)
        # A line's markers stand aside from the next one's, so that equal lines are seen to be two.
        first = i * step // max(1, len(panel.curves)) if len(curve.x) > step else 0
        axes.plot(curve.x, curve.mean, **looks[name], markevery=(first, step))
        if curve.std is not None and len(curve.x) > 1:
            low, high = curve.mean - curve.std, curve.mean + curve.std
            axes.fill_between(curve.x, low, high, color=looks[name]["color"], alpha=shade, linewidth=0)
        elif curve.std is not None:
            axes.errorbar(curve.x, curve.mean, curve.std, color=looks[name]["color"], capsize=2, linewidth=0.8)
    axes.margins(x=0.03)
    axes.grid(axis="y")


def _explain(panel: CurvePanel, ask: Ask) -> None:
    """Remarks on lines that are no whole curve, or no mean over seeds."""
    short = {name: c for name, c in panel.curves.items() if c.rounds[0] > 1 + c.rounds[-1] / 2}
    if short:
        some = ", ".join(list(short)[:_REMARKS]) + (" and others" if len(short) > _REMARKS else "")
        whole = "train with --every 1 to get the whole curve"
        ask.remark(f"{panel.title}: evaluated in the last rounds only: {some}; {whole}")
    for name, curve in panel.curves.items():
        if curve.mixed:
            ask.remark(f"{panel.title}: {name} is a mean over runs that differ in {', '.join(curve.mixed)}, too")


def _scaled(panel: CurvePanel, factor: float) -> CurvePanel:
    """In the unit in which the panel is printed."""
    curves = {
        name: replace(c, mean=c.mean * factor, std=None if c.std is None else c.std * factor)
        for name, c in panel.curves.items()
    }
    return replace(panel, curves=curves)


def _values(curve: Curve) -> dict[str, Any]:
    return {
        "round": curve.rounds.tolist(), "x": curve.x.tolist(), "mean": curve.mean.tolist(),
        "std": None if curve.std is None else curve.std.tolist(), "runs": [run.id for run in curve.runs],
    }  # fmt: skip


def _quantity(content: Content[CurvePanel]) -> str:
    """What is shown, with its unit, and where test images are cropped as in training."""
    crop = "cropped images" if content.about["test_images"] == "crop" else ""
    notes = ", ".join(filter(None, (content.about["unit"], crop)))
    return str(content.about["metric"]).replace("_", " ") + (f" ({notes})" if notes else "")


def _count(*curves: Curve) -> str:
    """How many runs each of these curves is the mean of, in words."""
    numbers = sorted({len(curve.runs) for curve in curves})
    noun = "run" if any(curve.mixed for curve in curves) else "seed"
    return f"{' or '.join(map(str, numbers))} {noun}{'' if numbers == [1] else 's'}"


def _counted(name: str, content: Content[CurvePanel]) -> str:
    """A line's name, and of how many runs it is."""
    curves = [panel.marks.curves[name] for panel in content.panels if name in panel.marks.curves]
    return f"{name} ({_count(*curves)})"


def _columns(handles: Sequence[Line2D], width: float) -> int:
    """How many entries of a legend stand beside each other in so many inches."""
    widest = 0.45 + 0.062 * max(len(str(entry.get_label())) for entry in handles)
    return max(1, min(len(handles), int(width / widest)))
