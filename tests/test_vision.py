"""torchvision through the one door, whether or not its compiled operators load."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from fedbench import vision
from fedbench.errors import FedbenchError

MISSING = "operator torchvision::nms does not exist"


def test_mobilenet_v3_small_has_the_counts_of_table_8() -> None:
    """In a process of its own: whatever a plain import does here, the door opens, twice to the same module."""
    code = (
        "from fedbench.vision import torchvision\n"
        "tv = torchvision(); assert torchvision() is tv\n"
        "net = tv.models.mobilenet_v3_small()\n"
        "print(*(sum(p.numel() for p in part.parameters()) for part in (net.features, net.classifier)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["927008", "1615848"], done.stderr


@pytest.fixture
def clean() -> Iterator[None]:
    """Puts torchvision's entries of sys.modules back."""
    kept = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "torchvision"}
    yield
    for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    sys.modules.update(kept)


class Importer:
    """Stands for importlib.import_module: raises the given errors in turn, then gives a module."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0
        self.module = ModuleType("torchvision")

    def __call__(self, name: str) -> ModuleType:
        assert name == "torchvision"
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        assert "torchvision.half" not in sys.modules, "a half-imported submodule was left behind"
        return self.module


@pytest.mark.usefixtures("clean")
def test_a_plain_import_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    importer = Importer()
    defined: list[str] = []
    monkeypatch.setattr(vision.importlib, "import_module", importer)
    monkeypatch.setattr(torch.library, "define", lambda name, schema: defined.append(name))
    assert vision.torchvision() is importer.module
    assert (importer.calls, defined) == (1, [])


@pytest.mark.usefixtures("clean")
def test_missing_operators_are_declared_and_the_import_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    importer = Importer(RuntimeError(MISSING))
    monkeypatch.setattr(vision.importlib, "import_module", importer)
    sys.modules["torchvision.half"] = ModuleType("torchvision.half")
    assert vision.torchvision() is importer.module
    assert importer.calls == 2
    assert hasattr(torch.ops.torchvision, "nms")
    assert hasattr(torch.ops.torchvision, "qnms")


@pytest.mark.usefixtures("clean")
def test_other_failures_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision.importlib, "import_module", Importer(RuntimeError("driver too old")))
    with pytest.raises(RuntimeError, match="driver too old"):
        vision.torchvision()
    monkeypatch.setattr(vision.importlib, "import_module", Importer(RuntimeError(MISSING), RuntimeError(MISSING)))
    with pytest.raises(RuntimeError, match="nms"):
        vision.torchvision()
    monkeypatch.setattr(vision.importlib, "import_module", Importer(ModuleNotFoundError("no", name="torchvision")))
    with pytest.raises(FedbenchError, match="torchvision is not installed"):
        vision.torchvision()
