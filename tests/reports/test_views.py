"""Images as clients see them (FedDRM, Figures 8 and 10 to 12), of any partition; and figures called by their kind."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from fedbench import data as datasets
from fedbench import partitions
from fedbench.errors import FedbenchError
from fedbench.partitions import Partition, Transform
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.transforms import apply
from fedbench.reports import figures
from fedbench.reports.figures import draw, views
from fedbench.store import Store
from tests.reports.conftest import Lab
from tests.support.real_images import RealImages

Call = Callable[..., Result]


@pytest.fixture
def call(call: Call) -> Call:
    """`fedbench figure`."""
    return partial(call, "figure")


def made(store: Store, clients: int = 8, scheme: str = "iid", **values: Any) -> Partition:
    """A partition of the embedded digits."""
    dataset = datasets.resolve("digits", store)
    return partitions.build(partition_spec(dataset, scheme, clients, 0, 0.7, **values), store)


def shown(call: Call, *arguments: str) -> dict[str, Any]:
    (panel,) = json.loads(call("images", "--json", *arguments).stdout)["panels"]
    assert isinstance(panel, dict)
    return panel


def test_one_image_through_the_eyes_of_all(store: Store, call: Call) -> None:
    part, digits = made(store, shift="high"), datasets.load("digits", store)
    panel = shown(call, "--partition", part.id, "--image", "5", "--image", "2")
    assert (panel["partition"], panel["common"], len(panel["images"])) == (part.id, True, 16)
    for i, view in enumerate(panel["images"]):
        client, sample = i // 2, (5, 2)[i % 2]
        assert (view["client"], view["sample"], view["class"]) == (client, sample, str(digits.labels[sample]))
        assert view["transform"] == f"gamma {(0.6, 1.4)[client % 2]}"  # grey images have neither hue nor saturation
        seen = apply(digits.images[sample : sample + 1], part.transforms[client])[0]
        np.testing.assert_array_equal(view["pixels"], seen)
        assert [view["red"], view["blue"]] == [pytest.approx(seen.mean())] * 2
    lines = list(csv.DictReader(io.StringIO(call("images", "--partition", part.id, "--csv").stdout)))
    assert [line["sample"] for line in lines] == ["0"] * 8  # the first image, where none is named
    said = call("images", "--partition", part.id, "--image", "5").stdout
    assert f"8 clients see image 5 ({digits.labels[5]}) of digits through 2 transforms; partition {part.id}" in said


def test_a_corruption_is_the_one_of_the_client_s_first_images(store: Store, call: Call) -> None:
    part, digits = made(store, 4, shift="corrupted"), datasets.load("digits", store)
    first = part.sample[part.rows(1)][0]
    view = shown(call, "--partition", part.id, "--client", "1", "--image", str(first))["images"][0]
    np.testing.assert_array_equal(view["pixels"], part.transformed_images(digits)[part.rows(1)][0])


@pytest.mark.parametrize(
    "values", [{}, {"scheme": "equal", "shift": "px", "level": 5, "train_fraction": None}], ids=["plain", "px"]
)
def test_else_clients_show_images_of_their_own(store: Store, call: Call, values: dict[str, Any]) -> None:
    spec = {"scheme": "iid", "clients": 5, "seed": 0, "train_fraction": 0.7, **values}
    part = partitions.build(partition_spec(datasets.resolve("digits", store), **spec), store)
    panel, seen = shown(call, "--partition", part.id), part.transformed_images(datasets.load("digits", store))
    assert not panel["common"]
    each = views.OWN
    assert len(panel["images"]) == 5 * each
    for c in range(5):
        own = panel["images"][c * each :][:each]
        np.testing.assert_array_equal([view["pixels"] for view in own], seen[part.rows(c, test=False)][:each])
        turned = part.distributions[part.groups[c]].described(part.classes) if part.distributions else ""
        assert {view["transform"] for view in own} == {turned}
    if part.distributions:
        with pytest.raises(FedbenchError, match="a client sees each image in a way of its own; leave --image out"):
            call("images", "--partition", part.id, "--image", "3")
    else:
        assert shown(call, "--partition", part.id, "--image", "3")["common"]


def test_what_is_drawn(store: Store) -> None:
    part, digits = made(store, 6, shift="high"), datasets.load("digits", store)
    panel = views.of_partition(part, figures.Ask(store, image=[4, 1]))
    drawn = draw.draw(figures.load("images"), figures.Content([panel]))
    axes = drawn.axes
    assert len(axes) == 6
    for c, one in enumerate(axes):
        assert one.get_title() == f"client {c}\ngamma {(0.6, 1.4)[c % 2]}"
        pixels = np.asarray(one.get_images()[0].get_array())
        assert pixels.shape == (8, 8 + 2 + 8, 3)
        seen = apply(digits.images[[4, 1]], part.transforms[c])
        for left, image in zip((0, 10), seen, strict=True):
            np.testing.assert_array_equal(pixels[:, left : left + 8], np.repeat(image, 3, axis=-1))
        assert (pixels[:, 8:10] == 255).all()


def test_titles_stay_in_their_cells() -> None:
    """Steps of a transform are not torn apart, and lines are as long as there is room."""
    pixels = np.zeros((1, 8, 8, 3), np.uint8)
    look = str(Transform(gamma=0.75, hue=-0.05, saturation=0.7, posterize=2))
    assert views._title(views.View(3, look, (0,), pixels), 24).split("\n") == [
        "client 3", "gamma 0.75, hue -0.05,", "saturation 0.7, 2 bits",
    ]  # fmt: skip
    several = views.View(0, "0, 1 rotated 90°; 2 rotated 180°", (0,), pixels)
    assert views._title(several, 18).split("\n") == ["client 0", "0, 1 rotated 90°;", "2 rotated 180°"]
    assert views._title(views.View(1, "", (0,), pixels), 10) == "client 1"


@pytest.mark.parametrize(("cells", "rows", "columns"), [(1, 1, 1), (8, 2, 4), (10, 2, 5), (7, 2, 4), (32, 4, 8)])
def test_the_grid(cells: int, rows: int, columns: int) -> None:
    assert views._grid(cells) == (rows, columns)


def test_what_is_not_there_is_told(store: Store, call: Call) -> None:
    part, many = made(store, shift="high"), made(store, 65)
    for arguments, told in (
        (("images",), "figure images shows a partition of yours; name it: --partition ID"),
        (("bubbles", "--client", "1"), "--client does not go with bubbles"),
        (("images", "--image", "1"), "--image goes with --partition only"),
        (("images", "--partition", part.id, "--image", "1797"), r"digits has no image 1797; it has 0\.\.1796"),
        (("images", "--partition", part.id, "--client", "8"), r"has no client 8; it has 0\.\.7"),
        (("images", "--partition", many.id), "65 clients are too many to be seen; choose up to 64: --client"),
        (("imagse",), "unknown figure 'imagse'; did you mean 'images'"),
        (("flux/8", "--image", "1"), "--image does not go with flux/8"),
    ):
        with pytest.raises(FedbenchError, match=told):
            call(*arguments)


def test_partitions_by_their_ids_and_by_filters_of_runs(store: Store, lab: Lab, call: Call) -> None:
    one, other, lost = made(store, 3), made(store, 4), made(store, 5)
    setting = lab.setting("feddrm/1", "CIFAR-10/Dir-0.3")
    for part, method in ((one, "fedavg"), (one, "feddrm"), (other, "feddrm"), (lost, "local")):
        lab.run(replace(setting, partition=part.spec), method)

    def ids(*filters: str) -> list[str]:
        return [panel["partition"] for panel in json.loads(call("partition", *filters, "--json").stdout)["panels"]]

    assert ids(other.id[:8], one.id) == [other.id, one.id]
    assert ids("method=feddrm") == [one.id, other.id]
    assert ids("method=feddrm", "clients=4") == [other.id]
    call("images", "method=feddrm", "--client", "1", "-o", "images.png")
    store.remove("partition", lost.id)
    for arguments, message in (
        (("method=local",), f"partition {lost.id} of run .* is no more; 'fedbench partition' makes it again"),
        (("method=feddrm", "--partition", one.id), "--partition and FILTER exclude each other; choose one"),
        (("method=feddrm", "--seed", "3"), "--seed does not go with FILTER, which has its own"),
        (("metod=feddrm",), "unknown key of runs 'metod'; did you mean 'method'"),
    ):
        with pytest.raises(FedbenchError, match=message):
            call("partition", *arguments)
    with pytest.raises(FedbenchError, match="FILTER does not go with flux/8; it takes --budget"):
        call("flux/8", "method=feddrm")


def test_a_figure_by_its_kind_is_of_any_partition(store: Store, call: Call, tmp_path: Path) -> None:
    part = made(store, 3)
    for name in (name for name, figure in figures.FREE.items() if "partition" in figures.kind_of(figure).options):
        call(name, "--partition", part.id)
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.data
def test_the_paper_s_image(data_root: Path, store: Store, real_images: RealImages) -> None:
    """A bird, under the eight looks of each level and the 32 of the pool."""
    real_images.lend(store.home, "cifar10")
    ask = figures.Ask(store, [data_root])
    image = real_images.load("cifar10").images[6:7]
    for number, looks in ((8, 8), (11, 8), (12, 8), (10, 32)):
        figure = figures.load(f"feddrm/{number}")
        (panel,) = figures.kind_of(figure).gather(figure, ask).panels
        marks: views.Views = panel.marks
        assert (marks.looks, len(marks.views), marks.labels) == (looks, looks, {6: "bird"})
        transforms = partitions.read(store.find(str(panel.about["partition"]), ("partition",))).transforms
        for view, transform in zip(marks.views, transforms, strict=True):
            np.testing.assert_array_equal(view.images, apply(image, transform))
