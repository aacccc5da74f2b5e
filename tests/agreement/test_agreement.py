"""What compares projects' code with fedbench, without a checkout: the comparer, the cases, the record and its page."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from typer.testing import CliRunner

from fedbench.cli import app
from fedbench.declaration import Declaration
from fedbench.errors import FedbenchError
from fedbench.methods import agreement
from fedbench.methods.agreement import Difference, Project, in_words, recorded, rounded_up
from fedbench.methods.declarations import of
from fedbench.partitions.schemes.dirichlet import Dirichlet
from tests.agreement import __main__ as command
from tests.agreement import draws
from tests.agreement.cases import CASES, EQUAL, JOIN, ROUNDS, Case, network, ours, parameters
from tests.agreement.compare import Against, largest
from tests.agreement.foreign import commit, importable
from tests.agreement.record import PAGE, page, write


def test_the_largest_difference() -> None:
    a = {"w": torch.tensor([1.0, 2.0]), "b": torch.zeros(3, dtype=torch.int64)}
    assert largest(a, {"w": torch.tensor([1.0, 2.5]), "b": torch.zeros(3)}) == 0.5
    assert largest(a, {"w": torch.tensor([torch.nan, 2.0]), "b": torch.zeros(3)}) > 1e30
    for other in ({"w": a["w"]}, {**a, "w": torch.zeros(1)}, {}):
        with pytest.raises(AssertionError):
            largest(a, other)
    with pytest.raises(AssertionError):
        largest({}, {})


def test_a_quantity_keeps_its_largest_difference_and_a_reason_only_where_there_is_one() -> None:
    found = Against("fedavg", "FedAvg", "equal clients")
    for by in (0.0, 0.3, 0.1):
        found.see("model", {"w": torch.zeros(1)}, {"w": torch.full((1,), by)})
    found.see("head", {"w": torch.zeros(1)}, {"w": torch.full((1,), 1e-7)})
    model, head = found.differences({"model": "it rounds up", "head": "none"})
    assert (round(model.largest, 6), model.reason, model.equal) == (0.3, "it rounds up", False)
    assert (head.reason, head.equal) == ("", True)


#: In its second round nobody takes part.
SELDOM: dict[str, Any] = {"participation": 0.2, "seed": 30}


@pytest.mark.parametrize(
    ("case", "changes"),
    [*((case, {}) for case in CASES), (EQUAL, SELDOM)],
    ids=[*(case.name for case in CASES), "a round without a client"],
)
def test_a_plain_loop_over_the_batches_that_adapters_hand_out_is_fedavg(case: Case, changes: dict[str, Any]) -> None:
    """So they are the batches and cohorts that fedbench trains on; and it moves far more than rounding does."""
    run = ours(case, "fedavg", {}, **changes)
    shared = network().state_dict()
    for t in range(1, ROUNDS + 1):
        ends, cohort = [], run.cohort(t)
        assert bool(cohort) is not (changes == SELDOM and t == 2)
        for i in cohort:
            model = network()
            model.load_state_dict(shared)
            steps = torch.optim.SGD(model.parameters(), run.setting.lr)
            for x, y in run.batches(i, t):
                steps.zero_grad()
                F.cross_entropy(model(x), y).backward()
                steps.step()
            ends.append(parameters(tuple(model.parameters())))
        if cohort:
            sizes = torch.tensor([run.case.sizes[i] for i in cohort]).double()
            weights = sizes / sizes.sum()
            shared = {n: sum(w * end[n].double() for w, end in zip(weights, ends, strict=True)).float() for n in shared}
        assert largest(run.rounds[t - 1].shared, shared) < agreement.ROUNDING
    assert largest(shared, network().state_dict()) > 0.05


def test_in_the_case_of_some_who_join_clients_come_and_go() -> None:
    cohorts = [set(ours(JOIN, "local", {}).cohort(t)) for t in range(1, ROUNDS + 1)]
    assert {len(cohort) for cohort in cohorts} == {3}
    assert cohorts[0] & cohorts[1] < cohorts[0]
    assert set.union(*cohorts[1:]) - cohorts[0]


def test_draws_are_the_same_only_if_every_client_gets_the_same_samples() -> None:
    def drawn(labels: np.ndarray, clients: int, alpha: float) -> list[np.ndarray]:
        data: Any = SimpleNamespace(partition_labels=labels)
        spec: Any = SimpleNamespace(clients=clients)
        return list(Dirichlet(alpha=alpha, min_size=9).deal(data, spec, np.random.mtrand._rand))

    assert [one.largest for one in draws.differences("dir", drawn, lambda *_: 9)] == [0.0] * len(draws.SHARED_OUT)
    for other in (lambda *of: drawn(*of)[::-1], lambda *of: [rows[1:] for rows in drawn(*of)]):
        assert not any(one.equal for one in draws.differences("dir", other, lambda *_: 9))


def test_a_checkout_is_imported_forgotten_and_not_heard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "half.py").write_text(
        "import sys\nimport no_such_library.part as it\nprint('a')\nprint('b', file=sys.stderr)\nvalue = it.Thing()\n"
    )
    before = sys.path.copy()
    with importable(tmp_path, ("no_such_library.part",)):
        import theirs.half as half  # type: ignore[import-not-found]

        assert half.value is not None
        torch.manual_seed(1)
    assert not {"theirs", "theirs.half", "no_such_library", "no_such_library.part"} & sys.modules.keys()
    assert sys.path == before
    assert capsys.readouterr() == ("", "")
    with pytest.raises(FedbenchError, match="there is no folder"), importable(tmp_path / "gone"):
        pass


def test_the_commit_is_that_of_an_unchanged_checkout(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *identity, "-C", str(tmp_path), *words], check=True, capture_output=True)

    with pytest.raises(FedbenchError, match="not a checkout"):
        commit(tmp_path)
    git("init", "-q")
    (tmp_path / "one.py").write_text("a = 1\n")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    assert len(commit(tmp_path)) == 40
    (tmp_path / "one.py").write_text("a = 2\n")
    with pytest.raises(FedbenchError, match="differs from its commit"):
        commit(tmp_path)


def made(*differences: Difference) -> Project:
    return Project("Lib", "some/lib", "0123456789", ["it runs"], {"fedavg": 1}, list(differences))


SAME = Difference("fedavg", "Avg", EQUAL.name, "model", 1.23e-7)
OTHER = Difference("fedavg", "Avg", JOIN.name, "model", 0.21, "it sums")
MENDED = Difference("fedavg", "Avg", JOIN.name, "model", 3e-8, condition="if it averages:")


def test_a_method_in_words() -> None:
    assert in_words(made(SAME), "fedavg") == "equals Lib 0123456 to 2e-7 (model)"
    assert in_words(made(SAME), "fedprox") == ""
    many = [replace(SAME, quantity=name) for name in "abcdef"]
    assert in_words(made(*many), "fedavg") == "equals Lib 0123456 to 2e-7 (a, b, c, d and 2 more)"
    assert in_words(made(OTHER), "fedavg") == "differs from Lib 0123456 by up to 3e-1: it sums"
    assert in_words(made(SAME, OTHER, MENDED), "fedavg") == (
        "equals Lib 0123456 to 2e-7 (model), differs else by up to 3e-1: it sums (if it averages: equal to 3e-8)"
    )
    still = replace(MENDED, largest=0.1, reason="it sums")
    assert "if it averages" not in in_words(made(OTHER, still), "fedavg")
    chosen = replace(made(SAME), options={"fedavg": "--momentum-lives"})
    assert in_words(chosen, "fedavg") == "equals Lib 0123456 to 2e-7 (model) with --momentum-lives"
    assert [rounded_up(x) for x in (0.0, 1e-7, 1.1e-7, 9.5e-8, 0.2)] == ["0", "1e-7", "2e-7", "1e-7", "2e-1"]


def test_a_record_is_read_as_it_was_written_and_makes_the_page(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    write({"lib": made(SAME, OTHER, MENDED)}, file)
    assert recorded(file) == {"lib": made(replace(SAME, largest=1.2e-7), OTHER, MENDED)}
    text = page(file)
    assert (
        "| `fedavg` | Lib 0123456, Avg | model 2e-7 | model by up to 3e-1: it sums<br>if it averages: equal to 3e-8 |"
    ) in text
    assert "`fedprox`" in text.split("**Not compared**")[1].splitlines()[0]
    assert "- it runs" in text
    write({"lib": replace(made(SAME), options={"fedavg": "--momentum-lives"})}, file)
    assert "| `fedavg` | Lib 0123456, Avg; ours with `--momentum-lives` | model 2e-7 |  |" in page(file)


def test_a_method_of_another_version_than_the_recorded_one_is_said_to_be_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "record.json"
    write({"lib": made(SAME)}, file)
    monkeypatch.setattr(agreement, "FILE", file)
    monkeypatch.setattr(agreement.recorded, "__defaults__", (file,))
    declared = of("fedavg")

    def raised(name: str) -> Declaration:
        return replace(declared, version=2) if name == "fedavg" else of(name)

    words = "recorded for version 1, now 2: run nox -s agreement"
    assert words not in page(file)
    monkeypatch.setattr(agreement.declarations, "of", raised)
    agreement.summary.cache_clear()
    try:
        assert agreement.summary("fedavg") == f"equals Lib 0123456 to 2e-7 (model), {words}"
        printed = " ".join(CliRunner().invoke(app, ["methods", "fedavg"]).output.split())
        assert f"agreement: equals Lib 0123456 to 2e-7 (model), {words}." in printed
        assert f"| `fedavg` | Lib 0123456, Avg | model 2e-7 | **{words}** |" in page(file)
    finally:
        agreement.summary.cache_clear()


def test_the_page_is_that_of_the_record_in_which_every_difference_has_its_reason() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.agreement --record writes it"
    assert json.loads(agreement.FILE.read_text()).keys() <= set(command.PROJECTS)
    for project in recorded().values():
        for one in project.differences:
            assert one.equal != bool(one.reason), one
            assert one.method in project.versions


def test_methods_say_it_in_a_line() -> None:
    done = CliRunner().invoke(app, ["methods", "scaffold"])
    assert " ".join(f"agreement: {agreement.summary('scaffold')}.".split()) in " ".join(done.output.split())
    assert "equals PFLlib" in done.output
    (document,) = json.loads(CliRunner().invoke(app, ["methods", "scaffold", "--json"]).output)
    assert document["agreement"] == agreement.summary("scaffold")
    assert "agreement" not in CliRunner().invoke(app, ["methods", "flux_soft"]).output


def test_what_is_no_checkout_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--pflib", str(tmp_path / "gone")]) == 2
    assert capsys.readouterr().err.count("\n") <= 2
    assert command.main([]) == 2
    assert capsys.readouterr().err == "no project is named; name the folder of a checkout, such as --pflib PATH\n"


@pytest.mark.slow
def test_flowers_simulation_of_fedavg_ends_with_the_same_weights() -> None:
    pytest.importorskip("flwr", reason="pip install 'flwr[simulation]'")
    found = list(importlib.import_module("tests.agreement.flower").differences(True, ["fedavg"]))
    assert [one.quantity for one in found if one.equal] == ["shared model"]
