"""`fedbench export`: an artifact in a form that other tools read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbench.cli import context
from fedbench.errors import FedbenchError

if TYPE_CHECKING:
    from fedbench.store import Artifact


def export(
    id: Annotated[str, typer.Argument(metavar="ID", help="A partition or a run, by its id or the beginning of it.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file or the folder to write.")],
    format: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of a partition: csv, parquet, pflib or leaf (default: by the ending of the output). Of a run: "
            "safetensors (default) or pt.",
        ),
    ] = None,
) -> None:
    """Write a partition as others read it: who holds which sample (csv, parquet), or the clients' images in the folders
    of PFLlib (pflib) or LEAF (leaf). 'fedbench partition --from' reads all of them again.

    Or the models of a run that was trained with --keep model, as plain state dicts, with a card that says what they are
    and how to load them.
    """
    artifact = context.store().find(id)
    writers = {"partition": _partition, "run": _run}
    if artifact.kind not in writers:
        raise FedbenchError(f"{artifact.kind} {artifact.id} cannot be exported", f"give a {' or a '.join(writers)}")
    for line in writers[artifact.kind](artifact, output, format):
        context.err().print(line, soft_wrap=True)


def _partition(artifact: Artifact, output: Path, format: str | None) -> list[str]:
    """Write a partition; returns what to say of it."""
    from fedbench import data, partitions
    from fedbench.partitions import exports

    chosen = exports.format_of(output, format)
    own = partitions.read(artifact)
    remarks = exports.write(
        own, chosen, output, lambda: data.load(own.spec.dataset, context.store(), context.roots(), context.err().print)
    )
    return [f"partition {own.id}, {own.clients} clients, written to {output} ({chosen})", *remarks]


def _run(artifact: Artifact, output: Path, format: str | None) -> list[str]:
    """Write a run's models; returns what to say of it."""
    from fedbench.engine.export import export

    files = export(artifact, output, context.store(), format)
    return [f"run {artifact.id}, {len(files) - 1} files of models and their card, written to {output}"]
