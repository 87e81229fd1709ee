"""No path leads out of the root: not by its text, not by a link, not by a column of files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from unlearning.rows import Rows, folder, open_public, open_rows, public, table
from unlearning.rows._paths import open_file
from unlearning.types import RecipeError

CSV = "who,x\n7,1\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "t.csv").write_text(CSV)
    (tmp_path / "root" / "data").mkdir(parents=True)
    (tmp_path / "root" / "data" / "t.csv").write_text(CSV)
    return tmp_path / "root"


def read(root: Path, path: str) -> Rows:
    return open_rows(table(path, person="who"), root)


def test_a_file_beneath_the_root_is_read(root: Path) -> None:
    assert len(read(root, "data/t.csv")) == 1


def test_the_root_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    assert len(read(tmp_path / "link", "data/t.csv")) == 1


@pytest.mark.parametrize("target", ["../outside/t.csv", "data/t.csv"], ids=["out", "within"])
def test_a_link_is_refused_wherever_it_leads(root: Path, target: str) -> None:
    (root / "link.csv").symlink_to(target)
    with pytest.raises(RecipeError, match=r"'link.csv' passes through a symbolic link.*Put the file itself"):
        read(root, "link.csv")


def test_a_link_on_the_way_is_refused(root: Path) -> None:
    (root / "data" / "deep").symlink_to(root.parent / "outside")
    with pytest.raises(RecipeError, match=r"'data/deep/t.csv' passes through a symbolic link"):
        read(root, "data/deep/t.csv")


def test_what_is_not_there_is_named(root: Path) -> None:
    with pytest.raises(RecipeError, match=r"There is no file 'data/u.csv'. Paths begin at the recipe's folder."):
        read(root, "data/u.csv")
    with pytest.raises(RecipeError, match="passes through a symbolic link or a file"):
        read(root, "data/t.csv/u.csv")


def test_only_plain_files_are_read(root: Path) -> None:
    os.mkfifo(root / "pipe.csv")  # would wait for its writer for ever
    (root / "folder.csv").mkdir()
    for name in ("pipe.csv", "folder.csv"):
        with pytest.raises(RecipeError, match=f"'{name}' is no plain file"):
            read(root, name)


def test_no_descriptor_stays_open(root: Path) -> None:
    before = len([*Path("/proc/self/fd").iterdir()])
    open_file(root, "data/t.csv").close()
    (root / "link.csv").symlink_to("data/t.csv")
    for path in ("link.csv", "data/none.csv", "none/t.csv", "data"):
        with pytest.raises(RecipeError):
            open_file(root, path)
    assert len([*Path("/proc/self/fd").iterdir()]) == before


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "link.png", "deep/a.png", ""])
def test_the_column_of_files_leads_nowhere_else(root: Path, name: str) -> None:
    (root / "secret.png").write_text("secret")
    (root / "scans").mkdir()
    (root / "scans" / "link.png").symlink_to("../secret.png")
    (root / "scans" / "deep").symlink_to("..")
    (root / "a.png").write_text("a")
    (root / "index.csv").write_text(f"who,file\n7,{name}\n")
    with pytest.raises(RecipeError, match=r"beneath|symbolic link|names no file"):
        open_rows(folder("scans", index="index.csv", file="file", person="who"), root)


def test_the_files_of_who_left_are_not_looked_for(root: Path) -> None:
    (root / "scans").mkdir()
    (root / "scans" / "a.png").write_text("a")
    (root / "index.csv").write_text("who,file\n7,a.png\n8,gone.png\n")
    source = folder("scans", index="index.csv", file="file", person="who")
    rows = open_rows(source, root, without=frozenset({"8"}))
    assert rows["file"].tolist() == [str(root / "scans" / "a.png")]
    with pytest.raises(RecipeError, match=r"no file 'scans/gone.png'"):
        open_rows(source, root)


def test_a_public_file_has_the_declared_digest(root: Path) -> None:
    digest = hashlib.sha256(CSV.encode()).hexdigest()
    assert open_public(public("data/t.csv", digest), root) == root / "data" / "t.csv"
    with pytest.raises(RecipeError, match=f"has the digest {digest}, and the recipe says {'0' * 64}.*vouch"):
        open_public(public("data/t.csv", "0" * 64), root)
    (root / "link").symlink_to("data")
    with pytest.raises(RecipeError, match="symbolic link"):
        open_public(public("link/t.csv", digest), root)
