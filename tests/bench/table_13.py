"""FTW-ERM's Table 13 as a whole: the bound of MNIST's ratio by k-means with 10 restarts (minutes a row).

    FEDBENCH_DATA=... python -m tests.bench.table_13      exit code 1 if a row is outside its band

tests/ratios/test_bound.py holds the row of 20 clusters.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fedbench.ratios.bound import kmeans_bound
from tests.ratios.test_bound import table_13

#: Clusters, and the band of reproduction: with many clusters the maximising one holds a few training images.
TABLE_13 = [(10, 9, 12), (20, 14, 17), (40, 15, 28), (50, 17, 30), (100, 25, 36), (200, 28, 60), (500, 45, 300)]


def main() -> int:
    images, outside = table_13(Path(os.environ["FEDBENCH_DATA"])), 0
    for clusters, low, high in TABLE_13:
        found = kmeans_bound(*images, clusters=clusters).value
        outside += not low <= found <= high
        print(f"{clusters} clusters: {found:.1f}, of {low} to {high}", flush=True)
    return int(bool(outside))


if __name__ == "__main__":
    sys.exit(main())
