"""torchvision's classifiers as networks here: their form, names, weights, and that they train like any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbench import models
from fedbench.errors import FedbenchError
from fedbench.models import registry
from fedbench.models.base import check
from fedbench.vision import torchvision
from tests.support.lab import Run, federation, setting, train

SHAPE = (32, 32, 3)
RESNET, SMALL = "torchvision:resnet18", "torchvision:shufflenet_v2_x0_5"
WEIGHTS = "IMAGENET1K_V1"


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        ("resnet18", (40, 48, 1)), ("mobilenet_v3_small", (40, 48, 1)), ("efficientnet_b0", SHAPE),
        ("densenet121", (40, 48, 1)), ("swin_t", SHAPE),
    ],
)  # fmt: skip
def test_it_has_the_form_of_a_network(network: str, shape: tuple[int, int, int]) -> None:
    name = f"torchvision:{network}"
    made = models.build(name, shape=shape, classes=7, seed=1)
    check(made, name, shape, 7)
    assert made(torch.zeros(2, shape[2], *shape[:2])).shape == (2, 7)


def test_body_and_head_are_torchvisions() -> None:
    """The same numbers as torchvision's own network with the same weights, on images as torchvision wants them."""
    ours = models.build(RESNET, shape=SHAPE, classes=7, seed=1).eval()
    theirs = torchvision().models.resnet18(num_classes=7).eval()
    renamed = {n.removeprefix("backbone.network.").replace(".norm.", "."): t for n, t in ours.state_dict().items()}
    theirs.load_state_dict({n.replace("head.", "fc."): t for n, t in renamed.items()})
    x = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    normal = (x - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(ours(2 * x - 1), theirs(normal), rtol=1e-4, atol=1e-5)
    assert {n.split(".")[0] for n, _ in ours.named_parameters()} == {"backbone", "head"}


def test_as_torch_it_begins_as_a_script_of_torchvisions() -> None:
    torch.manual_seed(3)
    theirs = torchvision().models.resnet18()
    ours = models.build(RESNET, shape=SHAPE, classes=7, seed=3, as_torch=True)
    assert torch.equal(ours.get_parameter("backbone.network.layer4.1.conv2.weight"), theirs.layer4[1].conv2.weight)


@pytest.fixture
def pretrained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """Weights where torchvision keeps those that it has downloaded: a draw in place of ImageNet's."""
    tv = torchvision().models
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    file = Path(tv.get_model_weights("shufflenet_v2_x0_5")[WEIGHTS].url).name
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    with torch.random.fork_rng():
        torch.manual_seed(11)
        state: dict[str, torch.Tensor] = tv.shufflenet_v2_x0_5().state_dict()
    torch.save(state, tmp_path / "hub" / "checkpoints" / file)
    return state


def test_pretrained_weights_are_those_of_the_file_and_the_head_is_new(pretrained: dict[str, torch.Tensor]) -> None:
    one, other = (models.build(f"{SMALL}:{WEIGHTS}", shape=SHAPE, classes=7, seed=s) for s in (1, 2))
    for made in (one, other):
        assert torch.equal(made.get_parameter("backbone.network.conv5.0.weight"), pretrained["conv5.0.weight"])
    assert one.head.weight.shape == (7, 1024)
    assert not torch.equal(one.head.weight, other.head.weight)


def run(tmp_path: Path, name: str, executor: str = "sequential") -> Run:
    """A round of two steps of two clients, on digits shown four times as large."""
    few, data = setting(model=name, rounds=1, window=1, steps=2, batch_size=8), federation((24, 24))
    larger = replace(data, images=data.images.repeat_interleave(4, 1).repeat_interleave(4, 2))
    return train("fedavg", larger, tmp_path / executor, few, executor=executor)


def test_all_of_it_trains_in_a_stack_too(tmp_path: Path) -> None:
    start = models.build(SMALL, shape=(32, 32, 1), classes=10, seed=setting().seed).state_dict()
    one = run(tmp_path, SMALL)
    moved = [name for name, value in one.shared.items() if not np.array_equal(value, start[name].numpy())]
    assert {"backbone.network.conv1.0.weight", "backbone.network.conv5.0.weight", "head.weight"} <= set(moved)
    for name, value in run(tmp_path, SMALL, "stacked").shared.items():
        np.testing.assert_allclose(value, one.shared[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_a_frozen_trunk_is_neither_trained_nor_sent(tmp_path: Path, pretrained: dict[str, torch.Tensor]) -> None:
    name = f"{SMALL}:{WEIGHTS}:frozen"
    one, stacked = run(tmp_path, name), run(tmp_path, name, "stacked")
    assert set(one.shared) == {"head.weight", "head.bias"}
    np.testing.assert_allclose(stacked.shared["head.weight"], one.shared["head.weight"], atol=1e-4)
    start = models.build(name, shape=(32, 32, 1), classes=10, seed=setting().seed)
    assert not np.array_equal(one.shared["head.weight"], start.head.weight.detach().numpy())
    assert [line["bytes_up"] for line in one.trainer.checkpoint.rounds] == [2 * 4 * (1024 * 10 + 10)]
    check(start, name, (32, 32, 1), 10)
    start.train()
    assert not any(part.training for part in start.backbone.network.modules())  # type: ignore[union-attr]


def test_the_name_is_part_of_a_runs_identity() -> None:
    names = (SMALL, RESNET, f"{SMALL}:{WEIGHTS}", f"{SMALL}:{WEIGHTS}:frozen")
    assert len({replace(setting(), model=name).id for name in names}) == len(names)
    assert models.code_of(RESNET) == (("models/standard.py",), ())


@pytest.mark.parametrize(
    ("name", "shape", "told"),
    [
        ("torchvision:", SHAPE, "does not name a network of torchvision"),
        (f"{RESNET}:frozen:x", SHAPE, "does not name a network of torchvision; such as torchvision:resnet18"),
        ("torchvision:resnet19", SHAPE, "unknown network of torchvision 'resnet19'.*resnet18"),
        ("torchvision:googlenet", SHAPE, "unknown network of torchvision 'googlenet'"),
        (f"{RESNET}:IMAGENET", SHAPE, "unknown weights of torchvision's resnet18 'IMAGENET'.*IMAGENET1K_V1"),
        (RESNET, (32, 32, 2), "takes images of 1 or 3 channels, not 2"),
        ("torchvision:vit_b_16", SHAPE, "vit_b_16 cannot take images of 32x32x3: .*224"),
    ],
)
def test_what_there_is_not_is_told(name: str, shape: tuple[int, int, int], told: str) -> None:
    with pytest.raises(FedbenchError, match=told):
        models.build(name, shape=shape, classes=7, seed=1)


def test_weights_that_cannot_be_had_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(FedbenchError, match=r"weights IMAGENET1K_V1 .* cannot be downloaded: .*TORCH_HOME"):
        models.build(f"{SMALL}:{WEIGHTS}", shape=SHAPE, classes=7, seed=1)


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
    given, names = write(tmp_path, NET.format(after="") + "\nimport helper\n"), []
    for text in ("x = 1", "x = 2"):
        (tmp_path / "helper.py").write_text(text)
        names.append(models.named(given))
    assert names[0] != names[1], "what it imports beside it"


def test_it_is_built_as_any_other(tmp_path: Path) -> None:
    network = build(write(tmp_path))
    assert torch.equal(network.state_dict()["head.weight"], build(write(tmp_path)).state_dict()["head.weight"])
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


#: The end of __init__ -> the line.
OTHER_FORMS = [
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
]
#: A whole file -> the line.
OTHER_FILES = [
    ("class Net: ...", "is no model; derive it from fedbench.models.base.FLModel"),
    ("import torch\nclass Net(torch.nn.Module): ...", "is no model; derive it from"),
    ("class Other: ...", "unknown model class in"),
    (NET.format(after="").replace("self, shape, classes", "self, classes"), "takes (classes), not (shape, classes)"),
    ("def f(:", "cannot load"),
]


@pytest.mark.parametrize(
    ("text", "told"), [*((NET.format(after=after), told) for after, told in OTHER_FORMS), *OTHER_FILES]
)
def test_another_network_is_refused_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(FedbenchError) as caught:
        build(write(tmp_path, text))
    assert all(part in str(caught.value) for part in told.split(".*")), str(caught.value)
    assert "\n" not in str(caught.value)


def test_places_that_name_none(tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text("class MyModel: ...\n")
    for given, line in (
        ("nowhere.py:Net", r"no file nowhere\.py to take the model from"),
        (write(tmp_path).removesuffix(":Net"), r"does not say which of its classes is the model; such as net\.py:Net"),
        (str(tmp_path / "my_model.py"), r"such as my_model\.py:MyModel$"),
    ):
        with pytest.raises(FedbenchError, match=line):
            models.named(given)
    with pytest.raises(FedbenchError, match=r"is a user's file that is not at hand; give --model FILE\.py:Net"):
        models.build("Net@000000000000", shape=(8, 8, 1), classes=10, seed=1)


def test_a_file_that_changes_while_it_is_at_work(tmp_path: Path) -> None:
    name = models.named(write(tmp_path))
    write(tmp_path, after="self.own = 1")
    with pytest.raises(FedbenchError, match="was changed while fedbench was at work; give the command again"):
        models.build(name, shape=(8, 8, 1), classes=10, seed=1)
    assert registry.known(name).place.name == "Net"
