"""Tables and their runs as one archive: an RO-Crate 1.1 (https://w3id.org/ro/crate/1.1), the format of research data
archives."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import fedbench
from fedbench.planner.runs import select
from fedbench.reports.layout.grid import Grid
from fedbench.reports.render import render
from fedbench.results.frame import Frame
from fedbench.results.making import diverged, own_code, row_of
from fedbench.results.pack import Row, packed

#: File of a crate besides its metadata -> (description, media type).
FILES = {
    "tables.csv": ("The tables, a line a number", "text/csv"),
    "tables.json": ("The tables with all that is said of them", "application/json"),
    "appendix.tex": ("Settings, hyper-parameters, seeds, compute, software, licences and references", "text/x-tex"),
    "runs.parquet": (
        "The runs behind the tables: specs, metrics and checksums of predictions; fedbench results import reads it",
        "application/vnd.apache.parquet",
    ),
}


def crate(grids: Sequence[Grid], frame: Frame) -> tuple[bytes, int, list[str]]:
    """(Archive, number of runs in its pack, ids of runs of a user's code, which no pack accepts) of grids with
    appendix. The pack also has the diverged trials of tuned tables.
    """
    ids = dict.fromkeys(id for grid in grids for id in grid.runs)
    known = {run.id for run in frame.complete} | frame.packs.places.keys()
    available = [id for id in ids if id in known]
    runs = select(frame, available) if available else []
    excluded = [run.id for run in runs if own_code(run.spec)]
    rows: list[Row] = [
        run.shipped.origin if run.shipped else row_of(run.artifact, frame.store)
        for run in runs
        if run.id not in excluded
    ]
    failed = [*diverged(frame.store, ids), *(failure for id, failure in frame.packs.failures.items() if id in ids)]
    texts = {
        "tables.csv": render(grids, "csv").encode(),
        "tables.json": render(grids, "json").encode(),
        "appendix.tex": render(grids, "latex", appendix=True).encode(),
        **({"runs.parquet": packed(rows, failed)} if rows else {}),
    }
    texts["ro-crate-metadata.json"] = json.dumps(_metadata(grids, texts), indent=2, ensure_ascii=False).encode()
    with zipfile.ZipFile(buffer := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(texts.items()):
            member = zipfile.ZipInfo(name)
            member.external_attr = 0o644 << 16  # readable by all after unpacking
            archive.writestr(member, data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue(), len(rows), excluded


def _metadata(grids: Sequence[Grid], texts: Mapping[str, bytes]) -> dict[str, Any]:
    """The content of ro-crate-metadata.json, in schema.org's vocabulary."""
    parts = [
        {"@id": name, "@type": "File", "name": FILES[name][0], "encodingFormat": FILES[name][1],
         "contentSize": str(len(data))}
        for name, data in texts.items()
    ]  # fmt: skip
    titles = "; ".join(f"{grid.id}, {grid.title}" + (f" ({grid.scope})" if grid.scope else "") for grid in grids)
    return {
        "@context": "https://w3id.org/ro/crate/1.1/context",
        "@graph": [
            {"@id": "ro-crate-metadata.json", "@type": "CreativeWork", "about": {"@id": "./"},
             "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"}},
            {"@id": "./", "@type": "Dataset", "name": f"Results of {', '.join(grid.id for grid in grids)}",
             "description": f"Tables of federated learning made by fedbench, and the runs behind them: {titles}.",
             "datePublished": time.strftime("%Y-%m-%d", time.gmtime()),
             "hasPart": [{"@id": part["@id"]} for part in parts]},
            *parts,
            {"@id": "#fedbench", "@type": "SoftwareApplication", "name": "fedbench", "version": fedbench.__version__},
            {"@id": "#written", "@type": "CreateAction", "name": "fedbench report --crate",
             "instrument": {"@id": "#fedbench"}, "result": {"@id": "./"}},
        ],
    }  # fmt: skip
