"""Downloads against a server on this machine: whole, cut, missing, wrong, stubborn."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat
from typer.testing import CliRunner

from fedbench.cli import context
from fedbench.cli.data import data_app
from fedbench.data import fetch, load, recipe
from fedbench.errors import FedbenchError
from fedbench.store import Store
from tests.support.data_makers import pixels, recipe_text, tar
from tests.support.server import Served, Server

BIN = """
[[source]]
name = "binary"
kind = "cifar-binary"
fields = ["label"]
[[source.file]]
path = "toy/toy.tar.gz"
sha256 = "{sha256}"
urls = [{urls}]
member = [{{ path = "d/train.bin" }}]
"""


def archive(folder: Path, extra: dict[str, bytes] | None = None) -> tuple[bytes, np.ndarray]:
    """A .tar.gz of 700 records, and its pixels [700, 4, 5, 3]."""
    images = pixels(700, 4, 5, 3)
    labels = (np.arange(700, dtype=np.uint8) % 3)[:, None]
    records = np.hstack([labels, images.transpose(0, 3, 1, 2).reshape(700, -1)]).tobytes()
    path = tar(folder / "made.tar.gz", {"d/train.bin": records, **(extra or {})})
    return path.read_bytes(), images


def toy(folder: Path, data: bytes, *urls: str) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / "toy.toml"
    told = ", ".join(f'"{url}"' for url in urls)
    path.write_text(recipe_text(BIN.format(sha256=hashlib.sha256(data).hexdigest(), urls=told), (4, 5, 3)))
    return str(path)


def test_fetch_then_load(tmp_path: Path, store: Store, server: Server) -> None:
    base, served = server
    data, images = archive(tmp_path)
    served["/a"] = Served(data)
    name, seen = toy(tmp_path, data, f"{base}/a"), []
    paths = fetch(name, store, lambda *step: seen.append(step))
    assert paths == [store.home / "downloads/toy/toy.tar.gz"]
    assert seen[-1] == ("toy.tar.gz", len(data), len(data))
    np.testing.assert_array_equal(load(name, store).images, images)
    fetch(name, store)
    assert len(served["/a"].asked) == 1  # what is there and whole is left alone
    assert [p.name for p in paths[0].parent.iterdir()] == ["toy.tar.gz"]


def test_what_a_data_folder_holds_is_not_downloaded(tmp_path: Path, store: Store) -> None:
    data, _ = archive(tmp_path)
    name = toy(tmp_path / "mine", data, "http://127.0.0.1:9/nobody")
    place = tmp_path / "root/toy/toy.tar.gz"
    place.parent.mkdir(parents=True)
    place.write_bytes(data)
    assert fetch(name, store, roots=[tmp_path / "root"]) == [place]
    context.configure(store.home, str(tmp_path / "root"), False)
    result = CliRunner().invoke(data_app, ["fetch", name])
    assert (result.exit_code, result.stderr) == (0, f"{name}: at hand, nothing to download: {place}\n")
    assert not store.home.exists()
    place.write_bytes(data[:-1])
    with pytest.raises(FedbenchError, match=r"root/toy/toy\.tar\.gz is not the file that its recipe means"):
        fetch(name, store, roots=[tmp_path / "root"])


def test_a_cut_connection_is_resumed(tmp_path: Path, store: Store, server: Server) -> None:
    base, served = server
    data, _ = archive(tmp_path)
    served["/a"] = Served(data, cuts=[1000, 500])
    path = fetch(toy(tmp_path, data, f"{base}/a"), store)[0]
    assert path.read_bytes() == data
    assert served["/a"].asked == [None, "bytes=1000-", "bytes=1500-"]


def test_an_interrupted_command_goes_on(tmp_path: Path, store: Store, server: Server) -> None:
    base, served = server
    data, _ = archive(tmp_path)
    served["/a"] = Served(data)
    name = toy(tmp_path, data, f"{base}/a")

    def stop(*step: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(name, store, stop)
    part = store.home / "downloads/toy/toy.tar.gz.part"
    part.write_bytes(data[:2000])
    assert not part.with_suffix("").exists()
    assert fetch(name, store)[0].read_bytes() == data
    assert served["/a"].asked[-1] == "bytes=2000-"


def test_a_complete_part_needs_no_server(tmp_path: Path, store: Store) -> None:
    data, _ = archive(tmp_path)
    part = store.home / "downloads/toy/toy.tar.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(data)
    assert fetch(toy(tmp_path, data, "http://127.0.0.1:9/nobody"), store)[0].read_bytes() == data


def test_a_server_that_ignores_range(tmp_path: Path, store: Store, server: Server) -> None:
    base, served = server
    data, _ = archive(tmp_path)
    served["/a"] = Served(data, cuts=[1000], ranges=False)
    assert fetch(toy(tmp_path, data, f"{base}/a"), store)[0].read_bytes() == data
    assert served["/a"].asked == [None, "bytes=1000-"]


@pytest.mark.parametrize("bad", [Served(status=404), Served(status=500), Served(b"other bytes"), Served(b"")])
def test_the_next_mirror_is_used(tmp_path: Path, store: Store, server: Server, bad: Served) -> None:
    base, served = server
    data, _ = archive(tmp_path)
    served["/bad"], served["/good"] = bad, Served(data)
    assert fetch(toy(tmp_path, data, f"{base}/bad", f"{base}/good"), store)[0].read_bytes() == data
    assert len(bad.asked) == (3 if bad.status == 500 else 1)


def test_a_wrong_earlier_piece_is_thrown_away(tmp_path: Path, store: Store, server: Server) -> None:
    base, served = server
    data, _ = archive(tmp_path)
    served["/a"] = Served(data)
    part = store.home / "downloads/toy/toy.tar.gz.part"
    part.parent.mkdir(parents=True)
    for stale in (b"x" * 1000, b"x" * (len(data) + 10)):  # shorter, and longer than the file
        part.write_bytes(stale)
        path = fetch(toy(tmp_path, data, f"{base}/a"), store)[0]
        assert path.read_bytes() == data
        path.unlink()


def test_all_mirrors_fail(tmp_path: Path, store: Store, server: Server) -> None:
    base, served = server
    data, _ = archive(tmp_path)
    served["/wrong"] = Served(b"wrong")
    with pytest.raises(FedbenchError) as caught:
        fetch(toy(tmp_path, data, f"{base}/gone", f"{base}/wrong", "http://127.0.0.1:9/nobody"), store)
    text = caught.value.message
    assert f"{base}/gone: the server answers 404" in text
    assert f"{base}/wrong: checksum differs" in text
    assert "127.0.0.1:9/nobody: " in text
    assert "refused" in text
    assert "\n" not in text
    assert list((store.home / "downloads/toy").iterdir()) == []


def test_a_damaged_download_is_fetched_again(tmp_path: Path, store: Store, server: Server) -> None:
    base, served = server
    data, _ = archive(tmp_path)
    served["/a"] = Served(data)
    path = store.home / "downloads/toy/toy.tar.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(data[:-1])
    assert fetch(toy(tmp_path, data, f"{base}/a"), store)[0].read_bytes() == data


def test_an_archive_that_leads_outside_is_refused(tmp_path: Path, store: Store, server: Server) -> None:
    base, served = server
    data, _ = archive(tmp_path, {"../../evil.txt": b"evil"})
    served["/a"] = Served(data)
    name = toy(tmp_path, data, f"{base}/a")
    fetch(name, store)
    with pytest.raises(FedbenchError, match="not a safe archive"):
        load(name, store)
    assert not list(tmp_path.rglob("evil.txt"))


def test_a_truncated_archive_with_the_right_checksum(tmp_path: Path, store: Store, server: Server) -> None:
    base, served = server
    data = archive(tmp_path)[0][:-200]
    served["/a"] = Served(data)
    name = toy(tmp_path, data, f"{base}/a")
    fetch(name, store)
    with pytest.raises(FedbenchError, match="is damaged or not a readable archive"):
        load(name, store)


def test_two_processes_do_not_share_a_download(tmp_path: Path, store: Store, server: Server) -> None:
    base, served = server
    data, _ = archive(tmp_path)
    served["/a"] = Served(data)
    name = toy(tmp_path, data, f"{base}/a")
    refused: list[str] = []

    def meanwhile(*step: object) -> None:
        if not refused:
            with pytest.raises(FedbenchError, match="another process is downloading") as caught:
                fetch(name, store)
            refused.append(str(caught.value))

    assert fetch(name, store, meanwhile)[0].read_bytes() == data
    assert len(refused) == 1


def test_no_address_and_wrong_source(store: Store) -> None:
    with pytest.raises(FedbenchError, match="no address is known to download usps"):
        fetch("usps", store)
    with pytest.raises(FedbenchError, match="no address is known to download cifar10"):
        fetch("cifar10", store, source="parquet")
    with pytest.raises(FedbenchError, match="unknown source of cifar10 'binry'; did you mean 'binary'"):
        fetch("cifar10", store, source="binry")
    assert fetch("digits", store) == []


MAT = """
[[source]]
name = "mat"
kind = "mat"
[[source.file]]
path = "{name}/train.mat"
md5 = "{md5}"
urls = ["{url}"]
"""
UNION = """
[[source]]
name = "union"
kind = "union"
parts = {parts}
columns = {{ domain = "domain" }}
"""


def mats(folder: Path, base: str, served: dict[str, Served]) -> dict[str, np.ndarray]:
    """Recipes one.toml and two.toml of MATLAB files on the server; returns their images."""
    held = {name: pixels(3, 4, 5, 3, seed=i) for i, name in enumerate(("one", "two"))}
    for name, images in held.items():
        savemat(folder / f"{name}.mat", {"X": images.transpose(1, 2, 3, 0), "y": [[1], [2], [3]]})
        data = (folder / f"{name}.mat").read_bytes()
        served[f"/{name}"] = Served(data)
        body = MAT.format(name=name, md5=hashlib.md5(data).hexdigest(), url=f"{base}/{name}")
        (folder / f"{name}.toml").write_text(recipe_text(body, (4, 5, 3)))
    return held


def union(folder: Path, *parts: str) -> str:
    (folder / "all.toml").write_text(recipe_text(UNION.format(parts=list(parts)), (4, 5, 3)))
    return str(folder / "all.toml")


def test_a_union_is_fetched_part_by_part(tmp_path: Path, store: Store, server: Server) -> None:
    base, served = server
    held = mats(tmp_path, base, served)
    name = union(tmp_path, "two", "one")
    with pytest.raises(FedbenchError, match=r"all lacks its part two: .*'fedbench data fetch two'"):
        load(name, store)
    paths = fetch(name, store)
    assert paths == [store.home / f"downloads/{part}/train.mat" for part in ("two", "one")]
    got = load(name, store)
    np.testing.assert_array_equal(got.images, np.concatenate([held["two"], held["one"]]))
    assert got.labels.tolist() == [1, 2, 0] * 2  # the number of classes stands for 0
    fetch(name, store)
    assert [len(served[f"/{part}"].asked) for part in ("one", "two")] == [1, 1]


def test_a_part_without_an_address_must_be_at_hand(tmp_path: Path, store: Store, server: Server) -> None:
    mats(tmp_path, *server)
    name, root = union(tmp_path, "usps", "one"), tmp_path / "root"
    with pytest.raises(FedbenchError) as caught:
        fetch(name, store)
    assert caught.value.message == "no address is known to download usps from; the other parts of all are there"
    assert "'fedbench data show usps'" in caught.value.hint
    assert (store.home / "downloads/one/train.mat").is_file()  # what can be fetched is
    for file in recipe("usps").sources[0].file:
        (root / file.path).parent.mkdir(parents=True, exist_ok=True)
        (root / file.path).touch()
    assert fetch(name, store, roots=[root]) == [store.home / "downloads/one/train.mat"]


def test_the_sources_of_a_union_are_its_own(store: Store) -> None:
    with pytest.raises(FedbenchError, match="unknown source of digit5 'mat'"):
        fetch("digit5", store, source="mat")


def test_read_only_downloads(tmp_path: Path, store: Store, server: Server) -> None:
    base, served = server
    data, _ = archive(tmp_path)
    served["/a"] = Served(data)
    store.prepare()
    (store.home / "downloads").write_text("a file where a folder should be")
    with pytest.raises(FedbenchError, match="downloading toy"):
        fetch(toy(tmp_path, data, f"{base}/a"), store)


def test_large_sets_have_two_mirrors() -> None:
    for name in ("mnist", "fashion_mnist", "cifar10", "cifar100"):
        for file in recipe(name).sources[0].file:
            assert len(set(file.urls)) == 2, file.path
            assert all(url.endswith(Path(file.path).name) for url in file.urls)
