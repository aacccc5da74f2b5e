"""FTW-ERM's Table 13 as a whole: the bound of MNIST's ratio by k-means with 10 restarts (minutes a row).

pytest -s tests/bench/test_table_13.py, with FEDBENCH_DATA; tests/ratios/test_bound.py holds the row of 20 clusters.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbench.ratios.bound import kmeans_bound
from tests.ratios.test_bound import table_13

#: Clusters, and the band of reproduction: with many clusters the maximising one holds a few training images.
TABLE_13 = [(10, 9, 12), (20, 14, 17), (40, 15, 28), (50, 17, 30), (100, 25, 36), (200, 28, 60), (500, 45, 300)]


@pytest.mark.parametrize(("clusters", "low", "high"), TABLE_13)
def test_table_13(data_root: Path, clusters: int, low: float, high: float) -> None:
    found = kmeans_bound(*table_13(data_root), clusters=clusters).value
    print(f"{clusters} clusters: {found:.1f}")
    assert low <= found <= high
