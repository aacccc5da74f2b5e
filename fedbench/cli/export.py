"""`fedbench export`: write a partition or the models of a run in a format that other tools read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fedbench.cli import context, options
from fedbench.cli.parser import App
from fedbench.errors import FedbenchError
from fedbench.words import counted

app = App()


@app.command("export")
def export(
    id: Annotated[str, options.argument("A partition or a run: its id, or the beginning of the id.", "ID")],
    output: Annotated[Path, "The file or the folder to write.", "-o"],
    format: Annotated[
        str | None,
        "Format of a partition: csv, parquet or pflib (default: by the suffix of the output).",
        "NAME",
        "-f",
    ] = None,
) -> None:
    """Write a partition for other tools: each sample's client (csv, parquet), or the clients' images in
    PFLlib's folders (pflib); 'fedbench partition --from' reads all of them. Or the models of a run that was
    trained with --keep model, as state dicts (safetensors) with a JSON file that describes how to load them.
    """
    from fedbench import data, partitions
    from fedbench.partitions import exports

    store = context.store()
    artifact = store.find(id)
    if artifact.kind == "run":
        from fedbench.engine.export import ABOUT
        from fedbench.engine.export import export as models_to

        if output.suffix in (".pt", ".pth", ".safetensors"):
            hint = f"such as -o {output.stem}"
            raise FedbenchError(f"the models of a run need a folder, and {output} is the name of a file", hint)
        if format is not None:
            raise FedbenchError("--format is for partitions; models are safetensors", "leave it out")
        files = models_to(artifact, output, store, context.roots())
        lines = [f"run {artifact.id}, {counted(len(files) - 1, 'file')} of models and {ABOUT}, written to {output}"]
    elif artifact.kind == "partition":
        chosen, own = exports.format_of(output, format), partitions.read(artifact)
        remarks = exports.write(
            own, chosen, output, lambda: data.load(own.spec.dataset, store, context.roots(), context.err().print)
        )
        lines = [f"partition {own.id}, {own.clients} clients, written to {output} ({chosen})", *remarks]
    else:
        raise FedbenchError(f"{artifact.kind} {artifact.id} cannot be exported", "give a partition or a run")
    for line in lines:
        context.err().print(line, soft_wrap=True)
