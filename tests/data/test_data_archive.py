"""Archives: hostile and damaged ones are refused, and nothing is ever written."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from fedbench.data.archive import open_tree
from fedbench.errors import FedbenchError
from tests.support.data_makers import pixels, tar, zipped


@pytest.mark.parametrize("name", ["../evil.txt", "a/../../evil.txt", "/tmp/evil.txt", "..\\evil.txt", "C:/evil.txt"])
@pytest.mark.parametrize("make", [tar, zipped])
def test_paths_that_lead_outside(tmp_path: Path, name: str, make: object) -> None:
    path = make(tmp_path / "a.archive", {"good.txt": b"1", name: b"evil"})  # type: ignore[operator]
    before = sorted(tmp_path.parent.rglob("*"))
    with pytest.raises(FedbenchError, match=r"not a safe archive.*leads outside"), open_tree(path):
        pass
    assert sorted(tmp_path.parent.rglob("*")) == before


def test_links(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar.gz", {}, links={"label.bin": "/etc/passwd"})
    with pytest.raises(FedbenchError, match=r"'label.bin' is a link"), open_tree(path):
        pass
    info = zipfile.ZipInfo("label.bin")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(FedbenchError, match=r"'label.bin' is a link"), open_tree(tmp_path / "a.zip"):
        pass


@pytest.mark.parametrize(("make", "name"), [(tar, "a.tar.gz"), (zipped, "a.zip")])
def test_only_what_is_wanted_is_seen(tmp_path: Path, make: object, name: str) -> None:
    path = make(tmp_path / name, {"b/2": b"two", "a/1": b"one", "c": b"three"})  # type: ignore[operator]
    with open_tree(path, lambda n: n != "c") as tree:
        assert tree.names == ("a/1", "b/2")
        assert tree.read("b/2") == b"two"
        with pytest.raises(FedbenchError, match="has no file nothing"):
            tree.read("nothing")


@pytest.mark.parametrize("cut", [5, 60, 200])
def test_a_truncated_tar(tmp_path: Path, cut: int) -> None:
    path = tar(tmp_path / "a.tar.gz", {"a": pixels(200).tobytes()})
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(FedbenchError, match=r"a\.tar\.gz is damaged"), open_tree(path):
        pass


def test_a_damaged_zip_member(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"a": b"x" * 100})
    path.write_bytes(path.read_bytes().replace(b"x" * 100, b"x" * 99 + b"y"))
    with open_tree(path) as tree, pytest.raises(FedbenchError, match=r"a\.zip is damaged"):
        tree.read("a")


def test_neither_folder_nor_archive(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(b"<html>404</html>")
    with pytest.raises(FedbenchError, match="not a readable archive"), open_tree(path):
        pass


def test_the_readers_own_errors_pass_through(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"a": b"1"})
    with pytest.raises(OSError, match="not the archive's"), open_tree(path):
        raise OSError("not the archive's")
