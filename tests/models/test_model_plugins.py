"""A network of a user's own file: its name in a setting, its form, and its mistakes in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedbench import models
from fedbench.errors import FedbenchError
from fedbench.models import plugin

NET = """
from torch import nn
from fedbench.models.base import FLModel


class Net(FLModel):
    def __init__(self, shape, classes):
        height, width, channels = shape
        size = height * width * channels
        super().__init__(nn.Flatten(), nn.Identity(), nn.Linear(size, classes), backbone_size=size)
        {after}
"""


def write(folder: Path, text: str = "", after: str = "") -> str:
    folder.mkdir(exist_ok=True)
    (folder / "net.py").write_text(text or NET.format(after=after))
    return f"{folder / 'net.py'}:Net"


def build(given: str) -> torch.nn.Module:
    return models.build(models.named(given), shape=(8, 8, 1), classes=10, seed=1)


def test_its_name_is_its_class_and_its_source(tmp_path: Path) -> None:
    one, two = models.named(write(tmp_path / "one")), models.named(write(tmp_path / "two"))
    other = models.named(write(tmp_path / "three", after="self.own = 1"))
    assert one == two != other
    assert one.partition("@")[0] == "Net"
    assert len(one.partition("@")[2]) == 12
    assert models.named("lenet5") == "lenet5"
    models.named(write(tmp_path, "raise SystemExit\nclass Net: ..."))  # naming it runs nothing


def test_what_it_imports_beside_it_is_part_of_its_name(tmp_path: Path) -> None:
    given = write(tmp_path, NET.format(after="") + "\nimport helper\n")
    names = []
    for text in ("x = 1", "x = 2"):
        (tmp_path / "helper.py").write_text(text)
        names.append(models.named(given))
    assert names[0] != names[1]


def test_it_is_built_as_any_other(tmp_path: Path) -> None:
    network = build(write(tmp_path))
    assert torch.equal(network.state_dict()["head.weight"], build(write(tmp_path)).state_dict()["head.weight"])
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize(
    ("after", "told"),
    [
        ("self.backbone_size = 5", "backbone of .* gives [2, 64] for 2 images, and backbone_size says [2, 5]; end it"),
        ("self.feature_size = 5", "projection of .* gives [2, 64] for 2 images, and in_features of head says [2, 5]"),
        ("self.backbone = nn.Identity()", "the backbone of .* gives [2, 1, 8, 8] for 2 images"),
        ("del self.feature_size", "has no feature_size; end __init__ with super().__init__(backbone, projection, head"),
        ("self.projection = None", "has no projection; end __init__ with"),
        ("self.head = nn.Sequential(self.head)", "the head of .* is Sequential; it is one nn.Linear and nothing else"),
        ("self.head = nn.Linear(64, 3)", "gives 3 classes where there are 10; make it nn.Linear(features, classes)"),
        ("self.scale = nn.Parameter(self.head.bias.clone())", "'scale' of .* is in none of its parts"),
        ("self.double()", "is torch.float64; a network is float32"),
        ("self.projection = nn.BatchNorm1d(64)", "'projection' of .* is BatchNorm1d; call it norm, norm1"),
        ("self.projection.norm = nn.BatchNorm1d(64, track_running_stats=False)", "keeps no running statistics"),
        ("self.projection.norm = nn.BatchNorm1d(64, momentum=None)", "averages its statistics over all batches"),
        ("self.projection.drop = nn.Dropout()", "drop' of .* is Dropout, which draws from torch's own generator"),
        ("self.features = lambda x: self.backbone(x) + 1", "forward(x) of .* is not head(projection(backbone(x)))"),
        ("1 / 0", r"net.py, line 11, in __init__: ZeroDivisionError"),
    ],
)
def test_a_network_of_another_form_is_refused_in_one_line(tmp_path: Path, after: str, told: str) -> None:
    with pytest.raises(FedbenchError) as caught:
        build(write(tmp_path, after=after))
    parts = told.split(".*")
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("class Net: ...", "is no model; derive it from fedbench.models.base.FLModel"),
        ("import torch\nclass Net(torch.nn.Module): ...", "is no model; derive it from"),
        ("class Other: ...", "unknown model class in"),
        (
            NET.format(after="").replace("self, shape, classes", "self, classes"),
            "takes (classes), not (shape, classes)",
        ),
        ("def f(:", "cannot load"),
    ],
)
def test_a_file_without_such_a_network(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(FedbenchError) as caught:
        build(write(tmp_path, text))
    assert told in str(caught.value)


def test_places_that_name_none(tmp_path: Path) -> None:
    given = write(tmp_path)
    with pytest.raises(FedbenchError, match=r"no file nowhere\.py to take the model from"):
        models.named("nowhere.py:Net")
    with pytest.raises(FedbenchError, match=r"does not say which of its classes is the model; such as net\.py:Net"):
        models.named(given.removesuffix(":Net"))
    (tmp_path / "my_model.py").write_text("class MyModel: ...\n")
    with pytest.raises(FedbenchError, match=r"such as my_model\.py:MyModel$"):
        models.named(str(tmp_path / "my_model.py"))
    with pytest.raises(FedbenchError, match=r"is a user's file that is not at hand; give --model FILE\.py:Net"):
        models.build("Net@000000000000", shape=(8, 8, 1), classes=10, seed=1)


def test_a_file_that_changes_while_it_is_at_work(tmp_path: Path) -> None:
    name = models.named(write(tmp_path))
    write(tmp_path, after="self.own = 1")
    with pytest.raises(FedbenchError, match="was changed while fedbench was at work; give the command again"):
        models.build(name, shape=(8, 8, 1), classes=10, seed=1)
    assert plugin.known(name).place.name == "Net"
