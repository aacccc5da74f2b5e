"""Worker processes as they are started: each sees one GPU, of those that the driver sees."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from fedbench.engine.engines import jobs
from fedbench.store import Store


@pytest.mark.parametrize(
    ("visible", "devices", "expected"),
    [
        (None, (0, 1), ["0", "1", "0"]),
        ("", (0, 1), ["0", "1", "0"]),
        ("2,5", (0, 1), ["2", "5", "2"]),
        ("2,5", (1,), ["5", "5", "5"]),
        ("GPU-aa,GPU-bb", (1, 0), ["GPU-bb", "GPU-aa", "GPU-bb"]),
        ("2,5", (), [None, None, None]),
    ],
)
def test_the_gpu_of_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, devices: tuple[int, ...],
    expected: list[str | None],
) -> None:  # fmt: skip
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    started: list[dict[str, str]] = []
    monkeypatch.setattr(
        jobs, "Worker", lambda number, home, environment: started.append(environment) or SimpleNamespace(number=number)
    )
    engine = jobs.Jobs(Store(tmp_path), [], 3, 2, devices=devices)
    engine.get_ready([("fedavg", None)] * 5)  # type: ignore[list-item]
    assert [one.get("CUDA_VISIBLE_DEVICES") for one in started] == expected
    assert {one["FEDBENCH_CORES"] for one in started} == {"2"}
