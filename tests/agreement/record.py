"""The record that comes with fedbench, and the page made from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from fedbench.methods import names
from fedbench.methods.agreement import FILE, Difference, Project, most, outdated, recorded
from fedbench.partitions import schemes

PAGE = FILE.with_name("AGREEMENT.md")

HEAD = ["method or partitioner", "held against", "equal to", "what differs"]
INTRODUCTION = """\
# Agreement with other projects

<!-- Written by `python -m tests.agreement --record` from agreement.json. -->

Other projects' code and fedbench, run on the same tensors: the same images, first weights, cohorts and batches. A
number is the largest absolute difference over all rounds, clients and entries of the tensors that it names, in
float32; up to 2e-5 it is rounding. Where a reason is known it is also taken away, in memory: "with the square: equal to
1e-7" says that nothing else differs. "Ours with" names the options with which fedbench follows the project's rule.
Partitioners are compared by the samples that they give each client, from the same seed.
[Check it](../../tests/README.md#agreement-with-other-projects), also with other commits.

Plain loops of torch.optim over the same batches, with a batch norm and clients that come and go, are ordinary tests:
[FedProx, SCAFFOLD, FedDyn, FedDC, FedNova, FedOpt, q-FedAvg, MOON](../../tests/methods/test_drift.py),
[pFedMe, MR-MTL and others with models of their own](../../tests/methods/test_own_models.py),
[momentum that is kept, and AdamW](../../tests/core/test_training.py), and
[FedAvg, also with a round without a client](../../tests/agreement/test_agreement.py).

"""
NOT_COMPARED = """\
FedDC, FedNova, FedOpt and q-FedAvg have only the plain loops above; for the others there is no adapter, or no code of
their authors."""


def write(projects: Mapping[str, Project], file: Path = FILE) -> None:
    """Keep the projects in a record, a difference a line, with two digits."""
    documents = []
    for key, project in projects.items():
        raw = asdict(project)
        rows = [{**one, "largest": float(f"{one['largest']:.1e}")} for one in raw.pop("differences")]
        kept = [json.dumps({k: v for k, v in one.items() if v != ""}, ensure_ascii=False) for one in rows]
        head = json.dumps(raw, ensure_ascii=False)[1:-1]
        documents.append(f'"{key}": {{{head}, "differences": [\n' + ",\n".join(kept) + "\n]}")
    file.write_text("{\n" + ",\n".join(documents) + "\n}\n", encoding="utf-8")


def page(file: Path = FILE) -> str:
    """The page, in Markdown."""
    projects = recorded(file)
    all_names = (*names(), *schemes.names())
    rows = [row for name in all_names for project in projects.values() if (row := _row(project, name))]
    table = "".join(f"| {' | '.join(row)} |\n" for row in (HEAD, ["---"] * len(HEAD), *rows))
    none = [f"`{name}`" for name in names() if not any(name in project.versions for project in projects.values())]
    about = "".join(map(_about, projects.values()))
    return f"{INTRODUCTION}{table}\n**Not compared**: {', '.join(none)}. {NOT_COMPARED}\n{about}"


def _row(project: Project, method: str) -> list[str] | None:
    """Of the table; None if they were not compared."""
    mine = [one for one in project.differences if one.method == method]
    if not mine:
        return None
    theirs = ", ".join(dict.fromkeys(one.theirs for one in mine))
    as_is = [one for one in mine if not one.condition]
    equal = [f"{what} {most(those)}" for what, those in grouped(as_is, lambda one: one.quantity if one.equal else None)]
    differs = []
    for condition, those in grouped(mine, lambda one: one.condition):
        start = f"{condition} " if condition else ""
        differs += (
            [f"{start}equal to {most(those)}"]
            if condition and all(one.equal for one in those)
            else [
                f"{start}{', '.join(dict.fromkeys(one.quantity for one in some))} by up to {most(some)}: {reason}"
                for reason, some in grouped(those, lambda one: None if one.equal else one.reason)
            ]
        )
    differs += [f"**{old}**"] if (old := outdated(project, method)) else []
    how = f"; ours with `{options}`" if (options := project.options.get(method)) else ""
    return [f"`{method}`", f"{project.name}, {theirs}{how}", "<br>".join(equal), "<br>".join(differs)]


def grouped(
    differences: Iterable[Difference], key: Callable[[Difference], str | None]
) -> Iterable[tuple[str, list[Difference]]]:
    """By a key, in order; None leaves a difference out."""
    groups: dict[str, list[Difference]] = {}
    for one in differences:
        if (name := key(one)) is not None:
            groups.setdefault(name, []).append(one)
    return groups.items()


def _about(project: Project) -> str:
    cases = "; ".join(dict.fromkeys(one.case for one in project.differences))
    changes = "".join(f"- {change}\n" for change in project.changes)
    address = f"https://github.com/{project.repository}/tree/{project.commit}"
    return f"\n## {project.title}\n\n[{project.repository}]({address}): {cases}. Changed in memory:\n\n{changes}"
