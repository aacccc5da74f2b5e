"""How much memory a process may use, and which processor it runs on."""

from __future__ import annotations

from pathlib import Path

from fedbench import machine


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_limits_of_a_job_and_of_what_it_is_in(tmp_path: Path) -> None:
    groups = _written(tmp_path / "cgroup", "0::/slurm/job_7/step_0\n")
    root = tmp_path / "fs"
    _written(root / "slurm/job_7/step_0/memory.max", "max\n")
    _written(root / "slurm/job_7/memory.max", "16000\n")
    _written(root / "slurm/memory.max", "64000\n")
    assert sorted(machine.limits(groups, root)) == [16000, 64000]


def test_limits_of_the_first_version(tmp_path: Path) -> None:
    groups = _written(tmp_path / "cgroup", "4:cpu,cpuacct:/a\n3:memory:/a\n0::/\n")
    root = tmp_path / "fs"
    _written(root / "cpu,cpuacct/a/memory.limit_in_bytes", "1\n")
    _written(root / "memory/a/memory.limit_in_bytes", "2000\n")
    assert [*machine.limits(groups, root)] == [2000]


def test_without_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert [*machine.limits(tmp_path / "none", tmp_path)] == []
    assert [*machine.limits(_written(tmp_path / "cgroup", "0::/gone\n"), tmp_path / "fs")] == []


def test_a_processor_by_name_and_numbers(tmp_path: Path) -> None:
    text = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207\n"
    text += "model name\t: Intel(R) Xeon(R) Processor\nstepping\t: 2\n\n"
    info = _written(tmp_path / "cpuinfo", 2 * text)
    assert machine.processor(info) == "Intel(R) Xeon(R) Processor 6-207-2"
    assert machine.processor(tmp_path / "none") != ""
    assert machine.processor(_written(tmp_path / "arm", "BogoMIPS\t: 50.00\n")) != ""


def test_a_process_may_use_something() -> None:
    assert 1 << 20 < machine.memory() < 1 << 60
