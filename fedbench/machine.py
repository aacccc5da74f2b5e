"""The machine that runs this process: its memory and processor."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

#: Environment variable: the number of cores that a process may use.
CORES = "FEDBENCH_CORES"
#: Environment variable of a command with --debug, which its worker processes get too.
DEBUG = "FEDBENCH_DEBUG"


def debugging() -> bool:
    """Whether this process belongs to a command with --debug."""
    return DEBUG in os.environ


#: Bytes of memory that a machine is taken to have if the system does not tell.
ASSUMED = 8 << 30


@cache
def memory() -> int:
    """Bytes of memory that this process may use: physical memory, or its own or its job's limit if that is lower."""
    try:
        import resource
    except ImportError:  # Windows
        return ASSUMED

    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return min(physical, *limits(), *([] if soft == resource.RLIM_INFINITY else [soft]))


@cache
def processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """The processor, such as 'Intel(R) Xeon(R) Processor 6-207-2' (name, family, model, stepping). Libraries choose
    kernels by it, so last bits differ between processors; in virtual machines the name alone can be ambiguous."""
    try:
        text = info.read_text().partition("\n\n")[0]
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    fields = dict(re.findall(r"^(model name|cpu family|model|stepping)\s*: *(.*?) *$", text, re.MULTILINE))
    numbers = "-".join(fields[name] for name in ("cpu family", "model", "stepping") if name in fields)
    return f"{fields.get('model name', platform.machine())} {numbers}".strip()


def limits(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> Iterator[int]:
    """Memory limits in bytes from the Linux control groups of this process and their parents, as set by SLURM and
    containers (https://docs.kernel.org/admin-guide/cgroup-v2.html, and cgroup-v1/memory)."""
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
            except OSError:  # a container may not see its outer groups
                continue
            if text.isdecimal():
                yield int(text)
