"""The machine that this process runs on."""

from __future__ import annotations

import os
from functools import cache


@cache
def memory() -> int:
    """Bytes of memory that this process may use at most: what there is, or its limit if that is lower."""
    import resource

    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return physical if soft == resource.RLIM_INFINITY else min(physical, soft)
