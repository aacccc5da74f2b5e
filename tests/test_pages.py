"""The README files and citations: links lead somewhere, commands have their options, code compiles, TOML is read."""

from __future__ import annotations

import csv
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

import fedbench as fb
from fedbench.cli import app, hyperparameters
from fedbench.cli.train import dataset_among, train
from fedbench.cli.train_methods import offered
from fedbench.data.catalogue import recipe as load_recipe
from fedbench.partitions.schemes import all_options
from fedbench.planner.table import load as load_table
from fedbench.reports.claims import LOOKS, claims
from fedbench.reports.figures.spec import of_file
from fedbench.reports.numbers.agreement import Tally
from fedbench.reports.site.benchmark import Paper
from fedbench.results.frame import Frame
from fedbench.results.packs import Packs, with_fedbench
from fedbench.store import Store

ROOT = Path(__file__).parents[1]
ROOMS = (".github", "fedbench", "tables", "data_recipes", "tests")
PAGES = [ROOT / "README.md", *sorted(p for room in ROOMS for p in (ROOT / room).rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    """The page without its code."""
    return re.sub(r"^ {4}.*$", "", FENCED.sub("", text), flags=re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def blocks(page: Path, language: str) -> list[str]:
    return [code for found, code in FENCED.findall(page.read_text()) if found == language]


def commands(page: Path) -> list[str]:
    """The lines of a page's code blocks that call fedbench, without what is no part of the command."""
    text = page.read_text()
    lines = re.findall(r"^ {4}(\S.*)$", FENCED.sub("", text), re.MULTILINE)
    lines += [line for language, code in FENCED.findall(text) if language in ("", "sh") for line in code.splitlines()]
    called = [part.strip() for line in lines for part in line.split("#")[0].split("&&")]
    return [line.removeprefix(".venv/bin/") for line in called if re.match(r"(\.venv/bin/)?fedbench (?!.*\|)", line)]


def test_the_first_page_is_short_and_begins_with_the_demo_and_the_tests_as_ci_runs_them() -> None:
    demo, tests = re.findall(r"^ {4}(\S.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)[:2]
    assert demo.split(" && ")[2] == ".venv/bin/fedbench demo"
    steps = iter((ROOT / ".ci" / "run").read_text().splitlines())
    assert all(step in steps for step in tests.split(" && ")), "each is a line of its own there, in this order"
    assert tests.endswith("/pytest -n auto")
    assert len((ROOT / "README.md").read_text()) <= 6000


@pytest.mark.parametrize(("tag", "code"), [(f"v{fb.__version__}", 0), ("v999.0", 1)])
def test_a_release_has_the_version_of_its_tag(tag: str, code: int) -> None:
    (command,) = re.findall(r"- run: (test .*)", (ROOT / ".github" / "workflows" / "release.yml").read_text())
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env={**os.environ, "GITHUB_REF_NAME": tag}, check=False)
    assert done.returncode == code


#: Pages of one task each: what a user reads to do it.
TASKS = (
    "data_recipes/README.md",
    "data_recipes/vectors.md",
    "fedbench/engine/README.md",
    "fedbench/methods/README.md",
    "fedbench/reports/README.md",
    "tables/README.md",
    "tables/claims.md",
    "tables/own.md",
    "tables/results.md",
    "tables/sweep.md",
)


@pytest.mark.parametrize("name", TASKS)
def test_a_page_of_a_task_is_short_and_begins_with_its_command(name: str) -> None:
    text = (ROOT / name).read_text()
    assert len(text.split()) <= 1200
    title, first = re.split(r"\n\n+", text)[:2]
    assert title.startswith("# ")
    assert first.startswith("    fedbench ")


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page.read_text())):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), f"{link} leaves the repository"
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"


@cache
def application() -> Any:
    return typer.main.get_command(app)


def parsed(line: str) -> Any:
    """The line's command with its options, as Typer reads them; nothing is run. Raises for what there is not."""
    command: Any = application()
    context = command.make_context("fedbench", shlex.split(line)[1:])
    while isinstance(command, TyperGroup):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
    return context


