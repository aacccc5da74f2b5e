"""What there is, as data frames: methods, metrics, data sets and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbench.api.shared import Home, roots, say, store_of
from fedbench.options import checked

if TYPE_CHECKING:
    import pandas as pd


@checked
def datasets(*, store: Home = None) -> pd.DataFrame:
    """A row for each data set that fedbench has a recipe of: its title, shape, number of classes, natural columns,
    training and test images (0 if the recipe does not say), licence, and whether its files are at hand."""
    import pandas as pd

    from fedbench import data

    home = store_of(store)
    rows = {}
    for name, one in data.recipes().items():
        folders = data.places(one, home, roots())
        there = next((source for source in one.sources if data.locate(source, folders) is not None), None)
        rows[name] = {
            "title": one.title,
            "shape": one.shape,
            "classes": len(one.classes),
            "columns": one.columns,
            "samples": data.declared(one, folders),
            "licence": one.licence,
            "at_hand": there is not None,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("dataset")


@checked
def tables(*, shipped: bool = True, store: Home = None) -> pd.DataFrame:
    """A row for each table: its title, its number among the headline tables, and at the budget with most numbers how
    many cells it has, how many are done, and how many of these are shipped."""
    import pandas as pd

    from fedbench.planner import table as specs
    from fedbench.planner.counts import count, done, fullest
    from fedbench.results.frame import Frame

    home = store_of(store)
    frame = Frame.of(home, lambda problem: say(str(problem))) if shipped else Frame(home)
    numbers = {table: int(number) for number, (_, table) in specs.headline().items()}
    rows = {}
    for one in count(specs.names(), frame, roots()):
        budget = "" if "" in one.budgets else fullest([one])
        counts = one.budgets[budget]
        rows[one.table] = {
            "title": one.title,
            "number": numbers.get(one.table),
            "budget": budget,
            "cells": sum(counts.states.values()),
            "done": done(counts.states),
            "shipped": counts.shipped,
        }
    frame_of = pd.DataFrame.from_dict(rows, orient="index").rename_axis("table")
    return frame_of.astype({"number": "Int64"})
