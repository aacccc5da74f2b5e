"""The options that say where runs are made, for every command that trains several."""

from __future__ import annotations

from typing import Annotated

import typer

JobCount = Annotated[int | None, typer.Option("--jobs", metavar="N", help="So many runs at a time, each in a process.")]
CpusPerRun = Annotated[
    float | None, typer.Option("--cpus-per-run", metavar="N", help="With --jobs: cores of a run (an equal share).")
]
DeviceName = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, or GPUs of a machine: cuda:0,cuda:1.")]
