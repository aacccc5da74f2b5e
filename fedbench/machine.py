"""The machine that this process runs on."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

#: The variable of the environment that says how many cores a process may use, where several share the machine.
CORES = "FEDBENCH_CORES"


@cache
def memory() -> int:
    """Bytes of memory that this process may use at most: what there is, or its limit or its job's if that is lower."""
    import resource

    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return min(physical, *limits(), *([] if soft == resource.RLIM_INFINITY else [soft]))


@cache
def processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """Its processor, such as 'Intel(R) Xeon(R) Processor 6-207-2': libraries choose kernels by more than what it can
    compute, so that other processors give other last bits. Its name alone may be a virtual machine's for several."""
    try:
        text = info.read_text().partition("\n\n")[0]
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    fields = dict(re.findall(r"^(model name|cpu family|model|stepping)\s*: *(.*?) *$", text, re.MULTILINE))
    numbers = "-".join(fields[name] for name in ("cpu family", "model", "stepping") if name in fields)
    return f"{fields.get('model name', platform.machine())} {numbers}".strip()


def limits(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> Iterator[int]:
    """What Linux's control groups allow this process, which is how SLURM and containers limit memory
    (https://docs.kernel.org/admin-guide/cgroup-v2.html, and cgroup-v1/memory). A limit of a group holds within it."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            try:
                text = (folder / name).read_text().strip()
            except OSError:  # in a container the outer groups may not be seen
                continue
            if text.isdecimal():
                yield int(text)
