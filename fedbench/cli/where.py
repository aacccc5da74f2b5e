"""The options that say where runs are made, for every command that trains several."""

from __future__ import annotations

from typing import Annotated

import typer

EngineName = Annotated[
    str, typer.Option("--engine", metavar="NAME", help="here, ray (RAY_ADDRESS, else local) or ray://HOST:PORT.")
]
JobCount = Annotated[int | None, typer.Option("--jobs", metavar="N", help="So many runs at a time, each in a process.")]
CpusPerRun = Annotated[
    float | None,
    typer.Option("--cpus-per-run", metavar="N", help="Cores of a run: with --jobs (an equal share), Ray (1)."),
]
GpusPerRun = Annotated[
    float | None, typer.Option("--gpus-per-run", metavar="X", help="With Ray: GPUs of a run, such as 0.25.")
]
DeviceName = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, or GPUs of a machine: cuda:0,cuda:1.")]
ExecutorName = Annotated[
    str,
    typer.Option("--executor", help="auto (a rule), sequential, cores, stacked or graphed."),
]
