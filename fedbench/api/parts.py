"""Partitions and conformance checks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench import partitions
from fedbench import protocol as protocols
from fedbench.api.shared import Home, card, coloured, name_of, options_of, roots, say, store_of
from fedbench.errors import FedbenchError
from fedbench.options import checked
from fedbench.partition_options import shorts, spec_of
from fedbench.partitions import schemes
from fedbench.specs import DatasetSpec, PartitionSpec, require
from fedbench.store import Store

if TYPE_CHECKING:
    import pandas as pd

    from fedbench.conformance.suite import CheckOutcome


@dataclass(frozen=True, repr=False)
class Part:
    """A data set partitioned among clients, and the protocol that sets the defaults of its runs."""

    spec: PartitionSpec
    store: Store
    protocol: str

    @property
    def id(self) -> str:
        return self.spec.id

    @cached_property
    def data(self) -> partitions.Partition:
        """The whole partition, one row for each sample of each client."""
        return partitions.build(self.spec, self.store, roots())

    @property
    def counts(self) -> pd.DataFrame:
        """Samples of each client (rows): by class, and how many are for training and for testing (columns). A client
        that is a natural group has its name in the index, such as a hospital's; others have their number."""
        import pandas as pd

        p = self.data
        index = pd.Index(p.names or range(p.clients), name="client")
        frame = pd.DataFrame(p.class_counts(), columns=list(p.classes), index=index)
        return frame.assign(train=p.n_train, test=p.n_test)

    @property
    def samples(self) -> pd.DataFrame:
        """A row for each sample of each client: `sample` (row of the data set), `client`, `split` (train, validation or
        test), `label` (the class's name; of multi-label images all names, as a tuple) and `group`: the natural group,
        such as a hospital, if clients are such, else the number of the true distribution that it comes from."""
        import pandas as pd

        p = self.data
        names = np.array(p.classes, object)
        labels: pd.Series[Any]
        if p.multi_label:
            labels = pd.Series([tuple(names[row.astype(bool)]) for row in p.label], dtype=object)
        else:
            labels = pd.Series(names[p.label]).astype(pd.CategoricalDtype(list(p.classes)))
        sides = ["train", "validation", "test"]
        side = np.where(p.test, 2, 0 if p.validation is None else p.validation.astype(int))
        groups = p.distribution if p.drawn is not None else np.array(p.names or p.groups)[p.client]
        return pd.DataFrame(
            {
                "sample": p.sample,
                "client": p.client,
                "split": pd.Series(np.array(sides, object)[side]).astype(pd.CategoricalDtype(sides)),
                "label": labels,
                "group": groups,
            }
        )

    def __repr__(self) -> str:
        spec = self.spec
        return f"<partition {self.id[:8]} of {spec.dataset.name}: {schemes.label(spec)}, {spec.clients} clients>"

    def _repr_html_(self) -> str:
        from fedbench.partitions.view import render

        return coloured(render(self.data))


@checked
def partition(
    dataset: str | tuple[Any, Any] | None = None,
    *,
    groups: Any = None,
    protocol: str | None = None,
    store: Home = None,
    **options: Any,
) -> Part:
    """Partition a data set among clients, or load the partition from the store; options as in `fedbench partition`.

    `dataset` may be a pair of arrays (X, y) instead of a name: X [n, D] numbers or [n, H, W(, C)] uint8 images, y [n]
    classes. Then `groups` [n] are natural groups, one client each unless another partitioner is chosen. The arrays are
    kept in the store by their content: equal arrays are the same data set.

    `from_` is a file of rows (client, sample, split) or, without a data set, a folder of PFLlib or LEAF. `scheme` can
    be a custom partitioner: "FILE.py:Class", a class or an object. The protocol sets the options that you leave out.

    >>> part = partition("digits", dir=0.3, clients=5)
    >>> part
    <partition ... of digits: Dir-0.3, 5 clients>
    >>> int(part.counts["train"].sum() + part.counts["test"].sum())
    1797
    """
    home = store_of(store)
    name = dataset if isinstance(dataset, str) else None
    rules = protocols.load(protocol or protocols.default_for(name))
    scheme = options.get("scheme")
    if scheme is not None:
        options = {**options_of(scheme), **options, "scheme": name_of(scheme, "partitioner")}
    source: str | DatasetSpec | None = name
    if isinstance(dataset, tuple):
        from fedbench.data import arrays

        require(len(dataset) == 2, f"a data set of arrays is (X, y), not {len(dataset)} of them")
        source = arrays.store(*dataset, groups, home)
        if groups is not None and not {"scheme", "preset", *shorts()} & {key.rstrip("_") for key in options}:
            options["by"] = arrays.GROUP
    elif groups is not None:
        raise FedbenchError("partition: groups go with arrays, (X, y)", "a data set's groups are a column: by=COLUMN")
    part = Part(spec_of(source, options, rules, home, roots(), say), home, rules.name)
    partitions.obtain(part.spec, home, roots())
    return part


@dataclass(frozen=True, repr=False)
class Checks:
    """The results of the conformance checks of one method, model or partitioner."""

    subject: str
    outcomes: tuple[CheckOutcome, ...]

    @property
    def holds(self) -> bool:
        """Whether no check failed."""
        return all(one.holds is not False for one in self.outcomes)

    def __bool__(self) -> bool:
        return self.holds

    def __iter__(self) -> Iterator[CheckOutcome]:
        return iter(self.outcomes)

    def __repr__(self) -> str:
        marks = {True: "✓", False: "✗", None: "-"}
        lines = [f"{marks[one.holds]} {one.check.name}: {one.why or one.check.text}" for one in self.outcomes]
        return "\n".join([f"{self.subject}: {'holds' if self.holds else 'fails'}", *lines])

    def _repr_html_(self) -> str:
        marks = {True: "✓", False: "✗", None: "not run"}
        rows = {one.check.name: f"{marks[one.holds]} {one.why or one.check.text}" for one in self.outcomes}
        return card(f"{self.subject} {'holds' if self.holds else 'fails'}", rows)


@checked
def check(what: Any, **options: Any) -> Checks:
    """Run the conformance checks of `fedbench check` on a method, a model or a partitioner, given as a name, as
    'FILE.py:Class', as a class or as an object. They train on scikit-learn's digits: about 15 seconds for a method."""
    from fedbench.conformance.suite import checks, outcomes, subject_of

    name = name_of(what, "method, model or partitioner")
    with tempfile.TemporaryDirectory(prefix="fedbench-check-") as folder:
        subject = subject_of(name, Path(folder), lambda kind: {**options_of(what), **options})
        return Checks(name, tuple(outcomes(subject, checks(subject), lambda check: None)))
