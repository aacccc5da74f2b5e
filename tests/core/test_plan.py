"""The plan: cohorts, batches and crop windows from random streams alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedbench.core.federation import padded_flip, resized_crop
from fedbench.core.plan import CropStream, Plan
from fedbench.core.worker import CHUNK, CPU_CHUNK, Piece, pieces
from fedbench.partitions.schemes import spec as partition_spec
from fedbench.partitions.transforms import apply, of_clients
from fedbench.rng import stream
from fedbench.specs import DatasetSpec, PartitionSpec
from tests.support.data_makers import pixels
from tests.support.lab import setting
from tests.support.real_images import RealImages


def plan(n_train: list[int], **changes: object) -> Plan:
    return Plan(setting(**changes), n_train, (32, 32))


sizes = st.integers(1, 60)


@given(n=sizes, batch=st.integers(1, 25), epochs=st.integers(1, 4), tail=st.sampled_from(["drop", "keep"]))
def test_every_epoch_is_a_permutation_up_to_the_tail(n: int, batch: int, epochs: int, tail: str) -> None:
    p = plan([n], batch_size=batch, tail=tail)
    batches = list(p.batches(0, 3, 1, epochs, None))
    size = min(batch, n)
    expected = [size] * (n // size) + ([n % size] if tail == "keep" and n % size else [])
    assert [len(b) for b in batches] == expected * epochs
    assert p.pass_rows(0) == sum(expected)
    for a_pass in np.split(np.concatenate(batches), epochs):
        assert len(set(a_pass.tolist())) == len(a_pass)
        assert a_pass.min() >= 0
        assert a_pass.max() < n
        if tail == "keep":
            assert sorted(a_pass) == list(range(n))


@given(n=sizes, batch=st.integers(1, 25), steps=st.integers(1, 40), tail=st.sampled_from(["drop", "keep"]))
def test_steps_are_the_beginning_of_as_many_passes_as_needed(n: int, batch: int, steps: int, tail: str) -> None:
    p = plan([n], batch_size=batch, steps=5, tail=tail)
    got = [b.tolist() for b in p.batches(0, 1, 1, None, steps)]
    passes = [b.tolist() for b in p.batches(0, 1, 1, steps, None)]
    assert len(got) == steps
    assert got == passes[:steps]


def test_passes_differ_and_so_do_rounds_phases_clients_and_seeds() -> None:
    p = plan([40, 40], batch_size=40)
    first, second = p.batches(0, 1, 1, 2, None)
    others = (p, (0, 2, 1)), (p, (0, 1, 2)), (p, (1, 1, 1)), (plan([40, 40], batch_size=40, seed=2), (0, 1, 1))
    drawn = first, second, *(next(iter(of.batches(*key, 1, None))) for of, key in others)
    assert len({tuple(x.tolist()) for x in drawn}) == 6


@given(order=st.permutations([(c, t, f) for c in range(3) for t in (1, 2) for f in (1, 2)]))
def test_the_order_of_asking_and_what_others_hold_change_nothing(order: list[tuple[int, int, int]]) -> None:
    p, others = plan([17, 9, 30]), (plan([17, 9, 30]), plan([17, 9, 30, 9]), plan([17, 50, 3]))
    asked = {key: [b.tolist() for b in p.batches(*key, 2, None)] for key in order}
    for q in others:
        same = [key for key in sorted(order) if q.n_train[key[0]] == p.n_train[key[0]]]
        assert all([b.tolist() for b in q.batches(*key, 2, None)] == asked[key] for key in same)


def test_cohorts_are_bernoulli() -> None:
    clients, rounds, q = 100, 400, 0.3
    p = plan([10] * clients, rounds=rounds, participation=q)
    took = np.zeros((rounds, clients))
    for t in range(1, rounds + 1):
        cohort = p.cohort(t)
        assert cohort == sorted(set(cohort))
        took[t - 1, cohort] = 1
    # Means within five standard errors; the spread of the cohort's size tells independent draws from a fixed size.
    assert abs(took.mean() - q) < 5 * np.sqrt(q * (1 - q) / took.size)
    assert np.abs(took.mean(0) - q).max() < 5 * np.sqrt(q * (1 - q) / rounds)
    assert took.sum(1).std() == pytest.approx(np.sqrt(clients * q * (1 - q)), rel=0.15)
    assert abs(np.corrcoef(took[:-1].ravel(), took[1:].ravel())[0, 1]) < 5 / np.sqrt(took[1:].size)


def test_the_last_round_may_take_all() -> None:
    p = plan([10] * 50, rounds=6, participation=0.1, full_last_round=True)
    assert p.cohort(6) == list(range(50))
    assert all(len(p.cohort(t)) < 50 for t in range(1, 6))
    assert len(plan([10] * 50, rounds=6, participation=0.1).cohort(6)) < 50
    assert plan([10] * 5).cohort(1) == list(range(5))


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40), height=st.integers(4, 40), width=st.integers(4, 40))
def test_windows_lie_inside_the_image(seed: int, n: int, height: int, width: int) -> None:
    windows = CropStream(np.random.default_rng(seed), (height, width)).draw(n)
    assert windows.shape == (n, 4)
    top, left, h, w = windows.T
    assert (np.minimum(top, left) >= 0).all()
    assert (np.minimum(h, w) >= 1).all()
    assert (top + h <= height).all()
    assert (left + w <= width).all()


def test_windows_are_those_of_the_paper_at_32_pixels() -> None:
    # feddrm/protocol.md#images-and-crops: crops are 28 to 32 pixels a side, the whole image in about 9 % of the draws.
    n = 40_000
    top, left, h, w = CropStream(stream(3, "crop train", 1), (32, 32)).draw(n).T
    assert (h.min(), h.max(), w.min(), w.max()) == (28, 32, 28, 32)
    whole = ((h == 32) & (w == 32)).mean()
    assert 0.085 < whole < 0.1
    area = h * w / 1024
    assert area.min() > 0.9 - 32 / 1024  # rounding of a split
    # Sides and places are symmetric, and every place that a window of 28 can take is taken.
    assert abs((h > w).mean() - (w > h).mean()) < 0.02
    for start, length in ((top, h), (left, w)):
        narrow = start[length == 28]
        share = np.bincount(narrow, minlength=5) / len(narrow)
        assert share == pytest.approx(np.full(5, 0.2), abs=5 * np.sqrt(0.16 / len(narrow)))


def test_windows_follow_torchvisions_distribution() -> None:
    torch = pytest.importorskip("torch")
    from fedbench.vision import torchvision

    torchvision()
    from torchvision.transforms import RandomResizedCrop

    n = 4000
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        image = torch.zeros(3, 32, 32)
        theirs = np.array([RandomResizedCrop.get_params(image, [0.9, 1.0], [3 / 4, 4 / 3]) for _ in range(n)])
    ours = CropStream(stream(5, "crop test", 1), (32, 32)).draw(n)
    for column in range(4):
        a, b = (np.bincount(x[:, column], minlength=33)[:33] / n for x in (ours, theirs))
        assert np.abs(a - b).max() < 5 * np.sqrt(0.5 / n)


@given(n=sizes, batch=st.integers(1, 25), steps=st.integers(1, 3), tail=st.sampled_from(["drop", "keep"]))
def test_endless_passes_go_on_from_round_to_round(n: int, batch: int, steps: int, tail: str) -> None:
    p = plan([n], batch_size=batch, steps=steps, passes="endless", tail=tail)
    a_pass = -(-p.pass_rows(0) // min(batch, n))
    rounds = -(-2 * a_pass // steps)
    batches = [b for t in range(1, rounds + 1) for b in p.batches(0, t, 1, None, steps)]
    assert len(batches) == rounds * steps
    first, second = batches[:a_pass], batches[a_pass : 2 * a_pass]
    for whole in (first, second):
        rows = np.concatenate(whole)
        assert len(rows) == p.pass_rows(0) == len(set(rows.tolist()))
    if n > 8 and min(batch, n) < n:
        assert np.concatenate(first).tolist() != np.concatenate(second).tolist()
    again = plan([n], batch_size=batch, steps=steps, passes="endless", tail=tail)  # a resumed run asks for late rounds
    late = [b.tolist() for b in again.batches(0, rounds, 1, None, steps)]
    assert late == [b.tolist() for b in batches[-steps:]]


def test_endless_passes_wait_for_clients_that_sit_out() -> None:
    changes = {"batch_size": 4, "steps": 1, "passes": "endless"}
    p = plan([12] * 6, cohort=2, partition=_clients(6), **changes)
    seen: dict[int, list[list[int]]] = {i: [] for i in range(6)}
    for t in range(1, 40):
        for i in p.cohort(t):
            seen[i].extend(b.tolist() for b in p.batches(i, t, 1, None, 1))
    alone = plan([12], **changes)
    for i, batches in seen.items():
        assert len(batches) > 6
        for start in range(0, len(batches) - 2, 3):
            assert sorted(np.concatenate(batches[start : start + 3]).tolist()) == list(range(12)), i
    assert len(list(alone.batches(0, 1, 1, None, 1))) == 1
    backwards = plan([12] * 6, cohort=2, partition=_clients(6), **changes)
    t = max(t for t in range(1, 40) if 3 in p.cohort(t))
    assert [b.tolist() for b in backwards.batches(3, t, 1, None, 1)] == seen[3][-1:]
    assert backwards.turn(3, 1) == 0


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.integers(1, 8),
    st.sampled_from(["drop", "keep"]),
    st.sampled_from([{}, {"steps": 1}, {"steps": 3}, {"steps": 1, "passes": "endless"}]),
)
def test_who_has_a_batch_of_a_single_image(n_train: list[int], size: int, tail: str, how: dict[str, object]) -> None:
    length = {"epochs": None, **how} if how else {"epochs": 1}
    made = plan(n_train, batch_size=size, tail=tail, **length)
    epochs, steps = made.setting.epochs, made.setting.steps
    rounds = range(1, 22)  # an endless pass is over by then
    sizes = [{len(one) for t in rounds for one in made.batches(i, t, 0, epochs, steps)} for i in range(len(n_train))]
    lone = [i for i, found in enumerate(sizes) if 1 in found]
    assert made.lone(size) == (lone[0] if lone else None)


def _clients(n: int) -> PartitionSpec:
    return partition_spec(DatasetSpec("digits", "test", "test"), "iid", n, 1, 0.7)


def test_a_cohort_of_fixed_size_is_uniform_without_replacement() -> None:
    p = plan([5] * 20, cohort=3, partition=_clients(20))
    cohorts = [p.cohort(t) for t in range(1, 2001)]
    assert all(len(set(c)) == 3 and c == sorted(c) for c in cohorts)
    share = np.bincount(np.concatenate(cohorts), minlength=20) / 2000
    assert abs(share - 0.15).max() < 4 * (0.15 * 0.85 / 2000) ** 0.5
    assert p.cohort(7) == cohorts[6]
    everyone = plan([5] * 20, cohort=3, partition=_clients(20), full_last_round=True, rounds=4)
    assert [len(everyone.cohort(t)) for t in (3, 4)] == [3, 20]


def test_windows_are_drawn_where_they_are_asked_for_and_padding_and_flips_for_training_only() -> None:
    crops = plan([5], augment="crop").crops
    windows = [one.draw(50).tolist() for purpose in ("train", "test") if (one := crops(purpose, 1, 0, 1))]
    assert windows[0] != windows[1]
    p = plan([9], augment="pad_flip")
    assert plan([5]).crops("train", 1, 0, 1) is p.crops("test", 1, 0, 0) is p.crops("collect", 1, 0, 0) is None
    drawn = p.crops("train", 1, 0, 1)
    places = drawn.draw(20_000)
    assert places.shape == (20_000, 4)
    for column in (0, 1):
        assert sorted(set(places[:, column])) == list(range(9))
        assert abs(np.bincount(places[:, column]) / 20_000 - 1 / 9).max() < 0.01
    assert abs(places[:, 2].mean() - 0.5) < 0.02
    assert abs(np.corrcoef(places[:, :3].T) - np.eye(3)).max() < 0.03


def off_pillow(images: np.ndarray, windows: np.ndarray) -> np.ndarray:
    ours = resized_crop(torch.from_numpy(images), torch.from_numpy(windows)).numpy()
    theirs = []
    for image, (top, left, h, w) in zip(images, windows.tolist(), strict=True):
        source = Image.fromarray(image.squeeze())
        out = source.crop((left, top, left + w, top + h)).resize(source.size, Image.Resampling.BILINEAR)
        theirs.append(np.asarray(out).reshape(image.shape))
    return np.abs(ours - np.stack(theirs))


@pytest.mark.parametrize(("height", "width", "channels"), [(32, 32, 3), (28, 28, 1), (24, 26, 3), (8, 8, 1)])
def test_same_as_pillow(height: int, width: int, channels: int) -> None:
    images = pixels(200, height, width, channels, seed=3)
    windows = CropStream(np.random.default_rng(1), (height, width)).draw(len(images))
    difference = off_pillow(images, windows)
    # To the bit on the images of CIFAR; where a size is no power of two, Pillow's fixed point may break a tie of
    # the rounding the other way.
    assert difference.max() <= (0 if (height, width) == (32, 32) else 1)
    assert (difference > 0).mean() < 0.02
    assert (windows[:, 2:] < (height, width)).any(), "no window that crops: the test would show nothing"
    rng = np.random.default_rng(0)  # ... and windows of any size
    h, w = (rng.integers(1, side + 1, 200) for side in (height, width))
    small = np.stack([rng.integers(0, height + 1 - h), rng.integers(0, width + 1 - w), h, w], axis=1)
    assert off_pillow(images, small).max() <= 1


@given(st.data(), st.integers(1, 4), st.integers(1, 7), st.integers(1, 7), st.sampled_from([1, 3]), st.integers(0, 4))
def test_padded_flip_is_numpys(data: st.DataObject, n: int, h: int, w: int, channels: int, padding: int) -> None:
    images = np.random.default_rng(n).integers(0, 256, (n, h, w, channels), dtype=np.uint8)
    offset = st.integers(0, 2 * padding)
    places = np.array([(data.draw(offset), data.draw(offset), data.draw(st.booleans()), 0) for _ in range(n)])
    got = padded_flip(torch.from_numpy(images), torch.from_numpy(places.astype(np.int64)), padding)
    assert got.dtype == torch.uint8
    for i, (top, left, flip, _) in enumerate(places):
        padded = np.pad(images[i], ((padding, padding), (padding, padding), (0, 0)))
        cut = padded[top : top + h, left : left + w]
        np.testing.assert_array_equal(got[i].numpy(), cut[:, ::-1] if flip else cut)


@pytest.mark.slow
def test_the_order_of_crop_and_colour_hardly_matters(real_images: RealImages) -> None:
    """Colours are shifted once, then cropped; FedDRM's code crops first. How far apart the pixels are."""
    images = real_images.load("cifar10").images[:200]
    windows = torch.from_numpy(CropStream(stream(1, "order"), (32, 32)).draw(len(images)))
    for shift in of_clients("high", 8):
        ours = resized_crop(torch.from_numpy(apply(images, shift)), windows).numpy()
        cropped = resized_crop(torch.from_numpy(images), windows).numpy().astype(np.uint8)
        theirs = apply(cropped, shift).astype(np.float32)
        gap = np.abs(ours - theirs)
        assert gap.mean() < 1.0, f"{shift}: {gap.mean():.2f} grey levels on average"
        assert gap.mean() > 0, "the orders do differ; if not, this test compares nothing"


@pytest.mark.parametrize("n", [0, 1, CPU_CHUNK, CPU_CHUNK + 1, CHUNK, CHUNK + 1, 3 * CHUNK - 7])
def test_pieces_are_small_and_of_like_length_and_change_no_window(n: int) -> None:
    rows = torch.arange(100, 100 + n)
    parts = pieces(rows, CropStream(stream(0, "windows"), (8, 8)))
    assert max(len(part.rows) for part in parts) <= CPU_CHUNK
    of_a_draw = [len(part.rows) for part in parts[: -(-min(n, CHUNK) // CPU_CHUNK)]]
    assert sum(of_a_draw) == min(n, CHUNK)
    assert not of_a_draw or 2 * min(of_a_draw) >= max(of_a_draw)
    whole = Piece.joined(parts)
    assert torch.equal(whole.rows, rows)
    drawn = CropStream(stream(0, "windows"), (8, 8))
    windows = [torch.from_numpy(drawn.draw(min(CHUNK, n - at))) for at in range(0, n, CHUNK)]
    assert torch.equal(whole.windows, torch.cat(windows) if windows else whole.windows[:0])
