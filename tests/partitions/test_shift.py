"""Covariate shifts against the protocol's check vectors, torchvision, Pillow and a plain per-pixel re-telling; which
client sees its images under which corruption."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from fedbench.errors import FedbenchError
from fedbench.partitions.artifact import numbered as groups
from fedbench.partitions.transforms import CORRUPTIONS, SHIFTS, Transform, apply, of_clients
from fedbench.partitions.transforms.corruption import corrupt

ALL = [*of_clients("low", 8), *of_clients("mid", 8), *of_clients("high", 8), *of_clients("pool", 54)]


def noise(n: int = 3, seed: int = 0, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 9, 7, channels), dtype=np.uint8)


def test_check_vectors() -> None:
    pixel = np.array([[[[200, 100, 50]]]], np.uint8)
    main = of_clients("high", 8)
    assert apply(pixel, main[0]).ravel().tolist() == [194, 134, 150]
    assert apply(pixel, main[7]).ravel().tolist() == [232, 206, 3]


def test_main_setting_is_laid_out_by_bits() -> None:
    main = of_clients("high", 8)
    assert [s.gamma for s in main] == [0.6, 1.4] * 4
    assert [s.hue for s in main] == [-0.1, -0.1, 0.1, 0.1] * 2
    assert [s.saturation for s in main] == [0.5] * 4 + [1.5] * 4


@pytest.mark.parametrize(
    ("level", "low", "high"),
    [
        ("low", Transform(0.9, -0.01, 0.9), Transform(1.1, 0.01, 1.1)),
        ("mid", Transform(0.75, -0.05, 0.7), Transform(1.25, 0.05, 1.3)),
    ],
)
def test_milder_levels(level: str, low: Transform, high: Transform) -> None:
    assert of_clients(level, 8)[0] == low
    assert of_clients(level, 8)[7] == high
    assert len(set(of_clients(level, 8))) == 8


def test_pool() -> None:
    pool = of_clients("pool", 54)
    assert len(set(pool)) == 54
    assert {s.saturation for s in pool[:8]} == {0.4}
    assert {s.saturation for s in pool[:16]} == {0.4, 1.0}
    assert {s.saturation for s in pool[:24]} == {0.4, 1.0, 1.6}
    assert [c for c in range(32) if pool[c].posterize] == [27, 28, 29, 30, 31]
    assert pool[5] == Transform(gamma=1.4, hue=0.0, saturation=0.4)
    assert pool[53] == Transform(gamma=1.4, hue=0.15, saturation=1.6, posterize=2)


COLOURS = [level for level in SHIFTS if not level.startswith("corrupted")]


@given(level=st.sampled_from(COLOURS), clients=st.integers(1, 54))
def test_every_client_has_a_shift_and_a_group(level: str, clients: int) -> None:
    of = of_clients(level, clients)
    kinds = {"none": 1, "pool": 54}.get(level, 8)
    assert len(of) == clients
    assert groups(of) == [c % kinds for c in range(clients)]
    assert len({*of}) == min(clients, kinds)


def test_too_many_for_the_pool_and_unknown_levels() -> None:
    with pytest.raises(FedbenchError, match="54 shifts, too few for 55 clients"):
        of_clients("pool", 55)
    with pytest.raises(FedbenchError, match="did you mean 'high'"):
        of_clients("hihg", 8)


def plain(pixel: tuple[int, int, int], shift: Transform) -> tuple[int, ...]:
    """One pixel by the formulas of section 5.2, rounded to 8 bits after every step as Pillow rounds."""
    r, g, b = pixel
    if shift.saturation is not None:
        grey = (19595 * r + 38470 * g + 7471 * b + 0x8000) >> 16  # ITU-R 601 luma in 16-bit fixed point
        r, g, b = (int(min(max(grey + np.float32(shift.saturation) * (v - grey), 0), 255)) for v in (r, g, b))
    if shift.hue is not None:
        h, s, v = hsv(r, g, b)
        r, g, b = rgb((h + math.trunc(255 * shift.hue)) % 256, s, v)
    values = [r, g, b]
    if shift.gamma is not None:
        values = [math.floor(255.999 * (v / 255) ** shift.gamma) for v in values]
    if shift.posterize is not None:
        values = [v - v % 2 ** (8 - shift.posterize) for v in values]
    return tuple(values)


def hsv(r: int, g: int, b: int) -> tuple[int, int, int]:
    top, low = max(r, g, b), min(r, g, b)
    if top == low:
        return 0, 0, top
    rc, gc, bc = ((top - v) / (top - low) for v in (r, g, b))
    h = bc - gc if r == top else 2 + rc - bc if g == top else 4 + gc - rc
    return int(h / 6 % 1 * 255), int(255 * (top - low) / top), top


def rgb(h: int, s: int, v: int) -> tuple[int, int, int]:
    if s == 0:
        return v, v, v
    sector, f = divmod(h * 6 / 255, 1)
    p, q, t = (round(v * (1 - s / 255 * x)) for x in (1, f, 1 - f))
    return [(v, t, p), (q, v, p), (p, v, t), (p, q, v), (t, p, v), (v, p, q)][int(sector) % 6]


@pytest.mark.parametrize("shift", ALL, ids=str)
def test_against_the_formulas(shift: Transform) -> None:
    images = noise(8, seed=1)
    seen = apply(images, shift).astype(int)
    told = np.array([plain(tuple(map(int, p)), shift) for p in images.reshape(-1, 3)]).reshape(images.shape)
    # Pillow computes in single precision: a value that falls on a rounding edge may take the other side.
    differing = np.any(seen != told, axis=-1).mean()
    assert differing < 0.02


@pytest.mark.parametrize("shift", ALL, ids=str)
def test_against_torchvision(shift: Transform) -> None:
    pytest.importorskip("fedbench.vision").torchvision()  # makes it importable beside any build of torch
    from torchvision.transforms import functional as F

    for image in noise(4, seed=2):
        picture = Image.fromarray(image)
        picture = F.adjust_saturation(picture, shift.saturation)
        picture = F.adjust_hue(picture, shift.hue)
        picture = F.adjust_gamma(picture, shift.gamma)
        if shift.posterize is not None:
            picture = F.posterize(picture, shift.posterize)
        assert np.array_equal(apply(image[None], shift)[0], np.asarray(picture))


@settings(deadline=None, max_examples=40)
@given(bits=st.integers(1, 8), seed=st.integers(0, 99))
def test_posterize_against_pillow(bits: int, seed: int) -> None:
    images = noise(2, seed)
    told = [np.asarray(ImageOps.posterize(Image.fromarray(image), bits)) for image in images]
    assert np.array_equal(apply(images, Transform(posterize=bits)), told)


def test_neutral_steps() -> None:
    images = noise()
    for neutral in (Transform(), Transform(gamma=1.0), Transform(saturation=1.0), Transform(posterize=8)):
        seen = apply(images, neutral)
        assert np.array_equal(seen, images)
        assert not np.shares_memory(seen, images)
    moved = np.abs(apply(images, Transform(hue=0.0)).astype(int) - images)
    assert 0 < moved.max() <= 8  # the way to 8-bit HSV and back is not quite the identity


def test_grey_images_take_gamma_and_posterize_only() -> None:
    images = noise(channels=1)
    shift = of_clients("pool", 54)[53]
    seen = apply(images, shift)
    assert np.array_equal(seen, apply(images, shift.on_grey()))
    assert shift.on_grey() == Transform(gamma=1.4, posterize=2)
    assert set(np.unique(seen)) == {0, 64, 128, 192}
    told = [plain((int(v),) * 3, shift.on_grey())[0] for v in images.ravel()]
    assert seen.ravel().tolist() == told


def test_images_do_not_depend_on_their_neighbours() -> None:
    # More than two blocks: each image must come out as it does alone.
    images = np.random.default_rng(3).integers(0, 256, (4200, 4, 4, 3), dtype=np.uint8)
    shift = of_clients("high", 8)[4]
    seen = apply(images, shift)
    for i in (0, 2047, 2048, 4199):
        assert np.array_equal(seen[i], apply(images[i : i + 1], shift)[0])


def test_views_and_empty_stacks() -> None:
    images = noise()
    shift = of_clients("high", 8)[2]
    assert np.array_equal(apply(images[::2, :, ::-1], shift), apply(images, shift)[::2, :, ::-1])
    assert apply(images[:0], shift).shape == (0, 9, 7, 3)


@pytest.mark.parametrize(
    "bad", [np.zeros((2, 4, 4, 3)), np.zeros((2, 4, 4, 4), np.uint8), np.zeros((4, 4, 3), np.uint8)]
)
def test_other_arrays_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(FedbenchError, match="uint8 images"):
        apply(bad, Transform(gamma=0.5))


@pytest.mark.parametrize("fields", [{"gamma": 0.0}, {"hue": 0.6}, {"saturation": -1.0}, {"posterize": 9}])
def test_shifts_out_of_range_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(FedbenchError, match=next(iter(fields))):
        Transform(**fields)


def test_the_papers_rule_of_corruptions() -> None:
    of = of_clients("corrupted", 100)
    pairs = [(s.corruption, s.severity) for s in of[:50]]
    assert len(set(pairs)) == 50
    assert pairs[:2] == [("motion_blur", 1), ("defocus_blur", 1)]
    assert pairs[10:12] == [("motion_blur", 2), ("defocus_blur", 2)]
    assert pairs[49] == ("contrast", 5)
    assert of[50:] == [Transform()] * 50
    assert groups(of) == [*range(50), *[50] * 50]


def test_the_official_codes_rule_of_corruptions() -> None:
    of = of_clients("corrupted_code", 100)
    ten = [
        "motion_blur 1", "defocus_blur 2", "gaussian_noise 3", "shot_noise 4", "impulse_noise 5",
        "frost 1", "fog 2", "jpeg 3", "brightness 4", "contrast 5",
    ]  # fmt: skip
    assert [str(s) for s in of] == ten * 5 + ["none"] * 50
    assert groups(of) == [*range(10)] * 5 + [10] * 50


@given(level=st.sampled_from(["corrupted", "corrupted_code"]), clients=st.integers(1, 300))
def test_the_first_half_of_the_clients_is_corrupted(level: str, clients: int) -> None:
    of = of_clients(level, clients)
    assert [s.corruption is not None for s in of] == [c < clients // 2 for c in range(clients)]
    pairs = 50 if level == "corrupted" else 10
    assert len({s for s in of if s.corruption}) == min(clients // 2, pairs)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_corrupted_client_sees_the_corruption(name: str, channels: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 16, 12, channels), dtype=np.uint8)
    before = images.copy()
    shift = Transform(corruption=name, severity=2)
    seen = apply(images, shift, key=4)
    assert np.array_equal(images, before)
    assert seen.shape == images.shape
    assert not np.array_equal(seen, images)
    assert np.array_equal(apply(images, shift, key=4), seen)
    assert np.array_equal(apply(images[:2], shift, key=4), seen[:2])
    drawn = not np.array_equal(apply(images, shift, key=5), seen)
    assert drawn == (name not in ("defocus_blur", "jpeg", "brightness", "contrast"))
    if not drawn:
        assert np.array_equal(corrupt(images, name, 2, np.random.default_rng()), seen)
    assert shift.on_grey() == shift


def test_streams_of_corruptions_differ_by_severity() -> None:
    grey = np.full((1, 32, 32, 1), 128, np.uint8)
    mild, strong = (apply(grey, Transform(corruption="gaussian_noise", severity=s)) - 128.0 for s in (1, 5))
    assert abs(np.corrcoef(mild.ravel(), strong.ravel())[0, 1]) < 0.2


def test_the_same_noise_for_ever() -> None:
    # Stored runs rest on it: the streams behind a name, a severity and a key must not change with the code.
    grey = np.full((1, 8, 8, 1), 128, np.uint8)
    seen = apply(grey, Transform(corruption="gaussian_noise", severity=5), key=7).ravel()[:6]
    assert seen.tolist() == [128, 154, 95, 130, 154, 117]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"corruption": "fogg", "severity": 1}, "did you mean 'fog'"),
        ({"corruption": "fog", "severity": 6}, "1 to 5, not 6"),
        ({"corruption": "fog"}, "fog has no severity"),
        ({"severity": 2}, "severity 2 of which corruption"),
    ],
)
def test_malformed_corruptions_are_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(FedbenchError, match=said):
        Transform(**fields)


def test_transforms_compose() -> None:
    """Steps of colour come before the corruption; of two that have the same step the latter's holds."""
    images = np.random.default_rng(3).integers(0, 256, (5, 12, 12, 3), np.uint8)
    colour, fog = Transform(gamma=0.6, posterize=3), Transform(corruption="fog", severity=2)
    assert np.array_equal(apply(images, colour | fog, key=7), apply(apply(images, colour), fog, key=7))
    assert fog | Transform(corruption="jpeg", severity=1) == Transform(corruption="jpeg", severity=1)
    assert colour | Transform() == Transform() | colour == colour