@pytest.mark.parametrize(
    ("page", "line"), [(n, line) for n, p in zip(NAMES, PAGES, strict=True) for line in commands(p)]
)
def test_commands_have_these_options(page: str, line: str) -> None:
    context = parsed(line)
    if context.info_name == "partition" and ".py:" not in str(context.params["scheme"]):
        assert {word[2:].replace("-", "_") for word in context.args if word.startswith("--")} <= set(all_options())
    elif context.info_name == "train":
        dataset, words = dataset_among(context.params["words"] or ())
        assert dataset is None or context.params["table"] is None
        own = context.params["method"] or []
        if own and not any(".py:" in method for method in own):
            hyperparameters.read(words, offered(own)[0], "train", train)


def test_a_command_that_is_not_there_is_found_out() -> None:
    for line in ("fedbench report --nothing 3", "fedbench nothing", "fedbench report --format"):
        with pytest.raises(Exception, match=r"No such (option|command)|requires an argument"):
            parsed(line)
    assert commands(ROOT / "README.md")[0] == "fedbench demo"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_python_compiles_and_toml_is_read(page: Path, tmp_path: Path) -> None:
    for code in blocks(page, "python"):
        compile(re.sub(r"^%%writefile .*", "", code), str(page), "exec")
        for line in re.findall(r"^from fedbench.*", code, re.MULTILINE):
            exec(line, {})
    for code in blocks(page, "toml"):
        file = tmp_path / "own.toml"
        file.write_text(code)
        raw = tomllib.loads(code)
        if "figure" in raw:
            assert of_file(file)
        else:
            (load_recipe if "source" in raw else load_table)(str(file))


def page_method(page: str, name: str, folder: Path) -> str:
    """A method on a page, in a file: as a command names it."""
    (code,) = (code for code in blocks(ROOT / page, "python") if f"class {name}" in code)
    (folder / f"{name.lower()}.py").write_text(code)
    return f"{folder / name.lower()}.py:{name}"


@pytest.mark.parametrize(("page", "name"), [("README.md", "Prox"), ("fedbench/methods/README.md", "Mix")])
def test_a_pages_method_holds_what_all_methods_must(page: str, name: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["check", page_method(page, name, tmp_path)])
    assert done.exit_code == 0, done.output


@pytest.mark.slow
@pytest.mark.shipped
def test_the_first_pages_table_of_claims_is_what_the_packs_say(tmp_path: Path) -> None:
    papers = ("feddrm", "flux", "ftw_erm", "pfedfda")
    every = list(claims(papers, Frame(Store(tmp_path / "store"), Packs(with_fedbench())), [], every=True))
    text = (ROOT / "README.md").read_text()
    for name in papers:
        paper = Paper(name, [one for one in every if one.paper == name])
        signs = Counter(LOOKS[claim.verdict.state][0] for claim in paper.judged.values())
        tally = sum((one.tally for one in paper.at()), Tally())
        counts = " | ".join(str(signs[sign]) for sign in "✓?✗·")
        numbers = f"{tally.measured:,} of {tally.reported:,} | {tally.three[1]}"
        assert f"| [{paper.page[0]}](tables/{name}/README.md) | {counts} | {numbers} |" in text


def test_mixed_by_similarity_each_client_has_a_model_of_its_own_and_with_no_sharpness_fedavgs(tmp_path: Path) -> None:
    mix, part = (
        page_method("fedbench/methods/README.md", "Mix", tmp_path),
        fb.partition("digits", dir=0.1, clients=3, store=tmp_path),
    )
    quick: dict[str, Any] = {"rounds": 3, "steps": 4, "lr": 0.1, "progress": False, "executor": "sequential"}
    average, flat, sharp = (
        fb.train(part, method, **quick, **more).predictions
        for method, more in (("fedavg", {}), (mix, {"sharpness": 0}), (mix, {"sharpness": 20}))
    )
    assert flat.equals(average)
    assert not sharp.equals(average)


