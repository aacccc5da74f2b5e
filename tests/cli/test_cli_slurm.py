"""The sbatch file of fedbench/engine/README.md, its lines run by bash as several tasks of an array at the same time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedbench
from fedbench.store import Store
from tests.support.cli_user import DIGITS, good

PAGE = Path(fedbench.__file__).parent / "engine" / "README.md"
TABLE = ("--table", "1", *DIGITS, "--column", "digits/Dir-0.3", "-m", "fedavg", "-m", "local", "-m", "fedavgft")


def program(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


@pytest.mark.slow
def test_the_tasks_of_an_array_share_a_table_out(tmp_path: Path) -> None:
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "table.sbatch").write_text(script)
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin", "srun", 'exec "$@"')
    program(tmp_path / "bin", "fedbench", f'exec {sys.executable} -m fedbench "$@"')
    good("partition", "digits", "--dir", "0.3", "--protocol", "feddrm", "--home", tmp_path / "store")
    usual = {name: value for name, value in os.environ.items() if name != "FEDBENCH_HOME"}
    tasks = [
        subprocess.Popen(
            ["bash", tmp_path / "table.sbatch", *TABLE, "--json"],
            env={
                **usual, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", "SLURM_ARRAY_TASK_ID": str(k),
                "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_ID": str(70 + k),
            },
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for k in range(3)
    ]  # fmt: skip
    said = [task.communicate(timeout=300) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0, 0], said
    made = [id for out, _ in said for id in re.findall(r'"([0-9a-f]{12})"', out.partition('"failed"')[0])]
    assert len(made) == len({*made}) == 3, "each run by one task"
    assert {*made} == {run.id for run in Store(tmp_path / "store").list("run")}


@pytest.mark.slow
def test_a_task_that_fails_says_so_by_its_code(tmp_path: Path) -> None:
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin", "srun", 'exec "$@"')
    program(tmp_path / "bin", "scontrol", f'echo "$@" >> {tmp_path / "requeued"}')
    for code in (0, 1, 2, 130):
        program(tmp_path / "bin", "fedbench", f"exit {code}")
        usual = {**os.environ, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", script, "table.sbatch", *TABLE], env={**usual, "SLURM_JOB_ID": "70"})
        assert done.returncode == code
    assert (tmp_path / "requeued").read_text() == "requeue 70\n", "only where it was stopped"
