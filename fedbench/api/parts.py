"""Partitions: who holds which sample."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedbench import partitions
from fedbench import protocol as protocols
from fedbench.api.own import name_of, options_of
from fedbench.api.places import Home, roots, say, store_of
from fedbench.options import checked
from fedbench.partition_options import spec_of
from fedbench.partitions import schemes
from fedbench.specs import PartitionSpec
from fedbench.store import Store

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Part:
    """A data set dealt out to clients, and the protocol whose defaults hold for runs in it."""

    spec: PartitionSpec
    store: Store
    protocol: str

    @property
    def id(self) -> str:
        return self.spec.id

    @cached_property
    def data(self) -> partitions.Partition:
        """Everything, row by row of the clients' samples."""
        return partitions.build(self.spec, self.store, roots())

    @property
    def counts(self) -> pd.DataFrame:
        """Samples of each class (columns) that each client (rows) holds, and how many it trains and is tested on."""
        import pandas as pd

        p = self.data
        frame = pd.DataFrame(p.class_counts(), columns=list(p.classes)).rename_axis("client")
        return frame.assign(train=p.n_train, test=p.n_test)

    def __repr__(self) -> str:
        spec = self.spec
        return f"<partition {self.id[:8]} of {spec.dataset.name}: {schemes.label(spec)}, {spec.clients} clients>"

    def _repr_html_(self) -> str:
        from fedbench.api.pictures import coloured
        from fedbench.partitions.view import render

        return coloured(render(self.data))


@checked
def partition(dataset: str | None = None, *, protocol: str | None = None, store: Home = None, **options: Any) -> Part:
    """Deal a data set out to clients, or find it dealt out; options are those of `fedbench partition`.

    `from_` is a file of rows (client, sample, split), or a folder of PFLlib or LEAF, then without a data set.
    A partitioner of your own is `scheme="FILE.py:Class"`, a class or an object. What is left open is the protocol's.

    >>> part = partition("digits", dir=0.3, clients=5)
    >>> part
    <partition ... of digits: Dir-0.3, 5 clients>
    >>> int(part.counts["train"].sum() + part.counts["test"].sum())
    1797
    """
    home = store_of(store)
    rules = protocols.load(protocol or protocols.default_for(dataset))
    scheme = options.get("scheme")
    if scheme is not None:
        name = name_of(scheme, home, "partitioner")
        options = {**options_of(scheme), **options, "scheme": name}
    part = Part(spec_of(dataset, options, rules, home, roots(), say), home, rules.name)
    partitions.obtain(part.spec, home, roots())
    return part