def test_the_way_from_pflib_draws_its_runs_beside_fedbenchs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = fb.partition("digits", dir=0.5, clients=3, store=tmp_path / "store")
    for seed in (1, 2):
        fb.train(part, "fedavg", rounds=4, steps=1, every=2, seed=seed, progress=False)
    theirs = {"MNIST_FedAvg_test_0.h5": [0.1, 0.2, 0.3], "MNIST_FedAvg_test_1.h5": [0.1, 0.4, 0.5]}
    (tmp_path / "PFLlib" / "results").mkdir(parents=True)
    for name in theirs:
        (tmp_path / "PFLlib" / "results" / name).touch()
    files = SimpleNamespace(File=lambda name: {"rs_test_acc": theirs[Path(name).name]})
    monkeypatch.setitem(sys.modules, "h5py", files)  # which PFLlib needs, not fedbench
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDBENCH_HOME", str(tmp_path / "store"))
    kind = page_method("data_recipes/pflib.md", "BesidePFLlib", tmp_path)
    done = CliRunner().invoke(app, ["figure", kind, "--csv"])
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(done.stdout.splitlines()))
    of_theirs = [row for row in rows if row["line"] == "PFLlib's FedAvg"]
    assert [(row["round"], float(row["mean"]), row["runs"]) for row in of_theirs] == [("2", 30, "2"), ("4", 40, "2")]
    assert [row["round"] for row in rows if row["line"] == "FedAvg"] == ["2", "4"]
    done = CliRunner().invoke(app, ["figure", kind, "-o", "both.png"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "both.png").is_file()


def test_where_to_look_names_files_that_have_what_is_looked_for() -> None:
    root = ROOT / "fedbench"
    named = re.findall(r"`([\w./]+)`: `([^`]+)`", (root / "README.md").read_text())
    assert len(named) > 18
    assert [(file, text) for file, text in named if text not in (root / file).read_text()] == []


def test_the_package_is_typed_and_the_architecture_names_every_room() -> None:
    assert (ROOT / "fedbench" / "py.typed").is_file()
    # And every module that is none's.
    text = (ROOT / "fedbench" / "README.md").read_text()
    rooms = [f"{path.parent.name}/" for path in (ROOT / "fedbench").glob("*/__init__.py")]
    modules = [path.name for path in (ROOT / "fedbench").glob("*.py") if not path.name.startswith("__")]
    assert [name for name in (*rooms, "templates/", *modules) if f" {name}" not in text] == []


SOURCES = [p for room in ("fedbench", "tests", "tables", "data_recipes") for p in sorted((ROOT / room).rglob("*"))]
TEXTS = {p: p.read_text() for p in SOURCES if p.suffix in {".py", ".toml", ".md", ".txt"} and p != Path(__file__)}

CITED = re.compile(r"\b(\w+)/protocol\.md((?:(?:,| and|;)? ?#[\w-]+)*)")
#: "protocol 4.1": a section of notes that the repository does not hold.
NOWHERE = re.compile(r"\bprotocols? [0-9]|\baddendum\b", re.IGNORECASE)


def cited() -> list[tuple[str, str, str]]:
    """(file, paper, section) of each citation of a page beside the tables."""
    return [
        (str(path.relative_to(ROOT)), m[1], section)
        for path, text in TEXTS.items()
        for m in CITED.finditer(text)
        for section in re.findall(r"#([\w-]+)", m[2])
    ]


@pytest.mark.parametrize(("file", "paper", "section"), cited())
def test_a_cited_section_exists(file: str, paper: str, section: str) -> None:
    assert section in anchors(ROOT / "tables" / paper / "protocol.md"), (
        f"{file} cites {paper}/protocol.md#{section}, which is not there"
    )


def test_each_page_is_cited_and_no_notes_that_nobody_has() -> None:
    assert {paper for _, paper, _ in cited()} == {"feddrm", "flux", "ftw_erm", "pfedfda"}
    lost = [(str(p.relative_to(ROOT)), m[0]) for p, text in TEXTS.items() for m in NOWHERE.finditer(text)]
    assert lost == []
